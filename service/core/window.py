"""The only way from a client's window to one that a model can read.

    columns or rows ── lay_out ──┐
    tensors ─────────────────────┴─> check ── Windows, or defects with their places

`check` holds every rule about readings and cycle numbers, for all windows of a request at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from model.domain import LARGEST_CYCLE, FloatArray
from service.core.rules import WindowRules
from service.errors import MAX_PROBLEMS, NAME, Problem, bad_name, escaped, room


class WindowInput(msgspec.Struct, forbid_unknown_fields=True):
    """The readings of one unit, oldest first, in `columns` or in `readings`; null = missing.

    `columns` maps each column to its values, one per cycle. `readings` is a list of cycles, each with one
    value per column in the order of the model's columns. `last_cycle`: the unit's cycle number at the last
    reading; null if unknown. A unit may be a number: 17 is "17".
    """

    # Well-formed, but not checked. Callers in this process give `readings` as an array [T, F] with NaN.
    unit: str | int | None = None
    last_cycle: float | None = None
    columns: dict[str, list[float | None]] | None = None
    readings: list[list[float | None]] | None = None

    @property
    def name(self) -> str | None:
        """The unit's name as text: many sources number their units."""
        return str(self.unit) if isinstance(self.unit, int) else self.unit


class Windows(msgspec.Struct, frozen=True, eq=False):
    """B windows that a model can read; only `check` makes them.

    Attributes:
        readings: float32 [B, T, F], engineering units, NaN = missing and past a window's end.
        lengths: Valid cycles of each window, 1..T, at most the model's context.
        last_cycle: The unit's cycle number at the last reading of each; NaN = unknown.
        sent: Number of cycles that the client sent for each window; the model reads the last ones.
        first_cycle: Number of the first cycle that is read; if `last_cycle` is unknown, the first one sent is
            1.
        imputed_fraction: Fraction of each window's readings that are missing.
        units: The units' names, if given.
        is_probe: True for windows that metrics of answers do not count: variations that only explain an
            answer, and stored readings that were answered before.
        owner: The tenant of the units.
    """

    readings: FloatArray
    lengths: list[int]
    last_cycle: list[float]
    sent: list[int]
    first_cycle: list[int]
    imputed_fraction: list[float]
    units: list[str | None]
    is_probe: bool = False
    owner: str = ""

    def __len__(self) -> int:
        return len(self.lengths)

    def only(self, rows: Sequence[int]) -> Windows:
        """Some of the windows."""
        lists = ("lengths", "last_cycle", "sent", "first_cycle", "imputed_fraction", "units")
        chosen: dict[str, Any] = {name: [getattr(self, name)[i] for i in rows] for name in lists}
        return msgspec.structs.replace(self, readings=self.readings[list(rows)], **chosen)


class Defect(NamedTuple):
    """One error in a window: in its last cycle, or in its readings.

    Attributes:
        window: Index of the window in the request.
        field: `last_cycle` or `readings`.
        cycle, column: Indices of the wrong reading among the cycles sent and the model's columns.
    """

    window: int
    field: str
    code: str
    detail: str
    cycle: int | None = None
    column: int | None = None


def check(
    readings: FloatArray,
    sent: list[int],
    last_cycle: list[float],
    rules: WindowRules,
    *,
    units: list[str | None] | None = None,
) -> tuple[Windows, list[Defect]]:
    """Check windows; keep the last `context` cycles of each.

    Args:
        readings: float32 [B, T, F], NaN = missing; all cycles sent, or only those that the model reads; rows
            past a window's end are ignored.
        sent: Number of cycles sent for each window, above 0.
        last_cycle: The cycle number of each window's last reading; NaN = unknown.
        rules: Rules of the model.
        units: The units' names.

    Returns:
        The windows and their defects: a window with a defect must not be answered.
    """
    count, cycles, _ = readings.shape
    lengths = [min(n, rules.context) for n in sent]
    if cycles > rules.context:
        readings = _last_cycles(readings, sent, lengths)
    if min(lengths) < readings.shape[1]:
        readings = readings.copy()
        readings[np.arange(readings.shape[1]) >= np.array(lengths)[:, None]] = np.nan
    defects: list[Defect] = []
    first_cycle: list[int] = []
    for i, (last, n, length) in enumerate(zip(last_cycle, sent, lengths, strict=True)):
        if detail := last_cycle_defect(last, n):
            first_cycle.append(0)
            defects.append(Defect(i, "last_cycle", "bad_last_cycle", detail))
        else:
            first_cycle.append((n if last != last else int(last)) - length + 1)  # noqa: PLR0124 NaN
    imputed = [0.0] * count
    if not np.isfinite(readings).all():
        imputed, found = _gaps(readings, lengths, sent, rules)
        defects += found
    windows = Windows(readings, lengths, last_cycle, sent, first_cycle, imputed, units or [None] * count)
    return windows, defects


