"""The window of one stream: the last readings of its unit, as many as the model reads.

Readings stand one after another in a block with some room to spare, so the window is a part of it and
nothing is copied to ask about it; a full block is left for a new one. A reading is checked before it is
kept, so one that is refused leaves the window as it was. This module must not know messages or calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from model.domain import FloatArray
from service.core.rules import WindowRules
from service.core.window import LARGEST_CYCLE, WindowInput, Windows, check, join, lay_out
from service.errors import MAX_PROBLEMS, CycleConflict, InvalidWindow, Problem, escaped

AT: Final = "/reading"
"""Where a reading stands in its message."""

SPARE: Final = 8
"""Readings a block has room for beside a window: more is memory, fewer is more often a window to copy."""


class StreamWindow:
    """The last readings of a stream's unit.

    Attributes:
        cycles: Readings in the window, at most the model's context.
        last_cycle: The cycle number of the last reading; NaN = unknown.
    """

    __slots__ = ("_block", "_end", "_rules", "cycles", "last_cycle")

    def __init__(self, rules: WindowRules) -> None:
        self._rules: Final = rules
        self._block: FloatArray = np.empty((SPARE, len(rules.names)), dtype=np.float32)
        self._end = 0
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
        part = lay_out(history, self._rules)
        history.last_cycle = before + part.sent
        windows, problems = join([history], [part], self._rules)
        if windows is None:
            raise _refusal([problem.below("/open") for problem in problems[0]])
        self._block = np.empty((windows.lengths[0] + SPARE, len(self._rules.names)), dtype=np.float32)
        for values in windows.readings[0]:
            self._append(values)
        self.last_cycle = history.last_cycle

    def add(self, values: FloatArray, *, cycle: float | None) -> None:
        """Keep a reading, float32 [F]; cycles that were skipped are kept as missing ones.

        Raises:
            CycleConflict: the cycle is not after the last one.
            InvalidWindow: the cycle is no cycle number.
        """
        following = self._following(cycle)
        skipped = following - self.last_cycle - 1
        if skipped >= self._rules.context - 1:  # nothing that is known is left in the window: it begins again
            self.cycles = 0
        elif skipped > 0 and self.cycles:
            for _ in range(int(skipped)):
                self._append(np.float32(np.nan))
        self._append(values)
        self.last_cycle = following

    def checked(self, unit: str | None) -> Windows:
        """The window as it is now; later readings do not change it.

        Raises:
            InvalidWindow: too much of it is missing.
        """
        cycles = self.cycles
        readings = self._block[self._end - cycles : self._end]
        if cycles > self._rules.max_cycles:
            raise _invalid(AT, "too_long", f"expected at most {self._rules.max_cycles} cycles, got {cycles}")
        windows, defects = check(readings[None], [cycles], [self.last_cycle], self._rules, units=[unit])
        if defects:  # each reading is sound by itself: what is left is what they are together
            raise _refusal([Problem(AT, defect.code, defect.detail) for defect in defects])
        return windows

    def _append(self, values: FloatArray | np.float32) -> None:
        if self._end == len(self._block):
            self._begin_block()
        self._block[self._end] = values
        self._end += 1
        self.cycles = min(self.cycles + 1, self._rules.context)

    def _begin_block(self) -> None:
        """Copy what the next window still needs into a new block; windows of the old one keep that."""
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
            detail = f"expected at least {at_least} after {self.cycles} readings, got {number:g}"
            raise _invalid(f"{AT}/cycle", "bad_cycle", detail)
        return number


def reading_values(
    values: Sequence[float], columns: Mapping[str, float | None], rules: WindowRules, *, at: str = AT
) -> FloatArray:
    """One reading, float32 [F], from numbers in schema order or by the names of their columns; NaN = missing.

    `at` is where it stands in its request.

    Raises:
        InvalidWindow: with every problem that was found.
    """
    if values and columns:
        raise _invalid(at, "wrong_columns", "expected values or columns, got both")
    if columns:
        return named_values(columns, rules, at=at)
    if len(values) != len(rules.names):
        wanted = f"expected {len(rules.names)} values ({', '.join(rules.names)}), got {len(values)}"
        raise _invalid(f"{at}/values", "wrong_columns", wanted)
    read = np.array(values, dtype=np.float32)
    if np.count_nonzero(np.isinf(read)):
        _check_finite(read, rules, [f"{at}/values/{i}" for i in range(len(read))])
    return read


def named_values(columns: Mapping[str, float | None], rules: WindowRules, *, at: str = AT) -> FloatArray:
    """One reading, float32 [F], by the names of its columns; None, NaN and what is left out are missing.

    Raises:
        InvalidWindow: with every problem that was found.
    """
    unknown = sorted(columns.keys() - rules.known)[: MAX_PROBLEMS + 1]
    if unknown:
        details = {escaped(name): f"the model has no column {name[:40]!r}" for name in unknown}
        raise _refusal([Problem(f"{at}/columns/{n}", "unknown_column", text) for n, text in details.items()])
    with np.errstate(over="ignore"):
        read = np.array([columns.get(name, math.nan) for name in rules.names], np.float64).astype(np.float32)
    _check_finite(read, rules, [f"{at}/columns/{escaped(name)}" for name in rules.names])
    return read


def _check_finite(read: FloatArray, rules: WindowRules, places: Sequence[str]) -> None:
    expected = "expected a finite float32 for"
    problems = [
        Problem(places[i], "non_finite", f"{expected} {rules.names[i]}, got {read[i]:g}")
        for i in np.flatnonzero(np.isinf(read)).tolist()
    ]
    if problems:
        raise _refusal(problems)


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
