"""Who is told of an alert: the configuration that Alertmanager gets, with and without an environment."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.observability import FOLDER, alerts
from tests.programs import compose, output_of, program

CONFIGURED = FOLDER / "alertmanager" / "alertmanager.yml"
START = FOLDER / "alertmanager" / "start"
NOTHING: dict[str, str] = {}
EVERYTHING = {
    "ALERT_RECEIVER": "both",
    "ALERT_WEBHOOK_URL": "https://hooks.example/rul?a=1&b=2",
    "ALERT_EMAIL_TO": "night@plant.example, day@plant.example",
    "ALERT_EMAIL_FROM": "rulserve@plant.example",
    "ALERT_SMTP_HOST": "mail.plant.example:587",
    "ALERT_SMTP_USER": "rulserve",
    "ALERT_SMTP_PASSWORD": "a$(id)`id`$HOME #: ",
    "ALERT_SMTP_TLS": "false",
    "ALERT_REPEAT": "4h",
}


def filled_in(folder: Path, environment: dict[str, str]) -> Path:
    """The configuration as the container makes it."""
    file = folder / "filled-in.yml"
    subprocess.run(
        ["sh", START, CONFIGURED, file, "true"], env={"PATH": "/usr/bin:/bin", **environment}, check=True
    )
    return file


def read(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    return yaml.safe_load(filled_in(folder, environment).read_text("utf-8"))


@pytest.mark.system
@pytest.mark.parametrize("environment", [NOTHING, EVERYTHING], ids=["nothing set", "everything set"])
def test_amtool_accepts_the_configuration(environment, tmp_path):
    output_of(program("amtool"), "check-config", filled_in(tmp_path, environment))


@pytest.mark.system
@pytest.mark.parametrize("severity", ["critical", "warning"])
@pytest.mark.parametrize(("environment", "receiver"), [(NOTHING, "none"), (EVERYTHING, "both")])
def test_an_alert_goes_to_whom_the_environment_names(environment, receiver, severity, tmp_path):
    file = filled_in(tmp_path, environment)

    told = output_of(
        program("amtool"), "config", "routes", "test", f"--config.file={file}", f"severity={severity}"
    )

    assert told.split() == [receiver]


def test_the_value_of_a_variable_is_used_unchanged(tmp_path):
    both = next(one for one in read(tmp_path, EVERYTHING)["receivers"] if one["name"] == "both")

    assert both["webhook_configs"][0]["url"] == EVERYTHING["ALERT_WEBHOOK_URL"]
    assert both["email_configs"][0]["auth_password"] == EVERYTHING["ALERT_SMTP_PASSWORD"]
    assert both["email_configs"][0]["require_tls"] is False


def test_only_its_owner_reads_the_file_with_the_password(tmp_path):
    assert filled_in(tmp_path, EVERYTHING).stat().st_mode & 0o077 == 0


def test_critical_alerts_are_repeated_more_often_than_warnings(tmp_path):
    route = read(tmp_path, NOTHING)["route"]

    assert route["routes"][0]["matchers"] == ['severity = "critical"']
    assert (route["routes"][0]["repeat_interval"], route["repeat_interval"]) == ("1h", "12h")


def test_only_alerts_that_exist_silence_one_another(tmp_path):
    rules = read(tmp_path, NOTHING)["inhibit_rules"]
    named = {
        name
        for rule in rules
        for matcher in rule["source_matchers"] + rule["target_matchers"]
        for name in re.findall(r"Rul\w+", matcher)
    }

    assert named
    assert named <= set(alerts())


@pytest.mark.system
def test_the_container_is_given_every_variable_that_its_configuration_reads():
    services = json.loads(output_of(*compose(), "--profile", "alerting", "config", "--format", "json"))
    given = services["services"]["alertmanager"]["environment"]

    read_there = set(re.findall(r"\$\{(\w+)", CONFIGURED.read_text("utf-8")))

    assert set(given) == read_there == set(EVERYTHING)


@pytest.mark.system
def test_prometheus_sends_to_the_port_where_alertmanager_listens():
    services = json.loads(output_of(*compose(), "--profile", "alerting", "config", "--format", "json"))
    discovery = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))["alerting"]["alertmanagers"]

    (found,) = discovery[0]["dns_sd_configs"]

    assert found["names"] == ["alertmanager"]
    assert [port["target"] for port in services["services"]["alertmanager"]["ports"]] == [found["port"]]