def last_cycle_defect(last_cycle: float, cycles: int) -> str:
    """Describe what is wrong with a window's last cycle number; empty: nothing."""
    if last_cycle != last_cycle:  # noqa: PLR0124 NaN
        return ""
    if not 0 <= last_cycle <= LARGEST_CYCLE or last_cycle % 1:
        return f"expected a whole number from 0 to {LARGEST_CYCLE} or null, got {last_cycle:.12g}"
    if last_cycle < cycles - 1:
        return f"expected at least {cycles - 1} after {cycles} cycles, got {last_cycle:g}"
    return ""


def _last_cycles(readings: FloatArray, sent: list[int], lengths: list[int]) -> FloatArray:
    """The cycles that are read, [B, T, F] -> [B, longest, F]."""
    longest = max(lengths)
    starts = np.array(sent) - lengths
    rows = np.minimum(starts[:, None] + np.arange(longest), readings.shape[1] - 1)
    return readings[np.arange(len(sent))[:, None], rows]


def _gaps(
    readings: FloatArray, lengths: list[int], sent: list[int], rules: WindowRules
) -> tuple[list[float], list[Defect]]:
    """The missing fraction of each window, and defects: infinite or too many missing readings."""
    defects: list[Defect] = []
    infinite = np.isinf(readings)
    for b in np.flatnonzero(infinite.any(axis=(1, 2))).tolist():
        for f, t in np.argwhere(infinite[b].T)[: room(len(defects))].tolist():
            detail = f"expected a finite float32 for {rules.names[f]}, got {readings[b, t, f]:g}"
            defects.append(Defect(b, "readings", "non_finite", detail, t + sent[b] - lengths[b], f))
    missing, (cycles, columns) = np.isnan(readings), readings.shape[1:]
    # Bytes add up in half the time of booleans. Rows past a window's end are NaN, and not missing.
    counts = missing.view(np.uint8).sum(axis=(1, 2), dtype=np.uint32)
    valid = np.array(lengths)
    fractions = ((counts - (cycles - valid) * columns) / (valid * columns)).tolist()
    for b, fraction in enumerate(fractions):
        if fraction > rules.max_missing_fraction:
            gone: list[bool] = np.asarray(missing[b, : lengths[b]].all(axis=0)).tolist()
            absent = ", ".join(name for name, is_gone in zip(rules.names, gone, strict=True) if is_gone)
            detail = (
                f"expected at most {100 * rules.max_missing_fraction:.4g}% of the readings missing, got "
                f"{100 * fraction:.4g}%" + (f"; nothing of {absent}" if absent else "")
            )
            defects.append(Defect(b, "readings", "too_much_missing", detail))
    return fractions, defects


class LaidOut(msgspec.Struct, frozen=True, eq=False):
    """A window by columns or rows as an array."""

    readings: FloatArray | None  # float32 [T, F], the cycles to read; None if there are problems
    sent: int  # number of cycles sent; 0 if unknown
    problems: Sequence[Problem] = ()


def lay_out(given: WindowInput, rules: WindowRules, *, most: int = MAX_PROBLEMS + 1) -> LaidOut:
    """Bring a window into the model's column order; check its structure, but not its values.

    Returns at most `most` problems.
    """
    name = given.name
    if name is not None and not NAME.fullmatch(name):
        return LaidOut(None, 0, [bad_name(name)])
    if given.readings is None:
        return _from_columns(given.columns or {}, rules, most)
    if given.columns is not None:
        both = Problem("", "wrong_columns", "expected columns or readings, got both")
        return LaidOut(None, len(given.readings), [both])
    return _from_rows(given.readings, rules, most)


def join(
    given: Sequence[WindowInput], parts: Sequence[LaidOut], rules: WindowRules
) -> tuple[Windows | None, dict[int, Sequence[Problem]]]:
    """Check the laid-out windows of a request.

    Returns:
        The valid windows (None: there is none), and the problems of each other window by its index in the
        request, with pointers relative to the window.
    """
    problems: dict[int, Sequence[Problem]] = {}
    rows: list[int] = []
    readings: list[FloatArray] = []
    sent: list[int] = []
    last_cycle: list[float] = []
    units: list[str | None] = []
    for i, (window, part) in enumerate(zip(given, parts, strict=True)):
        last = np.nan if window.last_cycle is None else window.last_cycle
        if part.readings is None:
            detail = last_cycle_defect(last, part.sent)
            number = [Problem("/last_cycle", "bad_last_cycle", detail)] if detail else []
            problems[i] = [*number, *part.problems]
        else:
            rows.append(i)
            readings.append(part.readings[None])
            sent.append(part.sent)
            last_cycle.append(last)
            units.append(window.name)
    if not rows:
        return None, problems
    windows, defects = check(aligned(readings, rules.context), sent, last_cycle, rules, units=units)
    for defect in defects:
        i = rows[defect.window]
        by_row = given[i].readings is not None
        problems[i] = [*problems.get(i, ()), _problem(defect, rules, by_row=by_row)]
    if defects:
        kept = [row for row, i in enumerate(rows) if i not in problems]
        return windows.only(kept) if kept else None, problems
    return windows, problems


