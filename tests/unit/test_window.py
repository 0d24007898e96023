"""The door to the model: what passes is right, what does not is told where and why."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.rules import WindowRules
from service.core.window import LARGEST_CYCLE, Window, WindowInput, out_of_range
from service.errors import InvalidWindow
from tests.fakes import COLUMNS, RULES, make_manifest, make_window, window_input


def columns(**values):
    return {name: [0.0, 1.0, 2.0] for name in COLUMNS} | values


def problems(window: WindowInput, rules: WindowRules = RULES, **options) -> dict[str, str]:
    with pytest.raises(InvalidWindow) as caught:
        Window.checked(window, rules, **options)
    return {problem.pointer: problem.code for problem in caught.value.problems}


def test_columns_come_into_the_models_order():
    window = Window.checked(
        WindowInput(columns={"sensor_2": [5, 6], "setting_1": [1, 2], "sensor_1": [3, 4]}), RULES
    )

    assert window.readings.tolist() == [[1, 3, 5], [2, 4, 6]]
    assert window.readings.dtype == np.float32


def test_rows_and_columns_of_the_same_readings_make_the_same_window():
    rows = WindowInput(readings=[[1.0, 3.0, None], [2.0, None, 6.0]])
    by_name = WindowInput(columns={"setting_1": [1, 2], "sensor_1": [3, None], "sensor_2": [None, 6]})

    a, b = Window.checked(rows, RULES), Window.checked(by_name, RULES)

    np.testing.assert_array_equal(a.readings, b.readings)
    assert a.imputed_fraction == b.imputed_fraction == 2 / 6


@pytest.mark.parametrize("typed", [True, False])
def test_arrays_do_as_well_as_lists(typed):
    lists = Window.checked(window_input(7.5), RULES)
    arrays = window_input(7.5)
    arrays.columns = {name: np.array(values, np.float32) for name, values in arrays.columns.items()}

    window = Window.checked(arrays, RULES, typed=typed)

    np.testing.assert_array_equal(window.readings, lists.readings)


@pytest.mark.parametrize("typed", [True, False])
def test_an_array_of_rows_does_as_well(typed):
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)

    window = Window.checked(WindowInput(readings=rows), RULES, typed=typed)

    np.testing.assert_array_equal(window.readings, rows)


@pytest.mark.parametrize("typed", [True, False])
def test_null_and_nan_are_missing(typed):
    given = WindowInput(columns=columns(sensor_1=[None, math.nan, 1.0]))

    window = Window.checked(given, RULES, typed=typed)

    assert np.isnan(window.readings[:, 1]).tolist() == [True, True, False]
    assert window.imputed_fraction == pytest.approx(2 / 9)


def test_an_absent_column_is_missing():
    given = columns()
    del given["sensor_2"]

    window = Window.checked(WindowInput(columns=given), RULES)

    assert np.isnan(window.readings[:, 2]).all()


def test_the_last_cycles_are_read_and_the_rest_is_said_to_be_left_out():
    window = Window.checked(
        WindowInput(last_cycle=20, columns={name: list(range(12)) for name in COLUMNS}), RULES
    )

    assert window.readings[:, 0].tolist() == list(range(4, 12))
    assert window.first_cycle == 13
    assert [w.code for w in window.warnings] == ["truncated_to_context"]


def test_cycles_are_counted_from_the_first_reading_where_the_last_cycle_is_unknown():
    window = Window.checked(WindowInput(columns={name: list(range(12)) for name in COLUMNS}), RULES)

    assert math.isnan(window.last_cycle)
    assert window.first_cycle == 5
    assert "last_cycle_unknown" in [w.code for w in window.warnings]


def test_an_unremarkable_window_has_no_warning():
    assert make_window().warnings == ()


def test_a_column_out_of_range_is_warned_of_once_with_its_first_cycle_and_unit():
    given = WindowInput(last_cycle=10, columns=columns(sensor_2=[50.0, 400.0, 500.0]))

    (warning,) = out_of_range(Window.checked(given, RULES), RULES)

    assert (warning.code, warning.column) == ("out_of_range", "sensor_2")
    assert "400 psia at cycle 9" in warning.detail


def test_readings_within_the_margin_are_in_range():
    given = WindowInput(last_cycle=10, columns=columns(sensor_2=[-24.0, 50.0, 124.0]))

    assert list(out_of_range(Window.checked(given, RULES), RULES)) == []


def test_a_column_that_was_constant_in_training_may_be_rounded():
    manifest = make_manifest()
    constant = manifest.columns[0].model_copy(update={"low": 14.62, "high": 14.62})
    manifest = manifest.model_copy(update={"columns": [constant, *manifest.columns[1:]]})
    rules = WindowRules.of(manifest, max_window_cycles=100)

    same = WindowInput(last_cycle=9, columns=columns(setting_1=[14.62, 14.62, 14.62]))
    other = WindowInput(last_cycle=9, columns=columns(setting_1=[14.62, 14.7, 14.62]))

    assert list(out_of_range(Window.checked(same, rules), rules)) == []
    assert [w.column for w in out_of_range(Window.checked(other, rules), rules)] == ["setting_1"]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (WindowInput(), {"/columns": "empty"}),
        (WindowInput(columns={}), {"/columns": "empty"}),
        (WindowInput(columns={name: [] for name in COLUMNS}), {"/columns": "empty"}),
        (WindowInput(readings=[]), {"/readings": "empty"}),
        (WindowInput(columns=columns(bleed=[1, 2, 3])), {"/columns/bleed": "unknown_column"}),
        (WindowInput(columns=columns(**{"a/b": [1]})), {"/columns/a~1b": "unknown_column"}),
        (WindowInput(columns=columns(sensor_1=[1.0])), {"/columns/sensor_1": "wrong_length"}),
        (WindowInput(columns=columns(sensor_1="123")), {"/columns/sensor_1": "wrong_length"}),
        (WindowInput(columns=columns(sensor_1=[1, "2", 3])), {"/columns/sensor_1/1": "not_a_number"}),
        (WindowInput(columns=columns(sensor_1=[True, 2, 3])), {"/columns/sensor_1/0": "not_a_number"}),
        (WindowInput(columns=columns(sensor_1=[1, [2], 3])), {"/columns/sensor_1/1": "not_a_number"}),
        (WindowInput(columns=columns(sensor_1=[1, 2, 10**400])), {"/columns/sensor_1/2": "not_a_number"}),
        (WindowInput(columns=columns(sensor_1=[1, math.inf, 3])), {"/columns/sensor_1/1": "non_finite"}),
        (WindowInput(columns=columns(sensor_1=[1, 2, -1e300])), {"/columns/sensor_1/2": "non_finite"}),
        (WindowInput(readings=[[1, 2, 3], [1, math.inf, 3]]), {"/readings/1/1": "non_finite"}),
        (WindowInput(readings=[[1, 2, 3], [1, "x", 3]]), {"/readings/1/1": "not_a_number"}),
        (WindowInput(readings=[[1, 2, 3], [1, 2]]), {"/readings/1": "wrong_columns"}),
        (WindowInput(readings=[[1, 2, 3], 4]), {"/readings/1": "wrong_columns"}),
        (WindowInput(readings=np.ones((1, 4))), {"/readings/0": "wrong_columns"}),
        (WindowInput(readings=[[1, 2, 3]], columns=columns()), {"": "wrong_columns"}),
        (WindowInput(columns={"sensor_1": [1, 2]}), {"/columns": "too_much_missing"}),
        (WindowInput(readings=[[None, None, 3]]), {"/readings": "too_much_missing"}),
        (WindowInput(columns=columns(), last_cycle=1), {"/last_cycle": "bad_last_cycle"}),
        (WindowInput(columns=columns(), last_cycle=-1), {"/last_cycle": "bad_last_cycle"}),
        (WindowInput(columns=columns(), last_cycle=7.5), {"/last_cycle": "bad_last_cycle"}),
        (WindowInput(columns=columns(), last_cycle=math.inf), {"/last_cycle": "bad_last_cycle"}),
        (WindowInput(columns=columns(), last_cycle=LARGEST_CYCLE + 1), {"/last_cycle": "bad_last_cycle"}),
        (WindowInput(columns=columns(), last_cycle="7"), {"/last_cycle": "bad_last_cycle"}),
        (WindowInput(columns=columns(), last_cycle=True), {"/last_cycle": "bad_last_cycle"}),
    ],
)  # fmt: skip
def test_what_the_model_cannot_read_is_refused_with_its_place(window, expected):
    assert problems(window) == expected


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (WindowInput(columns=columns(sensor_1=[1.0])), {"/columns/sensor_1": "wrong_length"}),
        (WindowInput(columns=columns(sensor_1=[1.0, 2.0, 1e300])), {"/columns/sensor_1/2": "non_finite"}),
        (WindowInput(columns=columns(sensor_1=[math.inf, -math.inf, 0.0])),
         {"/columns/sensor_1/0": "non_finite", "/columns/sensor_1/1": "non_finite"}),
        (WindowInput(columns={name: [] for name in COLUMNS}), {"/columns": "empty"}),
        (WindowInput(columns={name: [1.0] * 1001 for name in COLUMNS}), {"/columns": "too_long"}),
        (WindowInput(columns={name: [None] for name in COLUMNS}), {"/columns": "too_much_missing"}),
        (WindowInput(columns=columns(bleed=[1.0, 2.0, 3.0])), {"/columns/bleed": "unknown_column"}),
    ],
)  # fmt: skip
def test_values_that_a_decoder_has_typed_are_checked_all_the_same(window, expected):
    assert problems(window, typed=True) == expected


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(FINITE, FINITE)
def test_readings_of_any_size_pass_unchanged(first, second):
    sent = WindowInput(columns={name: [first, second] for name in COLUMNS})

    window = Window.checked(sent, RULES, typed=True)

    assert window.readings[:, 0].tolist() == [first, second]


def test_a_window_longer_than_the_settings_allow_is_refused():
    rules = WindowRules.of(make_manifest(), max_window_cycles=2)

    assert problems(WindowInput(columns=columns()), rules) == {"/columns": "too_long"}


def test_every_problem_of_a_window_is_told_at_once():
    window = WindowInput(columns=columns(sensor_1=[1, "a", 3], sensor_2=["b", 2, 3]), last_cycle=-4)

    assert set(problems(window)) == {"/columns/sensor_1/1", "/columns/sensor_2/0", "/last_cycle"}


def test_places_are_counted_from_the_first_value_that_was_sent():
    values = list(range(20))
    values[15] = "x"

    window = WindowInput(columns=dict.fromkeys(COLUMNS, values))

    assert "/windows/3/columns/sensor_1/15" in problems(window, pointer="/windows/3")


def test_what_is_out_of_the_models_sight_is_not_looked_at():
    values = [math.inf, *([1.0] * 8)]

    window = Window.checked(WindowInput(columns=dict.fromkeys(COLUMNS, values)), RULES)

    assert len(window) == 8


def test_a_message_names_the_columns_that_are_missing_altogether():
    with pytest.raises(InvalidWindow, match="nothing of setting_1, sensor_2"):
        Window.checked(WindowInput(columns={"sensor_1": [1, 2]}), RULES)


def test_a_long_value_is_not_repeated_in_full():
    with pytest.raises(InvalidWindow) as caught:
        Window.checked(WindowInput(columns=columns(sensor_1=["x" * 10_000, 1, 2])), RULES)

    assert len(str(caught.value)) < 200


def test_without_a_column_a_window_is_a_probe_and_the_original_stays():
    window = make_window(40.0)

    probe = window.without(1)

    assert np.isnan(probe.readings[:, 1]).all()
    assert not np.isnan(window.readings).any()
    assert (probe.probe, window.probe) == (True, False)


VALUES = st.one_of(
    st.none(), st.floats(width=32), st.integers(-(10**6), 10**6), st.text(max_size=3), st.booleans()
)


@given(
    st.dictionaries(st.sampled_from([*COLUMNS, "other"]), st.lists(VALUES, max_size=12)),
    st.one_of(st.none(), st.floats(), st.integers()),
)
def test_whatever_is_sent_is_either_refused_with_reasons_or_fit_for_the_model(sent, last_cycle):
    refusal, window = None, None
    try:
        window = Window.checked(WindowInput(columns=sent, last_cycle=last_cycle), RULES)
    except InvalidWindow as error:
        refusal = error

    if window is None:
        assert refusal.problems
    else:
        assert 1 <= len(window) <= RULES.context
        assert window.readings.shape == (len(window), len(COLUMNS))
        assert not np.isinf(window.readings).any()
        assert 0 <= window.imputed_fraction <= RULES.max_missing_fraction
