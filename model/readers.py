"""Trajectories out of files: C-MAPSS text, CSV and Parquet, as a fleet describes them.

Whatever a file holds, what leaves here is a `Trajectory` a unit: cycles in order, readings in
schema order, NaN where a value is missing or infinite. Data that cannot be that is refused with
its file, line, column, what was expected and what came. This module must not know torch.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from model.domain import BoolArray, FloatArray, IntArray, InvalidData, Trajectory
from model.fleet import ONE_FILE_A_UNIT, Fleet
from model.tables import SUFFIXES, Table, read_table

logger = logging.getLogger(__name__)

MOST_LISTED: Final = 20
"""Places that a warning names; how many more there are, it counts."""


@dataclass(frozen=True, slots=True)
class Infinite:
    """Values of one column in one file that were infinite and now are missing.

    Attributes:
        file: Where.
        column: As the file names it.
        count: How many.
        first: The line or row of the first, such as `line 7`.
    """

    file: Path
    column: str
    count: int
    first: str


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What reading met, in counts of readings.

    Attributes:
        files: Files read.
        rows: Readings in all.
        units: Trajectories in all.
        censored: Trajectories that did not run to failure.
        missing: Values that a file left out, by column; columns without any are not listed.
        infinite: Values that were infinite and now are missing, by column.
        infinite_at: The same, by file and column.
    """

    files: int
    rows: int
    units: int
    censored: int
    missing: dict[str, int]
    infinite: dict[str, int]
    infinite_at: tuple[Infinite, ...] = ()


