"""docker-compose.yml and the image: what may run, with which rights, and how it is watched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from service.errors import ForeignSite
from service.factory import hosts_of
from service.settings import PREFIX, Settings
from tests.programs import ROOT, compose, output_of

DOCKERFILE = (ROOT / "service" / "Dockerfile").read_text("utf-8")
SERVICES = ("rulserve", "rulserve-gpu", "prometheus", "alertmanager", "grafana")


class Ready(BaseHTTPRequestHandler):
    """Answers 200."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services as docker compose understands them."""
    profiles = ("--profile", "gpu", "--profile", "alerting")
    return json.loads(output_of(*compose(), *profiles, "config", "--format", "json"))["services"]


@pytest.mark.system
def test_compose_runs_service_prometheus_and_grafana_and_the_others_only_when_asked():
    services = output_of(*compose(), "config", "--services").split()

    assert sorted(services) == ["grafana", "prometheus", "rulserve"]


@pytest.mark.system
@pytest.mark.parametrize("name", SERVICES)
def test_a_container_is_watched_restarted_and_has_no_rights_to_spare(name, services):
    service = services[name]

    assert service["healthcheck"]["test"]
    assert service["restart"] == "unless-stopped"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.system
def test_images_that_are_not_built_here_are_pinned_to_a_release(services):
    images = [service["image"] for service in services.values() if "build" not in service]

    assert len(images) == 3
    assert all(re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", image) for image in images)


@pytest.mark.system
def test_the_gpu_service_asks_for_a_gpu_and_refuses_to_run_without(services):
    devices = services["rulserve-gpu"]["deploy"]["resources"]["reservations"]["devices"]

    assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
    assert services["rulserve-gpu"]["environment"]["RUL_PROVIDER"] == "cuda"
    assert "deploy" not in services["rulserve"]


@pytest.mark.system
def test_no_two_services_publish_the_same_port(services):
    published = [port["published"] for service in services.values() for port in service["ports"]]

    assert len(set(published)) == len(published) == len(SERVICES)


@pytest.mark.system
def test_a_port_is_open_only_to_this_machine_by_default(services):
    addresses = {port["host_ip"] for service in services.values() for port in service["ports"]}

    assert addresses == {"127.0.0.1"}


@pytest.mark.system
@pytest.mark.parametrize("name", ["rulserve", "rulserve-gpu"])
def test_a_service_without_keys_answers_under_its_names_and_refuses_a_foreign_one(services, name):
    given = services[name]["environment"]
    settings = Settings(host=given["RUL_HOST"], allowed_hosts=given.get("RUL_ALLOWED_HOSTS", ""))
    hosts = hosts_of(settings)

    assert hosts is not None
    for host in ("localhost", "172.18.0.2", name):  # browser, Prometheus, peers
        hosts.check({b"host": f"{host}:3000".encode()})
    with pytest.raises(ForeignSite):
        hosts.check({b"host": b"evil.example:3000", b"origin": b"http://evil.example:3000"})


@pytest.mark.system
@pytest.mark.parametrize(("given", "expected"), [("", r"[\w+/]{32}"), ("chosen", "chosen")])
def test_the_password_of_grafana_is_the_given_one_or_random(services, given, expected):
    shell, option, script = services["grafana"]["entrypoint"]
    script = script.replace("$$", "$").replace("exec /run.sh", 'echo "$GF_SECURITY_ADMIN_PASSWORD"')

    environment = {"GF_SECURITY_ADMIN_PASSWORD": given, "PATH": os.environ["PATH"]}
    shown = subprocess.check_output([shell, option, script], env=environment, text=True)

    assert services["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"] == ""
    assert re.fullmatch(expected, shown.strip())


@pytest.mark.system
def test_passwords_of_other_containers_are_not_given_to_the_service(tmp_path):
    secrets = {"GRAFANA_PASSWORD": "s1", "ALERT_SMTP_PASSWORD": "s2", "ALERT_WEBHOOK_URL": "https://s3"}
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in secrets.items()), "utf-8")
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)

    arguments = ("--profile", "*", "config", "--format", "json")
    given = json.loads(output_of(*compose(), *arguments, cwd=tmp_path))["services"]
    seen = {name: {*service.get("environment", {}).values()} for name, service in given.items()}

    assert {"s1"} <= seen["grafana"]
    assert {"s2", "https://s3"} <= seen["alertmanager"]
    assert not {*secrets.values()} & (seen["rulserve"] | seen["rulserve-gpu"])


