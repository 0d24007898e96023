"""Several workers are one service: one port, one count, and one that dies is replaced."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from export.bundle import find_bundle
from tests.integration.conftest import FRONT_ENDS, Server, await_workers, metric, running, workers_of
from tests.waiting import wait_until

REQUESTS = 200
PATIENCE = 60


@pytest.fixture(scope="module")
def server(tiny_bundle, tmp_path_factory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("workers"), str(tiny_bundle.path), workers="2") as server:
        yield server


@pytest.fixture(scope="module")
def query(windows) -> dict[str, object]:
    return {"windows": [windows[0].json()]}


async def ask(server: Server, body: dict[str, object], times: int) -> list[int]:
    """So many requests, each over its own connection: the kernel deals them to the workers."""

    async def one() -> int:
        async with httpx.AsyncClient(
            base_url=server.http, trust_env=False, timeout=30, verify=False
        ) as client:
            return (await client.post("/v1/predict", json=body)).status_code

    codes: list[int] = []
    for _ in range(times // 20):
        codes += await asyncio.gather(*(one() for _ in range(20)))
    return codes


def processes_of(server: Server) -> list[psutil.Process]:
    supervisor = psutil.Process(server.process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def inodes_of(server: Server) -> set[str]:
    """The sockets that a service's processes hold."""
    # A process may have ended since it was listed: glob finds nothing there.
    links = [link for one in processes_of(server) for link in Path(f"/proc/{one.pid}/fd").glob("*")]
    targets = [str(link.readlink()) for link in links if link.is_symlink()]
    return {target[8:-1] for target in targets if target.startswith("socket:")}


@pytest.mark.skipif(sys.platform != "linux", reason="restartable sequences are Linux's")
def test_free_memory_is_cached_per_processor_and_not_per_thread(server):
    for worker in workers_of(server):
        assert "glibc.pthread.rseq=0" in worker.environ()["GLIBC_TUNABLES"]


@pytest.mark.skipif(sys.platform != "linux", reason="SCHED_BATCH is Linux's")
def test_threads_of_a_worker_let_each_other_finish(server):
    threads = [thread.id for worker in workers_of(server) for thread in worker.threads()]

    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}


@pytest.mark.skipif(sys.platform != "linux", reason="SCHED_BATCH is Linux's")
def test_an_operator_may_leave_the_cores_to_be_dealt_as_usual(tiny_bundle, tmp_path):
    with running(tmp_path, str(tiny_bundle.path), workers="1", scheduling="normal") as server:
        policies = {os.sched_getscheduler(worker.pid) for worker in workers_of(server)}

    assert policies == {os.sched_getscheduler(0)}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_another_user_of_this_machine_reaches_the_port_of_the_service_and_nothing_else(
    front_end, server, tiny_bundle, tmp_path
):
    with ExitStack() as stack:
        if front_end == "uvicorn":
            server = stack.enter_context(running(tmp_path, str(tiny_bundle.path), front_end=front_end))
        assert_only_its_ports_are_open(server)


def assert_only_its_ports_are_open(server: Server) -> None:
    own = {one.pid for one in processes_of(server)}
    listening = {
        found.laddr.port
        for found in psutil.net_connections(kind="inet")  # of all: one of ours may end meanwhile
        if found.pid in own and found.status == psutil.CONN_LISTEN
    }
    held = inodes_of(server)
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    named = [line[7] for line in lines if line[6] in held and len(line) > 7]

    assert listening == {server.port, int(server.grpc.rpartition(":")[2])}
    assert named
    assert [name for name in named if name.startswith("@")] == []
    assert {Path(name).parent.stat().st_mode & 0o777 for name in named} == {0o700}


def test_both_workers_answer_and_a_scrape_of_either_counts_both(server, query):
    labels = {"protocol": "http", "route": "/v1/predict"}
    before = metric(server, "rul_requests_total", **labels)
    busy = {worker.pid: sum(worker.cpu_times()[:2]) for worker in workers_of(server)}

    codes = asyncio.run(ask(server, query, REQUESTS))

    assert codes == [200] * REQUESTS
    after = {worker.pid: sum(worker.cpu_times()[:2]) for worker in workers_of(server)}
    assert len(busy) == 2
    assert all(after[pid] > busy[pid] for pid in busy)
    wait_until(
        lambda: metric(server, "rul_request_duration_seconds_count", **labels) >= before + REQUESTS,
        PATIENCE,
        what="the counts of both workers",
    )
    assert metric(server, "rul_request_duration_seconds_count", **labels) == before + REQUESTS
    assert metric(server, "rul_requests_total", code="200", **labels) - before == REQUESTS
    # The scrape itself, once the other worker has said that it has nothing left to do.
    wait_until(
        lambda: metric(server, "rul_inflight_requests") == 1, PATIENCE, what="the end of every request"
    )


