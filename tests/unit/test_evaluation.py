from dataclasses import astuple, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from model import calibration
from model.calibration import (
    Read,
    fit_distribution,
    held_out_coverage,
    interval_bounds,
    normalised_error,
    rescaled,
    scale_factors,
    unit_weights,
    weighted_quantiles,
)
from model.crossfit import Fold, scaled_by_rul
from model.decision import FleetLife, Forecast, remaining_life
from model.domain import InvalidData
from model.evaluation import (
    TITLES,
    Answered,
    boosting_caution,
    boosting_figures,
    figures,
    named_figure,
    named_figures,
    nasa_score,
)
from model.network import Distribution, NetworkConfig
from model.prognostics import by_answer
from model.screen import cells, shown, stacked
from tests.fleets import windows_of


def answered(truth, rul, *, half_width=10.0, unit=None, group=None, weight=1.0):
    truth, rul = np.asarray(truth, np.float32), np.asarray(rul, np.float32)
    names = np.array([str(i) for i in range(len(truth))] if unit is None else unit)
    groups = names if group is None else np.array(group)
    return Answered(
        truth, rul, rul - half_width, rul + half_width, names, groups, np.full(len(truth), weight)
    )


@pytest.mark.parametrize(
    ("difference", "score"),
    [(0.0, 0.0), (10.0, np.e - 1), (-13.0, np.e - 1), (-10.0, np.exp(10 / 13) - 1), (20.0, np.exp(2) - 1)],
)
def test_nasa_score_is_as_published(difference, score):
    assert nasa_score(np.array([difference])) == pytest.approx(score)


@pytest.mark.parametrize(
    ("truth", "rul", "expected"),
    [
        ([300.0, 50.0], [125.0, 50.0], {"rmse": 0.0}),
        ([10.0, 20.0], [13.0, 21.0], {"bias": 2.0, "mae": 2.0, "rmse": 5.0**0.5}),
        ([10.0, 40.0, 60.0, 80.0], [10.0, 40.0, 60.0, 120.0], {"coverage": 0.75, "width": 20.0}),
        (
            [300.0, 125.0, 50.0, 60.0],
            [125.0, 125.0, 50.0, 80.0],
            {"coverage": 0.75, "coverage_below_cap": 0.5},
        ),
        ([300.0, 125.0, 50.0, 60.0], [125.0, 125.0, 53.0, 56.0], {"rmse_below_cap": 12.5**0.5, "rmse": 2.5}),
    ],
    ids=[
        "truth is capped",
        "bias is predicted minus true",
        "coverage and width",
        "coverage without `at least`",
        "without `at least`",
    ],
)
def test_figures_compare_answers_with_capped_truth(truth, rul, expected):
    found = figures(answered(truth, rul), cap=125.0)

    assert {name: found[name].value for name in expected} == pytest.approx(expected)


def test_without_a_truth_below_the_cap_there_is_no_figure_below_it():
    assert not {"rmse_below_cap", "coverage_below_cap"} & set(figures(answered([300.0], [125.0]), cap=125.0))


def test_the_bootstrap_resamples_units_and_not_windows():
    """Two units, each always wrong in its own way: their windows say nothing new."""
    few = figures(answered([50, 50], [50, 60], unit=["a", "b"]), cap=125.0)
    many = figures(answered([50] * 200, [50] * 100 + [60] * 100, unit=["a"] * 100 + ["b"] * 100), cap=125.0)

    assert many["bias"] == few["bias"]


def noisy(**names):
    """Sixty windows with errors of their own."""
    rng = np.random.default_rng(5)
    truth = rng.uniform(0, 100, 60)
    return answered(truth, truth + rng.normal(0, 8, 60), **names)


def test_the_bootstrap_resamples_the_groups_of_units_whole():
    unit, group = [str(i % 12) for i in range(60)], [str(i % 4) for i in range(60)]
    grouped, alone = noisy(unit=unit, group=group), noisy(unit=group)

    assert figures(grouped, cap=80.0) == figures(alone, cap=80.0)
    boosted = grouped.truth + 5.0
    assert boosting_figures(grouped, boosted, cap=80.0) == boosting_figures(alone, boosted, cap=80.0)