@pytest.mark.system
def test_every_file_that_a_container_mounts_is_here(services):
    mounts = [mount for service in services.values() for mount in service.get("volumes", [])]
    sources = [ROOT / mount["source"] for mount in mounts if mount["type"] == "bind"]

    assert sources
    assert all(source.exists() for source in sources)


@pytest.mark.system
@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_stored_data_outlives_the_container(services, target):
    stage = DOCKERFILE.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
    service = services["rulserve" if target == "cpu" else "rulserve-gpu"]

    (volume,) = [one for one in service["volumes"] if one["type"] == "volume"]
    assert all(one["read_only"] for one in service["volumes"] if one is not volume)
    # A volume that is new takes the folder's owner from the image.
    assert f"RUN install -d -o 10001 -g 10001 {volume['target']}\n" in stage
    assert f"XDG_STATE_HOME={Path(volume['target']).parent} " in stage


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_an_image_runs_as_a_user_without_rights_and_says_whether_it_is_well(target):
    stage = DOCKERFILE.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]

    assert re.search(r"^USER 10001:10001$", stage, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK (.|\n)*/readyz", stage, re.MULTILINE)
    assert 'ENTRYPOINT ["rul"]' in stage


IMAGE_CHECKS = map(json.loads, re.findall(r"^HEALTHCHECK .*\\\n +CMD (.+)$", DOCKERFILE, re.MULTILINE))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
COMPOSE_CHECK = COMPOSE["services"]["rulserve"]["healthcheck"]["test"][1:]


@pytest.mark.parametrize("check", [*IMAGE_CHECKS, COMPOSE_CHECK], ids=["cpu", "gpu", "compose"])
def test_a_health_check_asks_no_proxy(check):
    proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": ""}  # nothing listens there

    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as server:
        Thread(target=server.serve_forever).start()
        command = [part.replace("3000", str(server.server_port)) for part in check]
        done = subprocess.run(command, env=os.environ | proxy, capture_output=True, text=True, check=False)
        server.shutdown()

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_an_image_installs_locked_packages_and_checks_their_hashes(target):
    stage = DOCKERFILE.partition(f" AS {target}-environment\n")[2].partition("\nFROM ")[0]

    assert f"COPY requirements/serve-{target}.txt /requirements.txt\n" in stage
    assert "pip install --require-hashes --requirement /requirements.txt\n" in stage
    assert "pip install --no-deps /wheels/rulserve-*.whl" in stage


def test_everything_that_the_image_is_made_of_is_here_and_let_in():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    let_in = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.MULTILINE)
    names = [name for line in copied for name in line.split()]

    assert set(names) == set(let_in)
    assert all((ROOT / name).exists() for name in names)


@pytest.mark.parametrize(
    "path",
    [
        ROOT / "docker-compose.yml",
        ROOT / "service" / "Dockerfile",
        ROOT / "docs" / "runbook.md",
        ROOT / "deploy" / "systemd" / "rulserve.service",
        *sorted((ROOT / "observability" / "grafana" / "dashboards").glob("*.json")),
    ],
    ids=lambda path: path.name,
)
def test_every_setting_that_is_named_exists(path):
    named = set(re.findall(rf"\b{PREFIX}[A-Z_]*[A-Z]\b", path.read_text("utf-8")))
    known = {f"{PREFIX}{field}".upper() for field in Settings.model_fields}

    assert named or path.name == "rul-fleet.json"  # all but this page name some
    assert named <= known
