"""A silent worker hangs if its event loop is blocked; one that computes has more time."""

import asyncio
from itertools import count

import pytest

from service.processes.control import Control
from service.processes.heartbeat import BEATS, PATIENCE, Heartbeat

LIMIT = 0.004
LOOP, OTHER = "17", "18"


@pytest.fixture
def account(short_path):
    """Write the seconds that a thread has run and waited for a core."""

    def write(thread, ran, waited=0.0):
        (short_path / "task" / thread).mkdir(parents=True, exist_ok=True)
        (short_path / "task" / thread / "schedstat").write_text(f"{ran * 1e9:.0f} {waited * 1e9:.0f} 1\n")

    write(LOOP, 0)
    write(OTHER, 0)
    return write


@pytest.fixture
def beginning(short_path, account):
    """The heartbeat of a worker that has not replied yet."""
    return Heartbeat(short_path / "worker", short_path / "task", limit_seconds=LIMIT)


@pytest.fixture
async def heartbeat(short_path, beginning):
    """The heartbeat of a worker that has replied once and is silent since."""

    async def beat():
        return LOOP

    control = Control({"beat": beat})
    await control.open(short_path / "worker")
    while beginning._thread is None:
        await beginning.beat()
    control.close()
    (short_path / "worker").unlink(missing_ok=True)
    return beginning


async def beats_until_hung(heartbeat, between=lambda: None, *, most=2 * BEATS * PATIENCE):
    for beats in range(1, most + 1):
        if await heartbeat.beat():
            return beats
        between()
    return None


@pytest.mark.parametrize(("reply", "beats"), [("", BEATS), (LOOP, None)])
async def test_a_worker_that_only_a_restart_helps_hangs_after_the_limit(short_path, account, reply, beats):
    async def beat():
        return LOOP if heartbeat._thread is None else reply

    control = Control({"beat": beat})
    await control.open(short_path / "worker")
    heartbeat = Heartbeat(short_path / "worker", short_path / "task", limit_seconds=0.8)
    while heartbeat._thread is None:
        await heartbeat.beat()

    assert await beats_until_hung(heartbeat, most=BEATS) == beats
    control.close()


async def test_a_worker_that_hangs_soon_after_it_listens_hangs_after_the_limit(short_path, account):
    heartbeat = Heartbeat(short_path / "worker", short_path / "task", limit_seconds=0.4)
    asked = count()

    async def answer(_reader, writer):
        if next(asked) % 2:  # it answers its second connection, and after a late beat the fourth
            writer.write(f"{LOOP}\n".encode())
        writer.close()

    server = await asyncio.start_unix_server(answer, short_path / "worker")
    while heartbeat._thread is None:
        await heartbeat.beat()
    server.close()

    assert await beats_until_hung(heartbeat, most=BEATS) == BEATS


async def test_a_loop_that_is_busy_for_the_limit_is_silent(heartbeat, account):
    account(LOOP, 1000)
    before = [await heartbeat.beat() or heartbeat.is_silent for _ in range(BEATS - 1)]
    await heartbeat.beat()

    assert before == [False] * (BEATS - 1)
    assert heartbeat.is_silent


async def test_a_worker_that_starts_is_not_silent(beginning):
    assert await beats_until_hung(beginning, most=BEATS) is None
    assert not beginning.is_silent


async def test_a_blocked_loop_hangs_after_the_limit(heartbeat):
    assert await beats_until_hung(heartbeat) == BEATS


async def test_threads_beside_a_blocked_loop_do_not_hide_it(heartbeat, account):
    assert await beats_until_hung(heartbeat, lambda: account(OTHER, 1000)) == BEATS


@pytest.mark.parametrize("busy", [(1000, 0), (0, 1000)], ids=["computes", "waits for a core"])
async def test_a_silent_loop_that_is_busy_has_longer(heartbeat, account, busy):
    account(LOOP, *busy)

    assert await beats_until_hung(heartbeat) == BEATS * PATIENCE


@pytest.mark.parametrize(("state", "beats"), [("R", BEATS * PATIENCE), ("S", BEATS), ("T", BEATS)])
async def test_a_silent_loop_has_longer_while_it_waits_for_a_core(heartbeat, short_path, state, beats):
    """The kernel adds a wait to its account only when it ends."""
    (short_path / "task" / LOOP / "stat").write_text(f"{LOOP} (a name) of it) {state} 1 1\n")

    assert await beats_until_hung(heartbeat) == beats


async def test_a_silent_loop_without_an_account_has_longer(heartbeat, short_path):
    for file in (short_path / "task").glob("*/schedstat"):
        file.unlink()

    assert await beats_until_hung(heartbeat) == BEATS * PATIENCE


async def test_a_start_may_last_as_long_as_any_thread_is_busy(beginning, account):
    seconds = count(0, 1000)

    assert await beats_until_hung(beginning, lambda: account(OTHER, next(seconds))) is None


async def test_a_start_that_does_nothing_hangs(beginning):
    assert await beats_until_hung(beginning) == BEATS * PATIENCE


async def test_a_worker_that_accepts_and_never_replies_hangs(short_path, beginning):
    async def never(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(never, short_path / "worker")

    assert await beats_until_hung(beginning) == BEATS * PATIENCE
    server.close()