def test_figures_without_a_group_resample_units():
    found = figures(noisy(unit=[str(i % 12) for i in range(60)]), cap=80.0)

    assert astuple(found["rmse"]) == pytest.approx((8.0914110994, 6.8029395247, 9.3808130609))
    assert astuple(found["coverage_below_cap"]) == pytest.approx((0.8, 0.6749728261, 0.9047619048))


@pytest.mark.parametrize("units", ["aaaa", "aabb"], ids=["one unit", "one unit below the cap"])
def test_a_figure_of_one_unit_has_no_interval(units):
    found = figures(answered([50, 60, 300, 300], [55, 60, 120, 125], unit=[*units]), cap=125.0)

    assert found["rmse_below_cap"].value == pytest.approx(12.5**0.5)
    assert np.isnan([found["rmse_below_cap"].low, found["coverage_below_cap"].high]).all()
    assert np.isnan(found["rmse"].low) == (units == "aaaa")


def test_a_figure_without_an_interval_keeps_none_among_the_metrics_and_shows_none():
    figure = figures(answered([50, 60], [55, 60], unit=["a", "a"]), cap=125.0)["bias"]
    metrics = named_figures("crossvalidation", {"bias": figure})

    assert metrics == {"crossvalidation_bias": 2.5}
    assert shown(named_figure(metrics, "crossvalidation_bias")) == "2.50"
    assert cells(figure) == ("2.50", "none")
    assert stacked(figure, digits=1) == "2.5\nnone"


def test_every_figure_lies_within_its_interval():
    rng = np.random.default_rng(1)
    truth = rng.uniform(0, 100, 200)
    found = figures(
        answered(truth, truth + rng.normal(0, 8, 200), unit=[str(i % 20) for i in range(200)]), cap=125.0
    )

    for figure in found.values():
        assert figure.low <= figure.value <= figure.high


def test_nothing_to_evaluate_is_said():
    with pytest.raises(InvalidData, match="nothing to evaluate"):
        figures(answered([], []), cap=125.0)


@pytest.mark.parametrize("times", [1.0, 2.0])
def test_a_unit_counts_by_its_weight_however_many_windows_it_has(times):
    weights = unit_weights(np.array(["a"] * 9 + ["b"]), np.repeat([1.0, times], [9, 1]))

    assert weights[9:].sum() == pytest.approx(times * weights[:9].sum())
    assert weighted_quantiles(np.arange(10.0), weights, np.array([0.5]))[0] > 7


def test_figures_count_windows_by_their_weight():
    found = figures(answered([10.0, 20.0], [10.0, 32.0], weight=[3.0, 1.0]), cap=125.0)

    assert found["rmse"].value == pytest.approx(6.0)
    assert found["bias"].value == pytest.approx(3.0)
    assert found["coverage"].value == pytest.approx(0.75)


def test_an_interval_counts_errors_by_the_weight_of_their_unit():
    error = np.repeat([1.0, 4.0], 20)
    unit, weight = np.array([str(i) for i in range(40)]), np.repeat([30.0, 1.0], 20)

    bounds = interval_bounds(error, np.zeros(40, np.int64), unit, weight, coverage=0.9)

    assert bounds[0, 1] < 2.5


def test_weighted_quantiles_of_equal_weights_are_the_plain_ones():
    values = np.random.default_rng(0).normal(size=101)

    found = weighted_quantiles(values, np.ones(101), np.array([0.25, 0.5, 0.75]))

    np.testing.assert_allclose(found, np.quantile(values, [0.25, 0.5, 0.75], method="hazen"))


def test_an_interval_always_holds_its_answer():
    error = np.linspace(1.0, 2.0, 20)  # every answer too low

    bounds = interval_bounds(error, np.zeros(20, np.int64), np.array(["u"] * 20), np.ones(20), coverage=0.9)

    assert bounds[:, 0].tolist() == [0.0, 0.0]
    assert (bounds[:, 1] > 1.9).all()


def test_errors_of_answers_at_the_cap_set_no_bound_of_those_below_it():
    rng = np.random.default_rng(0)
    error = np.concatenate([rng.normal(0, 1, 2000), -np.abs(rng.normal(0, 9, 2000))])
    group, unit = np.repeat([0, 1], 2000), np.tile([str(i) for i in range(20)], 200)

    below, at = interval_bounds(error, group, unit, np.ones(4000), coverage=0.9)

    assert below == pytest.approx([-1.64, 1.64], abs=0.1)
    assert at[0] < -15
    assert at[1] < 0.1


