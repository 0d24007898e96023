"""A bounded body, and callers who may leave at any moment."""

import asyncio

import pytest

from service.edge.asgi import (
    WATCH_AFTER_SECONDS,
    Disconnected,
    Patience,
    body_of,
    header,
    unless_disconnected,
)
from service.errors import TooLarge

LIMIT = 10


def scope(*headers):
    return {"type": "http", "headers": list(headers)}


def events(*parts, leaves=False):
    """What a server hands out: the body in parts, then the end of the connection."""
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if not leaves:
        waiting.append({"type": "http.request", "body": b"", "more_body": False})
    taken = []

    async def receive():
        taken.append(1)
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    return receive, taken


def test_a_header_that_was_not_sent_is_empty():
    assert header(scope((b"a", b"1"), (b"b", b"2")), b"b") == b"2"
    assert header(scope(), b"b") == b""


@pytest.mark.parametrize("parts", [[], [b"0123456789"], [b"01234", b"56789"], [b"", b"0", b""]])
async def test_a_body_in_any_parts_is_read_up_to_the_limit(parts):
    receive, _ = events(*parts)

    assert await body_of({}, receive, max_bytes=LIMIT) == b"".join(parts)


async def test_a_body_in_one_part_is_read():
    async def receive():
        return {"type": "http.request", "body": b"0123456789"}

    assert await body_of({}, receive, max_bytes=LIMIT) == b"0123456789"


async def test_a_body_in_one_part_above_the_limit_is_refused():
    async def receive():
        return {"type": "http.request", "body": b"0123456789X"}

    with pytest.raises(TooLarge, match="11 bytes"):
        await body_of({}, receive, max_bytes=LIMIT)


async def test_an_announced_body_above_the_limit_is_refused_before_it_is_read():
    receive, taken = events(b"x" * 11)

    with pytest.raises(TooLarge):
        await body_of({b"content-length": b"11"}, receive, max_bytes=LIMIT)
    assert taken == []


async def test_reading_stops_at_the_part_that_passes_the_limit():
    receive, taken = events(b"x" * 6, b"x" * 6, b"x" * 6, b"x" * 6)

    with pytest.raises(TooLarge):
        await body_of({}, receive, max_bytes=LIMIT)
    assert len(taken) == 2


async def test_a_caller_who_leaves_within_the_body_is_gone():
    receive, _ = events(b"x", leaves=True)

    with pytest.raises(Disconnected):
        await body_of({}, receive, max_bytes=LIMIT)


class Caller:
    """A caller who leaves when told."""

    def __init__(self):
        self.left = asyncio.Event()

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_work_that_ends_first_gives_its_result():
    caller = Caller()

    async def work():
        return 7

    assert await unless_disconnected(work(), caller.receive) == 7
    caller.left.set()


async def test_nobody_asks_after_a_caller_whose_answer_is_there_at_once():
    asked = []

    async def receive():
        asked.append(1)
        return {"type": "http.disconnect"}

    async def work():
        return 7

    assert await unless_disconnected(work(), receive) == 7
    assert asked == []


async def test_work_that_fails_raises_its_own_error():
    caller = Caller()

    async def work():
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        await unless_disconnected(work(), caller.receive)
    caller.left.set()


async def test_work_is_cancelled_and_has_ended_when_the_caller_leaves():
    caller, ended = Caller(), []

    async def work():
        caller.left.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    with pytest.raises(Disconnected):
        await unless_disconnected(work(), caller.receive)
    assert ended == [1]
    assert asyncio.current_task().cancelling() == 0


async def test_a_caller_who_leaves_after_the_work_has_ended_cancels_nothing():
    caller = Caller()

    async def work():
        return 7

    result = await unless_disconnected(work(), caller.receive)
    caller.left.set()
    for _ in range(5):
        await asyncio.sleep(0)

    assert result == 7
    assert asyncio.current_task().cancelling() == 0


async def test_a_caller_who_leaves_within_a_timeout_is_gone_and_not_late():
    caller = Caller()

    async def work():
        async with asyncio.timeout(30):
            caller.left.set()
            await asyncio.Event().wait()

    with pytest.raises(Disconnected):
        await unless_disconnected(work(), caller.receive)


async def test_a_task_that_is_cancelled_from_outside_stays_cancelled():
    caller, started = Caller(), asyncio.Event()

    async def work():
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(unless_disconnected(work(), caller.receive))
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    caller.left.set()


async def test_a_server_that_fails_to_say_who_left_stops_no_work():
    go_on = asyncio.Event()

    async def receive():
        go_on.set()
        raise RuntimeError("no more events")

    async def work():
        await go_on.wait()
        await asyncio.sleep(0)
        return 7

    assert await unless_disconnected(work(), receive) == 7


@pytest.mark.parametrize("seconds", [0.0, WATCH_AFTER_SECONDS + 0.01])
async def test_a_caller_who_stays_waits_no_longer_than_its_deadline(seconds):
    caller = Caller()

    with pytest.raises(TimeoutError), Patience(seconds, caller.receive):
        await asyncio.Event().wait()

    assert asyncio.current_task().cancelling() == 0
    caller.left.set()


async def test_a_caller_who_leaves_before_its_deadline_is_gone():
    caller = Caller()
    caller.left.set()

    with pytest.raises(Disconnected), Patience(30, caller.receive):
        await asyncio.Event().wait()

    assert asyncio.current_task().cancelling() == 0


async def test_a_caller_who_leaves_as_its_deadline_passes_is_gone():
    caller = Caller()
    caller.left.set()
    patience = Patience(30, caller.receive)

    async def work():
        patience._look()
        await asyncio.sleep(0)
        patience._expire()
        await asyncio.Event().wait()

    with pytest.raises(Disconnected), patience:
        await work()

    assert asyncio.current_task().cancelling() == 0
