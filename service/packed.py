"""Readings as nearly all clients send them, laid out for the graph in a few operations.

Whatever is unusual (a missing reading, a wrong size, a number that float32 cannot hold) is left to
the careful way in `window`, which can say what is wrong and where. This module must not know problems.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from model.domain import FloatArray


def packed_rows(rows: Any, *, columns: int, context: int) -> FloatArray | None:  # noqa: ANN401 lists or an array
    """T lists of F numbers, or float32 [T, F] -> float32 [T, F], the last `context` cycles; None: unusual."""
    if isinstance(rows, np.ndarray):
        usual = rows.ndim == 2 and rows.size and rows.shape[1] == columns and rows.dtype == np.float32
        return _finite(rows[-context:]) if usual else None
    if not rows or {len(row) for row in rows} != {columns}:
        return None
    return _packed(list(chain.from_iterable(rows[-context:])), columns)


def packed_columns(given: Mapping[str, Any], *, names: Sequence[str], context: int) -> FloatArray | None:
    """For each name T numbers, a list or float32 [T] -> float32 [T, F], the last cycles; None: unusual."""
    lists = [given[name] for name in names]
    cycles = len(lists[0])
    if isinstance(lists[0], np.ndarray):
        return _stacked(lists, cycles, context)
    if not cycles or any(type(values) is not list or len(values) != cycles for values in lists):
        return None
    if cycles > context:
        lists = [values[-context:] for values in lists]
    return _packed(list(chain.from_iterable(zip(*lists, strict=True))), len(names))


def _stacked(columns: list[Any], cycles: int, context: int) -> FloatArray | None:
    for values in columns:
        if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.shape != (cycles,):
            return None
    return _finite(np.array(columns)[:, -context:].T) if cycles else None


def _packed(flat: list[Any], columns: int) -> FloatArray | None:
    """`struct` turns a list of numbers into floats six times as fast as numpy, and refuses None."""
    try:
        values = struct.pack(f"{len(flat)}f", *flat)
    except (struct.error, OverflowError):
        return None
    return _finite(np.frombuffer(values, dtype=np.float32).reshape(-1, columns))


def _finite(readings: FloatArray) -> FloatArray | None:
    """The readings where all are finite: then so is their sum."""
    with np.errstate(over="ignore", invalid="ignore"):
        return readings if math.isfinite(np.add.reduce(readings, axis=None)) else None