@pytest.mark.parametrize(("units", "bound"), [(9, -1.0), (10, -9.0)])
def test_answers_at_the_cap_have_bounds_of_their_own_once_they_are_of_ten_units(units, bound):
    """However many windows these units have."""
    error, group = np.repeat([-1.0, -9.0], [9900, 100]), np.repeat([0, 1], [9900, 100])
    unit = np.concatenate([[f"below {i % 99}" for i in range(9900)], [f"at {i % units}" for i in range(100)]])

    _, at = interval_bounds(error, group, unit, np.ones(10_000), coverage=0.5)

    assert at[0] == bound


def test_answers_below_the_cap_have_bounds_of_their_own_however_few_their_units_are():
    error, group = np.repeat([0.0, 5.0], [90, 10]), np.repeat([1, 0], [90, 10])
    unit = np.concatenate([[f"at {i % 9}" for i in range(90)], ["below"] * 10])

    below, _ = interval_bounds(error, group, unit, np.ones(100), coverage=0.9)

    assert below.tolist() == [0.0, 5.0]


def labelled(rul, unit):
    """Windows of one cycle with these labels; what they read does not matter."""
    return windows_of(np.zeros((len(rul), 1, 1)), rul=rul, unit=unit)


def read_as(rul, *, scale):
    """Make a network's answers to windows: these RULs, each with this scale of its error."""
    nothing = np.zeros((len(rul), 1), np.float32)
    return Read(rul, np.full(len(rul), scale, np.float32), nothing, nothing, nothing)


def calibration_windows(*, units, each):
    rng = np.random.default_rng(0)
    rul = rng.uniform(20, 80, units * each).astype(np.float32)
    unit = np.repeat([str(i) for i in range(units)], each)
    return read_as(rul, scale=5.0), labelled(rul + rng.normal(0, 5, len(rul)), unit)


def test_intervals_made_from_other_units_cover_as_they_promise():
    read, windows = calibration_windows(units=30, each=20)

    found = figures(held_out_coverage(read, windows, cap=125.0, coverage=0.9), cap=125.0)

    assert normalised_error(read, windows, cap=125.0).std() == pytest.approx(1.0, abs=0.1)
    assert found["coverage"].value == pytest.approx(0.9, abs=0.03)


def test_a_unit_does_not_set_its_own_interval():
    read, windows = calibration_windows(units=3, each=10)
    odd = windows.unit == "2"
    windows.rul[odd] += 60.0  # one unit that is not like the others

    found = held_out_coverage(read, windows, cap=200.0, coverage=0.9)

    assert not ((found.lower <= windows.rul) & (windows.rul <= found.upper))[odd].any()


def test_a_group_does_not_set_the_interval_of_its_units():
    read, windows = calibration_windows(units=4, each=10)
    odd = np.isin(windows.unit, ["2", "3"])
    windows.rul[odd] += 60.0  # both lives of one machine
    windows = replace(windows, group=np.where(odd, "machine", windows.unit))

    found = held_out_coverage(read, windows, cap=200.0, coverage=0.9)

    assert not ((found.lower <= windows.rul) & (windows.rul <= found.upper))[odd].any()


def test_intervals_without_a_group_leave_out_units():
    found = held_out_coverage(*calibration_windows(units=12, each=5), cap=125.0, coverage=0.9)

    assert [found.lower.sum(), found.upper.sum()] == pytest.approx([2607.6296636462, 3531.7143501341])


def test_of_many_units_a_group_is_left_out_at_once(monkeypatch):
    monkeypatch.setattr(calibration, "MOST_LEFT_OUT", 2)  # "0" and "2", then "1" and "3"
    read, windows = calibration_windows(units=4, each=10)
    windows.rul[windows.unit == "2"] += 60.0

    found = held_out_coverage(read, windows, cap=200.0, coverage=0.9)

    wide = found.upper - found.lower > 60.0
    assert [wide[windows.unit == unit].all() for unit in "0123"] == [False, True, False, True]


def fitted_distribution():
    """A distribution of errors of 30 units, whose standard deviation is the scale."""
    read, windows = calibration_windows(units=30, each=20)
    config = NetworkConfig("flagship", 2, (0,), 1, 10, 125.0, (20,), 0.9, 30.0, 100.0)
    net = SimpleNamespace(config=config, distribution=Distribution(config))
    fit_distribution(net, read, windows)
    return net.distribution


