"""The window of one stream: the last readings of its unit, as many as the model reads.

Readings stand one after another in a block with some room to spare, so the window is a part of it and
nothing is copied to ask about it; a full block is left for a new one. What comes in is checked here
before it is kept, so a reading that is refused leaves the window as it was, and what was found of each
reading is added up, so only the new one is looked at. This module must not know messages, calls or who
asks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from model.domain import FloatArray
from service.core.rules import WindowRules
from service.core.window import CYCLE_UNKNOWN, LARGEST_CYCLE, Window, WindowInput
from service.errors import CycleConflict, InvalidWindow, Problem, escaped

AT: Final = "/reading"
"""Where a reading stands in its message."""

SPARE: Final = 8
"""Readings a block has room for beside a window: more is memory, fewer is more often a window to copy."""


class StreamWindow:
    """What a stream has of its unit.

    Attributes:
        cycles: How many the window holds, `context` at most.
        last_cycle: The cycle number of the last reading; NaN = unknown.
    """

    __slots__ = ("_block", "_end", "_kept", "_missing", "_odd", "_rules", "cycles", "last_cycle")

    def __init__(self, rules: WindowRules) -> None:
        self._rules: Final = rules
        self._block: FloatArray = np.empty((SPARE, len(rules.names)), dtype=np.float32)
        self._end = 0
        self._kept = 0
        self._odd: Final[list[tuple[int, int]]] = []  # which reading, and how many of its values are missing
        self._missing = 0
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
        self._block = np.empty((len(window) + SPARE, len(self._rules.names)), dtype=np.float32)
        missing = np.count_nonzero(np.isnan(window.readings), axis=1).tolist()
        for values, absent in zip(window.readings, missing, strict=True):
            self._append(values, absent)
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
                self._append(np.float32(np.nan), len(values))
        self._append(values, int(np.count_nonzero(np.isnan(values))))
        self.last_cycle = following

    def checked(self, unit: str | None) -> Window:
        """The window as it is now; later readings do not change it.

        Raises:
            InvalidWindow: too much of it is missing.
        """
        rules, cycles = self._rules, self.cycles
        readings = self._block[self._end - cycles : self._end]
        missing_fraction = self._missing / readings.size
        if missing_fraction > rules.max_missing_fraction or cycles > rules.max_cycles:
            return self._checked_with_care(unit, readings)
        if math.isnan(self.last_cycle):
            return Window(unit, readings, math.nan, 1, missing_fraction, (CYCLE_UNKNOWN,))
        first_cycle = int(self.last_cycle) - cycles + 1
        return Window(unit, readings, self.last_cycle, first_cycle, missing_fraction, ())

    def _checked_with_care(self, unit: str | None, readings: FloatArray) -> Window:
        """By the door that words what is unusual."""
        given = WindowInput(unit, None if math.isnan(self.last_cycle) else self.last_cycle)
        given.readings = readings  # pyright: ignore[reportAttributeAccessIssue] in-process callers give arrays
        try:
            return Window.checked(given, self._rules, typed=True)
        except InvalidWindow as error:
            # Each reading is sound by itself: what is left is what they are together.
            problems = [Problem(AT, p.code, p.detail) for p in error.problems]
            raise InvalidWindow("; ".join(p.detail for p in problems), problems) from None

    def _append(self, values: FloatArray | np.float32, missing: int) -> None:
        if self._end == len(self._block):
            self._begin_block()
        self._block[self._end] = values
        self._end += 1
        self._kept += 1
        self.cycles = min(self.cycles + 1, self._rules.context)
        if missing:
            self._odd.append((self._kept, missing))
            self._missing += missing
        while self._odd and self._odd[0][0] <= self._kept - self.cycles:
            self._missing -= self._odd.pop(0)[1]

    def _begin_block(self) -> None:
        """Take what the next window still needs into a new block; who asked of the old one keeps that."""
        context = self._rules.context
        kept = self._block[self._end - min(self.cycles, context - 1) : self._end]
        self._block = np.empty((min(2 * self.cycles, context) + SPARE, kept.shape[1]), dtype=np.float32)
        self._block[: len(kept)] = kept
        self._end = len(kept)

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
    if np.count_nonzero(np.isinf(read)):
        _check_finite(read, rules, [f"{AT}/values/{i}" for i in range(len(read))])
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
