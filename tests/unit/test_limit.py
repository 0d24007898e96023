"""A time limit around awaited work, which also ends when the caller leaves."""

import asyncio
from collections import deque

import pytest

from service.edge.exchange import LOOK_SECONDS, Limit
from service.errors import BodyTimeout, DeadlineExceeded, Disconnected

ENDED = {"type": "http.request", "body": b"", "more_body": False}
LEFT = {"type": "http.disconnect"}


class Caller:
    """A caller who leaves when told, after the events that its server still holds."""

    def __init__(self, *events):
        self.events = deque(events)
        self.left = asyncio.Event()
        self.asked = 0

    async def receive(self):
        self.asked += 1
        if self.events:
            return self.events.popleft()
        await self.left.wait()
        return LEFT


def no_cancellation_is_left():
    return asyncio.current_task().cancelling() == 0


async def forever():
    await asyncio.Event().wait()


async def rounds(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seconds", [None, 30])
async def test_work_that_ends_in_time_is_left_alone_and_its_caller_not_watched(seconds):
    caller = Caller()

    with Limit(seconds, caller.receive):
        await rounds()

    assert caller.asked == 0


@pytest.mark.parametrize("events", [None, [ENDED]], ids=["unwatched", "a caller who stays"])
@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.001, LOOK_SECONDS + 0.01])
async def test_work_that_does_not_end_is_ended_when_the_time_is_over(seconds, events):
    receive = None if events is None else Caller(*events).receive

    with pytest.raises(DeadlineExceeded, match=f"within {seconds:g} s"), Limit(seconds, receive):
        await forever()

    assert no_cancellation_is_left()


@pytest.mark.parametrize("seconds", [0.0, LOOK_SECONDS + 0.01])
async def test_a_body_that_does_not_come_in_time_ends_its_work(seconds):
    caller = Caller()

    with (
        pytest.raises(BodyTimeout, match=f"{seconds:g} s"),
        Limit(7, caller.receive, reading_seconds=seconds),
    ):
        await forever()

    assert caller.asked == 0
    assert no_cancellation_is_left()


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("seconds", [0.0, LOOK_SECONDS + 0.01])
async def test_once_the_body_has_come_the_time_to_the_answer_counts(seconds, slow):
    limit = Limit(seconds, reading_seconds=30)

    async def work():
        if slow:
            limit._timer.cancel()
            limit._look()
        limit.reading_seconds = None
        if limit.is_late:
            limit.start()
        await forever()

    with pytest.raises(DeadlineExceeded, match=f"within {seconds:g} s"), limit:
        await work()

    assert no_cancellation_is_left()


async def test_a_short_time_for_the_body_takes_nothing_from_the_time_to_the_answer():
    loop = asyncio.get_running_loop()
    begun = loop.time()

    with Limit(30, reading_seconds=0.0) as limit:
        limit.reading_seconds = None
        await rounds()

        assert limit._timer.when() >= begun + 30


@pytest.mark.parametrize("watched", [False, True])
async def test_a_limit_that_is_shortened_ends_the_work_earlier(watched):
    limit = Limit(30, Caller().receive if watched else None)

    async def work():
        limit.shorten(60)
        limit.shorten(0)
        await forever()

    with pytest.raises(DeadlineExceeded, match="within 0 s"), limit:
        await work()

    assert no_cancellation_is_left()


async def test_a_limit_that_is_shortened_late_watches_its_caller_once():
    caller = Caller()
    limit = Limit(30, caller.receive)

    async def work():
        limit._look()
        limit.shorten(20)
        await rounds()
        caller.left.set()
        await forever()

    with pytest.raises(Disconnected), limit:
        await work()

    assert caller.asked == 1
    assert no_cancellation_is_left()


@pytest.mark.parametrize("at_once", [lambda limit: None, Limit._expire, Limit._look])
async def test_a_task_that_is_cancelled_from_outside_stays_cancelled(at_once):
    started = asyncio.Event()
    caller = Caller()
    limit = Limit(30, caller.receive)

    async def work():
        with limit:
            started.set()
            await forever()

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    at_once(limit)

    with pytest.raises(asyncio.CancelledError):
        await task
    caller.left.set()


async def test_of_two_limits_the_shorter_one_ends_the_work():
    with Limit(30), pytest.raises(DeadlineExceeded), Limit(0):
        await forever()

    assert no_cancellation_is_left()


@pytest.mark.parametrize("seconds", [None, 30])
async def test_work_is_cancelled_and_has_ended_when_the_caller_leaves(seconds):
    caller, ended = Caller(ENDED), []

    async def work():
        caller.left.set()
        try:
            await forever()
        finally:
            ended.append(1)

    with pytest.raises(Disconnected), Limit(seconds, caller.receive):
        await work()

    assert ended == [1]
    assert no_cancellation_is_left()


async def test_a_caller_who_leaves_within_another_timeout_is_gone_and_not_late():
    caller = Caller()
    caller.left.set()

    with pytest.raises(Disconnected), Limit(None, caller.receive):
        async with asyncio.timeout(30):
            await forever()

    assert no_cancellation_is_left()


async def test_a_caller_who_leaves_as_its_deadline_passes_is_gone():
    caller = Caller()
    caller.left.set()
    limit = Limit(30, caller.receive)

    async def work():
        limit._look()
        await asyncio.sleep(0)
        limit._expire()
        await forever()

    with pytest.raises(Disconnected), limit:
        await work()

    assert no_cancellation_is_left()


async def test_a_server_that_answers_at_once_is_asked_again_after_a_pause(monkeypatch):
    caller = Caller(*[ENDED] * 100)

    with Limit(None, caller.receive) as limit:
        limit._look()
        await rounds(100)
        asked = caller.asked
        monkeypatch.setattr("service.edge.exchange.LOOK_SECONDS", 0.0)
        limit._ask()
        await rounds(20)

    assert asked == 1
    assert caller.asked > 2


async def test_a_caller_who_leaves_after_the_work_has_ended_cancels_nothing():
    caller = Caller()
    limit = Limit(30, caller.receive)

    with limit:
        limit._look()
        await rounds()
    caller.left.set()
    await rounds()

    assert caller.asked == 1
    assert no_cancellation_is_left()


async def no_more_events():
    raise RuntimeError("no more events")


def not_even_asked():
    raise RuntimeError("the server ends")


class PanicException(BaseException):
    """A panic of a server in Rust; it is no `Exception`, as in pyo3."""


def panics():
    raise PanicException("the server ends")


@pytest.mark.parametrize("receive", [no_more_events, not_even_asked, panics])
async def test_a_server_that_fails_to_say_who_left_stops_no_work(receive):
    limit = Limit(30, receive)

    with limit:
        limit._look()
        await rounds()
