"""The window of one stream: the last readings of its unit, as many as the model reads.

Each reading makes a new array, so a window that is being answered never changes. A reading is checked before
it is added, so a refused one leaves the window unchanged. This module must not know messages or calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np

from model.domain import LARGEST_CYCLE, FloatArray, longest_gap
from service.core.rules import WindowRules
from service.core.window import WindowInput, Windows, check, join, lay_out
from service.errors import MAX_PROBLEMS, CycleConflict, InvalidWindow, Problem, escaped

AT: Final = "/reading"
"""JSON pointer of a reading in its message."""


class StreamWindow:
    """The last readings of a stream's unit.

    Attributes:
        last_cycle: The cycle number of the last reading; NaN = unknown.
    """

    __slots__ = ("_most", "_readings", "_rules", "last_cycle")

    def __init__(self, rules: WindowRules) -> None:
        self._rules: Final = rules
        self._most: Final = rules.context
        self._readings: FloatArray = np.empty((0, len(rules.names)), np.float32)
        self.last_cycle = math.nan

    @property
    def cycles(self) -> int:
        """Number of readings in the window, at most the model's context and the limit of windows."""
        return len(self._readings)

    def begin(self, history: WindowInput | None, *, first_cycle: float | None) -> None:
        """Take earlier readings, if any, and the cycle number of the first reading.

        Raises:
            InvalidWindow: the model cannot read the history, or the number is invalid.
        """
        before = math.nan
        if first_cycle is not None and not math.isnan(first_cycle):
            before = _whole(first_cycle, "/open/first_cycle") - 1
        if history is None:
            self.last_cycle = before
            return
        part = lay_out(history, self._rules)
        history.last_cycle = before + part.sent
        windows, problems = join([history], [part], self._rules)
        if windows is None:
            raise refusal([problem.below("/open") for problem in problems[0]])
        self._readings = windows.readings[0].copy()  # a view would keep the whole history
        self.last_cycle = history.last_cycle

    def add(self, values: FloatArray, *, cycle: float | None) -> None:
        """Add a reading, float32 [F]; skipped cycles are missing, and a long gap begins a new window.

        Raises:
            CycleConflict: the cycle is not after the last one.
            InvalidWindow: the cycle number is invalid.
        """
        following = self._following(cycle)
        skipped = following - self.last_cycle - 1
        kept = self._readings
        if skipped > longest_gap(self._rules.context):
            kept = kept[:0]
        elif skipped > 0 and self.cycles:
            kept = np.concatenate([kept, np.full((int(skipped), kept.shape[1]), np.nan, np.float32)])
        self._readings = np.concatenate([kept, values[None]])[-self._most :]
        self.last_cycle = following

    def checked(self, unit: str | None) -> Windows:
        """Return the current window, which later readings do not change.

        Raises:
            InvalidWindow: too much of it is missing.
        """
        cycles = self.cycles
        windows, defects = check(self._readings[None], [cycles], [self.last_cycle], self._rules, units=[unit])
        if defects:  # single readings are valid; a defect concerns the whole window
            raise refusal([Problem(AT, defect.code, defect.detail) for defect in defects])
        return windows

    def _following(self, cycle: float | None) -> float:
        """Return the cycle number of the next reading; NaN = unknown."""
        if cycle is None or math.isnan(cycle):
            return _whole(self.last_cycle + 1, f"{AT}/cycle") if self.last_cycle >= -1 else math.nan
        number = _whole(cycle, f"{AT}/cycle")
        if number <= self.last_cycle:
            raise CycleConflict(f"expected a cycle after {self.last_cycle:.12g}, got {number:.12g}")
        at_least = min(self.cycles, self._most - 1) if math.isnan(self.last_cycle) else 0
        if number < at_least:
            detail = f"expected at least {at_least} after {self.cycles} readings, got {number:g}"
            raise refusal([Problem(f"{AT}/cycle", "bad_cycle", detail)])
        return number


def reading_values(
    values: Sequence[float], columns: Mapping[str, float | None], rules: WindowRules
) -> FloatArray:
    """Make a reading, float32 [F], from numbers in schema order or by column name.

    NaN, None and omitted columns are missing.

    Raises:
        InvalidWindow: with every problem found.
    """
    read = as_float32([numbers_of(values, columns, rules, at=AT)])
    problems = infinities(read, rules, lambda _, f: value_pointer(AT, f, columns, rules))
    if problems:
        raise refusal(problems)
    return read[0]


def numbers_of(
    values: Sequence[float], columns: Mapping[str, float | None], rules: WindowRules, *, at: str
) -> Sequence[float | None]:
    """Return the F numbers of a reading in schema order; `at` is its pointer in the request.

    Raises:
        InvalidWindow: it has both values and columns, unknown columns, or another number of values.
    """
    if not columns:
        if len(values) != len(rules.names):
            wanted = f"expected {len(rules.names)} values ({', '.join(rules.names)}), got {len(values)}"
            raise refusal([Problem(f"{at}/values", "wrong_columns", wanted)])
        return values
    if values:
        raise refusal([Problem(at, "wrong_columns", "expected values or columns, got both")])
    if not rules.known.issuperset(columns):
        raise refusal(list(islice(rules.unknown_columns(columns, at), MAX_PROBLEMS + 1)))
    return [columns.get(name, math.nan) for name in rules.names]


def as_float32(numbers: Sequence[Sequence[float | None]]) -> FloatArray:
    """Return readings, float32 [N, F], all in one conversion; None is NaN, too large ones are infinite."""
    with np.errstate(over="ignore"):
        return np.array(numbers, np.float64).astype(np.float32)


def infinities(readings: FloatArray, rules: WindowRules, pointer: Callable[[int, int], str]) -> list[Problem]:
    """Describe the first infinite values of readings [N, F]; `pointer` gets the indices of each."""
    problems: list[Problem] = []
    for i, f in np.argwhere(np.isinf(readings))[: MAX_PROBLEMS + 1].tolist():
        detail = f"expected a finite float32 for {rules.names[f]}, got {readings[i, f]:g}"
        problems.append(Problem(pointer(i, f), "non_finite", detail))
    return problems


def value_pointer(at: str, f: int, columns: Mapping[str, float | None], rules: WindowRules) -> str:
    """Return the pointer of value `f` of the reading at `at`."""
    return f"{at}/columns/{escaped(rules.names[f])}" if columns else f"{at}/values/{f}"


def cycle_problem(cycle: float, pointer: str) -> Problem | None:
    """Return what is wrong with a cycle number; None if nothing is."""
    if 0 <= cycle <= LARGEST_CYCLE and cycle == int(cycle):
        return None
    detail = f"expected a whole number from 0 to {LARGEST_CYCLE}, got {cycle:.12g}"
    return Problem(pointer, "bad_cycle", detail)


def refusal(problems: Sequence[Problem]) -> InvalidWindow:
    """Make the error of readings with these problems; its text has the first three."""
    return InvalidWindow("; ".join(f"{p.pointer}: {p.detail}" for p in problems[:3]), problems)


def _whole(cycle: float, pointer: str) -> float:
    problem = cycle_problem(cycle, pointer)
    if problem is not None:
        raise refusal([problem])
    return float(cycle)
