from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.domain import InvalidData
from model.evaluation import Answered, figures
from model.prognostics import (
    EDGES,
    Life,
    alpha_lambda_accuracy,
    brier_figures,
    by_answer,
    by_rul,
    cumulative_relative_accuracy,
    ignorant_brier,
    join_lives,
    life_coverage,
    monotonicity,
    prognostic_figures,
    prognostic_horizon,
    reliability,
    within_alpha,
)
from tests.examples import examples

CAP = 10.0


def life(rul, *, truth=None, half_width=1.0, unit="1", group=None):
    """A unit answered with `rul` while its RUL counts down to 0."""
    rul = np.array(rul, dtype=float)
    truth = np.arange(len(rul) - 1.0, -1.0, -1.0) if truth is None else np.array(truth, dtype=float)
    cycle = truth[0] - truth + 1.0
    return Life(
        unit, cycle, truth, rul, rul - half_width, rul + half_width, np.zeros((len(rul), 0)), group or unit
    )


def answered(truth, rul, *, half_width=1.0, unit=None):
    truth, rul = np.array(truth, dtype=float), np.array(rul, dtype=float)
    names = np.array([str(i) for i in range(len(truth))] if unit is None else unit)
    return Answered(truth, rul, rul - half_width, rul + half_width, names, names, np.ones(len(truth)))


PERFECT = life([5, 4, 3, 2, 1, 0])
WILD_ABOVE_3 = life([500, -3, 3, 2, 1, 0])


@pytest.mark.parametrize(("unit", "cap", "horizon"), [(PERFECT, CAP, 5.0), (WILD_ABOVE_3, 3.0, 3.0)])
def test_a_perfect_prognosis_has_the_best_of_every_metric_whatever_was_said_above_the_cap(unit, cap, horizon):
    assert within_alpha(unit, cap=cap) == 1.0
    assert alpha_lambda_accuracy(unit, cap=cap) == 1.0
    assert prognostic_horizon(unit, cap=cap) == horizon
    assert cumulative_relative_accuracy(unit, cap=cap) == 1.0
    assert monotonicity(unit, cap=cap) == 1.0
    assert life_coverage(unit, cap=cap) == 1.0


def test_the_cone_closes_with_what_is_left():
    """An error of 0.4 is allowed at a RUL of 2 and more (alpha = 0.2), and no longer at 1."""
    unit = life([5.4, 4.4, 3.4, 2.4, 1.4, 0.4])

    assert within_alpha(unit, cap=CAP) == pytest.approx(4 / 5)


def test_alpha_lambda_looks_half_way_from_the_first_prediction():
    """t_P is where the RUL meets the cap, 4; half of the way on, 2 cycles are left."""
    only_there = life([99, 99, 99, 2.3, 99, 99])

    assert alpha_lambda_accuracy(only_there, cap=4.0) == 1.0
    assert alpha_lambda_accuracy(only_there, cap=4.0, alpha=0.1) == 0.0
    assert alpha_lambda_accuracy(only_there, cap=4.0, part=0.25) == 0.0


def test_alpha_lambda_takes_the_next_reading_where_there_is_none_half_way():
    """Readings are missing: after RUL 8 comes RUL 3, though half-way would be 4."""
    unit = life([8, 3, 99, 99], truth=[8, 3, 1, 0])

    assert alpha_lambda_accuracy(unit, cap=CAP) == 1.0


def test_the_horizon_is_where_answers_become_right_and_stay_right():
    """Life of 20 cycles, so 5 % allow an error of 1. Right at a RUL of 8, wrong at 7, right from 6 on."""
    truth = np.arange(19.0, -1.0, -1.0)
    rul = truth + 5.0
    rul[truth == 8] = 8.0
    rul[truth <= 6] = truth[truth <= 6] + 1.0
    unit = life(rul)

    assert prognostic_horizon(unit, cap=CAP) == 6.0
    assert prognostic_horizon(unit, cap=CAP, lasting=False) == 8.0


def test_a_life_without_its_last_predictions_ends_where_the_unit_failed():
    """Life of 20 cycles, so 5 % allow an error of 1, though the last prediction is at cycle 12."""
    truth = np.arange(19.0, 7.0, -1.0)

    unit = life(truth + 0.9, truth=truth)

    assert unit.end == 20.0
    assert prognostic_horizon(unit, cap=15.0) == 15.0
    assert np.isnan(alpha_lambda_accuracy(unit, cap=15.0))


