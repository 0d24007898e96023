from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.domain import Column, Schema, Trajectory
from model.regimes import MOST_READINGS, Regimes, find_regimes

FLIGHT = Schema(
    (
        Column("altitude", "setting", "kft"),
        Column("mach", "setting"),
        Column("temperature", "sensor", "degR"),
        Column("speed", "sensor", "rpm"),
    )
)
CONDITIONS = np.array([[0.0, 0.0], [10.0, 0.25], [20.0, 0.7], [25.0, 0.62], [35.0, 0.84], [42.0, 0.84]])


def flights(conditions, *, seed=0, units=20):
    """Units of 150 cycles, each at a random condition that shifts both sensors, then wear and noise."""
    rng = np.random.default_rng(seed)
    effect = rng.normal(0, 100, (len(conditions), 2))
    made = []
    for unit in range(units):
        at = rng.integers(len(conditions), size=150)
        worn = 20.0 * np.exp(-np.arange(149, -1, -1) / 30)[:, None]
        sensors = 600 + effect[at] + worn + rng.normal(0, 2, (150, 2))
        settings = conditions[at] + rng.normal(0, [0.002, 0.0003], (150, 2))
        readings = np.hstack([settings, sensors]).astype(np.float32)
        made.append(Trajectory(str(unit), np.arange(150), readings, failed=True))
    return made


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_there_are_as_many_regimes_as_conditions(count):
    regimes = find_regimes(flights(CONDITIONS[:count]), FLIGHT)

    np.testing.assert_allclose(regimes.centre, CONDITIONS[:count], atol=0.01)


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e-7, 1e-9])
def test_regimes_do_not_depend_on_the_unit_of_measure_of_the_sensors(unit):
    units = [
        replace(
            each, readings=(each.readings - np.float32([0, 0, 600, 600])) * np.float32([1, 1, unit, unit])
        )
        for each in flights(CONDITIONS[:3])
    ]

    assert len(find_regimes(units, FLIGHT)) == 3


