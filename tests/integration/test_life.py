"""From start to end: what a service that cannot start says, and how one that is told to stop does so."""

import itertools
import os
import shutil
import signal
import socket
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.broken_bundles import WAYS
from tests.integration.conftest import (
    ANSWER_SECONDS,
    FRONT_ENDS,
    START_SECONDS,
    STOP_SECONDS,
    Server,
    metric,
    rul,
    running,
)
from tests.waiting import wait_until

LONG = 80
"""Windows of a request that is explained in full, in batches of one."""
LONGER = 5 * LONG
"""Of the second try, where the first request ended before anything was refused."""
ENDLESS = 40 * LONG
"""Of a request that nobody waits for."""

DRAIN_SECONDS = 100
"""More than two requests of `LONGER` take on a machine that is busy with other work."""

REFUSED_SECONDS = 0.3
"""While uvicorn drains, its supervisor's socket still takes connections that nobody answers."""

PATIENT = {
    "drain_seconds": str(DRAIN_SECONDS),
    "inference_threads": "1",
    "max_batch_windows": "1",
    "request_timeout_seconds": str(5 * DRAIN_SECONDS),  # requests wait undecoded for a fifth of it at most
    "max_request_windows": str(ENDLESS),
    "log_level": "warning",
}


@pytest.fixture(params=FRONT_ENDS)
def front_end(request) -> str:
    return request.param