def _from_columns(columns: Mapping[str, Sequence[Any]], rules: WindowRules, most: int) -> LaidOut:
    sizes = set(map(len, columns.values()))
    cycles = max(sizes, default=0)
    if len(sizes) != 1 or not 0 < cycles <= rules.max_cycles or not columns.keys() <= rules.known:
        longest, problems = _refused_columns(columns, rules)
        return LaidOut(None, longest, list(islice(problems, most)))
    read = min(cycles, rules.context)
    blank = [np.nan] * read
    lists = [columns.get(name, blank) for name in rules.names]
    if read < cycles:
        lists = [values[-read:] for values in lists]
    return LaidOut(_packed(lists, len(rules.names) * read).reshape(-1, read).T, cycles)


def _from_rows(rows: Any, rules: WindowRules, most: int) -> LaidOut:  # noqa: ANN401 lists, or an array of a caller here
    cycles, wanted = len(rows), len(rules.names)
    if not 0 < cycles <= rules.max_cycles:
        return LaidOut(None, cycles, _size_problems(cycles, rules, "/readings"))
    if set(map(len, rows)) != {wanted}:
        names = ", ".join(rules.names)
        wrong = (
            Problem(f"/readings/{i}", "wrong_columns", f"expected {wanted} values ({names}), got {len(row)}")
            for i, row in enumerate(rows)
            if len(row) != wanted
        )
        return LaidOut(None, cycles, list(islice(wrong, most)))
    read = rows[-rules.context :]
    if isinstance(rows, np.ndarray):
        return LaidOut(np.asarray(read, np.float32), cycles)
    return LaidOut(_packed(read, len(read) * wanted).reshape(-1, wanted), cycles)


def _packed(lists: Sequence[Any], count: int) -> FloatArray:
    """Concatenate lists or arrays of numbers to float32 [count]; None becomes NaN.

    A number that float32 cannot hold becomes infinite.
    """
    if isinstance(lists[0], np.ndarray):
        return np.concatenate(lists, dtype=np.float32)
    try:  # six times as fast as numpy
        pack = struct.Struct(f"{count // len(lists)}f").pack
        return np.frombuffer(b"".join([pack(*values) for values in lists]), np.float32)
    except (struct.error, OverflowError):
        with np.errstate(over="ignore"):
            return np.array(list(chain.from_iterable(lists)), np.float64).astype(np.float32)


def aligned(parts: Sequence[FloatArray], most: int) -> FloatArray:
    """Stack windows [B_i, T_i, F] to float32 [B, T, F] of at most these cycles, padded with NaN."""
    if len(parts) == 1:
        return parts[0][:, :most]
    sizes = [part.shape[1] for part in parts]
    cycles = min(max(sizes), most)
    if min(sizes) == max(sizes) == cycles:
        return np.concatenate(parts)
    padded = np.full((sum(map(len, parts)), cycles, parts[0].shape[2]), np.nan, np.float32)
    row = 0
    for part, size in zip(parts, sizes, strict=True):
        end = row + len(part)
        padded[row:end, :size] = part[:, :cycles]
        row = end
    return padded


def _problem(defect: Defect, rules: WindowRules, *, by_row: bool) -> Problem:
    pointer = f"/{defect.field}"
    if defect.field == "readings" and not by_row:
        pointer = "/columns"
    if defect.column is not None:
        name = escaped(rules.names[defect.column])
        pointer += f"/{defect.cycle}/{defect.column}" if by_row else f"/{name}/{defect.cycle}"
    return Problem(pointer, defect.code, defect.detail)


def _refused_columns(
    columns: Mapping[str, Sequence[Any]], rules: WindowRules
) -> tuple[int, Iterator[Problem]]:
    """Length of the longest column, and the problems."""
    known = {name: len(columns[name]) for name in rules.names if name in columns}
    longest = max(known.values(), default=0)
    expected = f"expected {longest} values, as the longest column has"
    lengths = (
        Problem(f"/columns/{escaped(name)}", "wrong_length", f"{expected}, got {size}")
        for name, size in known.items() if size != longest
    )  # fmt: skip
    return longest, chain(rules.unknown_columns(columns), lengths, _size_problems(longest, rules, "/columns"))


def _size_problems(cycles: int, rules: WindowRules, path: str) -> list[Problem]:
    if cycles <= 0:
        return [Problem(path, "empty", "expected at least one cycle, got none")]
    wrong = Problem(path, "too_long", f"expected at most {rules.max_cycles} cycles, got {cycles}")
    return [wrong] if cycles > rules.max_cycles else []
