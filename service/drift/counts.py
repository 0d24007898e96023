"""Counts of recent windows, a sum over the workers.

Many windows are counted at once in a few array operations. Counts are kept in a ring of float64 blocks in a
given array. Every number in it but `turn` is a sum over windows, so rings of several workers add up element
by element. A full ring overwrites its oldest block, so it slides.

Only the last reading of a window is counted, because the unit's next window repeats the others. This module
must not know what counts are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from export.drift_reference import BINS, ENTROPY_SHARES, MISSING, STUCK, STUCK_CYCLES, DriftReference
from model.domain import FloatArray, IntArray
from service.core.answers import Answers

WINDOWS: Final = 2000
"""Windows in the sliding window: twenty cycles of a hundred units."""
BLOCKS: Final = 10
UNIT_SLOTS: Final = 251
"""Units are hashed to slots by the checksum of their name; `repeats_of` subtracts chance collisions. A prime:
with a power of two, units named in series collide less often than by chance."""
NAMELESS_UNITS: Final = 20
"""Windows without a name count as those of this many units. If each counted as a unit, a healthy fleet of ten
would raise alarms half of the time."""


def layout_of(reference: DriftReference) -> np.dtype[np.void]:
    """Return the layout of a block of one model's counts, all float64.

    columns: [R, F, 12], readings in each bin of a column.
    bands: [R, K], windows of each regime and RUL band.
    rul: [A + 1, P], predictions by age band and bin.
    entropy: [H, 3].
    units: [251], windows of the units that share a slot.
    windows, unseen: windows, and those whose last reading is in no regime.
    turn: how many blocks the worker had filled before this one.
    """
    regimes, columns, bands, _ = reference.low.shape
    shapes = {
        "columns": (regimes, columns, BINS),
        "bands": (regimes, bands),
        "rul": reference.rul_by_age.shape,
        "entropy": (len(reference.heads), len(ENTROPY_SHARES)),
        "units": (UNIT_SLOTS,),
        "windows": (),
        "unseen": (),
        "turn": (),
    }
    return np.dtype([(name, np.float64, shape) for name, shape in shapes.items()])


def block_size(reference: DriftReference) -> int:
    """Return how many numbers a block has; a ring has `BLOCKS` blocks."""
    return layout_of(reference).itemsize // np.dtype(np.float64).itemsize


def totals_of(ring: FloatArray, reference: DriftReference) -> dict[str, FloatArray]:
    """Add up the blocks of a ring, or of the sum of several, to the fields of `layout_of`."""
    blocks = ring.view(layout_of(reference))
    return {name: blocks[name].sum(axis=0) for name in blocks.dtype.names or ()}


def repeats_of(totals: Mapping[str, FloatArray]) -> float:
    """Return how many windows a window's unit has on average, at least 1: sum of squares over sum.

    Chance collisions of units in slots add n^2 / 251 to the squares of n windows, which is subtracted.
    """
    windows = float(totals["windows"])
    if not windows:
        return 1.0
    squares = float((totals["units"] ** 2).sum()) - windows**2 / UNIT_SLOTS
    return float(np.clip(squares / (1 - 1 / UNIT_SLOTS) / windows, 1.0, windows))


class DriftCounts:
    """One worker's counts of one model."""

    def __init__(
        self, storage: FloatArray, reference: DriftReference, *, windows: int = WINDOWS, workers: int = 1
    ) -> None:
        """Count into `storage`, float64 [blocks * block_size], this worker's share of a sliding window."""
        self._ring: Final = storage.view(layout_of(reference))
        self._reference: Final = reference
        self._cuts: Final = np.moveaxis(reference.cuts, 2, 0).copy()  # [9, R, F]
        self._full: Final = windows // (len(self._ring) * workers)
        self._at = int(self._ring["turn"].argmax())  # that of the worker before this one
        self._nameless = 0

    def count(self, answers: Answers, units: Sequence[str | None]) -> None:
        """Count windows: the bare answers to them and the unit of each."""
        block = self._block()
        ends, lengths = answers.asked.readings, answers.asked.lengths
        last = ends[:, -1].astype(np.float64)
        regime, seen, known = self._regimes(last)
        predicted = answers.outputs.rul.astype(np.float64)
        age = answers.asked.last_cycle.astype(np.float64)
        bins = self._bins(last, regime)
        self._mark_stuck(bins, ends, regime, lengths)
        _add(block["columns"], regime[known, None], np.arange(bins.shape[1]), bins[known])
        band = np.searchsorted(self._reference.band_edges, self._left(predicted, age), side="right")
        _add(block["bands"], regime[known], band[known])
        _add(block["rul"], self._ages(age), np.searchsorted(self._reference.rul_edges, predicted, "right"))
        self._count_entropy(block["entropy"], answers)
        _add(block["units"], [self._slot(unit) for unit in units])
        block["windows"] += len(last)
        block["unseen"] += np.count_nonzero(~seen)

    def _block(self) -> Any:  # noqa: ANN401 NumPy has no type for one record of a structured array
        """Return the block to count into: the current one or, if that is full, the next one, emptied."""
        if self._ring["windows"][self._at] >= self._full:
            turn = self._ring["turn"][self._at] + 1
            self._at = (self._at + 1) % len(self._ring)
            self._ring[self._at] = 0
            self._ring["turn"][self._at] = turn
        return self._ring[self._at]

    def _regimes(self, last: FloatArray) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return each reading's nearest regime, whether it is near, and whether it is known.

        A regime is known by at least one setting, or as the only one.
        """
        reference = self._reference
        regimes = len(reference.centre)
        square = np.zeros((len(last), regimes))
        near = np.ones((len(last), regimes), dtype=np.bool_)
        known = np.full(len(last), regimes == 1)
        # A loop over the few settings: NumPy is slow where the axis that it sums over is short.
        for s, column in enumerate(reference.settings.tolist()):
            off = np.abs(last[:, column, None] - reference.centre[:, s])
            there = ~np.isnan(last[:, column])
            off[~there] = 0.0
            known |= there
            near &= off <= reference.reach[:, s]
            square += (off / reference.scale[s]) ** 2
        return square.argmin(axis=1), near.any(axis=1) & known, known

    def _bins(self, last: FloatArray, regime: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bin of each column's reading, [n, F]."""
        value = np.zeros(last.shape, dtype=np.int64)
        for cut in self._cuts:
            value += last > cut[regime]
        value[np.isnan(last)] = MISSING
        return value

    def _mark_stuck(
        self, bins: NDArray[np.int64], ends: FloatArray, regime: NDArray[np.int64], lengths: IntArray
    ) -> None:
        """Put readings that repeat the nine before them in a separate bin."""
        # Only the few readings that equal the first of their ten are compared in full.
        row, column = np.nonzero(ends[:, -1] == ends[:, 0])
        same = (ends[row, :, column] == ends[row, :1, column]).all(axis=1)
        stuck = same & self._reference.can_stick[regime[row], column] & (lengths[row] >= STUCK_CYCLES)
        bins[row[stuck], column[stuck]] = STUCK

    def _left(self, predicted: FloatArray, age: FloatArray) -> FloatArray:
        """Return the RUL by which a unit is grouped: the answer or, near the cap, the mean at its age."""
        left = self._reference.left_by_age
        at = np.clip(np.nan_to_num(age), 0, len(left) - 1).astype(np.int64)
        return np.where(predicted < self._reference.believed, predicted, np.maximum(predicted, left[at]))

    def _ages(self, age: FloatArray) -> NDArray[np.int64]:
        edges = self._reference.age_edges
        return np.where(np.isnan(age), len(edges) + 1, np.searchsorted(edges, age, side="right"))

    def _count_entropy(self, counts: FloatArray, answers: Answers) -> None:
        lengths, all_edges = answers.asked.lengths, self._reference.entropy_edges
        long = lengths >= self._reference.long_enough
        band = np.minimum(lengths, all_edges.shape[1] - 1)
        for h, head in enumerate(self._reference.heads):
            ratios, (low, high) = entropy_of(answers, head), all_edges[h, band].T
            where = (ratios >= low).astype(np.int64) + (ratios > high)
            _add(counts[h], where[long & ~np.isnan(ratios)])

    def _slot(self, unit: str | None) -> int:
        if unit is None:
            self._nameless += 1
            return self._nameless % NAMELESS_UNITS
        return crc32(unit.encode()) % UNIT_SLOTS  # the same in every worker, as hash() is not


def entropy_of(answers: Answers, head: str) -> FloatArray:
    """Return a head's entropy ratio, [B]; NaN if the model has no such head."""
    if head == "mean":
        return answers.entropy_ratio
    heads = answers.head_entropy_ratio
    return np.full(len(answers.asked.lengths), np.nan) if heads is None else heads[:, int(head)]


def _add(counts: FloatArray, *places: ArrayLike) -> None:
    """Add one at each of these places, given by one array of indices per axis."""
    where = np.ravel_multi_index(np.broadcast_arrays(*places), counts.shape)
    counts += np.bincount(where.ravel(), minlength=counts.size).reshape(counts.shape)
