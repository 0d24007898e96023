"""Readings as nearly all clients send them, laid out for the graph in a few operations.

Whatever is unusual (a missing reading, a wrong size, a number that float32 cannot hold) is left to
the careful way in `window`, which can say what is wrong and where. This module must not know problems.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from model.domain import FloatArray


def packed_rows(rows: Any, *, columns: int, context: int) -> FloatArray | None:  # noqa: ANN401 lists or an array
    """T lists of F numbers, or float32 [T, F] -> float32 [T, F], the last `context` cycles; None: unusual."""
    if isinstance(rows, np.ndarray):
        usual = rows.ndim == 2 and rows.size and rows.shape[1] == columns and rows.dtype == np.float32
        return _finite(rows[-context:]) if usual else None
    if len(rows) > context and any(len(row) != columns for row in rows[:-context]):
        return None
    return _packed(rows[-context:], columns)


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
    read = _packed(lists, min(cycles, context))
    return None if read is None else np.ascontiguousarray(read.T)


def packed_together(
    rows: Sequence[Any],
    columns: Sequence[Any],
    *,
    names: Sequence[str],
    known: frozenset[str],
    most_cycles: int,
) -> FloatArray | None:
    """B windows of one size, all by rows or all by columns -> float32 [B, T, F]; None: unusual.

    Args:
        rows: Of each window, T lists of F numbers or float32 [T, F]; None where it has columns.
        columns: Of each window, for each name T numbers or float32 [T]; None where it has rows.
        names: The F columns, in order.
        known: The same, to compare with.
        most_cycles: More are unusual.
    """
    by_row = rows[0] is not None
    given, absent = (rows, columns) if by_row else (columns, rows)
    if any(values is None for values in given) or any(values is not None for values in absent):
        return None
    if not by_row and any(values.keys() != known for values in columns):
        return None
    cycles = len(rows[0] if by_row else columns[0][names[0]])
    if not 0 < cycles <= most_cycles:
        return None
    if by_row:
        joined = _joined_rows(rows, cycles, len(names))
        return None if joined is None else joined.reshape(len(rows), cycles, -1)
    joined = _joined([values[name] for values in columns for name in names], (cycles,))
    if joined is None:
        return None
    return np.ascontiguousarray(joined.reshape(len(columns), len(names), cycles).transpose(0, 2, 1))


def _joined_rows(rows: Sequence[Any], cycles: int, columns: int) -> FloatArray | None:
    if any(len(values) != cycles for values in rows):
        return None
    parts = rows if isinstance(rows[0], np.ndarray) else list(chain.from_iterable(rows))
    return _joined(parts, (cycles, columns))


def _joined(parts: Sequence[Any], shape: tuple[int, ...]) -> FloatArray | None:
    """Arrays of this shape, or lists as long as its last axis -> float32 [N, as many]."""
    kinds = set(map(type, parts))
    if kinds == {np.ndarray}:
        if any(part.dtype != np.float32 or part.shape != shape for part in parts):
            return None
        return _finite(np.concatenate(parts, axis=None).reshape(-1, shape[-1]))
    return _packed(parts, shape[-1]) if kinds == {list} else None


def _stacked(columns: list[Any], cycles: int, context: int) -> FloatArray | None:
    for values in columns:
        if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.shape != (cycles,):
            return None
    return _finite(np.array(columns)[:, -context:].T) if cycles else None


def _packed(lists: Sequence[Sequence[Any]], size: int) -> FloatArray | None:
    """N lists of so many numbers -> float32 [N, size]; None: unusual.

    `struct` turns a list into floats six times as fast as numpy, and refuses None and other sizes.
    """
    pack = _pack_of(size)
    try:
        values = b"".join([pack(*numbers) for numbers in lists])
    except (struct.error, OverflowError):
        return None
    return _finite(np.frombuffer(values, dtype=np.float32).reshape(-1, size)) if values else None


@lru_cache(maxsize=64)
def _pack_of(size: int) -> Callable[..., bytes]:
    return struct.Struct(f"{size}f").pack


def _finite(readings: FloatArray) -> FloatArray | None:
    """The readings where all are finite."""
    return readings if np.isfinite(readings).all() else None
