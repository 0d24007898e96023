"""Readers of trajectories from files of any format of `model.files`, as a fleet describes them.

Each unit gives one `Trajectory`: cycles in order, readings in schema order, NaN where a value is
missing or infinite. Errors name file, line and column. This module must not know torch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from model.cells import counted
from model.cycle_numbers import cycles_of
from model.domain import BoolArray, FloatArray, IntArray, InvalidData, Trajectory
from model.files import bare_path, files_with, format_of
from model.fleet import FAILED, ONE_FILE_A_UNIT, Fleet, Format
from model.tables import Table, read_table

logger = logging.getLogger(__name__)

MOST_LISTED: Final = 20
"""Maximum number of places that a warning lists."""


@dataclass(frozen=True, slots=True)
class ReadReport:
    """Counts of missing values."""

    rows: int  # Number of readings
    missing: dict[str, int]  # Values that files omit, by column; complete columns are not listed
    infinite: dict[str, int]  # Infinite values, which become missing, by column


def read_trajectories(
    path: Path | Sequence[Path],
    fleet: Fleet,
    *,
    run_to_failure: bool | None = None,
    allow_absent: bool = False,
) -> list[Trajectory]:
    """Read every unit in a file, a folder of files, or several of either.

    A unit's rows may be in any order and in several files. Infinite values become missing; warnings
    count infinite and missing values. `run_to_failure` says whether all units have failed; None: the
    fleet's failure rule decides, and the life of a failed unit ends where it first is beyond the bound
    for good. `allow_absent` treats a missing column as missing values.

    Raises:
        InvalidData: a file cannot be read, lacks a column, or has an invalid value.
    """
    trajectories, _ = read_with_report(path, fleet, run_to_failure=run_to_failure, allow_absent=allow_absent)
    return trajectories


def read_with_report(
    path: Path | Sequence[Path],
    fleet: Fleet,
    *,
    run_to_failure: bool | None = None,
    allow_absent: bool = False,
) -> tuple[list[Trajectory], ReadReport]:
    """Read every unit as `read_trajectories` does, and count missing values."""
    rows, report = read_rows(path, fleet, allow_absent=allow_absent, with_failure=run_to_failure is None)
    return rows.trajectories(fleet, run_to_failure=run_to_failure), report


def read_rows(
    path: Path | Sequence[Path],
    fleet: Fleet,
    *,
    allow_absent: bool = False,
    with_failure: bool = True,
    with_groups: bool = False,
) -> tuple[Rows, ReadReport]:
    """Read every row as `read_trajectories` does, duplicated cycles included.

    `with_failure` reads the failure rule's column too, `with_groups` the column of groups.
    """
    files = data_files(path, fleet)
    rows = Rows.read(files, fleet, allow_absent=allow_absent, with_failure=with_failure)
    if with_groups and fleet.group_column is not None:
        rows = replace(rows, groups=_groups(rows, files, fleet.group_column, fleet.format))
    infinite = np.isinf(rows.readings)
    missing = np.isnan(rows.readings)
    rows.readings[infinite] = np.nan  # our own array, not yet handed out
    report = ReadReport(len(rows.readings), _counts(fleet, missing), _counts(fleet, infinite))
    _warn(report, _places(files, rows.tables, fleet, infinite))
    return rows, report


def data_files(path: Path | Sequence[Path], fleet: Fleet) -> list[Path]:
    """List the files of `path`, by path within a folder.

    Raises:
        InvalidData: there is no such file, or no file of the fleet's format in a folder.
    """
    return files_with([path] if isinstance(path, Path) else path, {fleet.format})


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All n rows of all files, in file order."""

    tables: tuple[Table, ...]
    units: tuple[str, ...]
    groups: tuple[str, ...]  # Group of each of `units`; empty names where it is not read
    unit: IntArray  # [n], place in `units`
    cycle: IntArray  # [n]
    readings: FloatArray  # float32 [n, F]
    failure: FloatArray  # [n], column of the failure rule, or of `FAILED` without one; NaN: none

    @classmethod
    def read(cls, files: Sequence[Path], fleet: Fleet, *, allow_absent: bool, with_failure: bool) -> Rows:
        """Read the rows of these files."""
        tables = [
            _read_file(file, fleet, allow_absent=allow_absent, with_failure=with_failure) for file in files
        ]
        if fleet.unit_column == ONE_FILE_A_UNIT:
            names = unit_names(files)
            tables = [replace(t, labels=(names[file],)) for file, t in zip(files, tables, strict=True)]
        return cls.of(tables, fleet, with_failure=with_failure)

    @classmethod
    def of(cls, tables: Sequence[Table], fleet: Fleet, *, with_failure: bool = False) -> Rows:
        """Join the rows of tables whose labels are units."""
        places: dict[str, int] = {}
        codes: list[IntArray] = []
        for table in tables:
            own = np.array([places.setdefault(label, len(places)) for label in table.labels], dtype=np.int64)
            codes.append(own[table.codes])
        unit = np.concatenate(codes)
        with np.errstate(over="ignore"):  # beyond float32 is infinite, and infinite is missing
            readings = np.concatenate(
                [np.stack([t.numbers[s] for s in fleet.sources], axis=1).astype(np.float32) for t in tables]
            )
        return cls(
            tables=tuple(tables),
            units=tuple(places),
            groups=("",) * len(places),
            unit=unit,
            cycle=cycles_of(tables, fleet.cycle_column, unit),
            readings=readings,
            failure=np.concatenate([_failure_values(t, fleet, with_failure=with_failure) for t in tables]),
        )

    def trajectories(self, fleet: Fleet, *, run_to_failure: bool | None) -> list[Trajectory]:
        """Return the trajectory of each unit.

        Raises:
            InvalidData: a unit has a cycle twice, or has not failed though all should have.
        """
        if len(self.duplicates()):
            raise InvalidData(self.first_duplicate())
        if run_to_failure is None and fleet.failure is None:
            self._require_failures()
        found: list[Trajectory] = []
        for rows in self.of_units():
            failed = run_to_failure is not False
            if run_to_failure is None and fleet.failure is not None:
                row = fleet.failure.failure_row(self.failure[rows].tolist())
                failed = row is not None
                rows = rows if row is None else rows[: row + 1]  # noqa: PLW2901 life ends at the failure
            unit, group = self.units[self.unit[rows[0]]], self.groups[self.unit[rows[0]]]
            whole = (unit, self.cycle[rows], self.readings[rows])
            found.append(Trajectory(*whole, failed=failed, group=group))
        return found

    def _require_failures(self) -> None:
        """Compare `run_to_failure = true` with the column of `FAILED`, where files have it."""
        last = [(rows[0], self.failure[rows][~np.isnan(self.failure[rows])][-1:]) for rows in self.of_units()]
        running = [
            self.units[self.unit[row]] for row, value in last if len(value) and not FAILED.failed(*value)
        ]
        if running:
            raise InvalidData(
                f"[failure] run_to_failure = true: column {FAILED.column!r} says that {len(running)} of "
                f"{len(last)} units have not failed, such as {running[0]}: write column = "
                f'"{FAILED.column}" and at_least = {FAILED.at_least} instead'
            )

    def of_units(self) -> list[IntArray]:
        """Return the rows of each unit, in order of their cycles."""
        order = np.lexsort((self.cycle, self.unit))
        return np.split(order, np.flatnonzero(np.diff(self.unit[order])) + 1)

    def duplicates(self) -> IntArray:
        """Return the rows [n, 2] of the same unit and cycle, in file order within each pair."""
        order = np.lexsort((self.cycle, self.unit))
        same = np.flatnonzero((np.diff(self.unit[order]) == 0) & (np.diff(self.cycle[order]) == 0))
        return np.stack((order[same], order[same + 1]), axis=1)

    def first_duplicate(self) -> str:
        """Name the place of the first duplicate."""
        first, second = map(int, self.duplicates()[0])
        return f"{self.where(second)}: {self.cycle_of(first)}: duplicate of {self.where(first)}"

    def rounding(self, fleet: Fleet) -> list[float]:
        """Compute how far float32 rounds each column's readings, as a share of their range."""
        shares: list[float] = []
        for source, kept in zip(fleet.sources, self.readings.T, strict=True):
            known = np.isfinite(kept)
            read = np.concatenate([table.numbers[source] for table in self.tables])[known]
            width = float(np.ptp(read)) if len(read) else 0.0
            shares.append(float(np.abs(read - kept[known]).max()) / width if width > 0 else 0.0)
        return shares

    def without_duplicates(self) -> Rows:
        """Keep the first row of each unit and cycle."""
        kept = np.setdiff1d(np.arange(len(self.unit)), self.duplicates()[:, 1])
        taken = {name: getattr(self, name)[kept] for name in ("unit", "cycle", "readings", "failure")}
        return replace(self, **taken)

    def cycle_of(self, row: int) -> str:
        """Name the unit and cycle of a row, for messages."""
        return f"unit {self.units[self.unit[row]] or 'without a name'}, cycle {self.cycle[row]}"

    def where(self, row: int) -> str:
        """Return the place of a row, such as `pumps.csv: line 7`."""
        for table in self.tables:
            if row < len(table.codes):
                return table.locate(row)
            row -= len(table.codes)
        raise IndexError(row)


