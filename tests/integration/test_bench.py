"""`rul bench` as a user runs it, against the real process."""

from __future__ import annotations

import json
import signal
import subprocess

import psutil
import pytest

from model.domain import RulError
from rul_client.commands.bench.cli import PROTOCOLS
from tests import commands
from tests.environments import clean_environment
from tests.integration.conftest import KEY, RUL, metric, rul
from tests.waiting import wait_until

SECONDS = 60
ROUTES = {
    "json": ("http", "/v1/predict"),
    "binary": ("http", "/v2/models/{name}/infer"),
    "grpc": ("grpc", "rul.v1.RulService/Predict"),
    "oip-grpc": ("grpc", "inference.GRPCInferenceService/ModelInfer"),
}


def answered(server, protocol):
    name, route = ROUTES[protocol]
    good = "200" if name == "http" else "OK"
    return metric(server, "rul_requests_total", code=good, protocol=name, route=route)


@pytest.mark.parametrize("server", ["uvicorn"], indirect=True)  # gRPC has a port of its own there
def test_every_call_that_is_reported_is_one_that_the_service_answered(server, tmp_path):
    before = {protocol: answered(server, protocol) for protocol in PROTOCOLS}
    file = tmp_path / "figures.json"

    done = rul(
        "bench", server.http, "--protocol", ",".join(PROTOCOLS), "--callers", "3", "--windows", "1,4",
        "--seconds", "0.3", "--processes", "2", "--grpc", server.grpc, "--json", file,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    scenarios = json.loads(file.read_text())["scenarios"]
    assert [(s["protocol"], s["windows"]) for s in scenarios] == [(p, w) for p in PROTOCOLS for w in (1, 4)]
    for protocol in PROTOCOLS:
        mine = [scenario for scenario in scenarios if scenario["protocol"] == protocol]
        connecting = 3 * len(mine)  # each caller's first call, which is not measured
        assert [scenario["errors"] for scenario in mine] == [{}, {}]
        assert answered(server, protocol) - before[protocol] == sum(s["calls"] for s in mine) + connecting
    assert "windows/s" in done.stdout


@pytest.mark.parametrize("strict", ["envoy"], indirect=True)
def test_where_no_call_is_answered_the_table_says_why_and_it_fails(strict):
    options = "--api-key", KEY, "--callers", "2", "--windows", "1,5", "--seconds", "0.2"
    done = commands.rul("bench", strict.http, *options)

    assert "504" in done.stdout
    assert "413" in done.stdout
    assert isinstance(done.exception, RulError)
    assert "no call was answered; 504" in str(done.exception)


@pytest.mark.parametrize("server", ["uvicorn"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_its_processes_end_with_it_at_once(server, number):
    benched = subprocess.Popen(
        [RUL, "bench", server.http, "--seconds", str(10 * SECONDS), "--processes", "2", "--callers", "2"],
        env=clean_environment(),
        stderr=subprocess.PIPE,
    )
    command = psutil.Process(benched.pid)
    # A call of the test before may be counted late, so this waits for its own processes first: two callers,
    # and one that multiprocessing starts for itself.
    wait_until(lambda: len(command.children()) == 3, SECONDS, what="its processes")
    before = answered(server, "json")
    wait_until(lambda: answered(server, "json") > before, SECONDS, what="a call")

    benched.send_signal(number)

    # Every process of the command holds this pipe open until it ends.
    _, errors = benched.communicate(timeout=SECONDS)
    assert benched.returncode == (-number if number is signal.SIGKILL else 128 + number)
    assert b"Traceback" not in errors