def test_a_duty_cycle_of_two_conditions_is_two_regimes_in_more_readings_than_are_looked_at():
    rng = np.random.default_rng(0)
    settings = np.tile(CONDITIONS[:2], (MOST_READINGS // 2 + 500, 1))
    sensors = settings[:, :1] + rng.normal(0, 0.1, (len(settings), 2))
    readings = np.hstack([settings, sensors]).astype(np.float32)

    regimes = find_regimes([Trajectory("1", np.arange(len(readings)), readings, failed=True)], FLIGHT)

    np.testing.assert_allclose(regimes.centre, CONDITIONS[:2], atol=1e-3)


def test_settings_that_are_noise_are_one_regime():
    rng = np.random.default_rng(0)
    units = [
        replace(unit, readings=np.hstack([rng.choice([0, 1, 2], (150, 2)), unit.readings[:, 2:]]))
        for unit in flights(CONDITIONS[:1])
    ]

    assert len(find_regimes(units, FLIGHT)) == 1


def test_a_setting_that_moves_sensors_smoothly_is_cut_into_few_regimes():
    rng = np.random.default_rng(0)
    load = rng.uniform(0, 100, 5000)
    sensor = load * 3 + rng.normal(0, 20, 5000)
    readings = np.stack([load, np.full(5000, 7.0), sensor, sensor + 1], axis=1).astype(np.float32)

    regimes = find_regimes([Trajectory("1", np.arange(5000), readings, failed=True)], FLIGHT)

    assert 2 <= len(regimes) <= 12
    assert np.bincount(regimes.of(readings[:, :2])).min() > 0


@pytest.mark.parametrize(
    ("protocols", "sizes"),
    [
        (range(16), [8, 8]),  # each unit's own
        ([0.0] * 8 + [1.0] * 8, [8, 8]),
        ([0.0] * 12 + [1.0] * 4, [16]),
        ([0.0] * 3 + [1.0] * 3, [3, 3]),  # half of a small fleet
        ([0.0] * 4 + [1.0] * 2, [6]),
    ],
)
def test_a_regime_has_readings_of_several_units(protocols, sizes):
    rng, made = np.random.default_rng(0), []
    for unit, protocol in enumerate(protocols):
        level = 600 + np.array([20.0, -20.0]) * protocol
        sensors = level + np.arange(150)[:, None] / 30 + rng.normal(0, 2, (150, 2))
        settings = np.tile([protocol, 7.0], (150, 1))
        readings = np.hstack([settings, sensors]).astype(np.float32)
        made.append(Trajectory(str(unit), np.arange(150), readings, failed=True))

    regimes = find_regimes(made, FLIGHT)

    found = regimes.of(np.array([[protocol, 7.0] for protocol in protocols]))
    assert np.bincount(found).tolist() == sizes


def test_a_fleet_without_settings_has_one_regime():
    schema = Schema(FLIGHT.columns[2:])
    unit = Trajectory("1", np.arange(3), np.ones((3, 2), dtype=np.float32), failed=True)

    regimes = find_regimes([unit], schema)

    assert regimes.centre.shape == (1, 0)
    assert regimes.of(np.empty((4, 0))).tolist() == [0] * 4


def test_settings_that_are_all_missing_are_one_regime_with_a_finite_centre():
    unit = Trajectory("1", np.arange(3), np.full((3, 4), np.nan, dtype=np.float32), failed=True)

    regimes = find_regimes([unit], FLIGHT)

    assert regimes.centre.tolist() == [[0.0, 0.0]]


@given(seed=st.integers(0, 20), order=st.randoms(use_true_random=False))
def test_regimes_do_not_depend_on_the_order_of_units(seed, order):
    units = flights(CONDITIONS[:3], seed=seed, units=4)
    shuffled = list(units)
    order.shuffle(shuffled)

    # Sums in another order may differ in the last bit, but not the cuts.
    np.testing.assert_allclose(
        find_regimes(shuffled, FLIGHT).centre, find_regimes(units, FLIGHT).centre, rtol=1e-9, atol=1e-9
    )


def test_missing_readings_do_not_hide_regimes():
    rng = np.random.default_rng(1)
    units = [
        replace(unit, readings=np.where(rng.random(unit.readings.shape) < 0.1, np.nan, unit.readings))
        for unit in flights(CONDITIONS)
    ]

    np.testing.assert_allclose(find_regimes(units, FLIGHT).centre, CONDITIONS, atol=0.01)


def test_the_nearest_centre_counts_each_setting_by_its_scale():
    regimes = Regimes(np.array([[0.0, 0.0], [40.0, 0.8]]), scale=np.array([40.0, 0.8]))

    assert regimes.of(np.array([[18.0, 0.7], [18.0, 0.1]])).tolist() == [1, 0]


def test_a_setting_that_tells_no_regimes_apart_does_not_decide_between_them():
    rng = np.random.default_rng(0)
    units = flights(CONDITIONS[:2])
    for unit in units:
        unit.readings[:, 1] = rng.normal(0.5, 0.1, len(unit))  # its mean hardly differs between regimes

    regimes = find_regimes(units, FLIGHT)

    altitude = np.concatenate([unit.readings[:, 0] for unit in units])
    nearest = regimes.of(np.concatenate([unit.readings[:, :2] for unit in units]))
    assert len(regimes) == 2
    np.testing.assert_array_equal(nearest, (altitude > 5).astype(int))


def test_missing_settings_leave_the_others_to_decide():
    regimes = Regimes(np.array([[0.0, 0.0], [40.0, 0.8]]), scale=np.array([40.0, 0.8]))

    settings = np.array([[np.nan, 0.8], [40.0, np.nan], [np.nan, np.nan]])

    assert regimes.of(settings).tolist() == [1, 1, 0]


def test_the_first_of_the_centres_that_the_known_settings_cannot_tell_is_taken():
    regimes = Regimes(np.array([[35.0, 0.84], [42.0, 0.84 + 1e-9]]), scale=np.array([15.0, 0.3]))

    assert regimes.of(np.array([[np.nan, 0.9], [np.nan, 0.8]])).tolist() == [0, 0]
