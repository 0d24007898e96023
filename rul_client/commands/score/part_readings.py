"""Reads the units of one part; rows that cannot be read are refused, with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from model.cells import MISSING
from model.cycle_numbers import is_cycle, number_within
from model.domain import LARGEST_CYCLE, IntArray, InvalidData, Trajectory
from model.fleet import Fleet
from model.readers import Rows
from model.tables import Table, cycles_of, names_of, table_of, texts_of
from model.text_table import DATE
from rul_client.commands.score.locations import Location
from rul_client.commands.score.plan import Part, Slice, columns_of, open_parquet

ROWS_PER_BATCH: Final = 16_384


class Refusal(NamedTuple):
    """A reading or window without an answer; `row` counts from 1 in the file, None if not one row."""

    file: str
    row: int | None
    unit: str | None
    cycle: float | None
    column: str | None
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class PartReadings:
    """The units of a part.

    Attributes:
        file_of_unit: By the unit's name.
        infinite: Infinite readings, which count as missing.
        missing: Readings that files omit, by column of the model.
    """

    units: list[Trajectory]
    file_of_unit: dict[str, str]
    refused: list[Refusal]
    readings: int
    infinite: int
    missing: dict[str, int]


def read_part(folder: Location, part: Part, fleet: Fleet, *, optional: Sequence[str]) -> PartReadings:
    """Read the units of a part.

    Raises:
        InvalidData: a file cannot be read or has changed, or a column is not of numbers.
    """
    refused: list[Refusal] = []
    tables: list[Table] = []
    rows_of: list[IntArray] = []
    files: list[str] = []
    for each in part.slices:
        rows, table = _readable(each, _slice_table(folder, each, fleet, optional), fleet, refused)
        if len(rows):
            tables.append(table)
            rows_of.append(rows)
            files += [each.file] * len(rows)
    count = sum(each.rows for each in part.slices)
    if not tables:
        return PartReadings([], {}, refused, count, 0, {})
    rows = Rows.of(tables, fleet)
    place = np.concatenate(rows_of)
    for _, again in rows.duplicates().tolist():
        unit, cycle = rows.units[rows.unit[again]], float(rows.cycle[again])
        reason = "the unit has another reading of this cycle, which is used"
        refused.append(Refusal(files[again], int(place[again]), unit, cycle, fleet.cycle_column, reason))
    infinite, counts = np.isinf(rows.readings), np.isnan(rows.readings).sum(axis=0).tolist()
    missing = {name: of for name, of in zip(fleet.schema.names, counts, strict=True) if of}
    rows.readings[infinite] = np.nan  # our own array, not yet handed out
    file_of_unit = dict(zip([rows.units[unit] for unit in rows.unit.tolist()], files, strict=True))
    units = rows.without_duplicates().trajectories(fleet, run_to_failure=False)
    return PartReadings(units, file_of_unit, refused, count, int(infinite.sum()), missing)


def _slice_table(folder: Location, wanted: Slice, fleet: Fleet, optional: Sequence[str]) -> pa.Table:
    """Read the rows of a slice, some at a time: a group of rows may be far larger."""
    keys = dict(wanted.keys)
    with open_parquet(folder, wanted.file) as file:
        if folder.version(wanted.file) != wanted.version:
            raise InvalidData(f"{wanted.file}: the file changed after the run began; start again")
        found = columns_of(file, wanted.file, keys, fleet, optional=optional)
        columns = [name for name in found if name not in keys]
        stop = wanted.first_row + wanted.rows
        ends = np.cumsum([0, *(file.metadata.row_group(g).num_rows for g in range(file.num_row_groups))])
        groups = np.flatnonzero((ends[1:] > wanted.first_row) & (ends[:-1] < stop))
        at = int(ends[groups[0]]) if len(groups) else 0
        parts: list[Any] = []
        for batch in file.iter_batches(ROWS_PER_BATCH, groups.tolist(), columns, use_threads=False):
            inside = batch.slice(max(0, wanted.first_row - at), max(0, stop - max(at, wanted.first_row)))
            at += batch.num_rows
            if inside.num_rows:
                parts.append(inside)
            if at >= stop:
                break
    table = pa.Table.from_batches(parts)
    for name, value in keys.items():
        table = table.append_column(name, _constant(wanted, name, value, fleet))
    return table


def _constant(of: Slice, name: str, value: str, fleet: Fleet) -> pa.Array:
    column = pa.repeat(value or None, of.rows).cast(pa.string())
    if name == fleet.unit_column:
        return column
    try:
        return column.cast(pa.float64())
    except pa.ArrowInvalid:
        raise InvalidData(f"{of.file}: expected a number in the folder's {name}, got {value!r}") from None


def _readable(of: Slice, table: pa.Table, fleet: Fleet, refused: list[Refusal]) -> tuple[IntArray, Table]:
    """Return the rows with a unit and a cycle, from 1, and their numbers; refuse the others."""
    units, codes = names_of(table[fleet.unit_column])
    cycles, is_dated = np.zeros(len(codes)), False
    if fleet.cycle_column is not None:
        cycles, is_dated = cycles_of(table[fleet.cycle_column])
    named = np.array([unit != "" for unit in units])[codes]
    kept = named & (~np.isnan(cycles) if is_dated else is_cycle(cycles))
    wanted = DATE if is_dated else f"a whole number from 0 to {LARGEST_CYCLE}"
    for row in np.flatnonzero(~kept).tolist():
        cycle = None if is_dated or np.isnan(cycles[row]) else float(cycles[row])
        unit, column, reason = None, fleet.unit_column, "expected a name, got nothing"
        if named[row]:
            unit, column = units[codes[row]], fleet.cycle_column
            [cell] = texts_of(table[column].slice(row, 1))
            got = f"{cycle:.12g}" if cycle is not None else "nothing" if cell in MISSING else repr(cell)
            reason = f"expected {wanted}, got {got}"
        refused.append(Refusal(of.file, of.first_row + row + 1, unit, cycle, column, reason))
    rows = of.first_row + np.flatnonzero(kept) + 1
    sources = [name for name in table.column_names if name in fleet.sources]
    found = table_of(
        Path(of.file),
        table.select(sources),
        lambda row: f"{of.file}: row {rows[row]}",
        numbers=fleet.sources,
        text=None,
    )
    numbers = {name: values[kept] for name, values in found.numbers.items()}
    codes, cycles = codes[kept], cycles[kept]
    if is_dated:  # another file of the part may have numbers, and no unit is in two files
        cycles = number_within(codes, cycles).astype(np.float64)
    if fleet.cycle_column is not None:
        numbers[fleet.cycle_column] = cycles
    return rows, replace(found, numbers=numbers, labels=units, codes=codes)
