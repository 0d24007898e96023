"""The window of one stream: the last readings of its unit, as many as the model reads.

A ring of float32 [context, F], filled reading by reading. What comes in is checked here before it
is kept, so a reading that is refused leaves the window as it was. This module must not know messages,
calls or who asks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from model.domain import FloatArray
from service.errors import CycleConflict, InvalidWindow, Problem, escaped
from service.rules import WindowRules
from service.window import LARGEST_CYCLE, Window, WindowInput

AT: Final = "/reading"
"""Where a reading stands in its message."""


class StreamWindow:
    """What a stream has of its unit.

    Attributes:
        cycles: How many the window holds, `context` at most.
        last_cycle: The cycle number of the last reading; NaN = unknown.
    """

    __slots__ = ("_next", "_readings", "_rules", "cycles", "last_cycle")

    def __init__(self, rules: WindowRules) -> None:
        self._rules: Final = rules
        self._readings: Final[FloatArray] = np.empty((rules.context, len(rules.names)), dtype=np.float32)
        self._next = 0
        self.cycles = 0
        self.last_cycle = math.nan

    def begin(self, history: WindowInput | None, *, first_cycle: float | None) -> None:
        """Take the readings from before the stream, if any, and the cycle number of the first reading.

        Raises:
            InvalidWindow: the model cannot read the history, or the number is none.
        """
        before = math.nan if _unknown(first_cycle) else _whole(first_cycle, "/open/first_cycle") - 1
        if history is None:
            self.last_cycle = before
            return
        history.last_cycle = None if math.isnan(before) else before + _cycles_of(history)
        window = Window.checked(history, self._rules, pointer="/open", typed=True)
        for values in window.readings:
            self._append(values)
        self.last_cycle = window.last_cycle

    def add(self, values: FloatArray, *, cycle: float | None) -> None:
        """Keep a reading, float32 [F]; cycles that were skipped are kept as missing ones.

        Raises:
            CycleConflict: the cycle is not after the last one.
            InvalidWindow: the cycle is no cycle number.
        """
        following = self._following(cycle)
        skipped = following - self.last_cycle - 1
        context = self._rules.context
        if skipped >= context - 1:  # nothing that is known is left in the window: it begins again
            self.cycles = 0
        elif skipped > 0 and self.cycles:
            for _ in range(int(skipped)):
                self._append(np.float32(np.nan))
        self._append(values)
        self.last_cycle = following

    def asked(self, unit: str | None) -> WindowInput:
        """The window as it is now, to be asked about; a copy, which later readings do not change."""
        last_cycle = None if math.isnan(self.last_cycle) else self.last_cycle
        given = WindowInput(unit, last_cycle)
        given.readings = self._ordered()  # pyright: ignore[reportAttributeAccessIssue] in-process callers give arrays
        return given

    def _ordered(self) -> FloatArray:
        """Float32 [T, F], oldest first."""
        if self.cycles < self._rules.context:
            first = (self._next - self.cycles) % self._rules.context
            return np.take(self._readings, range(first, first + self.cycles), axis=0, mode="wrap")
        return np.concatenate((self._readings[self._next :], self._readings[: self._next]))

    def _append(self, values: FloatArray | np.float32) -> None:
        self._readings[self._next] = values
        self._next = (self._next + 1) % self._rules.context
        self.cycles = min(self.cycles + 1, self._rules.context)

    def _following(self, cycle: float | None) -> float:
        """The number of the reading that is about to be kept; NaN = unknown."""
        if _unknown(cycle):
            return _whole(self.last_cycle + 1, f"{AT}/cycle") if self.last_cycle >= -1 else math.nan
        number = _whole(cycle, f"{AT}/cycle")
        if number <= self.last_cycle:
            raise CycleConflict(f"expected a cycle after {self.last_cycle:g}, got {number:g}")
        at_least = min(self.cycles, self._rules.context - 1) if math.isnan(self.last_cycle) else 0
        if number < at_least:
            raise _invalid(
                f"{AT}/cycle",
                "bad_cycle",
                f"expected at least {at_least} after {self.cycles} readings, got {number:g}",
            )
        return number


def reading_values(values: Sequence[float], columns: Mapping[str, float], rules: WindowRules) -> FloatArray:
    """One reading, float32 [F], from numbers in schema order or by the names of their columns; NaN = missing.

    Raises:
        InvalidWindow: with every problem that was found.
    """
    if values and columns:
        raise _invalid(AT, "wrong_columns", "expected values or columns, got both")
    if columns:
        return _by_name(columns, rules)
    if len(values) != len(rules.names):
        wanted = f"expected {len(rules.names)} values ({', '.join(rules.names)}), got {len(values)}"
        raise _invalid(f"{AT}/values", "wrong_columns", wanted)
    read = np.array(values, dtype=np.float32)
    _check_finite(read, rules, [f"{AT}/values/{i}" for i in range(len(read))] if np.isinf(read).any() else [])
    return read


def _by_name(columns: Mapping[str, float], rules: WindowRules) -> FloatArray:
    unknown = sorted(columns.keys() - rules.known)
    if unknown:
        problems = [
            Problem(
                f"{AT}/columns/{escaped(name)}", "unknown_column", f"the model has no column {name[:40]!r}"
            )
            for name in unknown
        ]
        raise _refusal(problems)
    read = np.array([columns.get(name, math.nan) for name in rules.names], np.float32)
    _check_finite(read, rules, [f"{AT}/columns/{escaped(name)}" for name in rules.names])
    return read


def _check_finite(read: FloatArray, rules: WindowRules, places: Sequence[str]) -> None:
    infinite = np.flatnonzero(np.isinf(read)).tolist()
    if infinite:
        raise _refusal(
            [
                Problem(
                    places[i],
                    "non_finite",
                    f"expected a finite float32 for {rules.names[i]}, got {read[i]:g}",
                )
                for i in infinite
            ]
        )


def _cycles_of(history: WindowInput) -> int:
    """How many cycles were sent, as the longest column has it."""
    if history.readings is not None:
        return len(history.readings)
    return max(map(len, (history.columns or {}).values()), default=0)


def _unknown(cycle: float | None) -> bool:
    return cycle is None or math.isnan(cycle)


def _whole(cycle: float | None, pointer: str) -> float:
    if cycle is not None and 0 <= cycle <= LARGEST_CYCLE and cycle == int(cycle):
        return float(cycle)
    raise _invalid(pointer, "bad_cycle", f"expected a whole number from 0 to {LARGEST_CYCLE}, got {cycle}")


def _invalid(pointer: str, code: str, detail: str) -> InvalidWindow:
    return _refusal([Problem(pointer, code, detail)])


def _refusal(problems: Sequence[Problem]) -> InvalidWindow:
    return InvalidWindow("; ".join(f"{p.pointer}: {p.detail}" for p in problems[:3]), problems)
