import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model.dataset import (
    join_windows,
    make_windows,
    split_fold,
    split_units,
    truncated_windows,
    windows_ending_at,
)
from model.domain import InvalidData, Trajectory, cycles_left
from tests.fleets import PUMPS, numbered_unit, trajectories

lengths = st.integers(1, 12)


def every_window(unit, *, length):
    return make_windows([unit], length=length).take(np.arange(len(unit)))


@example(unit=replace(numbered_unit(1, unit="u"), cycles=np.array([4])), length=3)
@given(unit=trajectories(), length=lengths)
def test_window_i_holds_the_cycles_up_to_reading_i_and_those_without_a_reading_are_missing(unit, length):
    by_cycle = np.full((unit.cycles[-1] + 1, 2), np.nan, np.float32)
    by_cycle[unit.cycles] = unit.readings

    windows = every_window(unit, length=length)

    assert windows.readings.shape == (len(unit), length, 2)
    for i, last in enumerate(unit.cycles):
        first = i  # of the readings between which no gap is too long for a window
        while first > 0 and unit.cycles[first] - unit.cycles[first - 1] - 1 <= length // 2:
            first -= 1
        expected = by_cycle[max(unit.cycles[first], last + 1 - length) : last + 1]
        assert windows.lengths[i] == len(expected)
        np.testing.assert_array_equal(windows.readings[i, : len(expected)], expected)
        assert np.isnan(windows.readings[i, len(expected) :]).all()
        assert windows.last_cycle[i] == last
    np.testing.assert_array_equal(windows.rul, cycles_left(unit))


def test_after_a_gap_longer_than_memory_the_window_begins_anew():
    readings = np.array([[1.0], [2.0]], np.float32)
    unit = Trajectory("u", np.array([1, 2**40]), readings, failed=True)

    windows = every_window(unit, length=3)

    assert windows.lengths.tolist() == [1, 1]
    np.testing.assert_array_equal(windows.readings[1, :, 0], [2.0, np.nan, np.nan])
    assert windows.last_cycle[1] == 2.0**40


@given(unit=trajectories(), length=lengths, data=st.data())
def test_training_and_test_labels_of_the_same_cut_are_equal_to_the_cycle(unit, length, data):
    cut = data.draw(st.integers(1, len(unit)), label="readings before the cut")
    test_unit = Trajectory(unit.unit, unit.cycles[:cut], unit.readings[:cut], failed=False)
    test_label = unit.cycles[-1] - test_unit.cycles[-1]  # cycles that it went on to run

    training = make_windows([unit], length=length).take(np.array([cut - 1]))
    test = windows_ending_at(test_unit, np.array([cut - 1]), length=length)

    assert training.rul[0] == test_label
    assert training.last_cycle[0] == test.last_cycle[0]
    np.testing.assert_array_equal(training.readings, test.readings)


def test_windows_are_float32_and_do_not_share_memory_with_the_unit():
    unit = numbered_unit(5)

    windows = every_window(unit, length=3)
    windows.readings[:] = -1

    assert windows.readings.dtype == windows.rul.dtype == windows.last_cycle.dtype == np.float32
    assert unit.readings[0, 0] == 0


def test_windows_of_a_censored_unit_have_no_label():
    unit = numbered_unit(5, failed=False)

    assert np.isnan(windows_ending_at(unit, np.array([4]), length=3).rul).all()
    with pytest.raises(InvalidData, match="did not run to failure"):
        truncated_windows([unit], length=3, per_unit=1, rng=np.random.default_rng(0))


def test_the_label_of_a_window_of_a_censored_unit_in_training_is_the_least_rul():
    assert every_window(numbered_unit(4, failed=False), length=3).rul.tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("most", [5, 99])
def test_a_sample_of_windows_is_in_order_and_has_each_at_most_once(most):
    windows = make_windows([numbered_unit(n, unit=f"u{n}") for n in (3, 4, 5)], length=2)

    drawn = windows.sample(most)

    again = windows.take(drawn.ends)
    found = drawn.take(np.arange(len(drawn)))
    assert drawn.ends.tolist() == sorted(set(drawn.ends.tolist()))
    assert len(drawn) == min(most, 12)
    np.testing.assert_array_equal(found.readings, again.readings)
    assert (found.unit.tolist(), found.rul.tolist()) == (again.unit.tolist(), again.rul.tolist())
    assert drawn.lengths.tolist() == again.lengths.tolist()


def test_windows_of_training_take_memory_for_their_readings_once():
    unit = Trajectory("u", np.arange(1, 1001), np.zeros((1000, 20), np.float32), failed=True)

    def size(length):
        tracemalloc.start()
        windows = make_windows([unit], length=length)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found, len(windows)

    assert size(200) == (pytest.approx(size(10)[0], rel=0.1), 1000)


def test_a_window_cannot_end_where_the_unit_has_no_reading():
    with pytest.raises(InvalidData, match="no window can end at reading 5 of 5"):
        windows_ending_at(numbered_unit(5), np.array([2, 5]), length=3)


def test_joined_windows_keep_their_order_and_units():
    sets = [every_window(numbered_unit(n, unit=f"u{n}"), length=4) for n in (2, 3)]

    joined = join_windows(sets)

    assert joined.unit.tolist() == ["u2", "u2", "u3", "u3", "u3"]
    assert joined.rul.tolist() == [1, 0, 2, 1, 0]


