"""Faults touch what they say, and nothing else."""

import numpy as np
import pytest

from model.domain import Trajectory, WindowSet
from tests.benchmarks import faults

COLUMNS = 3
OF_COLUMNS = ("scaled", "shifted", "stuck", "frozen", "swapped", "permuted", "missing")
OF_WINDOWS = ("last_kept", "of_unknown_age", "out_of_order")


def unit(cycles, *, failed=False, name="1"):
    readings = 100.0 * np.arange(1, cycles + 1)[:, None] + np.arange(COLUMNS)
    return Trajectory(name, np.arange(1, cycles + 1), readings.astype(np.float32), failed=failed)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def windows():
    """One window of four cycles and one of two, with two rows of padding."""
    readings = np.stack([unit(4).readings, unit(4).readings + 1000])
    readings[1, 2:] = np.nan
    return WindowSet(
        readings,
        np.array([4, 2]),
        np.array([9.0, 2.0]),
        np.full(2, np.nan),
        *[np.array(["1", "2"])] * 2,
        np.ones(2),
    )


def cases(windows):
    rng = np.random.default_rng(0)
    sensors = faults.every(windows, [1, 2])
    return {
        "scaled": faults.scaled(windows, sensors, 2),
        "shifted": faults.shifted(windows, sensors, [1, 2, 3]),
        "stuck": faults.stuck(windows, sensors, [1, 2, 3]),
        "frozen": faults.frozen(windows, sensors),
        "swapped": faults.swapped(windows, [[1, 2], [1, 2]]),
        "permuted": faults.permuted(windows, [1, 2], rng),
        "missing": faults.missing(windows, sensors, share=0.5, rng=rng),
        "last_kept": faults.last_kept(windows, 2),
        "of_unknown_age": faults.of_unknown_age(windows),
        "out_of_order": faults.out_of_order(windows, rng),
    }


@pytest.mark.parametrize("name", [*OF_COLUMNS, *OF_WINDOWS])
def test_a_fault_changes_no_argument_and_makes_no_reading_of_padding(windows, name):
    before = windows.readings.copy()

    faulty = cases(windows)[name]

    np.testing.assert_array_equal(windows.readings, before)
    assert faulty.readings.dtype == np.float32
    assert faulty.readings.shape == before.shape
    assert np.isnan(faulty.readings[1, faulty.lengths[1] :]).all()


@pytest.mark.parametrize("name", OF_COLUMNS)
def test_columns_that_are_not_named_stay_as_they_were(windows, name):
    np.testing.assert_array_equal(cases(windows)[name].readings[:, :, 0], windows.readings[:, :, 0])


def test_columns_take_turns_over_the_windows(windows):
    assert faults.one_each(windows, [2, 0]).tolist() == [[False, False, True], [True, False, False]]


@pytest.mark.parametrize(
    ("fault", "columns", "expected"),
    [
        (lambda w: faults.scaled(w, faults.every(w, [1]), 0.5), 1, [50.5, 100.5, 150.5, 200.5]),
        (lambda w: faults.shifted(w, faults.every(w, [0, 1]), [1, 10, 0]), 1, [111, 211, 311, 411]),
        (lambda w: faults.stuck(w, faults.every(w, [1]), [0, 7, 0]), 1, [7, 7, 7, 7]),
        (lambda w: faults.frozen(w, faults.every(w, [0])), 0, [100, 100, 100, 100]),
        (lambda w: faults.frozen(w, faults.every(w, [0]), last=2), 0, [100, 200, 200, 200]),
        (lambda w: faults.swapped(w, [[0, 2], [1, 2]]), 0, [102, 202, 302, 402]),
    ],
    ids=["scaled", "shifted", "stuck", "frozen", "frozen late", "swapped"],
)
def test_a_fault_gives_the_readings_that_it_names(windows, fault, columns, expected):
    assert fault(windows).readings[0, :, columns].tolist() == expected


def test_pairs_are_of_two_different_columns(windows, rng):
    pairs = faults.random_pairs(windows.take(np.resize([0, 1], 50)), [1, 2], rng)

    assert (np.sort(pairs, axis=1) == [1, 2]).all()


def test_no_permuted_column_keeps_its_name(windows, rng):
    faulty = faults.permuted(windows, [0, 1, 2], rng)

    assert (faulty.readings[0] != windows.readings[0]).all()
    np.testing.assert_array_equal(np.sort(faulty.readings[0]), windows.readings[0])


def test_cycles_out_of_order_are_the_same_cycles(windows, rng):
    faulty = faults.out_of_order(windows, rng)

    assert not np.array_equal(faulty.readings[0], windows.readings[0])
    np.testing.assert_array_equal(np.sort(faulty.readings, axis=1), windows.readings)
    # Columns of one cycle stay together.
    np.testing.assert_array_equal(np.diff(faulty.readings), np.diff(windows.readings))


def test_missing_readings_are_as_many_as_was_said(rng):
    many = faults.random_windows([unit(400)], context=400, per_unit=20, rng=rng)

    lost = np.isnan(faults.missing(many, faults.every(many, [1]), share=0.3, rng=rng).readings) & ~np.isnan(
        many.readings
    )

    assert lost[:, :, 1].sum() / many.lengths.sum() == pytest.approx(0.3, abs=0.03)


def test_the_last_cycles_are_kept_and_the_age_with_them(windows):
    faulty = faults.last_kept(windows, 1)

    assert faulty.lengths.tolist() == [1, 1]
    assert faulty.readings[:, 0, 0].tolist() == [400, 1200]
    assert faulty.last_cycle.tolist() == [9, 2]
    assert np.isnan(faults.of_unknown_age(windows).last_cycle).all()


def test_random_windows_end_anywhere_in_a_unit_and_know_its_age(rng):
    found = faults.random_windows([unit(3), unit(30, failed=True, name="2")], context=5, per_unit=10, rng=rng)

    assert found.unit.tolist() == ["1"] * 3 + ["2"] * 10
    assert found.lengths.tolist() == np.minimum(found.last_cycle, 5).astype(int).tolist()
    assert found.last_cycle[:3].tolist() == [1, 2, 3]
    assert np.isnan(found.rul[:3]).all()
    np.testing.assert_array_equal(found.rul[3:], 30 - found.last_cycle[3:])
    np.testing.assert_array_equal(found.readings[np.arange(13), found.lengths - 1, 0], 100 * found.last_cycle)


def test_young_windows_are_whole_lives():
    found = faults.young_windows([unit(3), unit(30)], context=8, cycles=5)

    assert found.lengths.tolist() == found.last_cycle.tolist() == [3, 5]
