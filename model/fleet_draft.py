"""First draft of a fleet file, guessed from its data: which column is the unit, the cycle, a sensor.

Names and values decide: a unit stands in blocks of rows, a cycle rises within each unit, a setting has
few levels and no trend. The draft names what could not be guessed. This module must not know TOML or screens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from model.cycle_numbers import is_cycle, number_within
from model.domain import LARGEST_CYCLE, Column, FloatArray, IntArray, InvalidData, Role, printable
from model.files import format_of
from model.fleet import ONE_FILE_A_UNIT, FailureRule, Format
from model.fleet_draft_columns import (
    FAILED_WORDS,
    MOST_LISTED,
    about_words,
    column_name,
    is_number,
    joined,
    numbered_dates,
    rows_of,
    words_of,
)
from model.inspection import QUANTILES, Suggested, common_end, nice, suggest
from model.tables import place_of, read_columns

UNIT_WORDS: Final = frozenset(
    {"unit", "engine", "machine", "asset", "equipment", "pump", "cell", "battery", "serial", "device",
     "bearing", "turbine", "motor", "vehicle", "id", "no", "name"}
)  # fmt: skip
CYCLE_WORDS: Final = frozenset(
    {"cycle", "cycles", "time", "day", "hour", "week", "minute", "second", "step", "index", "age", "t", "run",
     "flight", "date", "datetime", "timestamp"}
)  # fmt: skip
PARTS_OF_TIMES: Final = {"hour": 24, "minute": 60, "second": 60}
"""Columns of these names are parts of a time of day if their values rise and restart at this number."""
SETTING_WORDS: Final = frozenset(
    {"setting", "speed", "load", "ambient", "altitude", "mach", "throttle", "command", "setpoint", "mode",
     "condition", "rpm", "demand", "force"}
)  # fmt: skip
ANSWER_WORDS: Final = frozenset({"rul", "ttf", "remaining", "label", "target", "failure", "failed"})
REST_WORDS: Final = frozenset({"left", "until", "before", "to"})
"""With a word for cycles: the remaining life."""
REPEATED: Final = 0.05
"""Maximum share of a unit's rows with the number of the row before: files may repeat rows."""
LEVELS: Final = 20
"""Maximum distinct values of a column that is taken for a setting whatever its name."""
TREND: Final = 0.15
"""Mean change over a unit's life, in standard deviations, from which a column is a sensor."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything that was guessed, and what could not be."""

    form: Format
    unit_column: str
    cycle_column: str | None
    units: int
    columns: dict[str, Column]  # By source, settings first
    left_out: tuple[tuple[str, str], ...]  # Source and reason
    failure: FailureRule | None  # Mark of failed units, else a bound near which most end; None: neither
    failed: int | None  # Number of units that `failure` says have failed; None: it is a guess
    suggested: Suggested
    critical_below: float
    degrading_below: float
    unsure: tuple[str, ...]  # What could not be guessed


