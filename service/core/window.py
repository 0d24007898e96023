"""The one door from what a client sent to a window that a model can read.

What passes `Window.checked` has the model's columns in order, holds only cycles that the model
reads, and marks missing readings NaN. Nothing behind it checks again. This module must not know
how a request came in, nor what is done with the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, Literal

import msgspec
import numpy as np

from model.domain import FloatArray
from service.core.packed import packed_columns, packed_rows
from service.core.rules import WindowRules
from service.errors import InvalidWindow, Problem, escaped

LARGEST_CYCLE: Final = 2**24
"""Cycle numbers travel as float32, which holds every integer up to here."""

CautionCode = Literal[
    "out_of_range", "truncated_to_context", "last_cycle_unknown", "attention_collapsed", "attention_uniform"
]


class Caution(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reason to read an answer with care: one of its `warnings`."""

    code: CautionCode
    detail: str
    column: str | None = None


CYCLE_UNKNOWN: Final = Caution(
    "last_cycle_unknown", "last_cycle is not given: cycles are counted from the window's first reading"
)


class WindowInput(msgspec.Struct, forbid_unknown_fields=True):
    """A window as a client sends it: well-formed, nothing more.

    Either `columns` (name to T values) or `readings` (T rows of F values, schema order). None and
    NaN mean missing. In-process callers may give arrays in place of lists.
    """

    unit: str | None = None
    last_cycle: float | None = None
    columns: dict[str, list[float | None]] | None = None
    readings: list[list[float | None]] | None = None


class Window(msgspec.Struct, frozen=True, eq=False):
    """A window that a model can read.

    Made by `Window.checked`, `alike` and `oip.windows`, and by a stream of checked readings.

    Attributes:
        unit: The unit's name, where the client gave one.
        readings: float32 [T, F], engineering units, NaN = missing, T at most the context.
        last_cycle: The unit's cycle number at the last reading; NaN = unknown.
        first_cycle: The number of the first cycle read; counted from the first reading that was
            sent (which is cycle 1) where `last_cycle` is unknown.
        imputed_fraction: Missing readings over all readings.
        warnings: Reasons to read the answer with care; readings out of range are looked for a batch at a
            time (`Answers`), and worded by `out_of_range`.
        probe: True for a variation of a window, asked only to explain the answer to that window.
    """

    unit: str | None
    readings: FloatArray
    last_cycle: float
    first_cycle: int
    imputed_fraction: float
    warnings: tuple[Caution, ...]
    probe: bool = False

    def __len__(self) -> int:
        return len(self.readings)

    def without(self, column: int) -> Window:
        """The same window with one column missing."""
        readings = self.readings.copy()
        readings[:, column] = np.nan
        return msgspec.structs.replace(self, readings=readings, probe=True)

    @classmethod
    def checked(
        cls, given: WindowInput, rules: WindowRules, *, pointer: str = "", typed: bool = False
    ) -> Window:
        """Check a window and bring it into the model's order; only the last `context` cycles are read.

        Args:
            given: What the client sent.
            rules: What the model asks.
            pointer: Where the window stands in the request; problems point below it.
            typed: True where a decoder has seen to it that every value is a number or None.

        Raises:
            InvalidWindow: with every problem that was found.
        """
        last_cycle, problems = _last_cycle(given.last_cycle)
        read, cycles = _packed(given, rules) if typed else (None, 0)
        missing_fraction = 0.0
        if read is None or problems or last_cycle < cycles - 1:
            read, cycles, missing_fraction, found = _read(given, rules, last_cycle, typed=typed)
            problems += found
        if problems:
            placed = [problem.below(pointer) for problem in problems]
            raise InvalidWindow("; ".join(f"{p.pointer}: {p.detail}" for p in placed[:3]), placed)
        first_cycle = (cycles if math.isnan(last_cycle) else int(last_cycle)) - len(read) + 1
        warnings = _cautions(cycles, len(read), last_cycle)
        return cls(given.unit, read, last_cycle, first_cycle, missing_fraction, warnings)


def _packed(given: WindowInput, rules: WindowRules) -> tuple[FloatArray | None, int]:
    """The readings where nothing about them is unusual, float32 [T, F], and how many cycles were sent."""
    rows, columns = given.readings, given.columns
    if (rows is None) == (columns is None):
        return None, 0
    if rows is not None:
        if len(rows) > rules.max_cycles:
            return None, 0
        return packed_rows(rows, columns=len(rules.names), context=rules.context), len(rows)
    if columns is None or columns.keys() != rules.known:
        return None, 0
    cycles = len(columns[rules.names[0]])
    if cycles > rules.max_cycles:
        return None, 0
    return packed_columns(columns, names=rules.names, context=rules.context), cycles


