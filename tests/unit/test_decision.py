"""Remaining life and the cheapest stop, beside brute force and closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.decision import (
    MOST_POINTS,
    Costs,
    FleetLife,
    Forecast,
    InvalidCosts,
    RemainingLife,
    best_fixed_age,
    cost_curve,
    remaining_life,
)
from tests.examples import examples

CAP, COVERAGE = 125.0, 0.9
FLEET = FleetLife([128, 155, 168, 184, 193, 199, 207, 214, 234, 275, 362])
WORN = Forecast(40.0, 25.0, 55.0, {10: 0.0, 30: 0.2, 60: 0.97})
HEALTHY = Forecast(125.0, 120.0, 125.0, {10: 0.0, 30: 0.0, 60: 0.0})

probability = st.floats(0.0, 1.0)
cycles = st.floats(0.0, CAP)
forecasts = st.builds(
    lambda ends, p: Forecast(ends[1], ends[0], ends[2], dict(zip((10, 30, 60), p, strict=True))),
    st.lists(cycles, min_size=3, max_size=3).map(sorted),
    st.lists(probability, min_size=3, max_size=3),
)
ages = st.integers(1, 1000).map(float)
costs_of_two = st.tuples(st.floats(1e-9, 1e12), st.floats(1.01, 1e3)).map(lambda c: Costs(c[0], c[0] * c[1]))
fleets = st.lists(st.floats(1.0, 1000.0), min_size=2, max_size=12).map(lambda lives: FleetLife(sorted(lives)))


def life_of(forecast, *, age=150.0, fleet=FLEET):
    return remaining_life(forecast, fleet, coverage=COVERAGE, cap=CAP, age=age)


def survival_at(life, time):
    return float(np.interp(time, life.in_cycles, life.survival))


@given(forecast=forecasts, fleet=fleets, age=ages)
@examples(300)
def test_survival_begins_at_one_and_never_rises(forecast, fleet, age):
    life = life_of(forecast, age=age, fleet=fleet)

    assert life.survival[0] == 1.0
    assert (np.diff(life.survival) <= 0).all()
    assert life.survival[-1] >= 0.0
    assert 0.0 <= life.beyond < np.inf


@given(forecast=forecasts, fleet=fleets, age=ages, costs=costs_of_two)
@examples(200)
def test_the_stop_is_that_of_brute_force(forecast, fleet, age, costs):
    life = life_of(forecast, age=age, fleet=fleet)

    curve = cost_curve(life, costs, age=age)

    t, s = life.in_cycles, life.survival
    each = [
        (costs.planned * s[i] + costs.failure * (1 - s[i])) / (age + np.trapezoid(s[: i + 1], t[: i + 1]))
        for i in range(0, len(t), max(1, len(t) // 50))
    ]
    never = costs.failure / (age + np.trapezoid(s, t) + life.beyond)
    assert curve.cost_per_cycle[:: max(1, len(t) // 50)] == pytest.approx(each, rel=1e-9)
    assert curve.run_to_failure == pytest.approx(never, rel=1e-9)
    best = never if curve.best is None else curve.cost_per_cycle[curve.best]
    assert best <= min([never, *each]) * (1 + 1e-9)


@pytest.mark.parametrize(("age", "failure"), [(50.0, 4.0), (100.0, 10.0), (300.0, 1.5)])
def test_the_stop_of_an_even_remaining_life_is_that_of_its_closed_form(age, failure):
    """S = 1 - t / L: the derivative of the cost is 0 at the root of a quadratic."""
    end, k = 100.0, (failure - 1.0) / 100.0
    t = np.linspace(0.0, end, 100_001)
    life = RemainingLife(t, 1.0 - t / end, beyond=0.0)

    curve = cost_curve(life, Costs(1.0, failure), age=age)

    roots = np.roots([k / (2 * end), 1.0 / end, k * age - 1.0])
    expected = max([root.real for root in roots if root.real >= 0], default=0.0)
    assert curve.best is not None
    assert t[curve.best] == pytest.approx(expected, abs=2e-3)


def test_without_wear_no_planned_stop_pays():
    """A constant hazard: a new unit fails no later than the old one."""
    t = np.linspace(0.0, 2000.0, 20_001)
    life = RemainingLife(t, np.exp(-t / 100.0), beyond=100.0 * np.exp(-20.0))

    curve = cost_curve(life, Costs(1.0, 10.0), age=0.0)

    assert curve.best is None
    assert curve.run_to_failure == pytest.approx(10.0 / 100.0, rel=1e-3)


def test_survival_passes_through_what_the_answer_states():
    life = life_of(WORN)

    known = {25: 0.05, 30: 0.2, 40: 0.5, 55: 0.95}
    assert {t: 1 - survival_at(life, t) for t in known} == pytest.approx(known, abs=5e-3)


def test_a_unit_that_runs_has_not_failed_yet():
    life = life_of(Forecast(3.0, 0.0, 12.0, {10: 0.9}))

    assert life.survival[0] == 1.0
    assert 0.2 < 1 - survival_at(life, 3) < 0.5


def test_a_lower_bound_that_is_cut_at_0_is_no_probability():
    cut, named = (life_of(Forecast(15.0, lower, 40.0, {10: 0.3})) for lower in (0.0, 1e-9))

    assert (
        survival_at(cut, 5) < survival_at(named, 5) - 1e-3
    )  # falls as in the tail of the stated probability


@pytest.mark.parametrize("rul", [0.0, 0.3])
def test_an_answer_of_about_0_is_stopped_now(rul):
    failing = Forecast(rul, 0.0, 7.0, {10: 0.97, 30: 1.0, 60: 1.0})

    curve = cost_curve(life_of(failing), Costs(1.0, 10.0), age=150.0)

    assert curve.in_cycles[curve.best] <= 1


def test_above_the_cap_a_unit_lives_as_the_fleet_that_reached_its_age():
    life = life_of(HEALTHY, age=100.0)

    ratio = survival_at(life, 200) / survival_at(life, 150)
    expected = np.exp(FLEET.log_survival(np.array(300.0)) - FLEET.log_survival(np.array(250.0)))
    assert ratio == pytest.approx(expected, rel=1e-2)
    assert survival_at(life, 120) == pytest.approx(0.95, abs=1e-3)


def test_an_answer_near_the_cap_is_at_least_the_cap():
    near = HEALTHY._replace(rul=123.0)

    assert life_of(near).survival.tolist() == life_of(HEALTHY).survival.tolist()


def test_an_answer_without_probabilities_rests_on_its_interval():
    life = life_of(WORN._replace(failure_probability={}))

    assert 1 - survival_at(life, 25) == pytest.approx(0.05, abs=5e-3)
    assert 1 - survival_at(life, 55) == pytest.approx(0.95, abs=5e-3)


def test_a_unit_older_than_every_unit_of_training_still_has_a_life():
    life = life_of(HEALTHY, age=5000.0)

    assert survival_at(life, 120) == pytest.approx(0.95, abs=1e-3)
    assert life.beyond > 0


def test_lives_of_a_million_cycles_have_a_bounded_curve():
    fleet = FleetLife([1e6 * (1 + i / 10) for i in range(11)])

    life = life_of(HEALTHY, fleet=fleet)

    assert len(life.in_cycles) <= MOST_POINTS + 2
    assert life.in_cycles[-1] >= 2e6 - 150


def test_the_mean_life_of_a_fleet_is_the_area_under_its_survival():
    new = FLEET.new_unit()

    ages = np.arange(0.0, 5000.0, 0.01)
    area = np.trapezoid(np.exp(FLEET.log_survival(ages)), ages)
    assert new.lived()[-1] + new.beyond == pytest.approx(area, rel=1e-3)


@given(fleet=fleets)
@examples(100)
def test_the_survival_of_a_fleet_never_rises(fleet):
    log = fleet.log_survival(np.linspace(0.0, 5000.0, 501))

    assert log[0] == 0.0 or fleet.longest < 1.0
    assert (np.diff(log) <= 1e-12).all()


def test_a_fleet_whose_units_live_alike_is_stopped_just_before():
    fleet = FleetLife([100.0, 101.0, 102.0])

    assert best_fixed_age(fleet, Costs(1.0, 50.0)) == 100.0


def test_a_fleet_whose_units_fail_early_or_late_is_not_stopped_between():
    fleet = FleetLife([1.0] * 6 + [1000.0] * 5)

    assert best_fixed_age(fleet, Costs(1.0, 1.001)) == 1000.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10", "expected PLANNED:FAILURE such as 1:10, got '10'"),
        ("a:b", "expected PLANNED:FAILURE"),
        ("1:2:3", "expected PLANNED:FAILURE"),
        ("0:10", "planned: expected a number above 0, from 1e-9 to 1e15, got 0"),
        ("1:inf", "failure: expected a number above 0, from 1e-9 to 1e15, got inf"),
        ("5e-324:1e-323", "planned: expected a number above 0, from 1e-9 to 1e15, got 4.94066e-324"),
        ("1:1e300", r"failure: expected a number above 0, from 1e-9 to 1e15, got 1e\+300"),
        ("nan:1", "planned: expected a number above 0, from 1e-9 to 1e15, got nan"),
        ("10:10", r"failure: expected more than planned \(10\), got 10"),
    ],
)
def test_costs_that_cannot_be_are_refused(text, said):
    with pytest.raises(InvalidCosts, match=said):
        Costs.read(text)
