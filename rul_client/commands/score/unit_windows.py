"""The windows of the units of one part, cut many at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from model.dataset import cut
from model.domain import FloatArray, IntArray, Trajectory


class UnitWindows:
    """W windows of some units, in order of unit and cycle.

    Args:
        units: At least one.
        context: Most cycles of a window.
        every: Each unit's last window, and each one so many cycles before it.

    Attributes:
        unit: int64 [W], place of each window's unit.
        lengths: int64 [W], cycles of each window.
        last_cycle: int64 [W], cycle of each window's last reading.
    """

    def __init__(self, units: Sequence[Trajectory], *, context: int, every: int) -> None:
        ends = [np.arange((len(unit) - 1) % every, len(unit), every) for unit in units]
        starts = np.cumsum([0, *map(len, units)])
        self.units: Final = units
        self.unit: Final = np.repeat(np.arange(len(units)), [len(own) for own in ends])
        self.lengths: Final = np.minimum(np.concatenate(ends) + 1, context)
        self._readings: Final = np.concatenate([unit.readings for unit in units])
        self._cycles: Final = np.concatenate([unit.cycles for unit in units])
        self._ends: Final = np.concatenate(ends) + starts[self.unit]
        self.last_cycle: Final[IntArray] = self._cycles[self._ends]

    def __len__(self) -> int:
        return len(self.unit)

    def names(self, which: IntArray) -> list[str]:
        """Return the unit of each of some windows."""
        return [self.units[unit].unit for unit in self.unit[which].tolist()]

    def by_length(self, count: int) -> Iterator[IntArray]:
        """Yield the places of all windows, at most `count` at once; short ones first, for less padding."""
        order = np.argsort(self.lengths, kind="stable")
        for start in range(0, len(order), count):
            yield order[start : start + count]

    def readings(self, which: IntArray) -> FloatArray:
        """Cut some of the windows, float32 [B, T, F]; T is the length of the longest."""
        lengths = self.lengths[which]
        return cut(self._readings, self._ends[which], lengths, cycles=int(lengths.max()))

    def cycles_at(self, which: IntArray, place: IntArray) -> IntArray:
        """Return the cycle at a place [B] of each of some windows."""
        return self._cycles[self._ends[which] - self.lengths[which] + 1 + place]
