"""The door to the model: a window that passes is right; a refused one hears where and why."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from export.regime_readings import Typical
from model.domain import LARGEST_CYCLE
from service.core.answers import Piece, prediction
from service.core.probes import hiding_each, probes, without_each
from service.core.queries import Explain
from service.core.rules import WindowRules
from service.core.window import WindowInput, check, lay_out
from service.errors import LONGEST_NAME, MAX_PROBLEMS
from tests.fakes import (
    COLUMNS,
    RULES,
    asked_of,
    fake_answers,
    joined,
    make_manifest,
    make_windows,
    window_input,
)

INF = math.inf
LARGEST = float(np.finfo(np.float32).max)


def columns(**values):
    return {name: [0.0, 1.0, 2.0] for name in COLUMNS} | values


def checked(window, rules=RULES):
    windows, problems = joined(window, rules=rules)
    assert problems == {}
    return windows


def problems(window):
    windows, found = joined(window, rules=RULES)
    assert windows is None
    return {problem.pointer: problem.code for problem in found[0]}


def out_of_range(windows, manifest):
    """What is said of readings out of range; attention says nothing here."""
    piece = Piece(fake_answers(asked_of(windows), manifest), 0, [0])
    answer = prediction(piece, 0, windows, 0, explain=Explain.NONE)
    return [c for c in answer.warnings if c.code == "out_of_range"]


@pytest.mark.parametrize(
    "readings",
    [[[1.0, 3.0, None], [2.0, None, 6.0]], np.array([[1, 3, math.nan], [2, math.nan, 6]], np.float32)],
)
def test_rows_and_columns_of_the_same_readings_make_the_same_window(readings):
    by_name = WindowInput(columns={"setting_1": [1, 2], "sensor_1": [3, None], "sensor_2": [math.nan, 6]})

    a, b = checked(WindowInput(readings=readings)), checked(by_name)

    np.testing.assert_array_equal(a.readings, b.readings)
    assert a.imputed_fraction == b.imputed_fraction == [2 / 6]


@pytest.mark.parametrize(("last_cycle", "first_cycle"), [(20, 13), (11, 4), (None, 5), (math.nan, 5)])
def test_the_last_cycles_are_read_and_numbered_from_the_first_one_sent_where_the_last_is_unknown(
    last_cycle, first_cycle
):
    windows = checked(WindowInput(last_cycle=last_cycle, columns={name: list(range(12)) for name in COLUMNS}))

    assert windows.readings[0, :, 0].tolist() == list(range(4, 12))
    assert (windows.lengths, windows.sent) == ([8], [12])
    assert windows.first_cycle == [first_cycle]


def test_a_last_cycle_of_0_is_known_and_no_missing_one():
    windows = checked(WindowInput(last_cycle=0, readings=[[1.0, 2.0, 3.0]]))

    assert (windows.last_cycle, windows.first_cycle) == ([0.0], [0])


def test_a_column_out_of_range_is_warned_of_once_with_its_first_cycle_and_unit():
    given = WindowInput(last_cycle=10, columns=columns(sensor_2=[50.0, 400.0, 500.0]))

    (warning,) = out_of_range(checked(given), make_manifest())

    assert warning.column == "sensor_2"
    assert "400 psia at cycle 9" in warning.detail


def test_readings_within_the_margin_are_in_range():
    within = checked(WindowInput(columns=columns(sensor_2=[-24.0, 50.0, 124.0])))

    assert out_of_range(within, make_manifest()) == []


def test_a_column_that_was_constant_in_training_may_be_rounded():
    manifest = make_manifest()
    constant = manifest.columns[0].model_copy(update={"low": 14.62, "high": 14.62})
    manifest = manifest.model_copy(update={"columns": [constant, *manifest.columns[1:]]})
    rules = WindowRules.of(manifest, max_window_cycles=100)

    same, other = [
        checked(WindowInput(columns=columns(setting_1=[14.62, value, 14.62])), rules)
        for value in (14.62, 14.7)
    ]

    assert out_of_range(same, manifest) == []
    assert [warning.column for warning in out_of_range(other, manifest)] == ["setting_1"]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (WindowInput(), {"/columns": "empty"}),
        (WindowInput(columns={}), {"/columns": "empty"}),
        (WindowInput(columns={name: [] for name in COLUMNS}), {"/columns": "empty"}),
        (WindowInput(readings=[]), {"/readings": "empty"}),
        (WindowInput(readings=[], last_cycle=-1), {"/readings": "empty", "/last_cycle": "bad_last_cycle"}),
        (WindowInput(columns=columns(bleed=[1, 2, 3])), {"/columns/bleed": "unknown_column"}),
        (WindowInput(columns=columns(**{"a/b": [1]})), {"/columns/a~1b": "unknown_column"}),
        (WindowInput(columns=columns(x=[1] * 9), last_cycle=2), {"/columns/x": "unknown_column"}),
        (WindowInput(columns=columns(sensor_1=[1.0])), {"/columns/sensor_1": "wrong_length"}),
        (WindowInput(columns={name: [1.0] * 1001 for name in COLUMNS}), {"/columns": "too_long"}),
        (WindowInput(columns=columns(sensor_1=[1, INF, 3])), {"/columns/sensor_1/1": "non_finite"}),
        (WindowInput(columns=columns(sensor_1=[1, 2, -1e300])), {"/columns/sensor_1/2": "non_finite"}),
        (WindowInput(columns=columns(sensor_1=[INF, -INF, 0.0])),
         {"/columns/sensor_1/0": "non_finite", "/columns/sensor_1/1": "non_finite"}),
        (WindowInput(columns={name: [*([0.0] * 15), INF, *([0.0] * 4)] for name in COLUMNS}),
         {f"/columns/{name}/15": "non_finite" for name in COLUMNS}),
        (WindowInput(readings=[[1, 2, 3], [1, INF, 3]]), {"/readings/1/1": "non_finite"}),
        (WindowInput(readings=[[1, 2, 3], [1, 2]]), {"/readings/1": "wrong_columns"}),
        (WindowInput(readings=[[1, 2], [1, 2, 3, 4]]),
         {"/readings/0": "wrong_columns", "/readings/1": "wrong_columns"}),
        (WindowInput(readings=np.ones((1, 4))), {"/readings/0": "wrong_columns"}),
        (WindowInput(readings=[[1, 2, 3]], columns=columns()), {"": "wrong_columns"}),
        (WindowInput(columns={"sensor_1": [1, 2]}), {"/columns": "too_much_missing"}),
        (WindowInput(columns={name: [None] for name in COLUMNS}), {"/columns": "too_much_missing"}),
        (WindowInput(readings=[[None, None, 3]]), {"/readings": "too_much_missing"}),
        *[(WindowInput(columns=columns(), last_cycle=bad), {"/last_cycle": "bad_last_cycle"})
          for bad in (1, -1, 7.5, INF, LARGEST_CYCLE + 1)],
        (WindowInput(last_cycle=1, columns={"sensor_1": [INF, 1, 1]}),
         {"/last_cycle": "bad_last_cycle", "/columns/sensor_1/0": "non_finite",
          "/columns": "too_much_missing"}),
    ],
)  # fmt: skip
def test_a_window_that_the_model_cannot_read_is_refused_with_every_problem_and_its_place(window, expected):
    assert problems(window) == expected


def test_a_window_has_as_many_cycles_as_the_limit():
    longest = checked(WindowInput(columns={name: [1.0] * 1000 for name in COLUMNS}))

    assert longest.sent == [1000]


def test_the_largest_cycle_is_one():
    assert checked(window_input(last_cycle=float(LARGEST_CYCLE))).last_cycle == [LARGEST_CYCLE]


def test_a_last_cycle_that_float32_cannot_hold_is_told_to_the_digit():
    _, found = joined(window_input(last_cycle=2.0**24 + 2))

    assert "got 16777218" in found[0][0].detail


def half_missing(*, more):
    """Join a window of 300 readings, of which half and some more are missing: all of the last column."""
    rows = np.ones((100, 3), np.float32)
    rows[:, 2] = np.nan
    rows[: 50 + more, 0] = np.nan
    rules = WindowRules.of(make_manifest(context=100), max_window_cycles=100)
    return joined(WindowInput(readings=rows.tolist()), rules=rules)


def test_half_of_the_readings_may_be_missing():
    windows, problems = half_missing(more=0)

    assert problems == {}
    assert windows.imputed_fraction == [0.5]


def test_a_share_of_missing_readings_just_above_the_limit_is_not_told_as_the_limit():
    _, found = half_missing(more=1)

    expected = "expected at most 50% of the readings missing, got 50.33%; nothing of sensor_2"
    assert found[0][0].detail == expected


def test_a_long_name_is_not_repeated_in_full():
    _, found = joined(WindowInput(columns=columns(**{"x" * 10_000: [1, 2, 3]})))

    assert len(found[0][0].detail) < 200


def test_without_a_column_a_window_is_a_probe_and_the_original_stays():
    windows = make_windows(30.0, 40.0)

    varied = probes(windows, 1, [without_each(windows.readings[1], [1, 2])])

    assert np.isnan(varied.readings).any(axis=1).tolist() == [[False, True, False], [False, False, True]]
    assert not np.isnan(windows.readings).any()
    assert (varied.is_probe, windows.is_probe) == (True, False)


def test_each_variation_hides_one_cycle_and_what_is_missing_stays_missing():
    given = columns(sensor_1=[1.0, None, 3.0])
    (readings,) = joined(WindowInput(columns=given))[0].readings
    (typical,) = Typical(make_manifest()).of(readings[None])

    varied = hiding_each(readings, typical, np.arange(3))

    changed = varied == 50
    assert changed[:, :, 1].tolist() == [[True, False, False], [False, False, False], [False, False, True]]
    assert changed[:, :, 2].tolist() == np.eye(3, dtype=bool).tolist()
    assert np.isnan(varied[:, 1, 1]).all()


def test_padding_is_missing_whatever_stands_there_and_is_not_counted():
    readings = np.zeros((2, 4, 3), np.float32)
    readings[0, 2:] = INF

    windows, defects = check(readings, [2, 4], [math.nan] * 2, RULES)

    assert defects == []
    assert windows.imputed_fraction == [0.0, 0.0]
    assert np.isnan(windows.readings[0, 2:]).all()
    assert not np.isnan(windows.readings[1]).any()


@pytest.mark.parametrize("cut", [20, RULES.context])
def test_windows_that_are_cut_before_the_check_are_the_same_windows(cut):
    readings = np.arange(60, dtype=np.float32).reshape(1, 20, 3)
    readings[0, 19, 0] = INF

    windows, (defect,) = check(readings[:, -cut:], [20], [math.nan], RULES)

    np.testing.assert_array_equal(windows.readings, readings[:, -RULES.context :])
    assert (defect.cycle, defect.column) == (19, 0)


# Any window

NUMBERS = st.floats(-LARGEST, LARGEST)
READINGS = arrays(np.float64, st.tuples(st.integers(1, 12), st.just(3)), elements=NUMBERS)
VALUES = st.none() | st.floats() | st.integers(-(10**6), 10**6)
LAST_CYCLES = st.none() | st.floats() | st.integers(0, 200).map(float)
ANY_WINDOW = st.builds(
    WindowInput,
    unit=st.sampled_from([None, "a", "b"]),
    last_cycle=LAST_CYCLES,
    columns=st.none() | st.dictionaries(st.sampled_from([*COLUMNS, "other"]), st.lists(VALUES, max_size=12)),
    readings=st.none() | st.lists(st.lists(VALUES, min_size=2, max_size=4), max_size=3),
) | st.builds(
    WindowInput,
    last_cycle=LAST_CYCLES,
    readings=st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=1, max_size=12),
)  # fmt: skip


def by_rows(values):
    return WindowInput(readings=values.tolist())


def by_columns(values):
    return WindowInput(columns={n: values[:, f].tolist() for f, n in reversed([*enumerate(COLUMNS)])})


def by_rows_of_an_array(values):
    return WindowInput(readings=values.astype(np.float32))


def by_columns_of_arrays(values):
    return WindowInput(columns={n: values[:, f].astype(np.float32) for f, n in enumerate(COLUMNS)})


@pytest.mark.parametrize("form", [by_rows, by_columns, by_rows_of_an_array, by_columns_of_arrays])
@given(st.lists(READINGS, min_size=1, max_size=4))
def test_readings_of_any_size_become_exactly_the_float32_that_numpy_makes_of_them(form, given):
    windows, problems = joined(*map(form, given))

    assert problems == {}
    for i, values in enumerate(given):
        read = windows.readings[i, : windows.lengths[i]]
        np.testing.assert_array_equal(read, values[-RULES.context :].astype(np.float32))
    assert windows.readings.dtype == np.float32


@given(st.lists(ANY_WINDOW, min_size=1, max_size=5))
def test_a_window_is_refused_with_reasons_or_fit_for_the_model(given):
    windows, problems = joined(*given)

    assert all(problems.values())
    assert len(problems) + (0 if windows is None else len(windows)) == len(given)
    if windows is not None:
        count, cycles, width = windows.readings.shape
        assert (count, width) == (len(windows), len(COLUMNS))
        assert 1 <= min(windows.lengths) <= max(windows.lengths) <= cycles <= RULES.context
        assert not np.isinf(windows.readings).any()
        assert min(windows.imputed_fraction) >= 0
        assert max(windows.imputed_fraction) <= RULES.max_missing_fraction


@given(st.lists(ANY_WINDOW, min_size=1, max_size=5))
def test_each_window_of_a_request_is_checked_as_if_it_were_alone(given):
    together, problems = joined(*given)

    row = 0
    for i, window in enumerate(given):
        alone, its_problems = joined(window)
        assert its_problems.get(0) == problems.get(i)
        if alone is not None:
            np.testing.assert_equal(values_of(together, row), values_of(alone, 0))
            row += 1


def values_of(windows, i):
    lists = (windows.last_cycle, windows.sent, windows.first_cycle, windows.imputed_fraction, windows.units)
    return windows.readings[i, : windows.lengths[i]].tobytes(), *(values[i] for values in lists)


def test_problems_stop_at_the_hundred_and_first():
    window = WindowInput(readings=[[0.0]] * 10_000)

    part = lay_out(window, WindowRules.of(make_manifest(), max_window_cycles=10_000))

    assert len(part.problems) == MAX_PROBLEMS + 1


def test_each_window_keeps_a_problem_where_there_are_many_before_it():
    windows = [WindowInput(readings=[[INF] * len(COLUMNS)] * 8) for _ in range(50)]

    _, found = joined(*windows)

    assert len(found) == 50
    assert sum(map(len, found.values())) <= MAX_PROBLEMS + 1 + 50


def test_a_units_name_has_a_limit():
    longest = window_input(5.0)
    longest.unit = "é" * LONGEST_NAME
    longer = window_input(5.0)
    longer.unit = longest.unit + "é"

    assert checked(longest).units == [longest.unit]
    assert problems(longer) == {"/unit": "bad_name"}
