"""`/livez` behind Envoy answers beside the event loop, and fails where the heartbeat does."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import httpx
import pytest

from service.processes.envoy_config import answer_liveness, hide_admin
from service.processes.envoy_server import EnvoyServer
from tests.integration.conftest import free_port
from tests.waiting import wait_until

pytest.importorskip("pyvoy")
FIFO = "TEST_LIVENESS_FIFO"
SECONDS = 60


async def application(scope, receive, send):
    """Block the event loop until somebody writes to a FIFO."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = Path(os.environ[FIFO]).read_bytes()  # noqa: ASYNC240 to block the event loop
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
async def server(short_path, port):
    os.mkfifo(short_path / "fifo")

    def configure(config):
        hide_admin(config, socket=short_path / "admin")
        answer_liveness(config)
        return config

    made = EnvoyServer(
        f"{__name__}:application",
        host="127.0.0.1",
        port=port,
        admin=short_path / "admin",
        configure=configure,
        environment={FIFO: str(short_path / "fifo")},
        arguments=["--concurrency", "1"],
    )
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def client(server, port):
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=SECONDS) as made:
        yield made


async def test_liveness_is_answered_at_each_path_while_the_event_loop_is_blocked(client, short_path):
    blocked = asyncio.ensure_future(client.get("/"))
    opened = partial(os.open, short_path / "fifo", os.O_WRONLY | os.O_NONBLOCK)  # once its reader blocks
    writer = await asyncio.to_thread(wait_until, opened, SECONDS)

    replies = [await client.get(path) for path in ("/livez", "/healthz", "/livez?verbose=1")]
    was_blocked = not blocked.done()
    os.close(writer)

    for reply in replies:
        assert (reply.status_code, reply.json()) == (200, {"status": "alive"})
        assert reply.headers["content-type"] == "application/json"
    assert was_blocked
    assert (await blocked).status_code == 200


async def test_liveness_fails_while_a_heartbeat_is_missing(server, client):
    codes = [(await client.get("/livez")).status_code]
    for is_alive in (False, True):
        await server.set_alive(is_alive=is_alive)
        codes.append((await client.get("/livez")).status_code)

    assert codes == [200, 503, 200]


async def test_a_process_that_is_stopped_does_not_delay_its_supervisor(server):
    process = await server.process
    process.send_signal(signal.SIGSTOP)

    await server.set_alive(is_alive=False)
    process.send_signal(signal.SIGCONT)

    assert process.returncode is None
