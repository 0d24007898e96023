from dataclasses import replace

import numpy as np
import pytest

from model.domain import InvalidData, Trajectory
from model.reference import fit_reference
from tests.fleets import PUMP_SCHEMA, worn_pumps

UNITS = worn_pumps(units=40, seed=0)


def readings_of(units):
    return np.concatenate([unit.readings for unit in units]).astype(np.float64)


def test_z_scores_within_a_regime_have_mean_0_and_variance_1_and_each_bin_holds_a_tenth():
    reference = fit_reference(UNITS, PUMP_SCHEMA)
    readings = readings_of(UNITS)

    for regime in reference.regimes:
        own = readings[np.abs(readings[:, 0] - regime.centre[0]) < 5]
        z = (own - regime.mean) / np.array(regime.standard_deviation)

        np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(z.std(axis=0), 1, atol=1e-9)
        assert regime.share == len(own) / len(readings)
        for column, edges in enumerate(regime.histogram_edges):
            share = np.bincount(np.searchsorted(edges, own[:, column]), minlength=10) / len(own)
            np.testing.assert_allclose(share, 0.1, atol=0.003)


def test_the_usual_range_leaves_out_one_reading_in_a_thousand_on_each_side():
    reference = fit_reference(UNITS, PUMP_SCHEMA)
    readings = readings_of(UNITS)

    for i, column in enumerate(reference.columns):
        outside = readings[:, i] < column.low, readings[:, i] > column.high
        assert [side.mean() for side in outside] == pytest.approx([0.001] * 2, abs=0.0005)


def test_degradation_finds_trend_noise_and_lives():
    degradation = fit_reference(UNITS, PUMP_SCHEMA).degradation

    z = np.array(degradation.z)
    assert degradation.rul[:4] == [0, 2, 5, 10]
    assert (np.diff(z[:8, 1]) < 0).all()  # vibration rises towards failure
    assert (np.diff(z[:8, 2]) > 0).all()  # pressure falls
    assert np.abs(z[:, 0]).max() < 0.5  # load does neither
    assert degradation.noise[1] == pytest.approx(0.1 / 0.73, rel=0.15)  # its noise over its spread
    assert degradation.life_quantiles[0] >= 40
    assert degradation.life_quantiles[-1] <= 80
    assert len(degradation.life_quantiles) == 11
    assert 0.45 < degradation.regime_persistence < 0.55


def test_units_that_end_differently_have_spread_and_equal_ones_have_none():
    rng = np.random.default_rng(0)
    even = worn_pumps(units=40, seed=0, loads=(40.0,))
    uneven = [
        replace(unit, readings=unit.readings + np.float32([0, 1, 0]) * np.float32(rng.normal()))
        for unit in even
    ]

    spread = np.array(fit_reference(uneven, PUMP_SCHEMA).degradation.spread)
    none = np.array(fit_reference(even, PUMP_SCHEMA).degradation.spread)

    assert spread[:, 1].min() > 0.5
    assert none[:, 1].max() < 0.2


def test_profiles_of_six_units_are_kept_in_order_of_their_lives():
    degradation = fit_reference(UNITS, PUMP_SCHEMA).degradation

    lives = [unit.life for unit in degradation.units]
    assert len(lives) == 6
    assert lives == sorted(lives)
    assert set(lives) <= {len(unit) for unit in UNITS}
    for unit in degradation.units:
        assert len(unit.z) == sum(rul < unit.life for rul in degradation.rul)
        assert np.isfinite(np.array(unit.z)).all()


def test_the_kept_units_together_are_as_all_units_are():
    degradation = fit_reference(UNITS, PUMP_SCHEMA).degradation
    shortest = min(len(unit.z) for unit in degradation.units)

    kept, z, spread = (
        np.array(rows)[..., 1:]  # sensors
        for rows in (
            [unit.z[:shortest] for unit in degradation.units],
            degradation.z[:shortest],
            degradation.spread[:shortest],
        )
    )

    np.testing.assert_allclose(kept.mean(axis=0), z, atol=0.08)
    np.testing.assert_allclose(kept.std(axis=0), spread, atol=0.08)


def test_the_grid_of_long_lives_has_steps_that_grow():
    life = Trajectory("1", np.arange(1, 3001), np.zeros((3000, 3), np.float32), failed=True)

    rul = fit_reference([life], PUMP_SCHEMA).degradation.rul

    assert [step for step in rul if step > 300] == [400, 600, 750, 937, 1171, 1463, 1828, 2285, 2856]


@pytest.mark.parametrize("cycles", [[0], [1], [0, 1]])
def test_lives_of_no_more_than_a_cycle_have_a_profile(cycles):
    unit = Trajectory("1", np.array(cycles), np.ones((len(cycles), 3), np.float32), failed=True)

    (profile,) = fit_reference([unit], PUMP_SCHEMA).degradation.units

    assert profile.life == 1
    assert len(profile.z) == 1


