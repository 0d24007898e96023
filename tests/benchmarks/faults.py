"""Faults of readings before they reach a model: pure functions of windows.

Each returns new windows in which only the readings with the fault differ; padding stays padding. `which`,
bool [W, F], selects the columns of each window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from model.dataset import join_windows, windows_ending_at
from model.domain import BoolArray, FloatArray, IntArray, Trajectory, WindowSet, pad_windows


def random_windows(
    trajectories: Sequence[Trajectory], *, context: int, per_unit: int, rng: np.random.Generator
) -> WindowSet:
    """Cut windows at random cycles of each unit, all equally likely; the unit need not have failed."""
    return join_windows(
        [
            windows_ending_at(
                unit, np.sort(rng.choice(len(unit), min(per_unit, len(unit)), replace=False)), length=context
            )
            for unit in trajectories
        ]
    )


def young_windows(trajectories: Sequence[Trajectory], *, context: int, cycles: int) -> WindowSet:
    """Cut a window of the first cycles of each unit, as if it were the whole life."""
    return join_windows(
        [
            windows_ending_at(unit, np.array([min(cycles, len(unit)) - 1]), length=context)
            for unit in trajectories
        ]
    )


def one_each(windows: WindowSet, columns: Sequence[int]) -> BoolArray:
    """Select one of these columns in each window, in turn: bool [W, F]."""
    which = every(windows, [])
    which[np.arange(len(windows)), np.resize(columns, len(windows))] = True
    return which


def every(windows: WindowSet, columns: Sequence[int]) -> BoolArray:
    """Select all of these columns in each window: bool [W, F]."""
    which = np.zeros((len(windows), windows.readings.shape[2]), dtype=np.bool_)
    which[:, list(columns)] = True
    return which


def scaled(windows: WindowSet, which: BoolArray, factor: float) -> WindowSet:
    """Multiply readings by a factor, as in another engineering unit."""
    return _changed(windows, which, windows.readings * np.float32(factor))


def shifted(windows: WindowSet, which: BoolArray, by: ArrayLike) -> WindowSet:
    """Add a constant to readings; `by` is [F]."""
    return _changed(windows, which, windows.readings + np.asarray(by, dtype=np.float32))


def stuck(windows: WindowSet, which: BoolArray, at: ArrayLike) -> WindowSet:
    """Set columns to one value at all cycles; `at` is [F]."""
    return _changed(windows, which, np.broadcast_to(np.asarray(at, np.float32), windows.readings.shape))


def frozen(windows: WindowSet, which: BoolArray, *, last: int | None = None) -> WindowSet:
    """Repeat the value of columns before the last `last` cycles; without `last`, their first value."""
    cycles = windows.readings.shape[1]
    since = np.zeros_like(windows.lengths) if last is None else np.maximum(windows.lengths - 1 - last, 0)
    rows = np.minimum(np.arange(cycles), since[:, None])  # [W, T]
    return _changed(windows, which, np.take_along_axis(windows.readings, rows[:, :, None], axis=1))


def swapped(windows: WindowSet, pairs: ArrayLike) -> WindowSet:
    """Exchange two columns; `pairs` is [W, 2]."""
    pairs = np.asarray(pairs)
    order = np.tile(np.arange(windows.readings.shape[2]), (len(windows), 1))
    np.put_along_axis(order, pairs, pairs[:, ::-1], axis=1)
    return replace(windows, readings=np.take_along_axis(windows.readings, order[:, None, :], axis=2))


def random_pairs(windows: WindowSet, columns: Sequence[int], rng: np.random.Generator) -> IntArray:
    """Choose two different columns of these for each window, int [W, 2]."""
    return np.stack([rng.choice(columns, size=2, replace=False) for _ in range(len(windows))])


def permuted(windows: WindowSet, columns: Sequence[int], rng: np.random.Generator) -> WindowSet:
    """Permute these columns, the same way in each window."""
    order = rng.permutation(columns)
    readings = windows.readings.copy()
    readings[:, :, order] = windows.readings[:, :, np.roll(order, 1)]
    return replace(windows, readings=readings)


def out_of_order(windows: WindowSet, rng: np.random.Generator) -> WindowSet:
    """Shuffle the cycles of each window."""
    key = rng.random(windows.readings.shape[:2])
    key[_padding(windows)] = 2.0
    return replace(
        windows, readings=np.take_along_axis(windows.readings, key.argsort(axis=1)[:, :, None], axis=1)
    )


def missing(windows: WindowSet, which: BoolArray, *, share: float, rng: np.random.Generator) -> WindowSet:
    """Remove a share of the readings of these columns, at random."""
    lost = rng.random(windows.readings.shape) < share
    return _changed(windows, which, np.where(lost, np.float32(np.nan), windows.readings))


def last_kept(windows: WindowSet, cycles: int) -> WindowSet:
    """Keep only the last cycles of each window; the age of the unit stays known."""
    kept = [
        readings[max(length - cycles, 0) : length]
        for readings, length in zip(windows.readings, windows.lengths.tolist(), strict=True)
    ]
    return replace(
        windows,
        readings=pad_windows(kept, length=windows.readings.shape[1]),
        lengths=np.minimum(windows.lengths, cycles),
    )


def of_unknown_age(windows: WindowSet) -> WindowSet:
    """Remove the number of the last cycle."""
    return replace(windows, last_cycle=np.full_like(windows.last_cycle, np.nan))


def _changed(windows: WindowSet, which: BoolArray, readings: FloatArray) -> WindowSet:
    touched = which[:, None, :] & ~_padding(windows)[:, :, None]
    return replace(windows, readings=np.where(touched, readings, windows.readings).astype(np.float32))


def _padding(windows: WindowSet) -> BoolArray:
    return np.arange(windows.readings.shape[1]) >= windows.lengths[:, None]
