"""Where the service is in its life, and who is still being answered."""

import asyncio

import pytest

from service.core.lifecycle import Lifecycle, Phase
from service.errors import NotReady, RuntimeFailed


def make(phase=Phase.READY, *, healthy=True):
    life = Lifecycle(lambda: healthy)
    life.enter(phase, "for a reason")
    return life


def test_it_starts_and_is_not_ready_until_someone_says_so():
    life = Lifecycle(lambda: True)

    with pytest.raises(NotReady, match="starting: golden windows"):
        life.check_ready()
    life.enter(Phase.READY)
    life.check_ready()


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.DRAINING, Phase.FAILED])
def test_what_is_not_ready_takes_no_request_and_says_why(phase):
    with pytest.raises(NotReady, match=f"{phase}: for a reason"), make(phase).request():
        pass


def test_it_is_alive_in_every_phase_while_its_parts_are_healthy():
    for phase in Phase:
        make(phase).check_alive()


def test_it_is_not_alive_with_a_part_that_cannot_mend_itself():
    with pytest.raises(RuntimeFailed):
        make(healthy=False).check_alive()


def test_draining_is_never_left():
    life = make(Phase.DRAINING)

    life.enter(Phase.READY)

    assert life.phase is Phase.DRAINING


async def test_a_drain_of_nothing_is_over_at_once():
    assert await make().drain(0)


async def test_a_drain_waits_for_what_is_in_flight_also_if_it_fails():
    life, failing = make(), asyncio.Event()

    async def request():
        with life.request():
            await failing.wait()
            raise KeyError("its own")

    asking = asyncio.create_task(request())
    await asyncio.sleep(0)
    draining = asyncio.create_task(life.drain(30))
    await asyncio.sleep(0)
    with pytest.raises(NotReady, match="draining"), life.request():
        pass
    assert not draining.done()
    failing.set()

    assert await draining
    with pytest.raises(KeyError, match="its own"):
        await asking


async def test_a_drain_gives_up_after_its_patience():
    life = make()

    with life.request():
        assert not await life.drain(0.001)


async def test_a_second_drain_has_only_what_is_left_of_the_first_ones_patience():
    life = make()

    with life.request():
        first = await life.drain(0.001)
        second = await life.drain(3600)
    third = await life.drain(0)

    assert (first, second, third) == (False, False, True)
