"""Divides a fleet's Parquet files into parts: whole units, about as many readings each.

    files ── column of units ──> runs of rows of one unit ── in order ──> parts

Only the column of units is read, and the first cycles. The same files always give the same parts, so a part's
output depends on nothing else. This module must not know models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileInfo

from model.domain import InvalidData
from model.fleet import ONE_FILE_A_UNIT, Fleet
from model.readers import unit_names
from model.tables import cycles_of, names_of, present
from rul_client.commands.score.locations import Location, Version
from rul_client.unit_windows import LAST

MOST_MIXED_ROWS: Final = 262_144
"""Maximum readings of a file with mixed rows of units, which is read at once."""
ROWS_PER_BATCH: Final = 65_536
"""Rows of the column of units that are read at once."""
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one file; `keys` are columns that its folders name, such as `unit=17`."""

    file: str
    version: Version
    first_row: int
    rows: int
    keys: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A unit of work: whole units, whose answers are one file.

    Attributes:
        windows: Number of its windows if no reading is refused and no cycle skipped.
    """

    number: int
    slices: tuple[Slice, ...]
    windows: int

    @property
    def file(self) -> str:
        """Return the name of its output."""
        return f"part-{self.number:06d}.parquet"


@dataclass(frozen=True, slots=True)
class Plan:
    """All parts of an input.

    Attributes:
        absent: Columns of the model that no file has.
        lacking: The files that lack a column of others, by column.
        is_dated: Whether the first file with readings has dates as cycles.
        sha256: Digest of the names, sizes and times of the files.
    """

    parts: tuple[Part, ...]
    files: int
    rows: int
    units: int
    absent: tuple[str, ...]
    lacking: dict[str, list[str]]
    is_dated: bool
    sha256: str

    @property
    def windows(self) -> int:
        """Windows of all parts."""
        return sum(part.windows for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows of one unit, or of all units of a file in which they are mixed."""

    rows: Slice
    windows: int


def make_plan(source: Location, fleet: Fleet, *, every: int, part_readings: int, allow_absent: bool) -> Plan:
    """Divide the files of a folder, or one file, into parts.

    Args:
        source: The folder or file.
        fleet: Names the columns of the files.
        every: Distance in cycles between the windows of a unit, from its last one backwards.
        part_readings: Maximum readings in a part; a unit with more is a part of its own.
        allow_absent: Whether a column of the model may be missing.

    Raises:
        InvalidData: there is no file, one cannot be read or lacks a column, a unit is in two files, or a
            large file mixes the rows of units.
    """
    folder, files = source.folder(), source.parquet_files()
    planner = _Planner(folder, files, fleet, every=every, optional=fleet.sources if allow_absent else ())
    parts = tuple(_grouped(planner.runs(), part_readings))
    absent = tuple(name for name in fleet.sources if len(planner.lacking.get(name, ())) == len(files))
    lacking = {name: own for name, own in planner.lacking.items() if name not in absent}
    digest = hashlib.sha256()
    for name, version in planner.versions.items():
        digest.update(repr((name, *version)).encode())
    units = len(planner.file_of_unit)
    return Plan(parts, len(files), planner.rows, units, absent, lacking, planner.is_dated, digest.hexdigest())


@contextmanager
def open_parquet(folder: Location, name: str) -> Generator[pq.ParquetFile]:
    """Open a Parquet file.

    Raises:
        InvalidData: it cannot be read.
    """
    try:
        with folder.open(name) as stream:
            yield pq.ParquetFile(stream)
    except (OSError, UnicodeError, pa.ArrowException) as error:
        raise InvalidData(f"{name}: cannot be read: {error}") from error


