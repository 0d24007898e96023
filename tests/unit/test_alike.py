"""Windows that are alike pass together exactly as each would alone; what is unusual is left to that way."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from service.core.alike import checked_alike

from service.core.window import LARGEST_CYCLE, Window, WindowInput
from tests.fakes import COLUMNS, RULES, window_input

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, RULES.context), st.just(len(COLUMNS)))
READINGS = arrays(np.float64, SHAPES, elements=st.floats(-1e6, 1e6, width=32))


def by_rows(readings):
    return [WindowInput(readings=rows.tolist()) for rows in readings]


def by_columns(readings):
    names = [*enumerate(COLUMNS)]
    return [WindowInput(columns={n: rows[:, f].tolist() for f, n in reversed(names)}) for rows in readings]


def by_rows_of_an_array(readings):
    return [WindowInput(readings=rows.astype(np.float32)) for rows in readings]


def by_columns_of_arrays(readings):
    values = readings.astype(np.float32)
    return [WindowInput(columns={n: rows[:, f] for f, n in enumerate(COLUMNS)}) for rows in values]


@pytest.mark.parametrize("form", [by_rows, by_columns, by_rows_of_an_array, by_columns_of_arrays])
@given(readings=READINGS, last_cycle=st.one_of(st.none(), st.integers(8, LARGEST_CYCLE).map(float)))
def test_each_window_is_the_one_that_its_own_check_makes(form, readings, last_cycle):
    windows = form(readings)
    for i, window in enumerate(windows):
        window.unit, window.last_cycle = str(i), last_cycle

    together = checked_alike(windows, RULES)

    alone = [Window.checked(window, RULES, typed=True) for window in windows]
    for got, wanted in zip(together, alone, strict=True):
        np.testing.assert_array_equal(got.readings, wanted.readings)
        np.testing.assert_equal(rest(got), rest(wanted))
        assert got.readings.dtype == np.float32
        assert got.readings.flags.c_contiguous


def rest(window):
    return [value for value in msgspec.structs.astuple(window) if not isinstance(value, np.ndarray)]


UNUSUAL = {
    "another size": window_input(cycles=5),
    "more cycles than the model reads": window_input(cycles=RULES.context + 1),
    "rows beside columns": WindowInput(last_cycle=100.0, readings=[[0.0, 0.0, 0.0]] * 4),
    "both": WindowInput(readings=[[0.0, 0.0, 0.0]] * 4, columns=window_input().columns),
    "neither": WindowInput(last_cycle=100.0),
    "a column too few": WindowInput(columns={"sensor_1": [0.0] * 4}),
    "a column too many": WindowInput(columns={**window_input().columns, "x": [0.0] * 4}),
    "a missing reading": WindowInput(columns={**window_input().columns, "sensor_1": [None] * 4}),
    "no number": WindowInput(columns={**window_input().columns, "sensor_1": [math.nan] * 4}),
    "no finite number": WindowInput(columns={**window_input().columns, "sensor_1": [math.inf] * 4}),
    "a number that float32 cannot hold": WindowInput(
        columns={**window_input().columns, "sensor_1": [1e300] * 4}
    ),
    "an array of other numbers": WindowInput(columns={n: np.zeros(4, dtype=np.int64) for n in COLUMNS}),
    "no cycle": WindowInput(columns={name: [] for name in COLUMNS}),
    "a last cycle that is no whole number": window_input(last_cycle=100.5),
    "a last cycle before the first": window_input(last_cycle=2.0),
    "a last cycle below 0": window_input(last_cycle=-1.0),
    "a last cycle that float32 cannot hold": window_input(last_cycle=2.0 * LARGEST_CYCLE),
    "an infinite last cycle": window_input(last_cycle=math.inf),
}


@pytest.mark.parametrize("unusual", UNUSUAL.values(), ids=UNUSUAL.keys())
@pytest.mark.parametrize("place", [0, 1])
def test_anything_unusual_leaves_all_of_them_to_their_own_checks(unusual, place):
    windows = [window_input(), window_input()]
    windows[place] = unusual

    assert checked_alike(windows, RULES) is None


@pytest.mark.parametrize(
    "rows", [[[0.0] * 3, [0.0] * 2], [[0.0] * 2, [0.0] * 4], [[0.0] * 3], [[[0.0] * 3] * 2] * 2, [None, None]]
)
def test_rows_of_another_shape_are_unusual(rows):
    usual = WindowInput(readings=[[0.0] * 3] * 2)

    assert checked_alike([usual, WindowInput(readings=rows)], RULES) is None
