"""A real Prometheus scrapes two real workers under mixed load: every query and every rule has an answer.

Afterwards what Prometheus has added up is what the callers counted, exactly. The load lasts as long as
the queries take.
"""

from __future__ import annotations

import math
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from export.seal import read_bundle
from service.edge.keys import add_key
from tests.asking import golden_windows
from tests.integration.conftest import Server, free_port, running
from tests.mixed_load import Load, Tally, asked
from tests.observability import FOLDER, RULES, alerts, filled_in, panel_queries, recording_rules, selectors
from tests.programs import program
from tests.waiting import wait_until

pytestmark = pytest.mark.system

WORKERS = 2
QUEUE_WINDOWS = 16
"""Of a worker: more than all good callers ask for at once, and soon filled by one who asks for more."""
ANSWER_SECONDS = 30
INTERVAL = "15s"
NOT_ASKED_BY_CALLERS = {"/readyz", "/metrics"}


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=ANSWER_SECONDS, trust_env=False)

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
    """Two workers with queues so short that they can be filled, and a store of their own."""
    settings = {"workers": str(WORKERS), "max_pending_windows": str(QUEUE_WINDOWS), "log_level": "error"}
    with running(tmp_path_factory.mktemp("watched"), str(tiny_bundle.path), **settings) as started:
        yield started


@pytest.fixture(scope="module")
def scraped(service, tmp_path_factory) -> Iterator[Prometheus]:
    """Prometheus with our rules, scraping the service each second."""
    with scraping(service, tmp_path_factory.mktemp("prometheus")) as api:
        # Whoever asks is counted from the first scrape on.
        api.values_in_time("rul_requests_total")
        yield api


@pytest.fixture(scope="module")
def load(scraped, service, tiny_bundle) -> Iterator[Load]:
    """Callers of every kind, while tests ask Prometheus."""
    windows = golden_windows(read_bundle(tiny_bundle).golden)
    with asked(
        http=service.http, grpc_target=service.grpc, windows=windows, queue_windows=QUEUE_WINDOWS
    ) as running_load:
        yield running_load


@pytest.fixture(scope="module")
def prometheus(scraped, load) -> Prometheus:
    """Prometheus while callers of every kind ask."""
    return scraped


@pytest.fixture(scope="module")
def seen(scraped, load) -> Tally:
    """What the callers counted, when the last of them has been answered."""
    wait_until(lambda: load.complete, ANSWER_SECONDS, what="every question of every caller")
    return load.stop()


@contextmanager
def scraping(service: Server, folder: Path, key: str = "") -> Iterator[Prometheus]:
    """Our configuration, with the tests' target and pace in place of what a deployment has."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    target = service.http.removeprefix("http://")
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    del config["alerting"]
    config["rule_files"] = [str(often_evaluated(path, folder)) for path in RULES]
    (folder / "key").write_text(f"{key}\n", "utf-8")
    ours = {"job_name": "rulserve", "authorization": {"credentials_file": str(folder / "key")}}
    config["scrape_configs"] = [ours | {"static_configs": [{"targets": [target]}]}]
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


def often_evaluated(rules: Path, folder: Path) -> Path:
    """The same rules without a pace of their own, which is meant for a deployment."""
    content = yaml.safe_load(rules.read_text("utf-8"))
    for group in content["groups"]:
        group.pop("interval", None)
    file = folder / rules.name
    file.write_text(yaml.safe_dump(content), "utf-8")
    return file


def test_prometheus_reaches_the_service(prometheus):
    wait_until(lambda: prometheus.values('up{job="rulserve"}') == [1.0], seconds=ANSWER_SECONDS)


READ = {name: [filled_in(query, interval=INTERVAL)] for name, query in panel_queries().items()}
READ |= {name: [name] for name in recording_rules()}
READ |= {name: selectors(alert["expr"]) for name, alert in alerts().items()}


@pytest.mark.parametrize("name", READ)
def test_each_panel_recorded_series_and_series_of_an_alert_has_finite_numbers(name, prometheus):
    for query in READ[name]:
        assert all(map(math.isfinite, prometheus.values_in_time(query)))


def test_prometheus_evaluates_every_rule_without_error(prometheus):
    def evaluated() -> list[dict[str, Any]]:
        found = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        return [] if any(rule["health"] == "unknown" for rule in found) else found

    rules = wait_until(evaluated, seconds=ANSWER_SECONDS, what="evaluation of every rule")

    assert len(rules) == len(recording_rules()) + len(alerts())
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []


def test_refusals_are_counted_by_their_reason_and_by_their_code(prometheus):
    wait_until(
        lambda: prometheus.values('rul_rejected_total{reason="queue_full"} > 0'), seconds=ANSWER_SECONDS
    )
    expected = {("http", "200"), ("http", "404"), ("http", "422"), ("http", "429")}
    expected |= {("grpc", "OK"), ("grpc", "NOT_FOUND")}

    def missing() -> set[tuple[str, ...]]:
        return expected - by_labels(prometheus, "rul_requests_total", "protocol", "code").keys()

    assert settled(missing, set()) == set()


def test_requests_that_failed_through_the_callers_fault_burn_no_error_budget(prometheus):
    assert prometheus.values_in_time("job:rul_request_failures:ratio_rate5m") == [0.0]


def test_promtool_finds_nothing_to_improve_in_the_metrics(service):
    metrics = service.ask("GET", "/metrics")

    checked = subprocess.run(
        [program("promtool"), "check", "metrics"], input=metrics.content, capture_output=True, check=False
    )

    assert metrics.headers["content-type"].startswith("text/plain")
    assert checked.returncode == 0, checked.stderr.decode()
    assert checked.stderr == b""


def test_every_worker_has_worked(prometheus):
    busy = "rate(process_cpu_seconds_total{worker=~'.+'}[15s]) > 0.01"

    wait_until(lambda: len(prometheus.values(busy)) == WORKERS, ANSWER_SECONDS, what="work of each worker")


# From here on the callers have stopped.


def by_labels(prometheus: Prometheus, query: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The value of each series that is not 0, by these of its labels."""
    return {
        tuple(series["metric"][label] for label in labels): float(series["value"][1])
        for series in prometheus.get("query", query=f"{query} > 0")["result"]
    }


