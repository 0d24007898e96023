"""Figures of evidence beyond hiding shares of cycles: agreement, leak, anomaly, lag, the next cycle."""

from types import SimpleNamespace

import numpy as np
import pytest

from model.domain import concatenated
from model.faithfulness import (
    Reply,
    agreement_beyond_place,
    leak,
    measure_faithfulness,
    partial_rank_correlation,
    sensor_agreement,
)
from model.reference import fit_reference
from model.regimes import Regimes
from model.sensitivity import (
    measure_sensitivity,
    sensitivity_figures,
    wear_direction,
    worn_readings,
)
from tests.fleets import PUMP_SCHEMA, windows_of, worn_pumps

T, F = 20, 3
UNITS = ["a", "a", "b", "b", "c", "c"]


@pytest.fixture
def windows():
    return windows_of(np.random.default_rng(0).normal(size=(6, T, F)), unit=UNITS)


def by_readings(windows):
    """Attends to cycles as large as their first reading, and answers from the first two columns."""
    readings = windows.readings
    valid = np.arange(readings.shape[1]) < windows.lengths[:, None]
    size = np.where(valid, np.abs(readings[:, :, 0]) + 1e-9, 0.0)
    attention = size / size.sum(1, keepdims=True)
    second = np.where(valid, readings[:, :, 1], 0.0).sum(1)
    of_sensors = np.stack([size.sum(1), second, np.zeros(len(size))], axis=1)
    return Reply(of_sensors.sum(1), attention, attention, None, of_sensors)


def by_lag(windows):
    """Attends by lag alone."""
    lag = windows.lengths[:, None] - 1 - np.arange(windows.readings.shape[1])
    size = np.where(lag >= 0, 0.8 ** np.maximum(lag, 0), 0.0)
    attention = size / size.sum(1, keepdims=True)
    heads = np.stack([attention, by_readings(windows).attention], axis=1)
    return Reply(np.zeros(len(size)), attention, attention, heads)


def figures_of(ask, windows):
    found = sensitivity_figures(measure_sensitivity(ask, windows, windows.readings + 4.0))
    return {name: figure.value for name, figure in found.items()}


def test_evidence_that_follows_readings_rises_where_wear_is_put_in(windows):
    found = figures_of(by_readings, windows)

    assert found["anomaly"] > 2.0
    assert found["lag_attention"] < 0.5


def test_a_profile_by_lag_is_found_out(windows):
    found = figures_of(by_lag, windows)

    assert found["anomaly"] == pytest.approx(1.0)
    assert found["lag_attention"] == pytest.approx(1.0)
    assert 0.1 < found["lag_heads"] < 0.9


def test_one_more_cycle_moves_nothing_where_readings_alone_decide(windows):
    same = windows_of(np.ones((6, T, F)), unit=UNITS)

    assert figures_of(by_readings, same)["moved"] == pytest.approx(1 / (T - 1))  # first cycle to last
    assert figures_of(by_lag, same)["moved"] == pytest.approx(0.2, abs=0.01)


def test_wear_comes_in_the_middle_of_a_window(windows):
    seen = []

    def ask(asked):
        seen.append(asked.readings)
        return by_readings(asked)

    measure_sensitivity(ask, windows, windows.readings + 4.0)

    worn = np.flatnonzero((seen[1] != seen[0]).any((0, 2)))
    assert worn.tolist() == [7, 8, 9, 10, 11]


def test_parts_are_joined_in_order(windows):
    one = measure_sensitivity(by_readings, windows.take(np.arange(2)), windows.readings[:2])
    other = measure_sensitivity(by_lag, windows.take(np.arange(2, 6)), windows.readings[2:])

    found = concatenated([one, other])

    assert found.group.tolist() == UNITS
    np.testing.assert_array_equal(found.before, np.concatenate([one.before, other.before]))


