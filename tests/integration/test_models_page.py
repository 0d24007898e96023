"""docs/models.md is true: its commands change a real service of two workers, and all of it or none."""

import json
import re
import shutil

import pytest

from export.bundle import find_bundle
from export.seal import read_bundle
from tests.asking import golden_windows
from tests.hostile.swaps import KEY, Swaps, faults
from tests.integration.conftest import rul, running, workers_of
from tests.key_files import key_file
from tests.other_bundles import renamed
from tests.programs import ROOT, bash_blocks, pasted
from tests.waiting import wait_until

COMMANDS, REQUESTS = bash_blocks(ROOT / "docs" / "models.md")


@pytest.fixture(scope="module")
def newer_folder(tmp_path_factory):
    return renamed(tmp_path_factory.mktemp("bundles") / "fd001-v2", "fd003", name="fd001", version="2")


@pytest.fixture(scope="module")
def newer(newer_folder):
    return newer_folder.path


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A service with the shipped bundle, until the commands of the page swap it for the newer one."""
    folder = tmp_path_factory.mktemp("models")
    options = {"workers": "2", "keys_file": str(key_file(folder, KEY)), "store": "false"}
    with running(folder, "fd001", log_format="json", **options) as started:
        wait_until(lambda: "rul_workers 2.0" in get(started, "/metrics").text, 60, what="both workers")
        yield started


def get(service, path):
    return service.ask("GET", path, key=KEY)


def versions(service, window=0):
    """The version that answers, of many connections: both workers are asked."""
    window = golden_windows(read_bundle(find_bundle("fd001")).golden)[window].json()
    found = set()
    for _ in range(24):
        answer = service.predict(window, model="fd001", explain="none", key=KEY)
        assert answer.status_code == 200, answer.text
        found.add(answer.json()["model"]["version"])
    return found


def typed(text, service, newer):
    """What commands of the page print, asked of this service about this bundle."""
    text = text.replace("/bundles/fd001-v2", str(newer)).replace("http://localhost:3000", service.http)
    text = re.sub(r"^(rul models \w+.*)$", rf"\1 --url {service.http}", text, flags=re.MULTILINE)
    return pasted(text, newer.parent, RUL_API_KEY=KEY)


def kill_a_worker(service):
    """Kill one, and wait for the worker that takes its place."""
    victim = workers_of(service)[0]
    victim.kill()
    wait_until(lambda: not victim.is_running(), 60, what="the end of the worker")
    wait_until(lambda: "rul_workers 2.0" in get(service, "/metrics").text, 60, what="the new worker")


def test_a_canary_answers_in_every_worker_survives_a_restart_and_goes_back_from_all(service, newer):
    (old,) = versions(service)

    def shown():
        models = [get(service, "/v1/models").json()["models"][0] for _ in range(12)]
        return {model["candidate"]["returned"] for model in models}

    canary = "rul models canary fd001 /bundles/fd001-v2 --share 1 --novel 1"
    typed(f"{canary} --difference 1000", service, newer)
    during = versions(service)
    kill_a_worker(service)
    restarted = versions(service)
    typed(f"{canary} --difference 0.01 --windows 1", service, newer)
    wait_until(lambda: versions(service, window=1) == {old}, 30, what="the return of all requests")

    assert (during, restarted) == ({"2"}, {"2"})
    assert versions(service) == {old}
    (reason,) = shown()
    assert "cycles on average, bound 0.01" in reason
    counted = 'rul_canary_returned_total{model="fd001"} 1.0'
    wait_until(lambda: counted in get(service, "/metrics").text, 30, what="the count of one return")


def test_a_bad_candidate_is_refused_by_all_workers(service, newer, tmp_path):
    bad = tmp_path / "bad"
    shutil.copytree(newer, bad)
    (bad / "golden.npz").write_bytes(b"damaged")
    before = versions(service)

    refused = rul("models", "swap", "fd001", bad, "--url", service.http, RUL_API_KEY=KEY)

    assert refused.returncode == 1
    assert "golden.npz" in refused.stderr
    assert versions(service) == before
    assert "2" not in before


def test_the_commands_of_the_page_change_every_worker_and_one_that_restarts(service, newer):
    said = typed(COMMANDS, service, newer)

    assert re.findall(r"^(\w+): (\w+) ", said, re.MULTILINE) == [
        ("load", "fd002"), ("shadow", "fd001"), ("unshadow", "fd001"),
        ("canary", "fd001"), ("uncanary", "fd001"), ("swap", "fd001"), ("unload", "fd002")
    ]  # fmt: skip
    assert versions(service) == {"2"}
    (old,) = {found["version"] for found in get(service, "/v1/models").json()["models"]}
    assert old == "2"
    kill_a_worker(service)
    assert versions(service) == {"2"}
    by_http = typed(REQUESTS, service, newer).replace("}{", "}\n{").splitlines()
    assert [json.loads(line)["action"] for line in by_http] == ["load", "swap", "unload"]


def test_swaps_under_load_fail_no_request_and_mix_no_answer(service, newer_folder):
    found = Swaps(service, (newer_folder, find_bundle("fd001"))).run(swaps=2)

    assert found["answers"].total() > 0
    assert [fault for fault in faults(found) if "memory" not in fault] == []  # two swaps say nothing of it