def settled(read: Callable[[], Any], expected: Any) -> Any:
    """What is read when it is what is expected, or when there has been ample time for it to be."""
    try:
        wait_until(lambda: read() == expected, ANSWER_SECONDS)
    except TimeoutError:
        return read()
    return expected


def test_requests_are_those_that_the_callers_made_each_with_its_end(scraped, seen):
    def read() -> dict[tuple[str, ...], float]:
        found = by_labels(scraped, "rul_requests_total", "protocol", "route", "code")
        return {key: value for key, value in found.items() if key[1] not in NOT_ASKED_BY_CALLERS}

    assert settled(read, dict(seen.requests)) == seen.requests


def test_durations_are_of_every_request_however_it_ended(scraped, seen):
    expected: Counter[tuple[str, ...]] = Counter()
    for (protocol, route, _), count in seen.requests.items():
        if route != "rul.v1.RulService/PredictStream":  # as long as its caller likes
            expected[protocol, route] += count

    def read() -> dict[tuple[str, ...], float]:
        found = by_labels(scraped, "rul_request_duration_seconds_count", "protocol", "route")
        return {key: value for key, value in found.items() if key[1] not in NOT_ASKED_BY_CALLERS}

    assert settled(read, dict(expected)) == expected


@pytest.mark.parametrize(
    "metric",
    [
        "rul_state_total",
        "rul_batch_windows_sum",
        "rul_prediction_cycles_count",
        "rul_interval_width_cycles_count",
        "rul_novelty_ratio_count",
        "rul_attention_peak_weight_count",
        "rul_attention_lag_cycles_count",
        "rul_attention_first_cycles_weight_count",
        "rul_attention_last_cycles_weight_count",
        "rul_attention_head_similarity_ratio_count",
        "rul_imputed_fraction_count",
    ],
)
def test_every_window_that_was_answered_is_counted_once(metric, scraped, seen):
    assert settled(lambda: scraped.values(f"sum({metric})"), [seen.windows]) == [seen.windows]


def test_refusals_are_those_that_the_callers_got_by_reason(scraped, seen):
    of_code = {"429": "queue_full", "422": "invalid", "409": "conflict"}
    expected: Counter[tuple[str, ...]] = Counter()
    for (_, _, code), count in seen.requests.items():
        if code in of_code:
            expected[(of_code[code],)] += count

    def read() -> dict[tuple[str, ...], float]:
        return by_labels(scraped, "rul_rejected_total", "reason")

    assert settled(read, dict(expected)) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ('rul_outcomes_total{kind="failed"}', lambda seen: seen.outcomes["failed"]),
        ('rul_outcomes_total{kind="removed"}', lambda seen: seen.outcomes["removed"]),
        ('rul_store_rows_total{kind="outcome"}', lambda seen: seen.outcomes.total()),
        ('rul_store_rows_total{kind="prediction"}', lambda seen: seen.kept),
        ("sum(rul_coverage_trials_total)", lambda seen: seen.failed),
        ("sum(rul_coverage_trials_total) + sum(rul_removed_predictions_total)", lambda seen: seen.judged),
        ("sum(rul_outcome_absolute_error_cycles_count)", lambda seen: seen.failed),
        ("sum(rul_store_dropped_total)", lambda seen: 0),
        ("rul_inflight_requests", lambda seen: 1),  # the scrape itself
        ("rul_open_streams", lambda seen: 0),
        ("rul_pending_windows", lambda seen: 0),
    ],
)
def test_what_was_kept_and_judged_is_what_the_callers_reported_and_nothing_is_left(
    query, expected, scraped, seen
):
    assert settled(lambda: scraped.values(query), [expected(seen)]) == [expected(seen)]


def test_late_and_early_cycles_add_up_to_the_absolute_errors(scraped, seen):
    errors = "sum(rul_outcome_absolute_error_cycles_sum)"
    difference = f"abs(sum(rul_outcome_error_cycles_total) - {errors})"

    assert scraped.values_in_time(f"{difference} < 1e-9 * {errors}")


def test_prometheus_scrapes_with_the_key_in_its_file_metrics_that_need_one(tiny_bundle, tmp_path):
    file = tmp_path / "keys.toml"
    key = add_key(file, "prometheus", ["metrics"])
    with running(tmp_path, str(tiny_bundle.path), keys_file=str(file)) as closed:
        assert closed.ask("GET", "/metrics").status_code == 401
        with scraping(closed, tmp_path, key) as api:
            assert api.values_in_time('up{job="rulserve"} == 1') == [1.0]