@pytest.mark.parametrize("times", [1.5, 2.0, 3.0])
def test_below_the_interval_the_odds_of_failing_fall_as_from_the_answer_to_its_lower_bound(times):
    distribution = fitted_distribution()

    below = distribution.probability_below(
        times * distribution.interval[:1, :1], *distribution.tables(torch.zeros(1, 1))[1:]
    )

    assert below.item() == pytest.approx(
        1.0 / (1.0 + 19.0**times), rel=0.15
    )  # 19 to 1 are the odds of the bound


def test_between_the_bounds_probabilities_are_shares_of_held_out_errors():
    distribution = fitted_distribution()

    below = distribution.probability_below(
        torch.tensor([[-1.0, 0.0, 1.0]]), *distribution.tables(torch.zeros(1, 1))[1:]
    )

    assert below[0].tolist() == pytest.approx([0.16, 0.5, 0.84], abs=0.03)  # of a normal distribution


def test_decisions_and_stated_probabilities_have_one_tail():
    distribution = fitted_distribution()
    interval, failure, _ = distribution(torch.tensor([[40.0]]), torch.tensor([[5.0]]))
    lower, upper = interval[0].tolist()
    fleet = FleetLife([100.0, 150.0, 200.0])

    life = remaining_life(Forecast(40.0, lower, upper, {}), fleet, coverage=0.9, cap=125.0, age=60.0)

    within_20 = float(np.interp(20.5, life.in_cycles, life.survival))  # a whole number of cycles
    assert 1.0 - within_20 == pytest.approx(failure[0, 0].item(), rel=0.2)


@pytest.mark.parametrize(("cap", "scored"), [(125.0, True), (300.0, False), (1e6, False)])
def test_the_nasa_score_is_computed_for_lives_of_turbofans_only(cap, scored):
    assert ("score" in figures(answered([50.0], [cap]), cap=cap)) == scored


def test_figures_are_named_in_the_order_of_their_titles():
    assert list(figures(answered([50.0], [55.0]), cap=125.0)) == list(TITLES)


def few_units(error):
    """Twelve windows of four units, with these errors."""
    truth = np.tile([20.0, 50.0, 80.0], 4)
    return answered(truth, truth + error, unit=np.repeat(["a", "b", "c", "d"], 3))


def metrics_against(boosted_error, *, error):
    net, boosted = few_units(error), few_units(boosted_error).rul
    found = boosting_figures(net, boosted, cap=125.0)
    own = {"crossvalidation_rmse": figures(net, cap=125.0)["rmse"].value}
    for name, figure in found.items():
        own |= {f"boosting_{name}": figure.value, f"boosting_{name}_low": figure.low}
    return own


def test_the_difference_to_boosting_is_paired():
    """Errors of both change together from unit to unit, and their difference does not."""
    of_unit = np.repeat([5.0, 10.0, 20.0, 40.0], 3)

    found = boosting_figures(few_units(of_unit + 3.0), few_units(of_unit).rul, cap=125.0)

    difference, rmse = found["difference"], found["rmse"]
    assert 2.0 < difference.low <= difference.value <= difference.high <= 3.0
    assert rmse.high - rmse.low > 10


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (metrics_against(10.0, error=30.0), "10.0 cycles where this network has 30.0: do not rely on this"),
        (
            metrics_against(np.repeat([30.0, 5.0, 5.0, 5.0], 3), error=np.repeat([20.0, 24.0, 5.0, 5.0], 3)),
            "may be chance",
        ),
        (metrics_against(30.0, error=10.0), None),
        ({"crossvalidation_rmse": 30.0}, None),
    ],
    ids=["boosting wins", "by chance", "the network wins", "no boosting"],
)
def test_a_network_that_boosting_beats_has_a_caution_in_one_sentence(metrics, said):
    caution = boosting_caution(metrics)

    assert caution is None if said is None else said in caution


CAP = 90.0
NAMES = ("unclipped", "scale", "context", "attention")


def uneven(*, units, seed):
    """Windows whose errors are four times as wide above a RUL of 60; the scale is the same for all."""
    rng = np.random.default_rng(seed)
    unit = np.repeat([str(i) for i in range(units)], 30)
    rul = rng.uniform(0, CAP, len(unit)).astype(np.float32)
    width = np.where(rul > 60, 8.0, 2.0)
    truth = np.clip(rul + width * rng.normal(size=len(unit)), 0, None)
    return read_as(rul, scale=3.0), labelled(truth, unit)


