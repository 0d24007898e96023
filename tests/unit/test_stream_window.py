"""The window of a stream is the last readings of its unit, whatever came before them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.rules import WindowRules
from service.core.window import WindowInput
from service.errors import CycleConflict, InvalidWindow
from service.streams.window import StreamWindow, reading_values
from tests.fakes import RULES, joined, make_manifest

F, CONTEXT = len(RULES.names), RULES.context
numbers = st.floats(-1e6, 1e6, width=32)
rows = st.lists(numbers, min_size=F, max_size=F)


value = st.floats(0, 100, width=32) | st.sampled_from([math.nan, 1e6, -1e6])
gaps = st.lists(value, min_size=F, max_size=F)


def row(value: float) -> np.ndarray:
    return np.full(F, value, dtype=np.float32)


def made(count: int = 0, *, first_cycle: float | None = None, rules: WindowRules = RULES) -> StreamWindow:
    window = StreamWindow(rules)
    window.begin(None, first_cycle=first_cycle)
    for i in range(count):
        window.add(row(i), cycle=None)
    return window


def outcome(window: StreamWindow) -> object:
    """All that is said of the window of a stream, whether it passes or not."""
    try:
        return told(window.checked("1"))
    except InvalidWindow as error:
        return [(problem.code, problem.detail) for problem in error.problems]


def outcome_alone(readings, last_cycle: float | None) -> object:
    """The same of a request with these readings."""
    windows, problems = joined(WindowInput("1", last_cycle, readings=readings[-CONTEXT:]))
    return [(p.code, p.detail) for p in problems[0]] if windows is None else told(windows)


def told(got) -> object:
    readings = np.ascontiguousarray(got.readings).tobytes()
    return (readings, got.units, got.lengths, str(got.last_cycle), got.first_cycle, got.imputed_fraction)


def refusal(call, *arguments, **options) -> list[tuple[str, str]]:
    with pytest.raises(InvalidWindow) as caught:
        call(*arguments, **options)
    return [(problem.pointer, problem.code) for problem in caught.value.problems]


@given(
    st.lists(rows, max_size=2 * CONTEXT),
    st.lists(gaps, min_size=1, max_size=4 * CONTEXT),
    st.none() | st.integers(0, 1000),
)
def test_at_every_reading_it_is_the_window_of_the_last_context_readings_and_checked_as_such(
    history, readings, first_cycle
):
    window = StreamWindow(RULES)
    window.begin(WindowInput(readings=history) if history else None, first_cycle=first_cycle)

    for i, values in enumerate(readings, start=1):
        window.add(reading_values(values, {}, RULES), cycle=None)

        last_cycle = None if first_cycle is None else float(first_cycle + len(history) + i - 1)
        assert outcome(window) == outcome_alone(history + readings[:i], last_cycle)


def test_a_stream_goes_on_where_a_window_may_have_fewer_cycles_than_the_model_reads():
    window = made(
        CONTEXT + 2, first_cycle=1, rules=WindowRules.of(make_manifest(), max_window_cycles=CONTEXT - 1)
    )

    got = window.checked("1")

    np.testing.assert_array_equal(got.readings, [[row(i) for i in range(3, CONTEXT + 2)]])
    assert got.last_cycle == [CONTEXT + 2]


def test_missing_readings_of_the_history_count_until_they_have_left_the_window():
    window = StreamWindow(RULES)
    history = [row(0.0), row(math.nan)]
    window.begin(WindowInput(readings=[values.tolist() for values in history]), first_cycle=1)

    found = []
    for _ in range(CONTEXT):
        window.add(row(0.0), cycle=None)
        found.append(window.checked("1").imputed_fraction[0] > 0)

    left = CONTEXT - len(history)
    assert found == [True] * (left + 1) + [False]


@given(st.integers(0, 2 * CONTEXT), st.integers(1, 2 * CONTEXT))
def test_cycles_that_are_skipped_are_missing_readings(count, step):
    window = made(count, first_cycle=1, rules=replace(RULES, max_missing_fraction=1.0))

    window.add(row(7), cycle=count + step)

    got = window.checked(None)
    before = [row(i) for i in range(count)] + [row(math.nan)] * (step - 1 if count else 0)
    expected = [*before, row(7)] if step - 1 <= CONTEXT // 2 else [row(7)]
    assert got.last_cycle == [count + step]
    np.testing.assert_array_equal(got.readings, [expected[-CONTEXT:]])


@pytest.mark.parametrize("gap", [CONTEXT // 2 + 1, CONTEXT, 100 * CONTEXT])
def test_after_a_gap_above_half_of_the_context_the_window_begins_anew_and_the_unit_is_as_old_as_it_is(gap):
    window = made(CONTEXT, first_cycle=1)

    window.add(row(7), cycle=CONTEXT + gap + 1)

    got = window.checked("1")
    assert (got.lengths, got.last_cycle) == ([1], [CONTEXT + gap + 1])


def test_a_window_that_was_asked_about_does_not_change_when_more_readings_come():
    window = made(CONTEXT)
    asked = window.checked(None)
    before = np.array(asked.readings)

    window.add(row(99), cycle=None)

    np.testing.assert_array_equal(np.array(asked.readings), before)


@pytest.mark.parametrize("cycle", [0, 4, 5])
def test_a_cycle_that_is_not_after_the_last_is_a_conflict_and_changes_nothing(cycle):
    window = made(5, first_cycle=1)
    before = window.checked(None)

    with pytest.raises(CycleConflict, match=f"after 5, got {cycle}"):
        window.add(row(9), cycle=cycle)

    after = window.checked(None)
    assert after.last_cycle == before.last_cycle == [5]
    np.testing.assert_array_equal(np.array(after.readings), np.array(before.readings))


def test_a_conflict_of_cycles_above_a_million_is_told_to_the_digit():
    window = made(5, first_cycle=1_234_563)

    with pytest.raises(CycleConflict, match="after 1234567, got 1234565"):
        window.add(row(9), cycle=1_234_565)


@pytest.mark.parametrize("cycle", [-1, 0.5, 2**25, math.inf])
def test_a_value_that_is_no_cycle_number_is_refused_and_changes_nothing(cycle):
    window = made(2, first_cycle=1)

    assert refusal(window.add, row(9), cycle=cycle) == [("/reading/cycle", "bad_cycle")]
    assert window.cycles == 2


def test_cycles_are_counted_from_a_number_that_comes_late():
    window = made(3)

    window.add(row(3), cycle=50)
    window.add(row(4), cycle=None)

    assert window.checked("1").first_cycle == [47]
    assert window.last_cycle == 51


def test_a_number_that_the_readings_before_it_rule_out_is_refused():
    assert refusal(made(5).add, row(9), cycle=4) == [("/reading/cycle", "bad_cycle")]


def test_a_cycle_that_is_nan_is_the_next_one():
    window = made(2, first_cycle=1)

    window.add(row(9), cycle=math.nan)

    assert window.last_cycle == 3


@given(rows, st.sets(st.sampled_from(RULES.names), min_size=1))
def test_a_reading_by_names_is_that_in_schema_order_with_nan_for_what_is_left_out(values, names):
    columns = {name: value for name, value in zip(RULES.names, values, strict=True) if name in names}

    by_name = reading_values([], columns, RULES)

    in_order = [columns.get(name, math.nan) for name in RULES.names]
    np.testing.assert_array_equal(by_name, reading_values(in_order, {}, RULES))


@pytest.mark.parametrize(
    ("values", "columns", "expected"),
    [
        ([1.0], {}, [("/reading/values", "wrong_columns")]),
        ([], {}, [("/reading/values", "wrong_columns")]),
        ([1.0] * F, {RULES.names[0]: 1.0}, [("/reading", "wrong_columns")]),
        ([1.0, -math.inf, math.inf], {}, [(f"/reading/values/{i}", "non_finite") for i in (1, 2)]),
        (
            [],
            {"a/b": 1.0, "c": 1.0},
            [(f"/reading/columns/{name}", "unknown_column") for name in ("a~1b", "c")],
        ),
        ([], {RULES.names[2]: math.inf}, [(f"/reading/columns/{RULES.names[2]}", "non_finite")]),
    ],
)
def test_a_reading_that_cannot_be_kept_is_refused_with_every_problem(values, columns, expected):
    assert refusal(reading_values, values, columns, RULES) == expected
