"""What the interpreter is told once the service stands."""

import gc
import sys
from collections.abc import Iterator

import pytest

from service.processes import interpreter as told


@pytest.fixture
def interpreter() -> Iterator[None]:
    """The interpreter's own habits, put back at the end."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("interpreter")
def test_after_start_up_the_collector_leaves_alone_what_is_there_and_still_finds_what_is_new():
    told.settle()

    assert gc.get_freeze_count() > 0
    assert gc.isenabled()
    assert gc.get_threshold()[0] == told.COLLECT_AFTER_OBJECTS
    ring = []
    ring.append(ring)
    del ring
    assert gc.collect() > 0


@pytest.mark.usefixtures("interpreter")
def test_an_inference_thread_waits_for_the_lock_no_longer_than_a_fraction_of_a_batch():
    told.settle()

    assert sys.getswitchinterval() == pytest.approx(told.SWITCH_SECONDS)