def read_trajectories(
    path: Path | Sequence[Path],
    fleet: Fleet,
    *,
    run_to_failure: bool | None = None,
    allow_absent: bool = False,
) -> list[Trajectory]:
    """Read every unit in a file, a folder of files, or several of either.

    A unit's rows may stand in any order, among those of others and in several files. Infinite
    values become missing; one warning says how many and where, another what else is missing.

    Args:
        path: Where to read; in a folder, the files whose suffix is the fleet's format.
        fleet: What the files look like.
        run_to_failure: True or False: all units are so, whatever the fleet's failure rule says
            (a test file holds units that have not failed); None: the rule decides.
        allow_absent: A column that a file lacks is all missing, instead of an error.

    Raises:
        InvalidData: a file cannot be read, lacks a column, or holds what cannot be.
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
    """As `read_trajectories`, with the counts of what was met."""
    files = data_files(path, fleet)
    judged = fleet.failure is not None and run_to_failure is None
    rows = _Rows.read(files, fleet, allow_absent=allow_absent, with_failure=judged)
    infinite = np.isinf(rows.readings)
    missing = np.isnan(rows.readings)
    rows.readings[infinite] = np.nan  # our own array, not yet handed out
    trajectories = rows.trajectories(fleet, run_to_failure=run_to_failure)
    report = ReadReport(
        files=len(files),
        rows=len(rows.readings),
        units=len(trajectories),
        censored=sum(not trajectory.failed for trajectory in trajectories),
        missing=_counts(fleet, missing),
        infinite=_counts(fleet, infinite),
        infinite_at=tuple(_places(files, rows.tables, fleet, infinite)),
    )
    _warn(report)
    return trajectories, report


def data_files(path: Path | Sequence[Path], fleet: Fleet) -> list[Path]:
    """The files that `path` stands for, in order of name within a folder.

    Raises:
        InvalidData: there is no such file, or no file of the fleet's format in a folder.
    """
    paths = [path] if isinstance(path, Path) else list(path)
    files: list[Path] = []
    for each in paths:
        if each.is_dir():
            suffixes = {suffix for suffix, form in SUFFIXES.items() if form == fleet.format}
            found = sorted(f for f in each.iterdir() if f.suffix.lower() in suffixes and f.name[0] != ".")
            if not found:
                raise InvalidData(f"{each}: no {' or '.join(sorted(suffixes))} file in this folder")
            files += found
        elif each.exists():
            files.append(each)
        else:
            raise InvalidData(f"{each}: no such file")
    if not files:
        raise InvalidData("no file to read was named")
    return files


def data_sha256(paths: Iterable[Path]) -> str:
    """The digest of what files hold, whatever they are called and in whatever order they come.

    Of one file it is what `sha256sum` prints.
    """
    digests: list[str] = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """All rows of all files, n in all, in the order read."""

    tables: tuple[Table, ...]
    units: tuple[str, ...]
    unit: IntArray  # [n], place in `units`
    cycle: IntArray  # [n]
    readings: FloatArray  # float32 [n, F]
    failure: FloatArray  # [n], the failure rule's column; NaN without one

    @classmethod
    def read(cls, files: Sequence[Path], fleet: Fleet, *, allow_absent: bool, with_failure: bool) -> _Rows:
        tables = [
            _read_file(file, fleet, allow_absent=allow_absent, with_failure=with_failure) for file in files
        ]
        places: dict[str, int] = {}
        codes: list[IntArray] = []
        for file, table in zip(files, tables, strict=True):
            labels = table.labels if fleet.unit_column != ONE_FILE_A_UNIT else (file.stem,)
            own = np.array([places.setdefault(label, len(places)) for label in labels], dtype=np.int64)
            codes.append(own[table.codes])
        unit = np.concatenate(codes)
        with np.errstate(over="ignore"):  # beyond float32 is infinite, and infinite is missing
            readings = np.concatenate(
                [np.stack([t.numbers[s] for s in fleet.sources], axis=1).astype(np.float32) for t in tables]
            )
        cycles = [_whole_cycles(t, fleet.cycle_column) for t in tables]
        return cls(
            tables=tuple(tables),
            units=tuple(places),
            unit=unit,
            cycle=np.concatenate(cycles) if fleet.cycle_column else _count_within(unit),
            readings=readings,
            failure=np.concatenate([_failure_values(t, fleet, with_failure=with_failure) for t in tables]),
        )

    def trajectories(self, fleet: Fleet, *, run_to_failure: bool | None) -> list[Trajectory]:
        order = np.lexsort((self.cycle, self.unit))
        unit, cycle = self.unit[order], self.cycle[order]
        same = np.flatnonzero((np.diff(unit) == 0) & (np.diff(cycle) == 0))
        if len(same):
            first, second = sorted((int(order[same[0]]), int(order[same[0] + 1])))
            raise InvalidData(
                f"{self._where(second)}: unit {self.units[unit[same[0]]]} has cycle {cycle[same[0]]} "
                f"already, in {self._where(first)}"
            )
        found: list[Trajectory] = []
        for rows in np.split(order, np.flatnonzero(np.diff(unit)) + 1):
            failed = fleet.failure is None or fleet.failure.failed(float(self.failure[rows[-1]]))
            found.append(
                Trajectory(
                    unit=self.units[self.unit[rows[0]]],
                    cycles=self.cycle[rows],
                    readings=self.readings[rows],
                    failed=failed if run_to_failure is None else run_to_failure,
                )
            )
        return found

    def _where(self, row: int) -> str:
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
    return read_table(
        file,
        form=SUFFIXES.get(file.suffix.lower(), fleet.format),
        numbers=numbers,
        text=None if fleet.unit_column == ONE_FILE_A_UNIT else fleet.unit_column,
        optional=fleet.sources if allow_absent else (),
    )


def _failure_values(table: Table, fleet: Fleet, *, with_failure: bool) -> FloatArray:
    if with_failure and fleet.failure:
        value = table.numbers[fleet.failure.column]
        return np.where(np.isinf(value), np.nan, value)  # a broken reading is no failure
    return np.full(len(table.codes), np.nan)


def _whole_cycles(table: Table, column: str | None) -> IntArray:
    if column is None:
        return np.zeros(len(table.codes), dtype=np.int64)
    cycle = table.numbers[column]
    wrong = np.flatnonzero(~((cycle >= 0) & (cycle < 2**53) & (cycle == np.floor(cycle))))
    if len(wrong):
        row = int(wrong[0])
        raise InvalidData(
            f"{table.locate(row)}, column {column!r}: "
            f"expected a whole number of 0 or more, got {cycle[row]:g}"
        )
    return cycle.astype(np.int64)


def _count_within(unit: IntArray) -> IntArray:
    """How many rows of the same unit came up to each row: 1, 2, .. in the order read."""
    order = np.argsort(unit, kind="stable")
    starts = np.flatnonzero(np.diff(unit[order], prepend=-1))
    counts = np.arange(len(unit)) - np.repeat(starts, np.diff(starts, append=len(unit))) + 1
    numbered = np.empty(len(unit), dtype=np.int64)
    numbered[order] = counts
    return numbered


def _counts(fleet: Fleet, marked: BoolArray) -> dict[str, int]:
    counts = marked.sum(axis=0)
    return {name: int(n) for name, n in zip(fleet.schema.names, counts, strict=True) if n}


def _places(
    files: Sequence[Path], tables: Sequence[Table], fleet: Fleet, marked: BoolArray
) -> Iterator[Infinite]:
    """In which files and columns values are marked, [n, F] over all tables."""
    start = 0
    for file, table in zip(files, tables, strict=True):
        part = marked[start : start + len(table.codes)]
        start += len(table.codes)
        for column in np.flatnonzero(part.any(axis=0)):
            rows = np.flatnonzero(part[:, column])
            first = table.locate(int(rows[0])).removeprefix(f"{file}: ")
            yield Infinite(file, fleet.sources[column], len(rows), first)


def _warn(report: ReadReport) -> None:
    """Say what is missing, so that nobody learns of a broken sensor from a model that learnt it."""
    if report.infinite_at:
        listed = [
            f"  {each.file}, column {each.column!r}: {each.count}, the first in {each.first}"
            for each in report.infinite_at[:MOST_LISTED]
        ]
        more = report.infinite_at[MOST_LISTED:]
        listed += [f"  and {sum(each.count for each in more)} in {len(more)} more places"] if more else []
        count = sum(report.infinite.values())
        logger.warning("infinite values, read as missing: %d\n%s", count, "\n".join(listed))
    # A column without any reading is for the caller to judge: it may be allowed, or an error.
    some = {name: count for name, count in report.missing.items() if count < report.rows}
    if some:
        counts = ", ".join(f"{name} {count}" for name, count in some.items())
        logger.warning("missing values, of %d readings: %s", report.rows, counts)
