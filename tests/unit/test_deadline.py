"""A time limit around awaited work."""

import asyncio

import pytest
from service.core.deadline import Deadline


async def test_work_that_ends_in_time_is_left_alone():
    with Deadline(30):
        await asyncio.sleep(0)

    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.001])
async def test_work_that_does_not_end_is_ended_when_the_time_is_over(seconds):
    with pytest.raises(TimeoutError), Deadline(seconds):
        await asyncio.Event().wait()

    assert asyncio.current_task().cancelling() == 0


async def test_without_a_limit_work_takes_as_long_as_it_needs():
    with Deadline(None):
        await asyncio.sleep(0)


async def test_an_error_of_the_work_is_its_own():
    with pytest.raises(KeyError, match="its own"), Deadline(30):
        raise KeyError("its own")


async def test_a_task_that_is_cancelled_from_outside_stays_cancelled():
    started = asyncio.Event()

    async def work():
        with Deadline(30):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_that_is_cancelled_as_its_time_ends_stays_cancelled():
    started = asyncio.Event()
    deadline = Deadline(30)

    async def work():
        with deadline:
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    deadline._expire()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_of_two_limits_the_shorter_one_ends_the_work():
    with Deadline(30), pytest.raises(TimeoutError), Deadline(0):
        await asyncio.Event().wait()

    assert asyncio.current_task().cancelling() == 0
