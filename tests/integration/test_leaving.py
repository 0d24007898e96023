"""Callers who leave in the middle delay nobody and harm nobody: real sockets, closed while they wait."""

import json
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import httpx
import pytest

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.integration.conftest import ANSWER_SECONDS, FRONT_ENDS, Server, metric, running
from tests.waiting import wait_until

pytestmark = pytest.mark.alone

LEAVERS = 20
WINDOWS = 100


@pytest.fixture(scope="module", params=FRONT_ENDS)
def narrow(request, tiny_bundle, tmp_path_factory) -> Iterator[Server]:
    """A service with one inference thread and small batches: a queue forms, and it can be full."""
    folder = tmp_path_factory.mktemp(f"narrow-{request.param}")
    settings = {
        "inference_threads": "1",
        "max_batch_windows": "2",
        "max_pending_windows": str(LEAVERS * WINDOWS),
        "request_timeout_seconds": "25",
        "log_level": "error",
    }
    with running(folder, str(tiny_bundle.path), front_end=request.param, **settings) as started:
        yield started


def explaining(windows) -> bytes:
    """The body of a request that takes its time."""
    return json.dumps({"windows": [window.json() for window in windows], "explain": "full"}).encode()


def send(server: Server, body: bytes) -> socket.socket:
    """A request that nobody waits for."""
    caller = socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_SECONDS)
    caller.sendall(
        b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
    return caller


def reset(caller: socket.socket) -> None:
    """Leave at once and without a word, as a process that is killed does."""
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()


def gone(server: Server, protocol: str, route: str, code: str) -> float:
    return metric(server, "rul_requests_total", protocol=protocol, route=route, code=code)


@pytest.fixture(scope="module")
def client(narrow) -> Iterator[httpx.Client]:
    with narrow.client(limits=httpx.Limits(max_connections=None)) as made:
        yield made


def test_windows_of_disconnected_callers_leave_the_queue_and_no_others(narrow, client, windows):
    cancelled = metric(narrow, "rul_cancelled_total")
    left = gone(narrow, "http", "/v1/predict", "499")
    staying = [windows[i % len(windows)] for i in range(40)]
    in_work, waiting = explaining(windows[:1] * (10 * WINDOWS)), explaining(windows[:1] * 40)
    with ExitStack() as sockets, ThreadPoolExecutor(len(staying)) as callers:
        leavers = [send(narrow, in_work)]
        wait_until(lambda: metric(narrow, "rul_pending_windows") > 0, ANSWER_SECONDS, what="queue", pause=0)
        leavers += [send(narrow, waiting) for _ in range(LEAVERS)]
        for leaver in leavers:
            sockets.callback(leaver.close)
        answers = [callers.submit(ask, client, window) for window in staying]

        for leaver in leavers:
            reset(leaver)

        units = [answer.result() for answer in answers]
    wait_until(lambda: metric(narrow, "rul_inflight_requests") == 1, ANSWER_SECONDS, what="idleness")
    assert units == [window.unit for window in staying]
    assert metric(narrow, "rul_pending_windows") == 0
    assert metric(narrow, "rul_cancelled_total") > cancelled
    assert gone(narrow, "http", "/v1/predict", "499") > left
    assert metric(narrow, "rul_requests_total", protocol="http", route="/v1/predict", code="500") == 0


def ask(client: httpx.Client, window) -> str:
    """The unit that the answer is for; a caller who is told to come back does."""

    def answered() -> httpx.Response | None:
        reply = client.post("/v1/predict", json={"windows": [window.json()]})
        return None if reply.status_code == 429 else reply

    reply = wait_until(answered, ANSWER_SECONDS, what="a place in the line")
    assert reply.status_code == 200, reply.text
    return reply.json()["predictions"][0]["unit"]


def test_windows_of_cancelled_grpc_calls_leave_the_queue(narrow, windows):
    cancelled = metric(narrow, "rul_cancelled_total")
    large = pb.PredictRequest(windows=[windows[0].message()] * (10 * WINDOWS), explain=pb.EXPLAIN_FULL)
    with grpc.insecure_channel(narrow.grpc) as channel:
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        leavers = [stub.Predict.future(large) for _ in range(LEAVERS)]
        wait_until(lambda: metric(narrow, "rul_pending_windows") > 0, ANSWER_SECONDS, what="queue", pause=0)
        answers = [stub.Predict.future(pb.PredictRequest(windows=[window.message()])) for window in windows]

        for leaver in leavers:
            leaver.cancel()

        assert [a.result().predictions[0].unit for a in answers] == [window.unit for window in windows]
    wait_until(lambda: metric(narrow, "rul_inflight_requests") == 1, ANSWER_SECONDS, what="idleness")
    assert metric(narrow, "rul_pending_windows") == 0
    assert metric(narrow, "rul_cancelled_total") > cancelled
    assert gone(narrow, "grpc", "rul.v1.RulService/Predict", "CANCELLED") > 0
    assert gone(narrow, "grpc", "rul.v1.RulService/Predict", "INTERNAL") == 0


def test_a_disconnect_within_a_body_affects_no_other_caller(narrow, client, windows):
    for _ in range(5):
        caller = socket.create_connection(("127.0.0.1", narrow.port), timeout=ANSWER_SECONDS)
        caller.sendall(
            b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b'content-length: 1000\r\n\r\n{"windows"'
        )
        reset(caller)

    assert ask(client, windows[0]) == windows[0].unit
    wait_until(lambda: metric(narrow, "rul_inflight_requests") == 1, ANSWER_SECONDS, what="idleness")