def _read(
    given: WindowInput, rules: WindowRules, last_cycle: float, *, typed: bool
) -> tuple[FloatArray, int, float, list[Problem]]:
    """The readings with care: float32 [T, F], cycles sent, missing fraction, and every problem."""
    by_row = given.readings is not None
    problems: list[Problem] = []
    if by_row and given.columns is not None:
        problems.append(Problem("", "wrong_columns", "expected columns or readings, got both"))
    # [F, T] until it is checked: the way columns arrive.
    values, cycles, found = (_rows if by_row else _columns)(given, rules, typed=typed)
    problems += found
    if cycles > 0 and last_cycle < cycles - 1:
        detail = f"expected at least {cycles - 1} after {cycles} cycles, got {last_cycle:g}"
        problems.append(Problem("/last_cycle", "bad_last_cycle", detail))
    if values is None:
        return np.empty((0, 0), dtype=np.float32), cycles, 0.0, problems
    read, missing_fraction, found = _converted(values, rules, cycles, by_row=by_row)
    return read.T, cycles, missing_fraction, problems + found


def _last_cycle(value: Any) -> tuple[float, list[Problem]]:  # noqa: ANN401 - not typed yet
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return math.nan, []
    if type(value) in _NUMERIC and 0 <= value <= LARGEST_CYCLE and value == int(value):
        return float(value), []
    detail = f"expected a whole number from 0 to {LARGEST_CYCLE} or null, got {_short(value)}"
    return math.nan, [Problem("/last_cycle", "bad_last_cycle", detail)]


Layout = tuple[FloatArray | None, int, list[Problem]]
"""float64 [F, T] with NaN where missing (None where there are problems), cycles sent, problems."""


def _columns(given: WindowInput, rules: WindowRules, *, typed: bool) -> Layout:
    columns: Mapping[str, Any] = given.columns or {}
    problems = [
        Problem(f"/columns/{escaped(name)}", "unknown_column", f"the model has no column {_short(name)}")
        for name in columns.keys() - rules.known
    ]
    problems.sort(key=lambda problem: problem.pointer)
    sizes = {name: _size(columns[name]) for name in rules.names if name in columns}
    cycles = max(sizes.values(), default=0)
    problems += [
        Problem(
            f"/columns/{escaped(name)}",
            "wrong_length",
            f"expected {cycles} values, as the longest column has, got {'no list' if size < 0 else size}",
        )
        for name, size in sizes.items()
        if size != cycles
    ]
    problems += _size_problems(cycles, rules, "/columns")
    if problems:
        return None, cycles, problems
    cut = max(0, cycles - rules.context)
    blank = [math.nan] * (cycles - cut)
    lists = [columns[name][cut:] if name in sizes else blank for name in rules.names]
    values = _numbers(lists, typed=typed)
    if values is not None:
        return values, cycles, []
    paths = (f"/columns/{escaped(name)}" for name in rules.names)
    return None, cycles, [p for path, line in zip(paths, lists, strict=True) for p in _cells(line, path, cut)]


def _rows(given: WindowInput, rules: WindowRules, *, typed: bool) -> Layout:
    rows: Any = given.readings
    cycles = _size(rows)
    problems = _size_problems(cycles, rules, "/readings")
    if problems:
        return None, cycles, problems
    cut = max(0, cycles - rules.context)
    if isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.shape[1] == len(rules.names):
        return np.asarray(rows[cut:], dtype=np.float64).T, cycles, []
    wanted = len(rules.names)
    problems = [
        Problem(
            f"/readings/{i}",
            "wrong_columns",
            f"expected {wanted} values ({', '.join(rules.names)}), got {'no list' if size < 0 else size}",
        )
        for i, size in enumerate(map(_size, rows))
        if size != wanted
    ]
    if problems:
        return None, cycles, problems
    values = _numbers(rows[cut:], typed=typed)
    if values is not None:
        return values.T, cycles, []
    return None, cycles, [p for i in range(cut, cycles) for p in _cells(rows[i], f"/readings/{i}", 0)]


