"""The phases of the service, and the requests that a drain waits for."""

import asyncio

import pytest

from service.core.lifecycle import Lifecycle, Phase
from service.errors import NotReady, RuntimeFailed


def make(phase=Phase.READY, *, healthy=True):
    life = Lifecycle(lambda: healthy)
    life.enter(phase, "for a reason")
    return life


def test_a_service_is_not_ready_before_it_enters_that_phase():
    life = Lifecycle(lambda: True)

    with pytest.raises(NotReady, match="starting: it has just been started"):
        life.check_ready()
    life.enter(Phase.READY)
    life.check_ready()


def test_a_service_is_alive_in_every_phase_while_its_parts_are_healthy():
    for phase in Phase:
        make(phase).check_alive()


def test_a_service_is_not_alive_with_a_part_that_only_a_restart_mends():
    with pytest.raises(RuntimeFailed):
        make(healthy=False).check_alive()


@pytest.mark.parametrize("phase", [Phase.LAME_DUCK, Phase.DRAINING])
def test_a_service_that_is_told_to_stop_before_it_is_ready_never_becomes_ready(phase):
    life = make(phase)

    life.enter(Phase.READY)

    assert life.phase is phase


async def test_a_drain_of_nothing_is_over_at_once():
    assert await make().drain(0)


async def test_a_drain_waits_for_the_last_request_and_tells_streams_to_end():
    life, told = make(), []
    life.when_draining(lambda: told.append(life.phase))
    life.in_flight = 2

    draining = asyncio.create_task(life.drain(30))
    await asyncio.sleep(0)
    life.in_flight = 1
    life.ended()
    await asyncio.sleep(0)
    assert not draining.done()
    life.in_flight = 0
    life.ended()

    assert await draining
    assert told == [Phase.DRAINING]


async def test_a_second_drain_has_only_the_time_that_the_first_one_left():
    life = make()
    life.in_flight = 1

    first = await life.drain(0.001)
    second = await life.drain(3600)
    life.in_flight = 0
    third = await life.drain(0)

    assert (first, second, third) == (False, False, True)
