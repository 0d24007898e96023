"""Readings as most clients send them: laid out at once, and left to the careful way where unusual."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from service.core.packed import packed_columns, packed_rows

NAMES = ("a", "b", "c")
LARGEST = float(np.finfo(np.float32).max)
readings = arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.just(len(NAMES))),
    elements=st.floats(-LARGEST / 100, LARGEST / 100),
)


@given(readings, st.integers(1, 8))
def test_rows_become_exactly_the_float32_that_numpy_makes_of_them(values, context):
    packed = packed_rows(values.tolist(), columns=len(NAMES), context=context)

    np.testing.assert_array_equal(packed, values[-context:].astype(np.float32))
    assert packed.dtype == np.float32
    assert packed.flags.c_contiguous


@given(readings, st.integers(1, 8))
def test_columns_become_the_same_rows(values, context):
    given_columns = {name: values[:, f].tolist() for f, name in enumerate(NAMES)}

    packed = packed_columns(dict(reversed(given_columns.items())), names=NAMES, context=context)

    np.testing.assert_array_equal(packed, values[-context:].astype(np.float32))


@given(readings, st.integers(1, 8))
def test_columns_of_arrays_become_the_same_rows(values, context):
    values = values.astype(np.float32)

    packed = packed_columns(
        {name: values[:, f] for f, name in enumerate(NAMES)}, names=NAMES, context=context
    )

    np.testing.assert_array_equal(packed, values[-context:])


def test_an_array_of_rows_is_taken_as_it_is():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)

    assert np.shares_memory(packed_rows(values, columns=3, context=8), values)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        np.empty((0, 3), np.float32),
        [[]],
        [[1.0, 2.0, 3.0], [1.0, 2.0]],
        [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]],
        [[1.0, None, 3.0]],
        [[1.0, math.nan, 3.0]],
        [[1.0, math.inf, 3.0]],
        [[math.inf, -math.inf, 3.0]],
        [[1e300, 1.0, 1.0]],
        [["1", 1.0, 1.0]],
        np.zeros((2, 2), dtype=np.float32),
        np.zeros((2, 3), dtype=np.float64),
        np.full((2, 3), np.nan, dtype=np.float32),
    ],
)
def test_what_is_unusual_is_left_to_the_careful_way(rows):
    assert packed_rows(rows, columns=3, context=8) is None


def test_readings_whose_sum_no_float_holds_are_finite_all_the_same():
    assert packed_rows([[LARGEST, LARGEST, 1.0]], columns=3, context=8).tolist() == [[LARGEST, LARGEST, 1.0]]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0],
        [1.0, None],
        [1.0, 2.0, 3.0],
        "ab",
        np.ones(2, np.float32),
        np.ones(2),
        np.ones(0, np.float32),
    ],
)
def test_a_column_that_is_unusual_is_left_to_the_careful_way(values):
    columns = {"a": values, "b": [1.0, 2.0], "c": [1.0, 2.0]}

    assert packed_columns(columns, names=NAMES, context=8) is None


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0],
        np.ones(3, np.float32),
        np.ones(2),
        np.ones((2, 1), np.float32),
        np.full(2, np.nan, np.float32),
    ],
)
def test_an_array_that_is_unusual_among_others_is_left_to_the_careful_way(values):
    columns = {"a": np.ones(2, np.float32), "b": values, "c": np.ones(2, np.float32)}

    assert packed_columns(columns, names=NAMES, context=8) is None
