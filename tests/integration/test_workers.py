"""Several workers are one service: one port, one count, and one that dies is replaced."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import httpx
import psutil
import pytest

from export.bundle import find_bundle
from tests.integration.conftest import FRONT_ENDS, Server, await_workers, metric, running, workers_of
from tests.waiting import wait_until

REQUESTS = 200
PATIENCE = 60
STOPPED = '"worker stopped"'


@pytest.fixture(scope="module")
def started(tiny_bundle, tmp_path_factory) -> Iterator[Callable[[str], Server]]:
    """Start a service of two workers once; the folder that it watches has `fd002` and a broken bundle."""
    with ExitStack() as stack:

        @cache
        def start(front_end: str) -> Server:
            folder = tmp_path_factory.mktemp(front_end)
            bundle = shutil.copytree(tiny_bundle.path, folder / "served")
            watched = shutil.copytree(find_bundle("fd002").path, folder / "watched" / "fd002").parent
            (watched / "broken").mkdir()
            settings = {"workers": "2", "bundles_watch": str(watched), "lame_duck_seconds": "5"}
            given = running(folder, str(bundle), front_end=front_end, ready=False, **settings)
            server = stack.enter_context(given)
            wait_until(lambda: is_ready(server), PATIENCE, what="readiness")
            assert server.ask("GET", "/v1/models/fd002").status_code == 200
            if front_end == "envoy":
                await_workers(server, 2)
            return server

        yield start


@pytest.fixture(scope="module")
def server(started) -> Server:
    return started("envoy")


@pytest.fixture(scope="module")
def query(windows) -> dict[str, object]:
    return {"model": "tiny", "windows": [windows[0].json()]}


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
def test_glibc_leaves_restartable_sequences_of_a_worker_to_its_allocator(server):
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
def test_another_user_of_this_machine_reaches_the_port_of_the_service_and_nothing_else(front_end, started):
    server = started(front_end)
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


def test_a_worker_that_dies_is_replaced_and_nothing_counted_is_lost(server, query):
    def answered() -> float:
        return metric(server, "rul_requests_total", protocol="http", route="/v1/predict", code="200")

    before = answered()
    asyncio.run(ask(server, query, 20))
    # A worker that is not scraped shows what it has counted a moment later.
    wait_until(lambda: answered() == before + 20, PATIENCE, what="the first counts")
    other, victim = workers_of(server)

    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: not victim.is_running(), PATIENCE, what="the end of the worker")

    ready = metric(server, "rul_workers")
    assert ready == 1 or workers_of(server) != [other], "a dead worker counts, and none replaces it yet"
    assert asyncio.run(ask(server, query, 20)) == [200] * 20
    await_workers(server, 2)
    wait_until(lambda: answered() >= before + 40, PATIENCE, what="the other counts")
    assert answered() == before + 40
    assert other.is_running()
    (stopped,) = [json.loads(line) for line in server.output().splitlines() if STOPPED in line]
    assert (stopped["worker"], stopped["reason"]) == (1, "stopped with status -9")


def test_a_worker_restarts_with_the_bundle_of_the_others_after_its_files_have_changed(server):
    before = models_of(server)
    served = server.log.parent / "served"
    for file in served.iterdir():
        file.write_bytes(b"half of a copy")

    for victim in workers_of(server):
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda victim=victim: not victim.is_running(), PATIENCE, what="the end of the worker")
        await_workers(server, 2)

    assert models_of(server) == before


def models_of(server: Server) -> list[dict[str, object]]:
    return server.ask("GET", "/v1/models").json()["models"]


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_service_is_ready_with_the_good_bundles_of_its_watched_folder_in_every_worker(front_end, started):
    server = started(front_end)

    codes = {server.ask("GET", "/v1/models/fd002").status_code for _ in range(20)}
    (refused,) = [line for line in server.output().splitlines() if "candidate refused" in line]

    assert codes == {200}
    assert str(server.log.parent / "watched" / "broken") in refused


def test_a_worker_that_restarts_as_the_service_leaves_does_not_call_it_ready_again_and_every_worker_drains(
    server,
):
    stopped = server.output().count(STOPPED)
    other, victim = workers_of(server)
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: server.output().count(STOPPED) > stopped, PATIENCE, what="the end of the worker")

    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not is_ready(server), PATIENCE, what="the lame duck")
    processes = [other, *workers_of(server)]
    wait_until(lambda: is_ready(server) or server.process.poll() is not None, PATIENCE, what="the end")

    assert server.process.poll() == 0
    assert not any(process.is_running() for process in processes)
    assert "Traceback" not in server.output()


def is_ready(server: Server) -> bool:
    try:
        return server.ask("GET", "/readyz").status_code == 200
    except httpx.TransportError:
        return False
