from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.bundle import find_bundle
from export.session import open_bundle
from model.dataset import truncated_windows
from model.domain import InvalidData, Schema
from model.reference import UnitProfile, fit_reference
from model.simulation import simulate
from tests.examples import examples
from tests.fleets import PUMP_SCHEMA, worn_pumps

UNITS = worn_pumps(units=60, seed=0)
REFERENCE = fit_reference(UNITS, PUMP_SCHEMA)


def by_load(units, column, load):
    """A column's early and final readings at one load."""
    early = np.concatenate([u.readings[:10][np.abs(u.readings[:10, 0] - load) < 5, column] for u in units])
    late = np.concatenate([u.readings[-3:][np.abs(u.readings[-3:, 0] - load) < 5, column] for u in units])
    return early, late


def test_the_same_seed_makes_the_same_units_and_another_makes_others():
    first, again, other = (simulate(REFERENCE, PUMP_SCHEMA, units=3, seed=seed) for seed in (5, 5, 6))

    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.readings, b.readings)
    assert not np.array_equal(first[0].readings[:20], other[0].readings[:20])


def test_asking_for_more_units_changes_none_of_the_first():
    few, many = (simulate(REFERENCE, PUMP_SCHEMA, units=units, seed=0) for units in (2, 5))

    for a, b in zip(few, many, strict=False):
        np.testing.assert_array_equal(a.readings, b.readings)


@examples(25)
@given(seed=st.integers(0, 10**9), truncate=st.booleans())
def test_every_unit_is_finite_in_range_and_counts_its_cycles_from_1(seed, truncate):
    for unit in simulate(REFERENCE, PUMP_SCHEMA, units=3, seed=seed, truncate=truncate):
        assert unit.cycles.tolist() == list(range(1, len(unit) + 1))
        assert unit.readings.dtype == np.float32
        assert unit.failed is not truncate
        for column, values in zip(REFERENCE.columns, unit.readings.T, strict=True):
            slack = 0.11 * (column.high - column.low)
            assert (column.low - slack <= values).all()
            assert (values <= column.high + slack).all()


def test_lives_are_spread_as_those_of_the_training_units():
    made = simulate(REFERENCE, PUMP_SCHEMA, units=400, seed=0)

    lives = [len(unit) for unit in made]
    np.testing.assert_allclose(
        np.quantile(lives, [0, 0.25, 0.5, 0.75, 1]),
        np.quantile([len(unit) for unit in UNITS], [0, 0.25, 0.5, 0.75, 1]),
        atol=3,
    )


@pytest.mark.parametrize("load", [40.0, 75.0])
@pytest.mark.parametrize("column", [1, 2])
def test_sensors_start_and_end_where_those_of_the_training_units_do(column, load):
    made = simulate(REFERENCE, PUMP_SCHEMA, units=200, seed=0)

    for simulated, real in zip(by_load(made, column, load), by_load(UNITS, column, load), strict=True):
        assert simulated.mean() == pytest.approx(real.mean(), abs=0.2)
        assert simulated.std() == pytest.approx(real.std(), abs=0.15)


def test_noise_from_cycle_to_cycle_is_that_of_the_training_units():
    one_load = worn_pumps(units=60, seed=0, loads=(40.0,))

    made = simulate(fit_reference(one_load, PUMP_SCHEMA), PUMP_SCHEMA, units=60, seed=0)

    steps = [np.concatenate([np.diff(u.readings[:20, 1]) for u in units]).std() for units in (made, one_load)]
    assert steps[0] == pytest.approx(steps[1], rel=0.15)


def test_units_change_between_regimes_as_often_as_the_training_units():
    made = simulate(REFERENCE, PUMP_SCHEMA, units=50, seed=0)

    changes = [
        np.concatenate([np.abs(np.diff(u.readings[:, 0])) > 5 for u in units]) for units in (made, UNITS)
    ]
    assert changes[0].mean() == pytest.approx(changes[1].mean(), abs=0.03)


@pytest.mark.parametrize("bundle", ["fd001", "fd002", "fd003", "fd004"])
def test_shipped_models_hold_their_coverage_on_simulated_units(bundle):
    session, manifest = open_bundle(find_bundle(bundle))
    units = simulate(manifest, manifest.schema_of_columns, units=60, seed=0)
    rng = np.random.default_rng(0)
    windows = truncated_windows(units, length=manifest.context, per_unit=5, rng=rng)

    answers = session.answer_all(windows)

    lower, upper = answers["rul_interval"].T
    rul = np.minimum(windows.rul, manifest.cap)
    assert ((lower <= rul) & (rul <= upper)).mean() == pytest.approx(manifest.nominal_coverage, abs=0.1)


def test_a_simulated_unit_ages_as_the_unit_whose_life_is_nearest_faster_or_slower():
    def unit(life, end):  # sensors fall to `end` over the last 50 cycles
        return UnitProfile(life=life, z=[[0.0, end, end], [0.0, 0.0, 0.0]])

    aging = REFERENCE.degradation.model_copy(
        update={
            "rul": [0.0, 50.0],
            "units": [unit(60, -1.0), unit(120, -2.0)],
            "noise": [0.0] * 3,
            "life_quantiles": [60.0] * 6 + [240.0] * 5,
        }
    )
    one_load = [regime.model_copy(update={"share": 1.0}) for regime in REFERENCE.regimes[:1]]
    known = replace(REFERENCE, degradation=aging, regimes=one_load)
    mean, deviation = (np.array(values) for values in (one_load[0].mean, one_load[0].standard_deviation))

    for made in simulate(known, PUMP_SCHEMA, units=30, seed=0):
        like, end = (60, -1.0) if len(made) == 60 else (120, -2.0)
        z = (made.readings - mean) / deviation
        speed = like / len(made)
        rul = len(made) - made.cycles
        expected = np.interp(rul * speed, [0, 50], [end, 0.0])
        np.testing.assert_allclose(z[:, 1], expected, atol=1e-4)


def test_truncated_units_are_the_same_ones_stopped_early():
    whole, cut = (simulate(REFERENCE, PUMP_SCHEMA, units=20, seed=3, truncate=t) for t in (False, True))

    for a, b in zip(whole, cut, strict=True):
        assert len(b) < len(a)
        np.testing.assert_array_equal(a.readings[: len(b)], b.readings)
    assert len({len(unit) for unit in cut}) > 10


def test_a_very_long_life_is_simulated_at_its_end():
    aging = REFERENCE.degradation.model_copy(update={"life_quantiles": [2**24, 2**24]})

    (unit,) = simulate(replace(REFERENCE, degradation=aging), PUMP_SCHEMA, units=1, seed=0)

    assert (len(unit), unit.cycles[0], unit.cycles[-1]) == (100_000, 2**24 - 99_999, 2**24)


def test_no_units_and_a_schema_of_something_else_are_refused():
    with pytest.raises(InvalidData, match="units must be 1 or more, got 0"):
        simulate(REFERENCE, PUMP_SCHEMA, units=0, seed=0)
    with pytest.raises(InvalidData, match="statistics of 3 columns, schema of 2"):
        simulate(REFERENCE, Schema(PUMP_SCHEMA.columns[:2]), units=1, seed=0)