def test_relative_accuracy_is_the_mean_of_one_less_the_relative_error():
    """Errors of 1 at RUL 2 and of 1 at RUL 1: relative accuracies 0.5 and 0."""
    unit = life([1, 2, 0])

    assert cumulative_relative_accuracy(unit, cap=CAP) == pytest.approx(0.25)
    assert cumulative_relative_accuracy(unit, cap=CAP, by_rul=True) == pytest.approx(1 - 2 / 3)


def test_monotonicity_is_falls_less_rises():
    assert monotonicity(life([5, 4, 6, 3, 3]), cap=CAP) == pytest.approx((2 - 1) / 4)
    assert monotonicity(life([1, 2, 3]), cap=CAP) == -1.0


def test_a_unit_of_one_cycle_has_no_prediction_to_judge():
    only_the_failure = life([0.0])

    assert np.isnan(within_alpha(only_the_failure, cap=CAP))
    assert np.isnan(cumulative_relative_accuracy(only_the_failure, cap=CAP))
    assert np.isnan(monotonicity(only_the_failure, cap=CAP))


def test_a_unit_without_predictions_does_not_spoil_the_figures_of_the_others():
    lives = [PERFECT, life([5, 4, 3, 2, 1, 0], unit="2"), life([0.0], unit="3")]

    found = prognostic_figures(lives, cap=CAP)

    assert found["within_alpha"].value == 1.0
    assert found["within_alpha"].low == 1.0


def test_figures_are_means_over_units_and_not_over_cycles():
    long_and_right = life(np.arange(9.0, -1.0, -1.0))
    short_and_wrong = life([9.0, 9.0], unit="2")

    found = prognostic_figures([long_and_right, short_and_wrong], cap=CAP)

    assert found["within_alpha"].value == 0.5
    assert (found["within_alpha"].low, found["within_alpha"].high) == (0.0, 1.0)


def noisy_lives(groups):
    """Twelve lives with errors of their own, in these groups."""
    rng = np.random.default_rng(5)
    return [
        life(np.arange(8.0, -1.0, -1.0) + rng.normal(0, 1, 9), unit=f"u{i}", group=groups[i])
        for i in range(12)
    ]


def test_figures_of_lives_without_a_group_resample_units():
    found = prognostic_figures(noisy_lives([f"u{i}" for i in range(12)]), cap=CAP)["monotonicity"]

    assert (found.value, found.low, found.high) == pytest.approx((13 / 24, 0.4375, 0.625))


def test_lives_of_a_group_are_resampled_together():
    """Two machines, whose lives all repeat: their intervals are those of two lives."""
    right, wrong = life(np.arange(9.0, -1.0, -1.0)), life([9.0, 9.0])
    lives = [replace(each, unit=f"{n}", group=str(n % 2)) for n, each in enumerate([right, wrong] * 6)]

    found, two = (prognostic_figures(each, cap=CAP)["within_alpha"] for each in (lives, lives[:2]))

    assert found == two
    assert (
        figures(join_lives(lives), cap=CAP)["coverage"] == figures(join_lives(lives[:2]), cap=CAP)["coverage"]
    )


def test_no_unit_is_said():
    with pytest.raises(InvalidData, match="no unit with a known failure"):
        prognostic_figures([], cap=CAP)


def test_reliability_of_nothing_is_said():
    with pytest.raises(InvalidData, match="nothing to evaluate"):
        reliability(np.zeros(0), np.zeros(0), horizon=10)


errors = st.lists(st.floats(-20, 20), min_size=2, max_size=30)


@examples(60)
@given(errors)
def test_every_metric_keeps_to_its_range(error):
    truth = np.arange(len(error) - 1.0, -1.0, -1.0)
    unit = life(truth + np.array(error))

    assert 0 <= within_alpha(unit, cap=CAP) <= 1
    assert alpha_lambda_accuracy(unit, cap=CAP) in {0.0, 1.0}
    lasting, first = (prognostic_horizon(unit, cap=CAP, lasting=lasting) for lasting in (True, False))
    assert 0 <= lasting <= first <= min(CAP, truth[0])
    assert cumulative_relative_accuracy(unit, cap=CAP) <= 1
    assert -1 <= monotonicity(unit, cap=CAP) <= 1


