"""Cycle numbers of the rows of tables: given, by dates, or counted. This module must not know fleets."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from model.domain import LARGEST_CYCLE, BoolArray, FloatArray, IntArray, InvalidData
from model.tables import Table

logger = logging.getLogger(__name__)


def cycles_of(tables: Sequence[Table], column: str | None, unit: IntArray) -> IntArray:
    """Return the cycle of each row, int64 [n]; without a column, or by dates, rows are numbered in each unit.

    Raises:
        InvalidData: a cycle is not a whole number in range, or only some files have dates.
    """
    if column is None:
        return number_within(unit, np.arange(len(unit)))
    if not any(table.is_dated for table in tables):
        return np.concatenate([_whole_cycles(table, column) for table in tables])
    number = next((table for table in tables if not table.is_dated), None)
    if number is not None:
        raise InvalidData(
            f"{number.locate(0)}, column {column!r}: expected a date as in other files, got a number"
        )
    logger.warning(
        "column %r holds dates: readings of each unit are numbered from 1 in order of time", column
    )
    return number_within(unit, np.concatenate([table.numbers[column] for table in tables]))


def is_cycle(number: FloatArray) -> BoolArray:
    """Tell which numbers [n] are cycles: whole, and from 0 to `LARGEST_CYCLE`."""
    return (number >= 0) & (number <= LARGEST_CYCLE) & (number == np.floor(number))


def _whole_cycles(table: Table, column: str) -> IntArray:
    cycle = table.numbers[column]
    wrong = np.flatnonzero(~is_cycle(cycle))
    if len(wrong):
        row = int(wrong[0])
        raise InvalidData(
            f"{table.locate(row)}, column {column!r}: expected a whole number from 0 to {LARGEST_CYCLE}, "
            f"got {cycle[row]:.12g}: number the cycles of each unit from 1"
        )
    return cycle.astype(np.int64)


def number_within(unit: IntArray, place: FloatArray | IntArray) -> IntArray:
    """Number the rows of each unit 1, 2, .. in order of `place` [n]; equal places have the same number."""
    order = np.lexsort((place, unit))
    starts = np.diff(unit[order], prepend=-1) != 0
    count = np.cumsum(starts | (np.diff(place[order], prepend=-np.inf) != 0))
    numbered = np.empty(len(unit), dtype=np.int64)
    numbered[order] = count - np.maximum.accumulate(np.where(starts, count - 1, 0))
    return numbered