class _Planner:
    """Reads the column of units of each file.

    Attributes:
        lacking: The files that lack a column of the model, by column.
        versions: The version of each file.
        file_of_unit: The file of each unit.
        is_dated: Whether the first file with readings has dates as cycles.
    """

    def __init__(
        self,
        folder: Location,
        files: Sequence[FileInfo],
        fleet: Fleet,
        *,
        every: int,
        optional: Sequence[str],
    ) -> None:
        self._folder: Final = folder
        self._files: Final = [folder.name(file) for file in files]
        self._fleet: Final = fleet
        self._every: Final = every
        self._optional: Final = optional
        self.lacking: Final[dict[str, list[str]]] = {}
        self.versions: Final[dict[str, Version]] = {}
        self.file_of_unit: Final[dict[str, str]] = {}
        self.is_dated = False
        self.rows = 0

    def runs(self) -> Iterator[_Run]:
        """Yield the rows of each unit, file by file."""
        paths = {name: Path(self._folder.root, name) for name in self._files}
        stems = unit_names([*paths.values()])
        for name in self._files:
            with open_parquet(self._folder, name) as file:
                version = self.versions[name] = self._folder.version(name)
                keys = _keys(name, file)
                if self._fleet.unit_column == ONE_FILE_A_UNIT:
                    keys[ONE_FILE_A_UNIT] = stems[paths[name]]
                found = columns_of(file, name, keys, self._fleet, optional=self._optional)
                for source in self._fleet.sources:
                    if source not in found:
                        self.lacking.setdefault(source, []).append(name)
                rows = int(file.metadata.num_rows)
                if rows and not self.rows:
                    self.is_dated = _is_dated(file, self._fleet.cycle_column)
                self.rows += rows
                if rows:
                    own = tuple((key, value) for key, value in keys.items() if key in found)
                    yield from self._runs_of(file, Slice(name, version, 0, rows, own))

    def _runs_of(self, file: Any, whole: Slice) -> Iterator[_Run]:  # noqa: ANN401 pyarrow is untyped
        """Yield the runs of one file; the whole file if the rows of its units are mixed."""
        start_of: dict[str, int] = {}
        is_mixed = False
        own = dict(whole.keys).get(self._fleet.unit_column)
        named = [(own, 0)] if own else []  # no name: its readings are refused
        bounds = named if own is not None else _bounds(file, whole.file, self._fleet.unit_column)
        for unit, start in bounds:
            if unit in start_of:
                is_mixed = True
                if whole.rows > MOST_MIXED_ROWS:
                    raise InvalidData(
                        f"{whole.file}: the rows of unit {unit} are not together; expected that in files of "
                        f"over {MOST_MIXED_ROWS:,} rows, this one has {whole.rows:,}: sort it by unit"
                    )
            else:
                start_of[unit] = start
                self._claim(unit, whole.file)
        if is_mixed or len(start_of) < 2:
            count = max(1, len(start_of))
            windows = count if self._every == LAST else whole.rows // self._every + count
            yield _Run(whole, min(windows, whole.rows))
            return
        starts = [0, *[*start_of.values()][1:]]
        for start, stop in zip(starts, [*starts[1:], whole.rows], strict=True):
            windows = -(-(stop - start) // self._every)
            yield _Run(replace(whole, first_row=start, rows=stop - start), windows)

    def _claim(self, unit: str, file: str) -> None:
        """Note the file of a unit.

        Raises:
            InvalidData: the unit is in another file too.
        """
        other = self.file_of_unit.setdefault(unit, file)
        if other != file:
            raise InvalidData(
                f"unit {unit} is in {other} and in {file}: expected all readings of a unit in one file; "
                "write the fleet again by unit"
            )


def columns_of(
    file: Any,  # noqa: ANN401 pyarrow is untyped
    name: str,
    keys: Iterable[str],
    fleet: Fleet,
    *,
    optional: Sequence[str],
) -> list[str]:
    """Return which columns of the fleet a file has, in itself or in the names of its folders."""
    cycle = [] if fleet.cycle_column is None else [fleet.cycle_column]
    header, wanted = [*file.schema_arrow.names, *keys], [*fleet.sources, *cycle, fleet.unit_column]
    return present(Path(name), header, wanted, optional)


def _keys(name: str, file: Any) -> dict[str, str]:  # noqa: ANN401 as above
    """Read the columns that folders name, as Hive does: `unit=17/a.parquet`; the file's own come first."""
    pairs = [folder.partition("=") for folder in PurePosixPath(name).parts[:-1]]
    values = {unquote(key): "" if value == NO_VALUE else unquote(value) for key, sign, value in pairs if sign}
    return {key: value.strip() for key, value in values.items() if key not in file.schema_arrow.names}


def _is_dated(file: Any, column: str | None) -> bool:  # noqa: ANN401 as above
    """Say whether the column of cycles holds dates, by the first rows of a file."""
    if column not in file.schema_arrow.names:
        return False
    first = next(file.iter_batches(ROWS_PER_BATCH, columns=[column], use_threads=False))
    return cycles_of(pa.chunked_array([first[column]]))[1]


def _bounds(file: Any, name: str, column: str) -> Iterator[tuple[str, int]]:  # noqa: ANN401 as above
    """Yield unit and row wherever the unit changes; skip rows without a unit.

    Groups of rows may be large, so they are read some rows at a time.
    """
    before, start = "", 0
    for batch in file.iter_batches(ROWS_PER_BATCH, columns=[column], use_threads=False):
        try:
            names, codes = names_of(pa.chunked_array([batch[column]]))
        except InvalidData as error:
            raise InvalidData(f"{name}: column {column!r}: {error}") from error
        for row in np.flatnonzero(np.diff(codes, prepend=-1)).tolist():
            unit = names[codes[row]]
            if unit not in {"", before}:
                yield unit, start + row
                before = unit
        start += len(codes)


def _grouped(runs: Iterable[_Run], most: int) -> Iterator[Part]:
    """Join runs to parts of at most this many rows; a longer run is a part."""
    slices: list[Slice] = []
    number = rows = windows = 0
    for run in runs:
        if slices and rows + run.rows.rows > most:
            yield Part(number, tuple(slices), windows)
            slices, number, rows, windows = [], number + 1, 0, 0
        rows, windows = rows + run.rows.rows, windows + run.windows
        last = slices[-1] if slices else None
        if last is not None and last.file == run.rows.file:
            slices[-1] = replace(last, rows=last.rows + run.rows.rows)
        else:
            slices.append(run.rows)
    if slices:
        yield Part(number, tuple(slices), windows)