@examples(60)
@given(errors, st.floats(0, 1))
def test_smaller_errors_of_the_same_shape_are_never_judged_worse(error, part):
    truth = np.arange(len(error) - 1.0, -1.0, -1.0)
    worse, better = life(truth + np.array(error)), life(truth + part * np.array(error))

    assert within_alpha(better, cap=CAP) >= within_alpha(worse, cap=CAP)
    assert prognostic_horizon(better, cap=CAP) >= prognostic_horizon(worse, cap=CAP)
    assert (
        cumulative_relative_accuracy(better, cap=CAP) >= cumulative_relative_accuracy(worse, cap=CAP) - 1e-9
    )


def limits(bands):
    return [(band.low, band.high, band.windows) for band in bands]


def test_bands_are_equal_below_the_cap_with_one_at_and_above_it():
    bands = by_rul(answered([0, 1.9, 2, 9.9, 10, 300], [0] * 6), cap=CAP)

    assert limits(bands) == [(0.0, 2.0, 2), (2.0, 4.0, 1), (8.0, 10.0, 1), (10.0, float("inf"), 2)]


def test_bands_of_answers_are_equal_and_the_last_one_holds_the_cap():
    bands = by_answer(answered([1, 5, 9, 9], [0, 3.9, 4, 10]), cap=CAP + 2)

    assert limits(bands) == [(0.0, 4.0, 2), (4.0, 8.0, 1), (8.0, 12.0, 1)]
    assert by_answer(answered([12], [12]), cap=12.0)[0].high == 12.0


def test_a_bands_figures_are_of_its_windows_alone():
    found = by_rul(answered([1, 1, 9], [1, 4, 9], half_width=2.0, unit=["a", "b", "c"]), cap=CAP)

    near, far = found[0], found[-1]
    assert near.figures["rmse"].value == pytest.approx(np.sqrt(4.5))
    assert near.figures["bias"].value == 1.5
    assert near.figures["coverage"].value == 0.5
    assert near.figures["width"].value == 4.0
    assert near.units == 2
    assert far.figures["coverage"].value == 1.0


def test_truth_beyond_the_cap_counts_as_the_cap():
    found = by_rul(answered([300], [10]), cap=CAP)

    assert found[0].figures["rmse"].value == 0.0
    assert found[0].figures["coverage"].value == 1.0


def test_a_band_of_answers_shows_coverage_that_the_mean_hides():
    found = by_answer(answered([1, 1, 9, 9], [1, 1, 6, 6]), cap=CAP)

    assert [band.figures["coverage"].value for band in found] == [1.0, 0.0]


def test_reliability_sets_what_was_stated_beside_what_happened():
    stated = np.array([0.026, 0.04, 0.99, 1.0])
    truth = np.array([50.0, 5.0, 5.0, 10.0])

    found = reliability(stated, truth, horizon=10)

    third, last = EDGES.index(0.025), -1
    np.testing.assert_allclose(found.stated[[third, last]], [0.033, 0.995])
    np.testing.assert_allclose(found.observed[[third, last]], [0.5, 1.0])
    assert found.windows[[third, last]].tolist() == [2, 2]
    assert found.windows.sum() == 4
    assert np.isnan(found.observed[found.windows == 0]).all()


def test_the_brier_score_is_the_mean_square_of_stated_less_happened():
    stated = np.array([[0.02, 1.0], [0.04, 1.0], [0.95, 1.0], [1.0, 1.0]])
    truth = np.array([50.0, 5.0, 5.0, 10.0])

    found = brier_figures(stated, truth, np.array(["a", "b", "c", "d"]), horizons=(10, 60))

    assert found[10].value == pytest.approx((0.02**2 + 0.96**2 + 0.05**2) / 4)
    assert found[10].low < found[10].value < found[10].high
    assert found[60].value == 0.0
    assert ignorant_brier(truth, horizon=10) == pytest.approx(0.75 * 0.25)


def test_windows_count_by_their_weight_in_brier_scores():
    stated, truth = np.array([[1.0], [1.0], [0.5]]), np.array([5.0, 50.0, 50.0])
    weight = np.array([6.0, 1.0, 1.0], dtype=np.float32)

    found = brier_figures(stated, truth, np.array(["a", "b", "c"]), horizons=(10,), weight=weight)

    assert found[10].value == pytest.approx((1.0 + 0.25) / 8)
    assert ignorant_brier(truth, horizon=10, weight=weight) == pytest.approx(0.75 * 0.25)


def test_a_failure_right_at_the_horizon_is_within_it():
    found = brier_figures(np.ones((1, 1)), np.array([10.0]), np.array(["a"]), horizons=(10,))

    assert found[10].value == 0.0