def draft_fleet(files: Sequence[Path]) -> Draft:
    """Guess a fleet from its files.

    Raises:
        InvalidData: a file cannot be read, files share no column, or no column of numbers is left for the
            model.
    """
    form = format_of(files[0]) or "csv"
    tables = [read_columns(path, form=format_of(path) or form) for path in files]
    columns, file, partial = joined(files, tables)
    unit_column, unit = guess_unit(columns, file)
    rows = rows_of(unit)
    of_dates = {k: numbered_dates(v, unit) for k, v in columns.items() if k != unit_column}
    dates = {k: v for k, v in of_dates.items() if v is not None}
    numbered = {k: v for k, v in {**columns, **dates}.items() if k != unit_column}
    cycle_column = guess_cycle(numbered, rows, dates=dates.keys())
    cycle = np.asarray(
        number_within(unit, np.arange(len(unit))) if cycle_column is None else numbered[cycle_column],
        dtype=np.float64,
    )
    rows = [own[np.argsort(cycle[own], kind="stable")] for own in rows]
    others = {k: v for k, v in numbered.items() if k != cycle_column}
    by_name = sorted(others.keys(), key=lambda name: not words_of(name) & FAILED_WORDS)
    marks = (failure_mark(name, others[name], rows) for name in by_name if name not in dates)
    marked = next(filter(None, marks), None)
    failed = _failed(marked, columns, rows)
    spans = [float(cycle[own[-1]] - cycle[own[0]] + 1) for own in failed]
    suggested = suggest(tuple(float(value) for value in np.quantile(spans, QUANTILES)))
    assert suggested is not None  # noqa: S101 there is a unit
    others = {k: v for k, v in others.items() if not marked or k != marked.column}
    kept, left_out = _chosen(others, rows, dates=dates.keys())
    if not kept:
        raise InvalidData(_why_nothing(files, tables, unit_column, form))
    numbers = {source: np.asarray(columns[source], dtype=np.float64) for source in kept}
    end = common_end({source: [values[own] for own in rows] for source, values in numbers.items()})
    if marked:
        left_out.append((marked.column, "the answer: it says which units failed"))
    return Draft(
        form=form,
        unit_column=unit_column,
        cycle_column=cycle_column,
        units=len(rows),
        columns=dict(sorted(kept.items(), key=lambda item: item[1].role, reverse=True)),
        left_out=(*left_out, *((name, "not in every file") for name in partial)),
        failure=marked or (None if end is None else end.rule),
        failed=len(failed) if marked else None,
        suggested=suggested,
        critical_below=nice(suggested.cap / 4),
        degrading_below=min(nice(0.8 * suggested.cap), suggested.cap),
        unsure=_unsure(unit_column, cycle_column, marked, files=len(files), columns=kept.values()),
    )


def _why_nothing(
    files: Sequence[Path],
    tables: Sequence[Mapping[str, FloatArray | list[str]]],
    unit_column: str,
    form: Format,
) -> str:
    """Name the first cell in a column of numbers that is not a number, such as a repeated header."""
    for path, table in zip(files, tables, strict=True):
        for name, cells in table.items():
            if name == unit_column or not isinstance(cells, list):
                continue
            words = [i for i, cell in enumerate(cells) if not is_number(cell)]
            if 0 < len(words) <= len(cells) / 2:
                place = place_of(path, words[0], form=format_of(path) or form)
                return f"{place}, column {name!r}: expected a number, got {printable(cells[words[0]], 64)!r}"
    return f"{files[0]}: no column of numbers that change, got {', '.join(list(tables[0])[:MOST_LISTED])}"


def guess_unit(columns: Mapping[str, FloatArray | list[str]], file: IntArray) -> tuple[str, IntArray]:
    """Find the column that names the unit, and the unit of each row; `file` if none does."""
    best, found = 1, (ONE_FILE_A_UNIT, file)
    several = int(file.max()) > 0
    for name, values in columns.items():
        text = isinstance(values, list)
        if not text and not _whole(values):
            continue
        named = bool(words_of(name) & UNIT_WORDS)
        _, code = np.unique(np.array(values), return_inverse=True)
        distinct, runs = int(code.max()) + 1, int((np.diff(code) != 0).sum()) + 1
        blocks = runs == distinct
        if not 2 <= distinct <= len(code) / 2 or not (named or (blocks and not several)):
            continue
        score = 2 * named + blocks + text
        if score > best:
            best, found = score, (name, code.astype(np.int64))
    return found


def guess_cycle(
    columns: Mapping[str, FloatArray | list[str]], rows: Sequence[IntArray], *, dates: Collection[str] = ()
) -> str | None:
    """Find the column with whole numbers that rise within each unit: by its name, or because steps are 1.

    One that falls from row to row counts down to the failure, unless it was `dates` or has the name of a
    time: then the newest row is first.
    """
    best, found = 0, None
    for name, values in columns.items():
        if isinstance(values, list) or not is_cycle(values).all():
            continue
        steps = np.concatenate([np.diff(np.sort(values[own])) for own in rows])
        if not len(steps) or (steps == 0).mean() > REPEATED:
            continue
        by_ones = bool((steps <= 1).all())
        words = words_of(name)
        is_time = name in dates or (words & CYCLE_WORDS and not words & REST_WORDS)
        score = 2 * bool(words & CYCLE_WORDS) + by_ones
        if score > best and not words & ANSWER_WORDS and (is_time or not _falls(values, rows)):
            best, found = score, name
    return found