def _size(values: Any) -> int:  # noqa: ANN401 - not typed yet
    """How many values a list or array holds; -1 for what is neither."""
    return len(values) if isinstance(values, list | tuple | np.ndarray) else -1


def _size_problems(cycles: int, rules: WindowRules, path: str) -> list[Problem]:
    if cycles <= 0:
        return [Problem(path, "empty", "expected at least one cycle, got none")]
    if cycles > rules.max_cycles:
        return [Problem(path, "too_long", f"expected at most {rules.max_cycles} cycles, got {cycles}")]
    return []


def _numbers(lists: Any, *, typed: bool) -> FloatArray | None:  # noqa: ANN401 - not typed yet
    """Lists of equal size as float64, None as NaN; None where a value is no number."""
    arrays = all(isinstance(values, np.ndarray) and values.dtype.kind in "fiu" for values in lists)
    if not (typed or arrays) and not _NUMERIC.issuperset(map(type, chain.from_iterable(lists))):
        return None
    try:
        return _array(lists)
    except (OverflowError, TypeError, ValueError):
        return None


def _array(lists: Any) -> FloatArray:  # noqa: ANN401 - lists or arrays, of numbers and None
    return np.array(lists, dtype=np.float64)


_NUMERIC: Final = frozenset({float, int, type(None), np.float32, np.float64})


def _cells(values: Iterable[object], path: str, first: int) -> list[Problem]:
    return [
        Problem(f"{path}/{i}", "not_a_number", f"expected a number or null, got {_short(value)}")
        for i, value in enumerate(values, start=first)
        if type(value) not in _NUMERIC or (isinstance(value, int) and abs(value) > 1e300)
    ]


def _converted(
    values: FloatArray, rules: WindowRules, cycles: int, *, by_row: bool
) -> tuple[FloatArray, float, list[Problem]]:
    """float64 [F, T] -> float32 [F, T], with the missing fraction and what is not finite or too little."""
    with np.errstate(over="ignore", invalid="ignore"):
        read = values.astype(np.float32)
        total = np.add.reduce(read, axis=None)
    if math.isfinite(total):  # then every term is: the usual case, in one pass
        return read, 0.0, []
    missing = np.isnan(read)
    fraction = float(np.count_nonzero(missing)) / read.size
    problems: list[Problem] = []
    infinite = np.isinf(read)
    if infinite.any():
        cut = cycles - read.shape[1]
        for f, t in np.argwhere(infinite).tolist():
            at = f"/readings/{t + cut}/{f}" if by_row else f"/columns/{escaped(rules.names[f])}/{t + cut}"
            detail = f"expected a finite float32 for {rules.names[f]}, got {values[f, t]:g}"
            problems.append(Problem(at, "non_finite", detail))
    if fraction > rules.max_missing_fraction:
        absent = [name for name, gone in zip(rules.names, np.all(missing, axis=1), strict=True) if gone]
        detail = (
            f"expected at most {rules.max_missing_fraction:.0%} of the readings missing, got {fraction:.0%}"
            + (f"; nothing of {', '.join(absent)}" if absent else "")
        )
        problems.append(Problem("/readings" if by_row else "/columns", "too_much_missing", detail))
    return read, fraction, problems


def _cautions(cycles: int, read: int, last_cycle: float) -> tuple[Caution, ...]:
    """Why an answer to the last of so many cycles is to be read with care."""
    known = () if last_cycle == last_cycle else (CYCLE_UNKNOWN,)  # noqa: PLR0124 NaN is not itself
    if cycles == read:
        return known
    detail = f"the model reads the last {read} of {cycles} cycles"
    return (Caution("truncated_to_context", detail), *known)


def out_of_range(window: Window, rules: WindowRules) -> Iterator[Caution]:
    """One warning a column that leaves the range of training, naming the first cycle that does."""
    low, high = rules.range.lowest, rules.range.highest
    outside = rules.range.outside(window.readings)
    for f in np.flatnonzero(outside.any(axis=0)).tolist():
        t = int(outside[:, f].argmax())
        unit = f" {rules.units[f]}" if rules.units[f] else ""
        detail = (
            f"{window.readings[t, f]:g}{unit} at cycle {window.first_cycle + t} is outside {low[f]:g} to "
            f"{high[f]:g}, the range of the training data and a margin"
        )
        yield Caution("out_of_range", detail, rules.names[f])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