def left_over(server: Server) -> list[str]:
    """Processes of the service's session that are still there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:  # it has just ended
            continue
        state, _, _, session, *_ = rest.split()
        if int(session) == server.process.pid and state != "Z":
            found.append(name)
    return found


def ask_long(server: Server, windows, count: int = LONG) -> httpx.Response:
    body = {"windows": [windows[0].json()] * count, "explain": "full"}
    return server.ask("POST", "/v1/predict", json=body, timeout=DRAIN_SECONDS)


def ask_long_by_grpc(channel: grpc.Channel, windows, count: int) -> pb.PredictReply:
    request = pb.PredictRequest(windows=[windows[0].message()] * count, explain=pb.EXPLAIN_FULL)
    return rul_v1_pb2_grpc.RulServiceStub(channel).Predict(request, timeout=DRAIN_SECONDS)


def in_flight(server: Server) -> float:
    return metric(server, "rul_inflight_requests") - 1  # but for the one that asks


def await_in_flight(server: Server, *asked: Future) -> None:
    """Wait until these requests are in flight, or one of them has ended."""
    wait_until(
        lambda: in_flight(server) == len(asked) or any(each.done() for each in asked),
        ANSWER_SECONDS, what="requests in flight", pause=0.01,
    )  # fmt: skip


def refusal(server: Server, windows) -> tuple[int, str] | None:
    """How a new HTTP request is refused; None where it is not."""
    try:
        timeout = REFUSED_SECONDS if server.front_end == "uvicorn" else ANSWER_SECONDS
        body = {"windows": [windows[0].json()]}
        reply = server.ask("POST", "/v1/predict", json=body, timeout=timeout)
    except httpx.TransportError:
        return (0, "")
    return None if reply.is_success else (reply.status_code, reply.headers.get("retry-after", ""))


@pytest.mark.alone
def test_requests_in_flight_are_answered_and_new_ones_refused_when_it_is_told_to_stop(
    front_end, tiny_bundle, tmp_path, windows
):
    def in_time(count: int) -> bool:
        folder = tmp_path / str(count)
        folder.mkdir()
        with running(folder, str(tiny_bundle.path), front_end=front_end, **PATIENT) as server:
            return is_stopped_in_order(server, windows, count)

    assert any(map(in_time, (LONG, LONGER))), "the request ended before anything was refused: make it longer"


def is_stopped_in_order(server: Server, windows, count: int) -> bool:
    """Stop a service within two requests; return False if the first ended before anything was refused."""
    with grpc.insecure_channel(server.grpc) as channel, ThreadPoolExecutor(2) as callers:
        watched = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=DRAIN_SECONDS
        )
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        by_http = callers.submit(ask_long, server, windows, count)
        by_grpc = callers.submit(ask_long_by_grpc, channel, windows, count)
        await_in_flight(server, by_http, by_grpc)

        server.process.send_signal(signal.SIGTERM)
        told = next(watched).status
        refused = wait_until(lambda: refusal(server, windows), ANSWER_SECONDS, what="refusal", pause=0.01)
        with pytest.raises(grpc.RpcError) as caught:
            rul_v1_pb2_grpc.RulServiceStub(channel).Predict(pb.PredictRequest(windows=[windows[0].message()]))
        in_time = not by_http.done()
        code = server.process.wait(DRAIN_SECONDS)

        assert told == health_pb2.HealthCheckResponse.NOT_SERVING
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        if in_time:
            # uvicorn closes its port a moment after the signal: until then it passes our 503 on.
            assert refused in ({(503, "5")} if server.front_end == "envoy" else {(503, "5"), (0, "")})
            assert "shutting down" in caught.value.details()
        assert len(by_http.result().json()["predictions"]) == count
        assert len(by_grpc.result().predictions) == count
    assert code == 0, server.output()
    wait_until(lambda: not left_over(server), STOP_SECONDS, what="end of every process")
    assert "Traceback" not in server.output()
    return in_time


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "ctrl-c"])
def test_a_signal_to_the_whole_process_group_ends_it_without_an_alarm(
    front_end, tiny_bundle, tmp_path, number
):
    settings = {"log_level": "error"}
    if number is signal.SIGINT:  # which does not wait for load balancers
        settings["lame_duck_seconds"] = str(2 * STOP_SECONDS)
    with running(tmp_path, str(tiny_bundle.path), front_end=front_end, **settings) as server:
        os.killpg(server.process.pid, number)
        code = server.process.wait(STOP_SECONDS)

        assert code == 0
        wait_until(lambda: not left_over(server), STOP_SECONDS, what="end of every process")
        for word in ("drain failed", "Traceback", "rror", "critical"):
            assert word not in server.output()


@pytest.mark.alone
def test_ctrl_c_lets_a_request_in_flight_finish(tiny_bundle, tmp_path, windows):
    with (
        running(tmp_path, str(tiny_bundle.path), front_end="envoy", **PATIENT) as server,
        ThreadPoolExecutor(1) as callers,
    ):
        answer = callers.submit(ask_long, server, windows)
        await_in_flight(server, answer)

        os.killpg(server.process.pid, signal.SIGINT)

        assert len(answer.result().json()["predictions"]) == LONG
        assert server.process.wait(STOP_SECONDS) == 0


@pytest.mark.alone
def test_a_drain_ends_when_its_patience_does(tiny_bundle, tmp_path, windows):
    settings = {**PATIENT, "drain_seconds": "0.1"}
    with (
        running(tmp_path, str(tiny_bundle.path), front_end="envoy", **settings) as server,
        ThreadPoolExecutor(1) as callers,
    ):
        left = callers.submit(ask_long, server, windows, ENDLESS)
        await_in_flight(server, left)

        code = server.stop()

        assert code == 0
        assert isinstance(left.exception(), httpx.TransportError) or left.result().status_code == 503


# What cannot start


@pytest.mark.parametrize(
    ("front_end", "way"),
    [*itertools.product(FRONT_ENDS, ["golden answers of another model"]), ("envoy", "no graph")],
)
def test_a_broken_bundle_ends_the_start_with_one_line(front_end, tiny_bundle, tmp_path, way):
    bundle = shutil.copytree(tiny_bundle.path, tmp_path / "broken")
    WAYS[way](bundle)

    with running(tmp_path, str(bundle), front_end=front_end, ready=False) as server:
        code = server.process.wait(START_SECONDS)

        assert code == 1
        lines = server.output().splitlines()
        (line,) = [line for line in lines if str(bundle) in line]
        assert "export" in line or "rul convert" in line
        assert "Traceback" not in server.output()
        assert front_end != "envoy" or lines[1:] == ["rul: the service did not start; its log has the reason"]
        wait_until(lambda: not left_over(server), STOP_SECONDS, what="end of every process")


def test_a_start_that_fails_after_the_bundles_are_loaded_says_why(tiny_bundle, tmp_path):
    done = serve("envoy", tiny_bundle.path, tmp_path, RUL_PORT="0", RUL_BUNDLES_WATCH="x" * 300)

    assert done.returncode == 1
    assert "File name too long" in done.stderr


@pytest.mark.parametrize(
    ("front_end", "what"), [("envoy", "no bundle 'no-such-bundle'"), ("uvicorn", "SHA256SUMS is missing")]
)
def test_a_bundle_that_cannot_be_read_ends_the_start_with_one_line(front_end, copied, tmp_path, what):
    (copied.path / "SHA256SUMS").unlink()
    bundle = Path("no-such-bundle") if "no-such" in what else copied.path

    done = serve(front_end, bundle, tmp_path, RUL_PORT="0")

    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("rul: ")
    assert what in line


def test_a_store_that_cannot_be_addressed_ends_the_start_with_one_line(tiny_bundle, tmp_path):
    done = serve("uvicorn", tiny_bundle.path, tmp_path, RUL_PORT="0", RUL_STORE_URL="mysql://db/rul")

    expected = "rul: RUL_STORE_URL: expected sqlite:///FILE or postgresql://USER@HOST/DATABASE\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize(
    ("front_end", "setting"), [("envoy", "RUL_PORT"), ("uvicorn", "RUL_PORT"), ("uvicorn", "RUL_GRPC_PORT")]
)
def test_a_port_in_use_is_an_error_of_one_line(front_end, tiny_bundle, tmp_path, setting):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        done = serve(front_end, tiny_bundle.path, tmp_path, **{"RUL_PORT": "0", setting: str(port)})

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rul: cannot listen on 127.0.0.1:{port}: Address already in use; choose another")


def serve(front_end: str, bundle: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`rul serve` where it is to end by itself."""
    given = {"RUL_HOST": "127.0.0.1", "RUL_FRONT_END": front_end, "RUL_BUNDLES": str(bundle)}
    return rul("serve", **given, BENTOML_HOME=str(folder), **environment)