def test_windows_of_different_shapes_do_not_join():
    sets = [every_window(numbered_unit(3), length=length) for length in (2, 4)]

    with pytest.raises(InvalidData, match="share one shape"):
        join_windows(sets)


@given(
    cycles=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    per_unit=st.integers(1, 6),
    shortest=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_truncated_windows_end_before_the_failure_and_no_two_at_the_same_cycle(
    cycles, per_unit, shortest, seed
):
    units = [numbered_unit(n, unit=str(i)) for i, n in enumerate(cycles)]

    windows = truncated_windows(
        units, length=5, per_unit=per_unit, rng=np.random.default_rng(seed), shortest=shortest
    )

    for unit in units:
        own = windows.take(windows.unit == unit.unit)
        places = max(1, len(unit) - shortest)
        assert len(own) == len(set(own.last_cycle.tolist())) == min(per_unit, places)
        assert (own.rul >= min(1, len(unit) - 1)).all()
        assert (own.last_cycle >= min(shortest, max(1, len(unit) - 1))).all()


def test_truncation_reaches_every_place_of_a_life_equally():
    unit = numbered_unit(11)

    windows = truncated_windows([unit] * 2000, length=5, per_unit=1, rng=np.random.default_rng(0))

    counts = np.bincount(windows.last_cycle.astype(int), minlength=12)
    assert counts[0] == counts[11] == 0
    assert 150 < counts[1:11].min() <= counts[1:11].max() < 250


def test_in_a_life_of_many_caps_a_fifth_of_the_windows_train_and_judge_below_the_cap():
    fleet = replace(PUMPS, cap=10.0, horizons=(5,), critical_below=2.0, degrading_below=5.0)
    units = [numbered_unit(2000, unit=str(i)) for i in range(2)]

    split = split_fold(units, fleet, fold=0, folds=2, seed=0, truncations=99)

    healthy = split.training.last_cycle[split.training.rul >= 10]
    assert sorted(split.training.rul[-10:]) == [*range(10)]
    assert len(healthy) == 40
    assert (healthy[0], healthy[-1]) == (1, 1990)
    assert np.diff(healthy) == pytest.approx(51, abs=1)
    assert (split.held_out.rul < 10).sum() == 9  # not at the failure itself
    assert (split.held_out.rul >= 10).sum() == 36


def test_all_windows_of_a_life_of_up_to_five_caps_train():
    fleet = replace(PUMPS, cap=10.0, horizons=(5,), critical_below=2.0, degrading_below=5.0)
    units = [numbered_unit(50, unit=str(i)) for i in range(2)]

    split = split_fold(units, fleet, fold=0, folds=2, seed=0, truncations=5)

    assert split.training.rul.tolist() == [*range(49, -1, -1)]


names = st.lists(st.text("abc123", min_size=1, max_size=4), min_size=4, max_size=40, unique=True)


@given(units=names, seed=st.integers(0, 9), order=st.randoms(use_true_random=False))
def test_a_split_puts_each_unit_in_one_part_whatever_the_order_they_come_in(units, seed, order):
    shuffled = [*units, units[0]]
    order.shuffle(shuffled)

    parts = split_units(units, parts=3, seed=seed)

    assert split_units(shuffled, parts=3, seed=seed) == parts
    assert sorted(unit for part in parts for unit in part) == sorted(units)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_another_seed_splits_units_otherwise():
    units = [str(n) for n in range(50)]

    assert split_units(units, parts=2, seed=0) != split_units(units, parts=2, seed=1)


def test_too_few_units_to_split_are_refused():
    with pytest.raises(InvalidData, match="1 unit cannot be split into 2 parts"):
        split_units(["a"], parts=2, seed=0)


def test_units_of_a_group_are_held_out_together_and_its_running_units_do_not_train_meanwhile():
    pumps = "aabbccdd"
    lives = [replace(numbered_unit(40, columns=3, unit=str(n)), group=pump) for n, pump in enumerate(pumps)]
    lives += [replace(life, unit=f"{life.unit} runs", failed=False) for life in lives]

    folds = [split_fold(lives, PUMPS, fold=k, folds=4, seed=0, truncations=1) for k in range(4)]

    judged = [{pumps[int(unit)] for unit in fold.held_out.unit} for fold in folds]
    assert [set(fold.held_out.group) for fold in folds] == judged
    assert sorted(map(sorted, judged)) == [["a"], ["b"], ["c"], ["d"]]
    for fold, apart in zip(folds, judged, strict=True):
        assert {life.group for life in fold.trained} == {life.group for life in fold.censored}
        assert {life.group for life in fold.trained} == {*pumps} - apart


def test_windows_that_the_service_would_refuse_judge_nothing():
    units = [numbered_unit(40, columns=3, unit=str(n)) for n in range(4)]
    sparse = [replace(unit, cycles=unit.cycles * 5) for unit in units[:2]]
    fleet = replace(PUMPS, context=10)

    folds = [
        split_fold([*units[2:], *sparse], fleet, fold=k, folds=2, seed=0, truncations=5) for k in range(2)
    ]

    judged = {unit for fold in folds for unit in fold.held_out.unit}
    assert judged == {"2", "3"}
    with pytest.raises(
        InvalidData, match="fold 1: expected windows with at most 50% of their readings missing"
    ):
        split_fold(sparse, fleet, fold=0, folds=2, seed=0, truncations=5)