def failure_mark(name: str, values: FloatArray | list[str], rows: Sequence[IntArray]) -> FailureRule | None:
    """Return the failure rule of a column that changes only in the last row of some units.

    If its name has one of `FAILED_WORDS`, it may change in their last rows, and one unit is enough.
    """
    several = bool(words_of(name) & FAILED_WORDS)
    found = None if isinstance(values, list) else _of_last_rows(values, rows, several=several)
    return None if found is None else FailureRule(name, **{found[0]: found[1]})


def _of_last_rows(values: FloatArray, rows: Sequence[IntArray], *, several: bool) -> tuple[str, float] | None:
    """Return the one of two values that only last rows have, after the key of the bound that it is.

    `several`: a unit may have it in more than its last row, but not in all.
    """
    known = np.unique(values[~np.isnan(values)])
    if not 1 <= len(known) <= 2 or not np.isfinite(known).all():
        return None
    for bound, mark in (("at_least", float(known[-1])), ("at_most", float(known[0]))):
        marked = values == mark
        at_end = [int(marked[own][::-1].argmin()) for own in rows]  # 0 if all are marked
        enough = np.count_nonzero(at_end) >= (1 if several else 2)
        if enough and sum(at_end) == marked.sum() and (several or max(at_end) == 1):
            return bound, mark
    return None


def _chosen(
    columns: Mapping[str, FloatArray | list[str]], rows: Sequence[IntArray], *, dates: Collection[str]
) -> tuple[dict[str, Column], list[tuple[str, str]]]:
    kept: dict[str, Column] = {}
    left_out: list[tuple[str, str]] = []
    for source, values in columns.items():
        reason = _reason_against(source, values, rows, is_dated=source in dates)
        if isinstance(values, list) or reason:
            left_out.append((source, reason))
            continue
        name, unit = column_name(source, [column.name for column in kept.values()])
        kept[source] = Column(name, _role(source, values, rows), unit)
    return kept, left_out


def _reason_against(
    source: str, values: FloatArray | list[str], rows: Sequence[IntArray], *, is_dated: bool
) -> str:
    if isinstance(values, list):
        return _words_of_last_rows(values, rows) or _words_among_numbers(values)
    if is_dated:
        steps = np.concatenate([np.diff(values[own]) for own in rows])
        return _reason_against_time(steps, gaps=0, units=len(rows)) or "time, as dates"
    known = values[np.isfinite(values)]
    if not len(known):
        return "no reading"
    if len(np.unique(known)) == 1:
        return "constant"
    if (falls := _falls(values, rows)) or words_of(source) & ANSWER_WORDS:
        return f"the answer: {'it counts down to the failure' if falls else 'its name says so'}"
    there = [values[own][np.isfinite(values[own])] for own in rows]
    steps = np.concatenate([np.diff(each) for each in there])
    if any(
        _is_clock(known, steps, PARTS_OF_TIMES[part]) for part in PARTS_OF_TIMES.keys() & words_of(source)
    ):
        return "part of a time of day"
    if words_of(source) & CYCLE_WORDS and (steps >= 0).all():
        return _reason_against_time(steps, gaps=len(values) - len(known), units=len(rows))
    return ""


def _is_clock(known: FloatArray, steps: FloatArray, count: int) -> bool:
    return bool(known.max() < count and steps.min(initial=0) < 0 and (steps % count < count / 2).all())