def test_wear_moves_sensors_towards_failure_by_deviations_of_their_regime():
    regimes = Regimes(np.array([[0.0], [10.0]]), np.ones(1))
    readings = np.array([[[0.1, 1.0], [10.1, 1.0]]])
    reference = SimpleNamespace(
        regimes=[SimpleNamespace(standard_deviation=each) for each in ([9.0, 0.5], [9.0, 2.0])],
        degradation=SimpleNamespace(z=[[3.0, -2.0], [0.0, 0.0]]),
    )

    worn = worn_readings(readings, regimes, reference, settings=(0,))

    np.testing.assert_allclose(worn, [[[0.1, -1.0], [10.1, -7.0]]], rtol=1e-6)


def test_the_direction_of_wear_is_that_of_the_training_units():
    reference = fit_reference(worn_pumps(units=12, seed=2), PUMP_SCHEMA)

    direction = wear_direction(reference, PUMP_SCHEMA.indices("setting"))

    assert direction.tolist() == [0.0, 1.0, -1.0]


def test_agreement_through_place_alone_does_not_count_beyond_it():
    rng = np.random.default_rng(1)
    profile = np.linspace(1.0, 3.0, T)
    single = profile + 0.3 * rng.normal(size=(60, T))
    of = np.ones((60, T), bool), np.full(60, T), np.repeat(np.arange(30), 2).astype(str)

    by_place = agreement_beyond_place(np.tile(profile, (60, 1)), single, *of)
    by_own = agreement_beyond_place(single, single, *of)

    assert abs(by_place.mean()) < 0.2
    assert by_own.mean() > 0.9


def test_place_is_counted_from_the_last_cycle():
    profile = np.random.default_rng(3).permutation(T) + 1.0
    single = np.zeros((2, T))
    single[0], single[1, :10] = profile, profile[10:]

    found = agreement_beyond_place(single, single, single > 0, np.array([T, 10]), np.array(["a", "b"]))

    assert found.tolist() == [0.0, 0.0]  # the other unit's profile says all


def test_without_another_unit_nothing_is_beyond_place():
    found = agreement_beyond_place(
        *np.ones((2, 2, T)), np.ones((2, T), bool), np.full(2, T), np.array(["a", "a"])
    )

    assert np.isnan(found).all()


def test_a_partial_correlation_removes_what_the_control_explains():
    rng = np.random.default_rng(2)
    control, a, b = rng.normal(size=(3, 4000))

    assert partial_rank_correlation(control + a, control + b, control) == pytest.approx(0.0, abs=0.05)
    assert partial_rank_correlation(control + a, control + a + b, control) == pytest.approx(0.7, abs=0.05)


def test_the_leak_is_the_influence_of_cycles_with_almost_no_evidence():
    ranking = np.array([[0.02, 0.03, 0.45, 0.50, 0.0], [0.25, 0.25, 0.25, 0.25, 0.0]])
    single = np.array([[1.0, 2.0, 3.0, 4.0, 9.0], [1.0, 1.0, 1.0, 1.0, 9.0]])

    found = leak(ranking, single, single < 9)

    assert found.tolist() == pytest.approx([0.3, 0.0])


def test_an_answer_without_influences_has_no_leak():
    assert np.isnan(leak(np.ones((1, T)), np.zeros((1, T)), np.ones((1, T), bool))).all()


def test_contributions_of_sensors_are_held_against_hiding_each_sensor():
    effects = np.array([[3.0, -1.0, 0.0, 2.0]])

    assert sensor_agreement(np.array([[6.0, -4.0, 0.0, 5.0]]), effects).tolist() == [1.0]
    assert sensor_agreement(np.array([[-6.0, 4.0, 0.0, -5.0]]), effects).tolist() == [-1.0]
    assert np.isnan(sensor_agreement(None, effects)).all()


def test_hiding_a_sensor_hides_it_in_every_cycle(windows):
    asked = []

    def ask(windows):
        asked.append(windows.readings)
        return by_readings(windows)

    found = measure_faithfulness(ask, windows, np.zeros_like(windows.readings))

    assert [(readings[:, :, f] == 0).all() for f, readings in enumerate(asked[-F:])] == [True] * F
    assert found.sensors == pytest.approx(1.0)
