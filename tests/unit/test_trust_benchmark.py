"""The figures of docs/trust.md: rankings that know a window, and rankings that do not."""

import numpy as np
import pytest

from tests.benchmarks.trust import agreements
from tests.fleets import windows_of

CYCLES = 20


def windows_of_units(units):
    return windows_of(np.zeros((len(units), CYCLES, 1)), unit=list(units))


def test_evidence_of_its_own_window_agrees_where_only_the_window_decides():
    effect = np.random.default_rng(0).random((40, CYCLES))

    found = agreements(effect, effect**2, windows_of_units([str(i) for i in range(40)]))

    assert found["own evidence"] == pytest.approx(1.0)
    assert abs(found["another unit's evidence"].mean()) < 0.2
    assert abs(found["place alone"].mean()) < 0.2


def test_the_place_of_a_cycle_agrees_as_well_where_it_alone_decides():
    effect = np.tile(np.arange(CYCLES) + 1.0, (4, 1))

    found = agreements(effect, effect, windows_of_units("aabb"))

    assert all(values == pytest.approx(1.0) for values in found.values())


def test_no_window_is_compared_with_others_of_its_unit():
    found = agreements(np.ones((2, CYCLES)), np.ones((2, CYCLES)), windows_of_units("aa"))

    assert len(found["another unit's evidence"]) == len(found["place alone"]) == 0
