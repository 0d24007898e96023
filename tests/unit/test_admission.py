"""Admission: what waits, what is refused, and how much is answered under too many callers."""

import asyncio
import math
import selectors
from collections import deque

import numpy as np
import pytest

from service.edge.admission import (
    RECEIVING_SECONDS,
    RETRY_SECONDS,
    SMOOTHING,
    WAIT_SHARE,
    Admission,
    Coming,
    Lane,
)
from service.errors import Overloaded
from tests.in_process import PREDICT, ask_grpc, framed, json_window, until

LIMIT = 5.0
WORK = 0.02
REFUSING = 0.0015
JSON = {"content-type": "application/json"}


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Searched(deque):
    """A line that counts how often it is searched."""

    searches = 0

    def __contains__(self, ticket):
        self.searches += 1
        return super().__contains__(ticket)

    def remove(self, ticket):
        self.searches += 1
        super().remove(ticket)


class Jumping(selectors.DefaultSelector):
    """Never waits: the time of its loop jumps to the next timer."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        if timeout is not None and timeout > 0:
            self.now += timeout
        return super().select(0)


def simulated(work):
    """Run a coroutine function, which takes the clock, in time that passes by itself."""
    selector = Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    try:
        return loop.run_until_complete(work(loop.time))
    finally:
        loop.close()


async def crowd(callers, clock):
    """Waits of answered calls of a closed loop at a server of one core, by when they were answered."""
    size = 100
    lane, core, answered = Lane(3 * size, LIMIT, clock), asyncio.Lock(), []

    async def call():
        begun = clock()
        if lane.line or lane.in_work >= lane.room:
            try:
                await lane.wait(size, LIMIT)
            except Overloaded as error:
                async with core:
                    await asyncio.sleep(REFUSING)
                await asyncio.sleep(error.retry_after_seconds)
                return
        else:
            lane.in_work += size
        async with core:
            await asyncio.sleep(WORK)
        lane.in_work -= size
        lane.advance()
        answered.append(clock() - begun)

    async def caller():
        while clock() < 60.0:
            await call()

    await asyncio.gather(*(caller() for _ in range(callers)))
    assert lane.in_work == 0
    return answered


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lane(clock):
    """A lane with room for one request of 100 bytes, which is taken."""
    made = Lane(100, LIMIT, clock)
    made.in_work = 100
    return made


def leave(lane, size=100):
    lane.in_work -= size
    lane.advance()


async def queued(lane, *, size=100, limit=LIMIT):
    task = asyncio.create_task(lane.wait(size, limit))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(("factor", "share"), [(2, 0.9), (4, 0.9), (8, 0.9), (32, 0.75)])
def test_goodput_under_too_many_callers_is_that_of_enough(factor, share):
    enough = len(simulated(lambda clock: crowd(40, clock)))

    answered = simulated(lambda clock: crowd(40 * factor, clock))

    assert len(answered) > share * enough
    assert np.quantile(answered, 0.99) < 0.5 * LIMIT


async def test_requests_that_wait_work_in_their_order(lane):
    first, second = await queued(lane), await queued(lane)

    leave(lane)
    await asyncio.sleep(0)

    assert [first.done(), second.done()] == [True, False]
    leave(lane)
    await asyncio.sleep(0)
    assert second.done()
    assert lane.in_work == 100


@pytest.mark.parametrize(("before", "limit"), [(3, LIMIT), (1, 1.0)])
async def test_a_request_that_would_wait_too_long_is_refused_at_once(lane, clock, before, limit):
    first = await queued(lane)
    clock.now = 0.5
    leave(lane)
    await first
    assert lane.bytes_per_second == 200
    waiting = [await queued(lane) for _ in range(before)]

    with pytest.raises(Overloaded, match=f"{before} requests wait"):
        await lane.wait(100, limit)

    assert [task.done() for task in waiting] == [False] * before


def test_before_its_speed_is_known_a_line_is_sixteen_rooms_long(lane):
    lane.check(16 * lane.room, LIMIT)

    with pytest.raises(Overloaded):
        lane.check(16 * lane.room + 1, LIMIT)


async def test_a_request_that_has_waited_too_long_never_works(lane, clock):
    late, other = await queued(lane, limit=1.0), await queued(lane)
    clock.now = WAIT_SHARE * 1.0 + 0.01

    leave(lane)
    await other

    with pytest.raises(Overloaded):
        await late
    assert lane.in_work == 100


async def test_a_line_is_cut_where_its_speed_shows_that_it_is_too_long(lane, clock):
    waiting = [await queued(lane) for _ in range(16)]
    clock.now = 0.25

    waiting[15].cancel()  # its task has not heard of it yet
    leave(lane)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [task.done() for task in waiting] == [True] + 3 * [False] + 12 * [True]
    assert all(isinstance(task.exception(), Overloaded) for task in waiting[4:15])
    assert waiting[15].cancelled()


async def test_a_line_is_cut_without_a_search_for_each_of_its_requests(lane, clock):
    lane.line = Searched()
    _tasks = [await queued(lane, limit=limit) for limit in [0.1, *15 * [LIMIT]]]
    clock.now = 0.25

    leave(lane)

    assert (len(lane.line), lane.line.searches) == (3, 0)


@pytest.mark.parametrize("burst", [300, 1000])
async def test_a_first_burst_that_would_be_answered_in_time_is_admitted_whole(clock, burst):
    lane = Lane(192, LIMIT, clock)
    lane.in_work = 192
    waiting = [await queued(lane, size=1) for _ in range(burst - 192)]

    while lane.line:
        clock.now += 0.016
        for _ in range(32):  # the windows of a batch leave at the same time
            leave(lane, 1)

    assert [await task for task in waiting] == [None] * len(waiting)


async def test_requests_that_waited_alone_make_no_line_look_slow(clock):
    lane = Lane(192, LIMIT, clock)
    lane.in_work, lane.bytes_per_second = 192, 2000.0
    for _ in range(400):  # one more than there is room for comes with each batch of 32
        alone = await queued(lane, size=1)
        clock.now += 0.016
        leave(lane, 32)
        lane.in_work += 31
        await alone

    waiting = [await queued(lane, size=1) for _ in range(300)]

    assert not any(task.done() for task in waiting)
    leave(lane, 0)
    assert len(lane.line) == 300
    lane.line.clear()


@pytest.mark.parametrize("moment", ["while it waits", "as it is admitted", "refused", "passed"])
async def test_a_caller_that_leaves_the_line_leaves_no_trace(lane, clock, moment):
    leaving, other = await queued(lane, limit=1.0), await queued(lane)
    clock.now = 2 * WAIT_SHARE if moment == "refused" else 0.0

    if moment in {"as it is admitted", "refused"}:
        leave(lane)
    leaving.cancel()
    if moment == "passed":
        leave(lane)  # before the caller's task hears of it
    with pytest.raises(asyncio.CancelledError):
        await leaving

    if moment == "while it waits":
        assert lane.expected_bytes == 100
        leave(lane)
    await other
    leave(lane)
    assert (lane.in_work, lane.expected_bytes) == (0, 0)


async def test_a_short_line_can_only_show_that_the_lane_is_faster(lane, clock):
    lane.bytes_per_second, speeds = 100.0, []

    for waited in (1.0, 0.25, 0.0):
        task = await queued(lane, size=50)
        clock.now += waited
        leave(lane, 50)
        await task
        speeds.append(lane.bytes_per_second)

    faster = 100.0 + (200.0 - 100.0) * SMOOTHING
    assert speeds == [100.0, faster, faster]


def test_bodies_that_are_being_received_count_as_waiting():
    admission = Admission(room_windows=100, limit_seconds=LIMIT)
    admission.fit(10)

    with admission.expected(1000):
        assert admission.large.expected_bytes == 1000
        admission.large.bytes_per_second = 1000 / (WAIT_SHARE * LIMIT)
        with admission.expected(1000):
            pass
        admission.large.bytes_per_second -= 1
        with pytest.raises(Overloaded), admission.expected(1000):
            pass

    assert admission.large.expected_bytes == 0


def test_a_small_body_that_comes_in_parts_is_not_refused_for_the_line_of_large_ones():
    admission = Admission(room_windows=100, limit_seconds=LIMIT)
    admission.fit(10)
    admission.large.bytes_per_second = 0.0
    admission.large.coming_bytes = 1000

    with admission.expected(20):
        assert admission.small.expected_bytes == 20

    assert (admission.small.expected_bytes, admission.large.expected_bytes) == (0, 1000)


def test_a_body_of_unknown_size_counts_as_a_large_one():
    admission = Admission(room_windows=100, limit_seconds=LIMIT)
    admission.fit(10)
    admission.small.coming_bytes = 10**9

    for _ in range(2):
        with admission.expected(0):
            assert len(admission.large.coming) == 1  # those that have ended are forgotten


def test_a_smaller_model_makes_no_room_smaller():
    admission = Admission(room_windows=100, limit_seconds=LIMIT)
    for window_bytes in (10, 1):
        admission.fit(window_bytes)

    assert (admission.small_bytes, admission.small.room, admission.large.room) == (20, 1000, 1000)


def test_a_slow_body_keeps_no_place(lane, clock):
    slow, quick = Coming(lane, 10_000), None

    with slow:
        assert lane.expected_bytes == lane.room  # what is announced may never come
        clock.now = RECEIVING_SECONDS + 0.01
        quick = Coming(lane, 100)
        with quick:
            assert lane.expected_bytes == 100

    assert lane.expected_bytes == 0


def test_callers_are_asked_to_return_later_while_most_are_refused(lane, clock):
    lane.bytes_per_second, asked = 1.0, []

    for second in range(200):
        clock.now = float(second)
        for _ in range(10):
            with pytest.raises(Overloaded) as refusal:
                lane.check(1000, LIMIT)
        asked.append(refusal.value.retry_after_seconds)

    assert asked[0] == RETRY_SECONDS[0]
    assert asked[-1] == RETRY_SECONDS[1]
    assert asked == sorted(asked)


async def test_callers_are_asked_to_return_sooner_once_few_are_refused(lane, clock):
    lane._retry_seconds, asked = RETRY_SECONDS[1], []

    for second in range(100):
        clock.now, lane.bytes_per_second = float(second), math.inf
        for _ in range(10):
            task = await queued(lane)
            leave(lane)
            await task
        lane.bytes_per_second = 1.0
        with pytest.raises(Overloaded) as refusal:
            lane.check(1000, LIMIT)
        asked.append(refusal.value.retry_after_seconds)

    assert (asked[0], asked[-1]) == (RETRY_SECONDS[1], RETRY_SECONDS[0])
    assert asked == sorted(asked, reverse=True)


@pytest.mark.parametrize("more", [0, 1])
async def test_one_rule_refuses_by_every_protocol_before_a_request_is_decoded(service, more):
    admission = service.desk.admission
    lane, undecodable = (admission.large if more else admission.small), b"{" * (admission.small_bytes + more)
    lane.in_work, lane.bytes_per_second = lane.room, 1.0
    first = asyncio.create_task(lane.wait(1000, None))
    await until(lambda: bool(lane.line))

    by_http = await service.http.post("/v1/predict", content=undecodable, headers=JSON)
    by_grpc = await ask_grpc(service.grpc, PREDICT, framed(undecodable))

    assert (by_http.status_code, by_http.headers["retry-after"]) == (429, "1")
    assert (by_grpc.code.name, by_grpc.metadata["grpc-retry-pushback-ms"]) == (
        "RESOURCE_EXHAUSTED",
        "1000",
    )
    assert service.runtime.batches == []
    first.cancel()


async def test_small_requests_do_not_wait_behind_large_ones(service):
    large = service.desk.admission.large
    large.in_work = large.room
    waiting = asyncio.create_task(service.predict_http(windows=20 * [json_window()]))
    await until(lambda: bool(large.line))

    answer = await service.predict_http()

    assert answer.status_code == 200
    assert not waiting.done()
    large.in_work = 0
    large.advance()
    assert (await waiting).status_code == 200
    assert large.in_work == 0


async def test_a_request_that_fails_leaves_its_room(service):
    service.runtime.failures = 1

    answer = await service.predict_http()

    assert answer.status_code == 500
    assert service.desk.admission.small.in_work == 0