def _read_file(file: Path, fleet: Fleet, *, allow_absent: bool, with_failure: bool) -> Table:
    numbers = list(fleet.sources)
    if fleet.cycle_column:
        numbers.append(fleet.cycle_column)
    if with_failure and fleet.failure:
        numbers.append(fleet.failure.column)
    form = format_of(file, fleet.format) or fleet.format
    table = read_table(
        file,
        form=form,
        numbers=numbers,
        text=None if fleet.unit_column == ONE_FILE_A_UNIT else fleet.unit_column,
        optional=fleet.sources if allow_absent else (),
        date=fleet.cycle_column,
        keys={} if allow_absent else _keys(fleet),
    )
    if with_failure and fleet.failure is None and FAILED.column in table.header:
        with suppress(InvalidData):  # a column of words denies nothing
            says = read_table(file, form=form, numbers=[FAILED.column], text=None)
            return replace(table, numbers=says.numbers | table.numbers)
    return table


def _groups(rows: Rows, files: Sequence[Path], column: str, form: Format) -> tuple[str, ...]:
    """Read the group of each unit.

    Raises:
        InvalidData: a unit has two groups.
    """
    read = partial(read_table, numbers=(), text=column, keys={column: "key group"})
    tables = [read(file, form=format_of(file, form) or form) for file in files]
    names = np.concatenate([np.array(table.labels, object)[table.codes] for table in tables])
    own = names[np.unique(rows.unit, return_index=True)[1]]
    for row in np.flatnonzero(names != own[rows.unit])[:1].tolist():
        first = f"expected {own[rows.unit[row]]!r}, as in the first row of unit {rows.units[rows.unit[row]]}"
        raise InvalidData(f"{rows.where(row)}, column {column!r}: {first}, got {names[row]!r}")
    return tuple(own.tolist())


