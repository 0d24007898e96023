"""Counts of recent windows, a sum over the workers.

Windows are counted many at once in a few array operations. Counts stand in a ring of blocks of float64 in
a given array, and every number in it is a sum over windows: rings of several workers add up element by
element. A full ring overwrites its oldest block, so it slides.

Only the last reading of a window is counted: the next window of the unit holds all the others again. This
module must not know what counts are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from export.drift_reference import BINS, ENTROPY_SHARES, MISSING, STUCK, STUCK_CYCLES, DriftReference
from model.domain import FloatArray, IntArray
from service.core.answers import Answers

_Array = NDArray[np.float64]

WINDOWS: Final = 2000
"""Of the sliding window: twenty cycles of a hundred units."""
BLOCKS: Final = 10
UNIT_SLOTS: Final = 256
"""Units share slots by the checksum of their name; `DriftTotals.repeats` takes chance meetings off."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the counts of one block stand.

    Attributes:
        columns: Shape [R, F, 12], readings in each bin of a column.
        bands: [R, K], windows of each regime and RUL band.
        rul: [A + 1, P], predictions by age band and bin.
        entropy: [H, 3].
        units: [256], windows of the units that share a slot.
        rest: [2], windows, and those whose last reading is in no regime.
    """

    columns: tuple[int, ...]
    bands: tuple[int, ...]
    rul: tuple[int, ...]
    entropy: tuple[int, ...]
    units: tuple[int, ...] = (UNIT_SLOTS,)
    rest: tuple[int, ...] = (2,)

    @classmethod
    def of(cls, reference: DriftReference) -> Layout:
        """Return the layout of one model's counts."""
        regimes, columns, bands, _ = reference.low.shape
        return cls(
            (regimes, columns, BINS),
            (regimes, bands),
            reference.rul_by_age.shape,
            (len(reference.heads), len(ENTROPY_SHARES)),
        )

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of all parts, in their order."""
        return (self.columns, self.bands, self.rul, self.entropy, self.units, self.rest)

    @property
    def block(self) -> int:
        """Return how many numbers a block has."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    @property
    def size(self) -> int:
        """Return how many numbers a ring has."""
        return BLOCKS * self.block

    def parts(self, block: _Array) -> list[_Array]:
        """Return views of a block, in the order of `shapes`."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(block, ends), self.shapes, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class DriftTotals:
    """The counts of a whole ring, or of the sum of several; attributes as in `Layout`."""

    columns: _Array
    bands: _Array
    rul: _Array
    entropy: _Array
    units: _Array
    windows: float
    unseen: float

    @classmethod
    def of(cls, total: _Array, layout: Layout) -> DriftTotals:
        """Add up the blocks."""
        summed = total.reshape(BLOCKS, layout.block).sum(axis=0)
        columns, bands, rul, entropy, units, rest = layout.parts(summed)
        return cls(columns, bands, rul, entropy, units, float(rest[0]), float(rest[1]))

    @property
    def repeats(self) -> float:
        """Return how many windows the unit of a window has, at least 1: sum of squares over sum.

        Units that meet in a slot by chance add n^2 / 256 to the squares of n windows, which is taken off.
        """
        if not self.windows:
            return 1.0
        squares = float((self.units**2).sum()) - self.windows**2 / UNIT_SLOTS
        return float(np.clip(squares / (1 - 1 / UNIT_SLOTS) / self.windows, 1.0, self.windows))


class DriftCounts:
    """One worker's counts of one model."""

    def __init__(
        self, storage: _Array, reference: DriftReference, *, windows: int = WINDOWS, workers: int = 1
    ) -> None:
        """Count into `storage`, float64 [`Layout.size`], this worker's share of a sliding window."""
        self.layout: Final = Layout.of(reference)
        self._blocks: Final = [self.layout.parts(block) for block in storage.reshape(BLOCKS, -1)]
        self._reference: Final = reference
        self._cuts: Final = np.moveaxis(reference.cuts, 2, 0).copy()  # [9, R, F]
        self._full: Final = max(1, windows // (BLOCKS * workers))
        self._at = 0
        self._nameless = 0

    def count(self, answers: Answers, units: Sequence[str | None]) -> None:
        """Count windows: the bare answers to them and the unit of each."""
        columns, bands, rul, entropy, slots, rest = self._block()
        ends, lengths = answers.asked.readings, answers.asked.lengths
        last = ends[:, -1].astype(np.float64)
        regime, seen, known = self._regimes(last)
        predicted = answers.outputs.rul.astype(np.float64)
        age = answers.asked.last_cycle.astype(np.float64)
        bins = self._bins(last, regime)
        self._mark_stuck(bins, ends, regime, lengths)
        r, f, b = columns.shape
        where = (regime[:, None] * f + np.arange(f)) * b + bins
        where = where if known.all() else where[known]
        columns += np.bincount(where.ravel(), minlength=r * f * b).reshape(r, f, b)
        band = np.searchsorted(self._reference.band_edges, self._left(predicted, age), side="right")
        _add(bands, regime[known], band[known])
        _add(rul, self._ages(age), np.searchsorted(self._reference.rul_edges, predicted, side="right"))
        self._count_entropy(entropy, answers)
        slots += np.bincount([self._slot(unit) for unit in units], minlength=UNIT_SLOTS)
        rest += np.array([len(last), np.count_nonzero(~seen)])

    def _block(self) -> list[_Array]:
        """Return the parts of the block to count into; where it is full, the next one, emptied."""
        if self._blocks[self._at][-1][0] >= self._full:
            self._at = (self._at + 1) % BLOCKS
            for part in self._blocks[self._at]:
                part[:] = 0.0
        return self._blocks[self._at]

    def _regimes(self, last: _Array) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return each reading's nearest regime, whether it is near, and whether its settings are known."""
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

    def _bins(self, last: _Array, regime: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bin of each column's reading, [n, F]."""
        value = np.zeros(last.shape, dtype=np.int64)
        for cut in self._cuts:
            value += last > cut[regime]
        value[np.isnan(last)] = MISSING
        return value

    def _mark_stuck(
        self, bins: NDArray[np.int64], ends: FloatArray, regime: NDArray[np.int64], lengths: IntArray
    ) -> None:
        """Put readings that repeat the nine before them in a bin of their own."""
        # Few readings even equal the first of ten: only those are looked at.
        row, column = np.nonzero(ends[:, -1] == ends[:, 0])
        same = (ends[row, :, column] == ends[row, :1, column]).all(axis=1)
        stuck = same & self._reference.can_stick[regime[row], column] & (lengths[row] >= STUCK_CYCLES)
        bins[row[stuck], column[stuck]] = STUCK

    def _left(self, predicted: _Array, age: _Array) -> _Array:
        """Return the RUL to count a unit at: the answer; near the cap, the mean at its age."""
        left = self._reference.left_by_age
        at = np.clip(np.nan_to_num(age, nan=len(left)), 0, len(left) - 1).astype(np.int64)
        return np.where(predicted < self._reference.believed, predicted, np.maximum(predicted, left[at]))

    def _ages(self, age: _Array) -> NDArray[np.int64]:
        edges = self._reference.age_edges
        return np.where(np.isnan(age), len(edges) + 1, np.searchsorted(edges, age, side="right"))

    def _count_entropy(self, counts: _Array, answers: Answers) -> None:
        lengths, all_edges = answers.asked.lengths, self._reference.entropy_edges
        long = lengths >= self._reference.long_enough
        band = np.minimum(lengths, all_edges.shape[1] - 1)
        for h, head in enumerate(self._reference.heads):
            ratios, (low, high) = entropy_of(answers, head), all_edges[h, band].T
            where = (ratios >= low).astype(np.int64) + (ratios > high)
            counts[h] += np.bincount(where[long & ~np.isnan(ratios)], minlength=counts.shape[1])

    def _slot(self, unit: str | None) -> int:
        if unit is None:  # each window without a unit's name counts as another unit's
            self._nameless += 1
            return self._nameless % UNIT_SLOTS
        return crc32(unit.encode()) % UNIT_SLOTS  # the same in every worker, as hash() is not


def entropy_of(answers: Answers, head: str) -> FloatArray:
    """Return a head's entropy ratio, [B]; NaN where the model has no such head."""
    if head == "mean":
        return answers.entropy_ratio
    heads = answers.head_entropy_ratio
    return np.full(len(answers.asked.lengths), np.nan) if heads is None else heads[:, int(head)]


def _add(counts: _Array, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
    """Count one more at each of these places."""
    where = rows * counts.shape[1] + columns
    counts += np.bincount(where, minlength=counts.size).reshape(counts.shape)
