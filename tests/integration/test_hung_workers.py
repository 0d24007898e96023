"""A worker that hangs is replaced, while a worker that computes is left alone."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.conftest import Server, await_workers, running, workers_of
from tests.integration.test_workers import ask
from tests.waiting import wait_until

PATIENCE = 60


@pytest.fixture(scope="module")
def query(windows):
    return {"windows": [windows[0].json()]}


def hung(server: Server) -> list[dict]:
    lines = [line for line in server.output().splitlines() if line.startswith("{")]
    return [event for event in map(json.loads, lines) if event["event"] == "worker hung"]


@pytest.fixture(scope="module", params=[2, 1])
def workers(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def server(workers, tiny_bundle, tmp_path_factory) -> Iterator[Server]:
    """A service that takes a worker for hung after a second."""
    settings = {"workers": str(workers), "log_format": "json", "hang_seconds": "1"}
    with running(tmp_path_factory.mktemp("hangs"), str(tiny_bundle.path), **settings) as started:
        yield started


@pytest.mark.alone
def test_a_short_pause_of_every_process_restarts_nothing(server, query):
    before = workers_of(server)

    os.killpg(server.process.pid, signal.SIGSTOP)
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(server.http + "/livez", timeout=2, trust_env=False)
    os.killpg(server.process.pid, signal.SIGCONT)

    assert asyncio.run(ask(server, query, 20)) == [200] * 20
    assert workers_of(server) == before
    assert not hung(server)


@pytest.mark.alone
def test_a_worker_that_hangs_is_replaced_and_the_service_answers_again(server, query, workers):
    victim = workers_of(server)[-1]

    victim.suspend()
    wait_until(lambda: not victim.is_running(), PATIENCE, what="the end of the hung worker")
    await_workers(server, workers)

    assert asyncio.run(ask(server, query, 20)) == [200] * 20
    assert [event["worker"] for event in hung(server)] == [workers - 1]
    assert server.stop() == 0


def test_a_worker_that_hangs_does_not_delay_the_end(tiny_bundle, tmp_path):
    with running(
        tmp_path, str(tiny_bundle.path), workers="2", hang_seconds="1000", drain_seconds="0.1"
    ) as server:
        workers_of(server)[-1].suspend()

        assert server.stop() == 0