def test_a_worker_that_dies_is_replaced_nothing_counted_is_lost_and_every_worker_drains(
    tiny_bundle, tmp_path, query
):
    with running(tmp_path, str(tiny_bundle.path), workers="2") as server:
        labels = {"protocol": "http", "route": "/v1/predict", "code": "200"}
        asyncio.run(ask(server, query, 20))
        # A worker that is not scraped shows what it has counted a moment later.
        wait_until(
            lambda: metric(server, "rul_requests_total", **labels) == 20, PATIENCE, what="the first counts"
        )
        other, victim = workers_of(server)

        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: not victim.is_running(), PATIENCE, what="the end of the worker")

        ready = metric(server, "rul_workers")
        assert ready == 1 or workers_of(server) != [other], "a dead worker counts, and none replaces it yet"
        assert asyncio.run(ask(server, query, 20)) == [200] * 20
        await_workers(server, 2)
        wait_until(
            lambda: metric(server, "rul_requests_total", **labels) >= 40, PATIENCE, what="the other counts"
        )
        assert metric(server, "rul_requests_total", **labels) == 40
        assert other.is_running()
        (stopped,) = [json.loads(line) for line in server.output().splitlines() if '"worker stopped"' in line]
        assert (stopped["worker"], stopped["reason"]) == (1, "stopped with status -9")
        processes = workers_of(server)
        assert server.stop() == 0
        assert not any(process.is_running() for process in processes)
        assert "Traceback" not in server.output()


def test_a_worker_restarts_with_the_bundle_of_the_others_after_its_files_have_changed(tiny_bundle, tmp_path):
    served = shutil.copytree(tiny_bundle.path, tmp_path / "served")
    with running(tmp_path, str(served), workers="2") as server:
        (before,) = models_of(server)
        for file in served.iterdir():
            file.write_bytes(b"half of a copy")

        for victim in workers_of(server):
            os.kill(victim.pid, signal.SIGKILL)
            wait_until(lambda victim=victim: not victim.is_running(), PATIENCE, what="the end of the worker")
            await_workers(server, 2)
        (after,) = models_of(server)

    assert after == before


def models_of(server: Server) -> list[dict[str, object]]:
    return server.ask("GET", "/v1/models").json()["models"]


def test_a_worker_that_restarts_as_the_service_leaves_does_not_call_it_ready_again(tiny_bundle, tmp_path):
    with running(tmp_path, str(tiny_bundle.path), workers="2", lame_duck_seconds="5") as server:
        os.kill(workers_of(server)[1].pid, signal.SIGKILL)
        wait_until(lambda: '"worker stopped"' in server.output(), PATIENCE, what="the end of the worker")

        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_ready(server), PATIENCE, what="the lame duck")
        wait_until(lambda: is_ready(server) or server.process.poll() is not None, PATIENCE, what="the end")

        assert server.process.poll() == 0


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_service_is_ready_with_the_good_bundles_of_its_watched_folder_in_every_worker(
    front_end, tiny_bundle, tmp_path
):
    watched = tmp_path / "watched"
    shutil.copytree(find_bundle("fd002").path, watched / "fd002")
    (watched / "broken").mkdir()
    settings = {"front_end": front_end, "workers": "2", "bundles_watch": str(watched)}

    with running(tmp_path, str(tiny_bundle.path), ready=False, **settings) as server:
        wait_until(lambda: is_ready(server), PATIENCE, what="readiness")
        first = server.ask("GET", "/v1/models/fd002").status_code
        if front_end == "envoy":
            await_workers(server, 2)
        codes = {server.ask("GET", "/v1/models/fd002").status_code for _ in range(20)}
        (refused,) = [line for line in server.output().splitlines() if "candidate refused" in line]

    assert (first, codes) == (200, {200})
    assert str(watched / "broken") in refused


def is_ready(server: Server) -> bool:
    try:
        return server.ask("GET", "/readyz").status_code == 200
    except httpx.TransportError:
        return False
