"""A real Prometheus scrapes the real service under mixed load: every query and every rule has an answer."""

from __future__ import annotations

import math
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import yaml

from export.bundle import Golden
from service.proto import rul_v1_pb2, rul_v1_pb2_grpc
from tests.integration.conftest import Server, free_port, running
from tests.observability import FOLDER, RULES, alerts, filled_in, panel_queries, recording_rules, selectors
from tests.programs import program
from tests.waiting import wait_until

pytestmark = pytest.mark.system

QUEUE_WINDOWS = 8
PACE_SECONDS = 0.02
ANSWER_SECONDS = 30
INTERVAL = "15s"


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=5, trust_env=False)

    def get(self, path: str, **parameters: str) -> Any:
        reply = self._client.get(f"/api/v1/{path}", params=parameters)
        assert reply.status_code == 200, reply.text
        return reply.json()["data"]

    def values(self, query: str) -> list[float]:
        """The value of each series that a query returns now."""
        return [float(series["value"][1]) for series in self.get("query", query=query)["result"]]

    def values_in_time(self, query: str) -> list[float]:
        """The same, as soon as there are any."""
        return wait_until(lambda: self.values(query), seconds=ANSWER_SECONDS, what=f"answer to {query}")

    def is_ready(self) -> bool:
        return self._client.get("/-/ready").status_code == 200

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def service(tiny_bundle, tmp_path_factory) -> Iterator[Server]:
    """A service with a queue so short that it can be filled."""
    folder = tmp_path_factory.mktemp("watched")
    with running(
        folder, str(tiny_bundle.path), max_pending_windows=str(QUEUE_WINDOWS), log_level="error"
    ) as started:
        yield started


@pytest.fixture(scope="module")
def prometheus(service, tiny_bundle, tmp_path_factory) -> Iterator[Prometheus]:
    """Prometheus with our rules, scraping the service each second while callers of every kind ask."""
    folder = tmp_path_factory.mktemp("prometheus")
    with scraping(service, folder) as api, asked(service, Golden.load(tiny_bundle.golden)):
        yield api


@contextmanager
def scraping(service: Server, folder: Path) -> Iterator[Prometheus]:
    """Our configuration, with the tests' target and pace in place of what a deployment has."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    target = service.http.removeprefix("http://")
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(path) for path in RULES]
    config["scrape_configs"] = [{"job_name": "rulserve", "static_configs": [{"targets": [target]}]}]
    file, log, address = folder / "prometheus.yml", folder / "prometheus.log", f"127.0.0.1:{free_port()}"
    file.write_text(yaml.safe_dump(config), "utf-8")
    command = [
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with log.open("wb") as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as process:
        api = Prometheus(f"http://{address}")
        try:
            wait_until(lambda: process.poll() is not None or api.is_ready(), seconds=ANSWER_SECONDS)
            assert process.poll() is None, log.read_text("utf-8")
            yield api
        finally:
            api.close()
            process.terminate()


@contextmanager
def asked(service: Server, golden: Golden) -> Iterator[None]:
    """Callers who ask until the block ends: answered, refused and turned away, by HTTP and by gRPC."""
    stop = threading.Event()
    with ThreadPoolExecutor(2) as callers:
        asking = [
            callers.submit(ask_by_http, service, golden, stop),
            callers.submit(ask_by_grpc, service, golden, stop),
        ]
        try:
            yield
        finally:
            stop.set()
        for caller in asking:
            caller.result()


def ask_by_http(service: Server, golden: Golden, stop: threading.Event) -> None:
    good = [
        {"readings": np.where(np.isnan(rows), None, rows).tolist(), "last_cycle": len(rows)}
        for rows in valid_rows(golden)
    ]
    with httpx.Client(base_url=service.http, timeout=60, trust_env=False) as client:
        while not stop.wait(PACE_SECONDS):
            answers = [
                client.post("/v1/predict", json={"windows": [good[0]]}),
                client.post("/v1/predict", json={"windows": [{"readings": [[1.0]]}]}),
                client.post("/v1/predict", json={"windows": good[:1] * (QUEUE_WINDOWS + 1)}),
                client.get("/no/such/page"),
            ]
            assert [answer.status_code for answer in answers] == [200, 422, 429, 404]


def ask_by_grpc(service: Server, golden: Golden, stop: threading.Event) -> None:
    good = [
        rul_v1_pb2.Window(readings=rul_v1_pb2.Readings(values=rows.ravel().tolist()), last_cycle=len(rows))
        for rows in valid_rows(golden)
    ]
    with grpc.insecure_channel(service.grpc) as channel:
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        while not stop.wait(PACE_SECONDS):
            assert len(stub.Predict(rul_v1_pb2.PredictRequest(windows=good[:2])).predictions) == 2
            with pytest.raises(grpc.RpcError):
                stub.Predict(rul_v1_pb2.PredictRequest(model="none", windows=good[:1]))


def valid_rows(golden: Golden) -> list[np.ndarray]:
    return [rows[:n] for rows, n in zip(golden.readings, golden.lengths, strict=True) if n > 1]


def test_prometheus_reaches_the_service(prometheus):
    wait_until(lambda: prometheus.values('up{job="rulserve"}') == [1.0], seconds=ANSWER_SECONDS)


@pytest.mark.parametrize("name", panel_queries())
def test_each_query_of_a_dashboard_returns_finite_numbers(name, prometheus):
    values = prometheus.values_in_time(filled_in(panel_queries()[name], interval=INTERVAL))

    assert all(map(math.isfinite, values))


@pytest.mark.parametrize("name", recording_rules())
def test_each_recorded_series_has_finite_numbers(name, prometheus):
    values = prometheus.values_in_time(name)

    assert all(map(math.isfinite, values))


@pytest.mark.parametrize("name", alerts())
def test_each_series_that_an_alert_reads_is_there(name, prometheus):
    for selector in selectors(alerts()[name]["expr"]):
        assert prometheus.values_in_time(selector)


def test_prometheus_evaluates_every_rule_without_error(prometheus):
    def evaluated() -> list[dict[str, Any]]:
        found = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        return [] if any(rule["health"] == "unknown" for rule in found) else found

    rules = wait_until(evaluated, seconds=ANSWER_SECONDS, what="evaluation of every rule")

    assert len(rules) == len(recording_rules()) + len(alerts())
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []


def test_refusals_are_counted_by_their_reason_and_by_their_code(prometheus):
    wait_until(
        lambda: prometheus.values('rul_rejected_total{reason="queue_full"}')[0] > 0, seconds=ANSWER_SECONDS
    )

    codes = {
        (series["metric"]["protocol"], series["metric"]["code"])
        for series in prometheus.get("query", query="rul_requests_total > 0")["result"]
    }

    assert {("http", "200"), ("http", "404"), ("http", "422"), ("http", "429")} <= codes
    assert {("grpc", "OK"), ("grpc", "NOT_FOUND")} <= codes


def test_requests_that_failed_through_the_callers_fault_burn_no_error_budget(prometheus):
    assert prometheus.values_in_time("job:rul_request_failures:ratio_rate5m") == [0.0]


def test_promtool_finds_nothing_to_improve_in_the_metrics(service):
    metrics = httpx.get(service.http + "/metrics", trust_env=False)

    checked = subprocess.run(
        [program("promtool"), "check", "metrics"], input=metrics.content, capture_output=True, check=False
    )

    assert metrics.headers["content-type"].startswith("text/plain")
    assert checked.returncode == 0, checked.stderr.decode()
    assert checked.stderr == b""
