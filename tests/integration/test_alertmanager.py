"""A real Alertmanager, started as the container starts it: who is told, and what is left unsaid."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.conftest import free_port
from tests.observability import FOLDER
from tests.programs import program
from tests.waiting import wait_until

pytestmark = pytest.mark.system

ANSWER_SECONDS = 30
CONFIGURED = FOLDER / "alertmanager" / "alertmanager.yml"
START = FOLDER / "alertmanager" / "start"
ALERTS = [
    {"alertname": "RulServiceDown", "severity": "critical", "job": "rulserve", "instance": "a"},
    {"alertname": "RulWorkersMissing", "severity": "warning", "job": "rulserve", "instance": "a"},
    {"alertname": "RulWorkersMissing", "severity": "warning", "job": "rulserve", "instance": "b"},
    {"alertname": "RulColumnDrifts", "severity": "warning", "job": "rulserve", "model": "fd001"},
    {"alertname": "RulPredictionDrifts", "severity": "warning", "job": "rulserve", "model": "fd001"},
    {"alertname": "RulPredictionDrifts", "severity": "warning", "job": "rulserve", "model": "fd002"},
]


@pytest.fixture(scope="module")
def told() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook, and what it has been sent."""
    messages: list[dict[str, Any]] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Webhook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", messages
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def client(told, tmp_path_factory) -> Iterator[httpx.Client]:
    """Alertmanager's API, after all of `ALERTS` have been sent to it."""
    url, _ = told
    with running(tmp_path_factory.mktemp("alertmanager"), url) as api:
        assert api.post("/api/v2/alerts", json=[{"labels": labels} for labels in ALERTS]).status_code == 200
        yield api


@contextmanager
def running(folder: Path, webhook: str) -> Iterator[httpx.Client]:
    address = f"127.0.0.1:{free_port()}"
    command = [
        *("sh", START, CONFIGURED, folder / "alertmanager.yml"),
        shutil.which("alertmanager") or program("prometheus-alertmanager"),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    environment = {"PATH": "/usr/bin:/bin", "ALERT_RECEIVER": "webhook", "ALERT_WEBHOOK_URL": webhook}
    log = folder / "alertmanager.log"
    with (
        log.open("wb") as sink,
        subprocess.Popen(command, stdout=sink, stderr=sink, env=environment) as process,
        httpx.Client(base_url=f"http://{address}", trust_env=False) as api,
    ):
        try:
            wait_until(
                lambda: process.poll() is not None or api.get("/-/ready").status_code == 200, ANSWER_SECONDS
            )
            assert process.poll() is None, log.read_text("utf-8")
            yield api
        finally:
            process.terminate()


def test_alerts_that_follow_from_a_known_cause_are_inhibited(client):
    expected = sorted([ALERTS[1], ALERTS[4]], key=str)

    def silenced():
        shown = client.get("/api/v2/alerts").json()
        return sorted((alert["labels"] for alert in shown if alert["status"]["inhibitedBy"]), key=str)

    # Sent alerts are shown, and inhibit others, a moment after they are taken.
    wait_until(lambda: silenced() == expected, ANSWER_SECONDS, what="what is left unsaid")

    assert len(client.get("/api/v2/alerts").json()) == len(ALERTS)
    assert silenced() == expected


def test_a_critical_alert_reaches_the_webhook(client, told):
    _, messages = told

    wait_until(lambda: messages, ANSWER_SECONDS, what="message")

    assert messages[0]["receiver"] == "webhook"
    assert messages[0]["groupLabels"] == {"alertname": "RulServiceDown", "job": "rulserve"}
    assert [alert["labels"] for alert in messages[0]["alerts"]] == [ALERTS[0]]