def _reason_against_time(steps: FloatArray, *, gaps: int, units: int) -> str:
    repeats, ones = int((steps == 0).sum()), int((steps == 1).sum())
    if repeats <= REPEATED * len(steps):
        return f"time, but {gaps} of its numbers are missing" if gaps else "time: the cycle number tells it"
    if ones < units or repeats + ones < len(steps):
        return ""
    each = (len(steps) + units) / (ones + units)
    return f"time that repeats, {each:.0f} rows each; for cycles keep one row of each, or their mean"


def _failed(
    rule: FailureRule | None, columns: Mapping[str, FloatArray | list[str]], rows: Sequence[IntArray]
) -> Sequence[IntArray]:
    """Return the rows of units that have failed by a rule; without a rule, of all units."""
    if rule is None:
        return rows
    values = np.asarray(columns[rule.column], dtype=np.float64)
    return [own for own in rows if rule.failed(float(values[own[-1]]))]


def _words_of_last_rows(cells: Sequence[str], rows: Sequence[IntArray]) -> str:
    words, code = np.unique(np.array(cells), return_inverse=True)
    found = _of_last_rows(code.astype(np.float64), rows, several=True)
    if found is None:
        return ""
    word = printable(str(words[int(found[1])]))[:32]
    return f"text; last rows alone have {word!r}: if that is a failure, write it as 1 and all else as 0"


def _words_among_numbers(cells: Sequence[str]) -> str:
    words = [cell for cell in cells if not is_number(cell)]
    if not words:
        is_long = any(len(cell) > 15 and cell.lstrip("-").isdecimal() for cell in cells)
        first = printable(next(filter(None, cells), ""))[:32]
        return "whole numbers beyond 2^53: an id, or a time" if is_long else f"numbers as text: {first!r}"
    if len(words) > len(cells) / 2:
        return about_words(set(words))
    verb = "is no number" if len(words) == 1 else "are no numbers"
    return f"text: {len(words)} of {len(cells)} cells {verb}, such as {printable(words[0])[:32]!r}"


def _role(source: str, values: FloatArray, rows: Sequence[IntArray]) -> Role:
    known, words = values[np.isfinite(values)], words_of(source)
    levels = np.unique(known)
    if not ((len(levels) <= LEVELS and "sensor" not in words) or words & SETTING_WORDS):
        return "sensor"
    changes: list[float] = []
    for own in rows:  # Ranks: beside codes such as -9999 a trend looks small.
        there = np.searchsorted(levels, values[own][np.isfinite(values[own])])
        fifth = max(1, len(there) // 5)
        if len(there):
            changes.append(float(there[-fifth:].mean() - there[:fifth].mean()))
    return "setting" if abs(np.mean(changes)) < TREND * np.searchsorted(levels, known).std() else "sensor"


def _unsure(
    unit_column: str,
    cycle_column: str | None,
    marked: FailureRule | None,
    *,
    files: int,
    columns: Iterable[Column],
) -> tuple[str, ...]:
    said: list[str] = []
    if marked is None:
        text = "when a unit has failed: run_to_failure = true is written, change [failure] if units still run"
        said.append(text)
    if unit_column == ONE_FILE_A_UNIT and files == 1:
        said.append("the unit: no column names one, so the whole file is one unit; a training needs many")
    if cycle_column is None:
        text = f"the cycle: no column of whole numbers up to {LARGEST_CYCLE} rises in each unit by ones"
        said.append(f"{text}, or rises and has the name of a time, so rows are counted")
    if not any(column.role == "setting" for column in columns):
        said.append("settings: no column has few levels without a trend, so all are sensors")
    return tuple(said)


def _falls(values: FloatArray, rows: Sequence[IntArray]) -> bool:
    """Return whether a column falls by one at each row of each unit, as a RUL does."""
    if not np.isfinite(values).all():
        return False
    steps = np.concatenate([np.diff(values[own]) for own in rows])
    return len(steps) > 0 and bool((np.abs(steps + 1) < 1e-6).all())


def _whole(values: FloatArray) -> bool:
    return bool(np.isfinite(values).all() and (values == np.floor(values)).all())
