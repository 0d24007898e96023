"""Variations of a window, with readings hidden or replaced, from which explanations are computed.

Pure array functions; `service.core.explanations` asks the model and reads the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from model.domain import FloatArray, IntArray
from service.core.departures import Departure
from service.core.window import Windows

MOST_BLOCKS: Final = 256
"""Maximum variations that hide sensors in blocks; in longer windows each hides more cycles."""

MOST_ALONE: Final = 16
"""Maximum sensors of which each is returned to its healthy range alone."""


def probes(windows: Windows, i: int, readings: Sequence[FloatArray]) -> Windows:
    """Make variations of window `i` with the readings of each part [P, T, F]."""
    varied = np.concatenate(readings)
    return replace(windows.only([i] * len(varied)), readings=varied, is_probe=True)


def without_each(readings: FloatArray, columns: Sequence[int]) -> FloatArray:
    """Leave out each of these columns alone, [T, F] -> [P, T, F]."""
    varied = np.repeat(readings[None], len(columns), axis=0)
    varied[range(len(columns)), :, list(columns)] = np.nan
    return varied


def hiding_each(readings: FloatArray, typical: FloatArray, cycles: IntArray) -> FloatArray:
    """Hide each of these cycles [n] alone: it takes the readings of `typical`, [T, F] -> [n, T, F].

    `typical` is NaN where a reading is missing, so that hiding a cycle adds no information.
    """
    varied = np.repeat(readings[None], len(cycles), axis=0)
    varied[np.arange(len(cycles)), cycles] = typical[cycles]
    return varied


def blocks_of(cycles: int, sensors: int) -> list[slice]:
    """Divide cycles into blocks: at least one, and at most `MOST_BLOCKS` blocks times sensors.

    >>> blocks_of(5, 128)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    size = -(-cycles // max(1, MOST_BLOCKS // sensors))
    return [slice(start, min(start + size, cycles)) for start in range(0, cycles, size)]


def hiding_blocks(
    readings: FloatArray, typical: FloatArray, blocks: Sequence[slice], columns: Sequence[int]
) -> FloatArray:
    """Hide each block of each of these columns alone, column by column, [T, F] -> [P, T, F]."""
    varied = np.repeat(readings[None], len(blocks) * len(columns), axis=0)
    places = ((column, block) for column in columns for block in blocks)
    for row, (column, block) in zip(varied, places, strict=True):
        row[block, column] = typical[block, column]
    return varied


def staying_healthy(readings: FloatArray, middle: FloatArray, departed: Sequence[Departure]) -> FloatArray:
    """Return sensors that departed to the middle of their healthy range, [T, F] -> [P, T, F].

    Each of the first `MOST_ALONE` is returned alone. If there are several, a last variation returns all that
    departed. Missing readings stay missing.
    """
    groups = [[each] for each in departed[:MOST_ALONE]] + [departed] * (len(departed) > 1)
    varied = np.repeat(readings[None], len(groups), axis=0)
    cycles = len(middle)
    for row, group in zip(varied, groups, strict=True):
        for column, _, start, _ in group:
            since = row[start:cycles, column]
            since[~np.isnan(since)] = middle[start:, column][~np.isnan(since)]
    return varied