def test_a_column_that_a_unit_lacks_has_the_profile_of_all_units():
    lacking = [replace(unit, readings=unit.readings.copy()) for unit in UNITS]
    for unit in lacking[1:]:
        unit.readings[:, 2] = np.nan

    degradation = fit_reference(lacking, PUMP_SCHEMA).degradation

    short = degradation.units[0]
    assert [row[2] for row in short.z] == pytest.approx(
        [row[2] for row in degradation.z[: len(short.z)]], abs=0.01
    )


def test_censored_units_count_for_ranges_but_not_for_degradation_or_life():
    stopped = Trajectory("x", np.arange(1, 501), np.full((500, 3), 40, dtype=np.float32), failed=False)

    reference = fit_reference([*UNITS, stopped], PUMP_SCHEMA)

    assert reference.columns[1].high == 40
    assert reference.degradation.life_quantiles[-1] <= 80


def test_missing_readings_are_counted_and_otherwise_left_out():
    rng = np.random.default_rng(0)
    holed = [
        replace(u, readings=np.where(rng.random(u.readings.shape) < 0.2, np.float32(np.nan), u.readings))
        for u in UNITS
    ]

    full, reference = (fit_reference(units, PUMP_SCHEMA) for units in (UNITS, holed))

    assert [c.missing_fraction for c in reference.columns] == pytest.approx([0.2] * 3, abs=0.02)
    assert len(reference.regimes) == len(full.regimes)
    np.testing.assert_allclose(reference.degradation.z[0], full.degradation.z[0], atol=0.4)
    assert np.isfinite(np.array(reference.degradation.z)).all()


def test_the_noise_of_a_column_that_is_read_every_second_cycle_is_that_of_its_readings():
    holed = [replace(unit, readings=unit.readings.copy()) for unit in UNITS]
    for unit in holed:
        unit.readings[1::2, 1] = np.nan

    full, reference = (fit_reference(units, PUMP_SCHEMA) for units in (UNITS, holed))

    assert reference.degradation.noise == pytest.approx(full.degradation.noise, rel=0.15)


@pytest.mark.parametrize("level", [518.67, 1e8])
def test_a_column_that_does_not_move_keeps_z_scores_finite(level):
    still = [
        replace(unit, readings=unit.readings * np.float32([1, 1, 0]) + np.float32([0, 0, level]))
        for unit in UNITS
    ]

    reference = fit_reference(still, PUMP_SCHEMA)

    assert [regime.standard_deviation[2] for regime in reference.regimes] == [1.0, 1.0]
    assert np.abs(np.array(reference.degradation.z)[:, 2]).max() < 1e-3


@pytest.mark.parametrize(("level", "deviation"), [(1e8, 40.0), (1e8, 20.0), (1.0, 4e-7)])
def test_a_deviation_of_more_than_a_step_of_float32_scales_its_column(level, deviation):
    rng = np.random.default_rng(0)
    large = [
        replace(u, readings=np.column_stack([u.readings[:, :2], level + deviation * rng.normal(size=len(u))]))
        for u in worn_pumps(units=40, seed=0, loads=(40.0,))
    ]
    rounded = [replace(unit, readings=unit.readings.astype(np.float32)) for unit in large]

    (regime,) = fit_reference(rounded, PUMP_SCHEMA).regimes

    assert regime.standard_deviation[2] == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize(("level", "least"), [(1e8, 8.0), (518.67, 1.0)])
def test_a_column_that_differs_by_steps_of_float32_alone_keeps_z_scores_small(level, least):
    rare = [replace(unit, readings=unit.readings.copy()) for unit in UNITS]
    for unit in rare:
        unit.readings[:, 2] = np.float32(level)
        unit.readings[::20, 2] = np.nextafter(np.float32(level), np.float32(np.inf))

    reference = fit_reference(rare, PUMP_SCHEMA)

    assert all(regime.standard_deviation[2] >= least for regime in reference.regimes)


def test_a_column_without_any_reading_is_named():
    blind = [replace(unit, readings=unit.readings * np.float32([1, np.nan, 1])) for unit in UNITS]

    with pytest.raises(InvalidData, match="no unit has a reading in vibration"):
        fit_reference(blind, PUMP_SCHEMA)


def test_without_a_failed_unit_there_is_nothing_to_learn():
    with pytest.raises(InvalidData, match="none of 40 units ran to failure"):
        fit_reference([replace(unit, failed=False) for unit in UNITS], PUMP_SCHEMA)


def test_units_of_one_cycle_are_enough():
    units = [Trajectory(str(n), np.array([1]), np.float32([[40, n, 1]]), failed=True) for n in range(3)]

    reference = fit_reference(units, PUMP_SCHEMA)

    assert reference.degradation.rul == [0]
    assert reference.degradation.noise == [0, 0, 0]
    assert reference.degradation.regime_persistence == 1


def test_the_manifest_takes_reference_statistics_as_they_are():
    reference = fit_reference(UNITS, PUMP_SCHEMA)

    parts = [reference.degradation, *reference.regimes, *reference.columns]

    assert len(parts) == 1 + 2 + 3
    assert all(type(part).model_validate_json(part.model_dump_json()) == part for part in parts)
