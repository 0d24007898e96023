"""A batch on the event loop waits as long as others bring windows, and no longer."""

import pytest
from service.core.on_loop import DISTRUSTED_BATCHES, IN_VAIN, STRANGER_SECONDS, OnLoop

FULL = 8


class Core:
    """A core that others get: what each turn of theirs takes, and the clock that shows it."""

    def __init__(self):
        self.now = 0.0
        self.turns = 0
        self.turn_seconds = 1e-5

    def clock(self):
        return self.now

    def give_way(self):
        self.turns += 1
        self.now += self.turn_seconds


@pytest.fixture
def core():
    return Core()


@pytest.fixture
def on_loop(core):
    made = OnLoop(
        most_windows=FULL, most_seconds=1.0, meet_windows=FULL, give_way=core.give_way, clock=core.clock
    )
    made.ran(FULL, FULL * 1e-3)  # a full batch takes eight milliseconds
    return made


def leaves_with(on_loop, arrivals):
    """How many windows leave, where so many are there each time the loop has gone round."""
    waiting = 0
    for new in arrivals:
        waiting += new
        if not on_loop.waits(waiting):
            return waiting
    raise AssertionError("it still waits")


def test_a_full_batch_waits_for_nobody(on_loop, core):
    assert not on_loop.waits(FULL)
    assert core.turns == 0


def test_windows_that_come_of_giving_way_leave_together(on_loop):
    assert leaves_with(on_loop, [2, 0, 1, 0, 2, *[0] * IN_VAIN]) == 5


def test_a_batch_that_has_become_full_leaves_at_once(on_loop, core):
    assert leaves_with(on_loop, [2, 6]) == FULL
    assert core.turns == 1


def test_giving_way_ends_when_nothing_comes_of_it(on_loop, core):
    assert leaves_with(on_loop, [2, *[0] * 9]) == 2
    assert core.turns == IN_VAIN


def test_a_caller_alone_gives_way_once(on_loop, core):
    leaves_with(on_loop, [1, *[0] * 9])
    core.turns = 0

    assert leaves_with(on_loop, [1, *[0] * 9]) == 1
    assert core.turns == 1


def test_nobody_waits_longer_than_a_full_batch_takes(on_loop, core):
    core.turn_seconds = 0.9e-3
    arrivals = [1] * FULL

    assert leaves_with(on_loop, arrivals) == FULL  # before the eight milliseconds are over

    core.turn_seconds = 3e-3
    assert leaves_with(on_loop, arrivals) == 4


def test_who_comes_long_after_a_caller_who_left_waits_as_anybody(on_loop, core):
    assert on_loop.waits(2)
    assert not on_loop.fits(0)  # they have gone
    core.now += 60.0

    assert on_loop.fits(2)
    assert on_loop.waits(2)


def test_a_stranger_on_the_core_is_not_given_way_again_for_some_batches(on_loop, core):
    core.turn_seconds = 2 * STRANGER_SECONDS
    assert leaves_with(on_loop, [2, 0, 0]) == 2
    core.turns = 0

    for _ in range(DISTRUSTED_BATCHES - 1):
        assert not on_loop.waits(2)
    assert core.turns == 0

    assert on_loop.waits(2)  # perhaps the stranger has gone


def test_nothing_runs_on_the_loop_before_it_is_known_how_quick_the_network_is():
    assert not OnLoop(most_windows=FULL, most_seconds=1.0).fits(1)


def test_what_should_take_longer_than_allowed_goes_to_a_thread():
    on_loop = OnLoop(most_windows=FULL, most_seconds=0.01)
    on_loop.ran(4, 0.008)

    assert on_loop.fits(4)
    assert not on_loop.fits(5)


def test_more_windows_than_allowed_go_to_a_thread():
    on_loop = OnLoop(most_windows=2, most_seconds=1.0)
    on_loop.ran(2, 1e-6)

    assert on_loop.fits(2)
    assert not on_loop.fits(3)


def test_a_network_that_has_become_slow_is_noticed():
    on_loop = OnLoop(most_windows=FULL, most_seconds=0.01)
    on_loop.ran(1, 1e-6)
    for _ in range(40):
        on_loop.ran(1, 0.1)

    assert not on_loop.fits(1)
