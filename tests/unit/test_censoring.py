"""Weights of failed units where others were censored."""

import numpy as np
import pytest

from model.censoring import MOST_WEIGHT, failed_units
from model.dataset import make_windows
from model.domain import Trajectory
from model.reference import fit_reference
from tests.fleets import PUMPS, worn_pumps


def unit(last, *, failed, name="u"):
    return Trajectory(name, np.arange(1, last + 1), np.zeros((last, 1), np.float32), failed=failed)


def weights(*ends):
    """Weights of the failed units; an end below 0 is that of a censored unit."""
    return [each.weight for each in failed_units([unit(abs(end), failed=end > 0) for end in ends])]


def test_without_a_censored_unit_all_count_equally():
    assert weights(10, 20, 30) == [1.0, 1.0, 1.0]


def test_a_failed_unit_counts_for_those_censored_at_a_lower_age():
    # Kaplan-Meier by hand: 3 of 4 are seen past cycle 15, and 1 of 2 past cycle 25.
    assert weights(10, -15, 20, -25, 30) == pytest.approx([1.0, 4 / 3, 8 / 3])


def test_a_unit_censored_at_the_cycle_of_a_failure_counts_for_no_earlier_one():
    assert weights(10, -10, 20) == pytest.approx([1.0, 2.0])


def test_no_unit_counts_for_more_than_the_limit():
    assert weights(*[-5] * 50, 10) == [MOST_WEIGHT]


@pytest.mark.parametrize("seed", range(3))
def test_failures_that_are_seen_have_the_mean_life_of_all_by_their_weights(seed):
    rng = np.random.default_rng(seed)
    lives, seen = rng.integers(100, 300, 2000), rng.integers(1, 500, 2000)
    fleet = [unit(min(a, b), failed=bool(a <= b)) for a, b in zip(lives.tolist(), seen.tolist(), strict=True)]

    found = failed_units(fleet)

    ends = [len(each) for each in found]
    assert np.mean(ends) < lives.mean() - 10
    assert np.average(ends, weights=[each.weight for each in found]) == pytest.approx(lives.mean(), abs=4)


def test_every_window_counts_as_its_unit():
    [failed] = failed_units([unit(4, failed=False), unit(9, failed=True)])

    assert make_windows([failed], length=5).weight == pytest.approx(np.full(9, 2.0))


def test_quantiles_of_the_lives_count_units_by_their_weights():
    pumps = worn_pumps(units=12, seed=4)
    longest = max(len(pump) for pump in pumps)
    censored = [
        Trajectory(f"censored {i}", pumps[0].cycles[:1] + longest - 2, pumps[0].readings[:1], failed=False)
        for i in range(12)
    ]

    even = fit_reference(failed_units(pumps), PUMPS.schema).degradation.life_quantiles
    weighted = fit_reference(failed_units([*pumps, *censored]), PUMPS.schema).degradation.life_quantiles

    assert (even[0], even[-1]) == (weighted[0], weighted[-1])
    assert weighted[5] > even[5]