def coverage_by_answer(read, windows):
    answered = held_out_coverage(read, windows, cap=CAP, coverage=0.9)
    return [band.figures["coverage"].value for band in by_answer(answered, cap=CAP)]


def test_a_scale_that_errors_outgrow_in_one_band_is_corrected_there():
    read, windows = uneven(units=60, seed=0)
    factors = scale_factors(*uneven(units=60, seed=1), cap=CAP, coverage=0.9)

    before = coverage_by_answer(read, windows)
    after = coverage_by_answer(rescaled(read, factors, cap=CAP), windows)

    assert factors[-1] > 2 * factors[0]
    assert max(before) - min(before) > 0.15
    assert all(0.85 <= coverage <= 0.95 for coverage in after)


def leaning(*, seed):
    """Windows that are answered some 6 cycles too high below 30, and badly above 45."""
    read, windows = uneven(units=60, seed=seed)
    error = np.random.default_rng(seed).normal(size=len(windows)) * np.where(read.unclipped > 45, 9.0, 3.0)
    windows.rul[:] = np.clip(read.unclipped + error - 6 * (read.unclipped < 30), 0.0, None)
    return read, windows


def test_errors_that_lean_to_one_side_in_one_band_leave_the_others_their_coverage():
    read, windows = leaning(seed=0)
    factors = scale_factors(*leaning(seed=1), cap=CAP, coverage=0.9)

    after = coverage_by_answer(rescaled(read, factors, cap=CAP), windows)

    assert all(0.86 <= coverage <= 0.94 for coverage in after)


def test_a_band_with_few_units_keeps_its_scale():
    read, windows = uneven(units=60, seed=0)
    few = (read.unclipped < 60) | np.isin(windows.unit, ["1", "2", "3"])
    part = Read(*(getattr(read, name)[few] for name in NAMES))

    factors = scale_factors(part, windows.take(few), cap=CAP, coverage=0.9)

    assert factors[-1] == 1.0


def test_exact_answers_keep_their_scale():
    read, windows = uneven(units=20, seed=0)
    windows.rul[:] = np.where(read.unclipped < 0.98 * CAP, read.unclipped, CAP)

    assert scale_factors(read, windows, cap=CAP, coverage=0.9).tolist() == [1.0] * 6


def test_factors_change_gradually_between_the_middles_of_bands():
    rul = np.array([-5.0, 5.0, 10.0, 15.0, 30.0, 105.0, 150.0], np.float32)
    read = read_as(rul, scale=2.0)

    found = rescaled(read, np.array([1.0, 2.0, 3.0, 3.0, 3.0, 5.0]), cap=120.0)

    np.testing.assert_allclose(found.scale, [2.0, 2.0, 3.0, 4.0, 6.0, 10.0, 10.0], rtol=1e-6)
    assert read.scale.tolist() == [2.0] * 7


def test_answers_at_the_cap_do_not_change_the_scale_of_others():
    read, windows = uneven(units=60, seed=0)
    exact = read.unclipped >= 0.98 * CAP
    windows.rul[exact] = CAP
    below = np.flatnonzero(~exact)
    part = Read(*(getattr(read, name)[below] for name in NAMES))

    found = scale_factors(read, windows, cap=CAP, coverage=0.9)

    np.testing.assert_allclose(
        found, scale_factors(part, windows.take(below), cap=CAP, coverage=0.9), rtol=0.05
    )


def test_the_errors_of_a_fold_do_not_set_its_own_scale():
    config = SimpleNamespace(cap=CAP, coverage=0.9)
    net = SimpleNamespace(config=config, get_buffer=lambda _: torch.ones(6))
    folds = [Fold(net, *reversed(uneven(units=30, seed=seed)), reference=None) for seed in (0, 1)]
    worse = replace(folds[0].windows, rul=np.zeros_like(folds[0].windows.rul))

    (one, two), of_all = scaled_by_rul(folds)
    (other, changed), of_worse = scaled_by_rul([replace(folds[0], windows=worse), folds[1]])

    np.testing.assert_array_equal(one.read.scale, other.read.scale)
    assert not np.array_equal(two.read.scale, changed.read.scale)
    assert not np.array_equal(of_all, of_worse)
