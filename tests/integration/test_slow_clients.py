"""Slow and many clients, in front of the real process."""

import asyncio
import re
import resource
import socket
import subprocess
import threading
from contextlib import ExitStack
from shlex import quote

import grpc
import pytest

from tests.hostile.slow_clients import PARTIAL, forget, streams
from tests.integration.conftest import FRONT_ENDS, KEY, RUL, Server, running
from tests.waiting import wait_until

OPEN_FILES = 256
IDLE = 400
PREDICT = "/rul.v1.RulService/Predict"
SECONDS = 30
HEAD = f"POST /v1/predict HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module", params=FRONT_ENDS)
def server(request, tiny_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"slow-{request.param}")
    settings = {"api_keys": KEY, "body_timeout_seconds": "0.5", "front_end": request.param}
    with running(folder, str(tiny_bundle.path), **settings) as started:
        yield started


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)


def call(server: Server, *metadata: tuple[str, str]) -> grpc.RpcError:
    """The error of a call whose message never comes."""
    ended = threading.Event()

    def messages():
        ended.wait(SECONDS)
        yield from ()

    with grpc.insecure_channel(server.grpc) as channel:
        predict = channel.stream_unary(PREDICT)
        with pytest.raises(grpc.RpcError) as caught:
            predict(messages(), timeout=SECONDS, metadata=metadata)
        ended.set()
    return caught.value


@pytest.mark.parametrize("part", ["", "{"], ids=["nothing", "a part"])
def test_a_body_that_does_not_arrive_gets_408(server, part):
    with connect(server) as client:
        client.sendall(f"{HEAD}content-length: 99\r\n\r\n{part}".encode())

        assert b" 408 " in client.recv(100)
    assert server.ask("GET", "/livez").status_code == 200
    assert "Traceback" not in server.output()


def test_a_message_that_does_not_come_ends_its_call(server):
    error = call(server, ("x-api-key", KEY))

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert error.details() == "expected the whole body within 0.5 s"  # not by the deadline of the caller


def test_a_call_without_a_key_is_refused_before_its_message(server):
    assert call(server).code() is grpc.StatusCode.UNAUTHENTICATED


def test_idle_connections_above_the_limit_of_open_files_do_not_make_it_deaf(tiny_bundle, tmp_path):
    command = ("bash", "-c", f"ulimit -n {OPEN_FILES}; exec {quote(RUL)} serve")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > IDLE + OPEN_FILES

    with running(tmp_path, str(tiny_bundle.path), command=command) as server, ExitStack() as stack:
        for _ in range(IDLE):
            stack.enter_context(connect(server))

        wait_until(lambda: server.ask("GET", "/livez", timeout=1).is_success, SECONDS)

        assert "few connections possible" in server.output()


@pytest.mark.parametrize("open_files", [20, 100])
def test_too_few_open_files_end_the_start_with_one_line(open_files):
    command = ["bash", "-c", f"ulimit -n {open_files}; exec {quote(RUL)} serve --port 0"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"got {open_files}; raise `ulimit -n`" in line


def refused(server: Server, reason: str) -> bool:
    """Whether the metric has refusals with this reason."""
    text = server.ask("GET", "/metrics", key=KEY).text
    counted = re.search(rf'rul_rejected_total{{reason="{reason}"}} (\S+)', text)
    return counted is not None and float(counted[1]) > 0


async def test_connections_above_the_limit_are_closed_and_counted_and_those_below_it_are_served(
    tiny_bundle, tmp_path
):
    with running(tmp_path, str(tiny_bundle.path), max_connections="20") as server:
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]

        reads = [asyncio.ensure_future(reader.read(1)) for reader, _ in opened]
        closed, _ = await asyncio.wait(reads, return_when="FIRST_COMPLETED")
        assert {read.result() for read in closed} == {b""}
        opened[0][1].write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert await reads[0] == b"H"
        for _, writer in opened:
            writer.close()
        wait_until(lambda: server.ask("GET", "/livez").is_success, SECONDS)

        wait_until(lambda: refused(server, "connections"), SECONDS)


@pytest.mark.parametrize("server", ["envoy"], indirect=True)
def test_a_head_that_envoy_refuses_is_counted(server):
    with connect(server) as client:
        client.sendall(f"GET /livez HTTP/1.1\r\nhost: a\r\nx-large: {'a' * 70_000}\r\n\r\n".encode())
        assert b" 431 " in client.recv(100)

    wait_until(lambda: refused(server, "protocol_error"), SECONDS)


async def test_an_attack_that_the_server_no_longer_reads_keeps_its_connection():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        reader = await streams(PREDICT, PARTIAL, count=1)("127.0.0.1", deaf.getsockname()[1])

        assert not reader.at_eof()
        forget()
