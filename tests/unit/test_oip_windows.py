"""Many windows at once are checked by the rules of one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from service.oip.windows import checked_group

from service.core.window import Window, WindowInput, WindowRules
from service.errors import InvalidTensor, InvalidWindow
from tests.fakes import COLUMNS, make_manifest

CONTEXT = 4
RULES = WindowRules.of(make_manifest(context=CONTEXT), max_window_cycles=6)
ODD = st.sampled_from([np.nan, np.nan, np.inf, -np.inf, 3.4e38, 1.0, 50.0])
CYCLES = st.sampled_from([np.nan, 0.0, 2.0, 100.0, -1.0, 1.5, np.inf, 2.0**24, 2.0**25])


@st.composite
def requests(draw, *, values=ODD, cycle_numbers=CYCLES):
    """Readings, and lengths and last cycles or none."""
    count, cycles = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    shape = (count, cycles, len(COLUMNS))
    asked = {"readings": draw(arrays.arrays(np.float32, shape, elements=values, fill=st.just(1.0)))}
    if draw(st.booleans()):
        asked["lengths"] = draw(arrays.arrays(np.int64, count, elements=st.integers(1, cycles)))
    if draw(st.booleans()):
        asked["last_cycle"] = draw(arrays.arrays(np.float32, count, elements=cycle_numbers))
    return asked


def one_by_one(asked):
    """The same windows through the door for one; None where one of them is refused."""
    count, cycles, _ = asked["readings"].shape
    lengths = asked.get("lengths", np.full(count, cycles))
    last = asked.get("last_cycle", np.full(count, np.nan))
    if cycles > RULES.max_cycles:
        return None
    try:
        return [
            Window.checked(WindowInput(None, float(last[i]), None, asked["readings"][i, : lengths[i]]), RULES)
            for i in range(count)
        ]
    except InvalidWindow:
        return None


@settings(max_examples=300)
@given(requests())
def test_the_door_for_many_lets_in_what_the_door_for_one_does(asked):
    expected = one_by_one(asked)

    if expected is None:
        with pytest.raises(InvalidTensor):
            checked_group(asked, RULES)
        return
    group = checked_group(asked, RULES)
    for window, other in zip(group.windows, expected, strict=True):
        np.testing.assert_array_equal(window.readings, other.readings)
        np.testing.assert_equal(window.last_cycle, other.last_cycle)
        assert window.first_cycle == other.first_cycle
        assert window.imputed_fraction == pytest.approx(other.imputed_fraction)
        assert window.readings.dtype == np.float32


def test_without_lengths_every_cycle_counts():
    group = checked_group({"readings": np.ones((2, 3, 3), np.float32)}, RULES)

    assert [len(window) for window in group.windows] == [3, 3]


def test_what_stands_in_padding_does_not_matter():
    readings = np.full((1, 3, 3), np.inf, np.float32)
    readings[0, :2] = 1.0

    group = checked_group({"readings": readings, "lengths": np.array([2])}, RULES)

    assert group.windows[0].imputed_fraction == 0


def test_a_window_longer_than_the_context_is_read_from_its_end():
    readings = np.arange(18, dtype=np.float32).reshape(1, 6, 3)

    group = checked_group({"readings": readings, "lengths": np.array([5])}, RULES)

    np.testing.assert_array_equal(group.windows[0].readings, readings[0, 1:5])
    assert (group.starts.tolist(), group.stops.tolist(), group.cycles) == ([1], [5], 6)


def test_windows_are_views_of_what_came():
    readings = np.ones((2, 3, 3), np.float32)

    assert all(
        np.shares_memory(w.readings, readings) for w in checked_group({"readings": readings}, RULES).windows
    )


def test_a_huge_but_finite_reading_is_one():
    readings = np.full((2, 3, 3), 3.4e38, np.float32)

    assert len(checked_group({"readings": readings}, RULES).windows) == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lengths": np.array([1, 0, 4])}, r"input lengths: expected 1 to 3, .*, got 0 at \[1\], 4 at \[2\]"),
        (
            {"lengths": np.array([1, 2])},
            "input lengths: expected one value a window, 3 as readings has, got 2",
        ),
        ({"last_cycle": np.array([5.0, 1.5, 1.0], np.float32)}, r"a whole number .*, got 1.5 at \[1\]"),
        (
            {"last_cycle": np.array([5.0, 9.0, 1.0], np.float32)},
            r"at least the window's cycles .*, got 1.0 at \[2\]",
        ),
        ({"last_cycle": np.array([5.0], np.float32)}, "input last_cycle: expected one value a window"),
        ({"readings": np.ones((3, 7, 3), np.float32)}, "input readings: expected at most 6 cycles, got 7"),
    ],
)
def test_a_message_says_what_was_expected_what_came_and_where(changed, message):
    with pytest.raises(InvalidTensor, match=message):
        checked_group({"readings": np.ones((3, 3, 3), np.float32), **changed}, RULES)


def test_the_first_bad_readings_are_named_and_the_others_counted():
    readings = np.ones((3, 3, 3), np.float32)
    readings[1, 2] = np.inf
    readings[2, 0, 1:] = -np.inf

    with pytest.raises(InvalidTensor, match=r"got inf at \[1, 2, 0\] \(setting_1\), .* and 2 more$"):
        checked_group({"readings": readings}, RULES)


def test_too_much_missing_is_said_of_the_window():
    readings = np.ones((2, 3, 3), np.float32)
    readings[1, :, :2] = np.nan

    with pytest.raises(InvalidTensor, match=r"at most 50% of a window's readings missing, got 67% at \[1\]"):
        checked_group({"readings": readings}, RULES)