def _keys(fleet: Fleet) -> dict[str, str]:
    """Name the key of the fleet file that requests each column of a file."""
    keys = {
        source: f"[[{c.role}s]] {c.name}"
        for c, source in zip(fleet.schema.columns, fleet.sources, strict=True)
    }
    keys[fleet.unit_column] = "key unit"
    if fleet.cycle_column:
        keys[fleet.cycle_column] = "key cycle"
    if fleet.failure and fleet.failure.column not in keys:
        keys[fleet.failure.column] = "[failure] column"
    return keys


def _failure_values(table: Table, fleet: Fleet, *, with_failure: bool) -> FloatArray:
    column = (fleet.failure or FAILED).column
    if not with_failure or column not in table.numbers:
        return np.full(len(table.codes), np.nan)
    value = table.numbers[column]
    return np.where(np.isinf(value), np.nan, value)  # an infinite value is no failure


def unit_names(files: Sequence[Path]) -> dict[Path, str]:
    """Name the unit of each file: the file's name, after its folder's name if names repeat.

    Raises:
        InvalidData: two files have the same name, in folders of the same name.
    """
    stems = [bare_path(file).stem for file in files]
    shared = Counter(stems)
    found: dict[str, Path] = {}
    for file, stem in zip(files, stems, strict=True):
        name = stem if shared[stem] == 1 else f"{file.absolute().parent.name}_{stem}"
        if (other := found.setdefault(name, file)) is not file:
            raise InvalidData(f"{file}: its unit would be {name}, as that of {other}: rename one of them")
    return {file: name for name, file in found.items()}


def _counts(fleet: Fleet, marked: BoolArray) -> dict[str, int]:
    counts = marked.sum(axis=0)
    return {name: int(n) for name, n in zip(fleet.schema.names, counts, strict=True) if n}


def _places(
    files: Sequence[Path], tables: Sequence[Table], fleet: Fleet, marked: BoolArray
) -> list[tuple[int, str]]:
    """Count and describe the marked values of each file and column, [n, F] over all tables."""
    found: list[tuple[int, str]] = []
    start = 0
    for file, table in zip(files, tables, strict=True):
        part = marked[start : start + len(table.codes)]
        start += len(table.codes)
        for column in np.flatnonzero(part.any(axis=0)):
            rows = np.flatnonzero(part[:, column])
            first = table.locate(int(rows[0])).removeprefix(f"{file}: ")
            where = f"  {file}, column {fleet.sources[column]!r}: {len(rows)}, the first in {first}"
            found.append((len(rows), where))
    return found


def _warn(report: ReadReport, infinite_at: Sequence[tuple[int, str]]) -> None:
    """Log infinite and missing values, so broken sensors are noticed before training."""
    if infinite_at:
        listed = [where for _, where in infinite_at[:MOST_LISTED]]
        more = [count for count, _ in infinite_at[MOST_LISTED:]]
        listed += [f"  and {sum(more)} in {counted(len(more), 'more place')}"] if more else []
        count = sum(report.infinite.values())
        logger.warning("infinite values, read as missing: %d\n%s", count, "\n".join(listed))
    # The caller decides whether a column without any reading is allowed.
    some = {name: count for name, count in report.missing.items() if count < report.rows}
    if some:
        counts = ", ".join(f"{name} {count}" for name, count in some.items())
        logger.warning("missing values, of %d readings: %s", report.rows, counts)
