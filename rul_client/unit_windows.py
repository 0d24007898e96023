"""The windows of units, cut many at once, and the last windows of a file or DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from export.bundle import Manifest
from model.dataset import ReadingsByCycle
from model.domain import BoolArray, FloatArray, IntArray, Trajectory
from rul_client.readings import Frame, Unit, Window, window_of

LAST: Final = 2**62
"""`every` for only the last window: no unit has as many readings."""


class UnitWindows:
    """W windows of some units, in order of unit and cycle.

    Args:
        units: At least one.
        context: Maximum cycles of a window.
        every: Distance in cycles between the windows of a unit, from its last one backwards.

    Attributes:
        unit: int64 [W], index of each window's unit.
        lengths: int64 [W], cycles of each window.
        last_cycle: int64 [W], cycle of each window's last reading.
    """

    def __init__(self, units: Sequence[Trajectory], *, context: int, every: int) -> None:
        ends = [apart(unit.cycles, every) for unit in units]
        starts = np.cumsum([0, *map(len, units)])
        self.units: Final = units
        self.unit: Final = np.repeat(np.arange(len(units)), [len(own) for own in ends])
        self._ends: Final = np.concatenate(ends) + starts[self.unit]
        self._by_cycle: Final = ReadingsByCycle(units, context=context)
        self.lengths: Final = self._by_cycle.lengths[self._ends]
        self.last_cycle: Final[IntArray] = np.concatenate([unit.cycles for unit in units])[self._ends]

    def __len__(self) -> int:
        return len(self.unit)

    def apart(self, cycles: int) -> BoolArray:
        """Choose windows this many cycles apart within their unit, from its last one backwards, [W]."""
        chosen = np.zeros(len(self), np.bool_)
        for own in np.split(np.arange(len(self)), np.flatnonzero(np.diff(self.unit)) + 1):
            chosen[own[apart(self.last_cycle[own], cycles)]] = True
        return chosen

    def names(self, which: IntArray) -> list[str]:
        """Return the unit of each of some windows."""
        return [self.units[unit].unit for unit in self.unit[which].tolist()]

    def by_length(self, count: int) -> Iterator[IntArray]:
        """Yield the indices of all windows, at most `count` at once; short ones first, for less padding."""
        order = np.argsort(self.lengths, kind="stable")
        for start in range(0, len(order), count):
            yield order[start : start + count]

    def readings(self, which: IntArray) -> FloatArray:
        """Cut some of the windows, float32 [B, T, F]; T is the length of the longest."""
        return self._by_cycle.cut(self._ends[which])

    def between(self, start: int, stop: int) -> list[Window]:
        """Cut the windows from place `start` to `stop` - 1, each as long as it is."""
        which = np.arange(start, min(stop, len(self)))
        last, lengths = self.last_cycle[which].tolist(), self.lengths[which].tolist()
        cut = zip(self.names(which), last, self.readings(which), lengths, strict=True)
        return [Window(unit, float(cycle), readings[:length]) for unit, cycle, readings, length in cut]

    def cycles_at(self, which: IntArray, place: IntArray) -> IntArray:
        """Return the cycle at a place [B] of each of some windows."""
        return self.last_cycle[which] - self.lengths[which] + 1 + place


def apart(cycles: IntArray, every: int) -> IntArray:
    """Choose the last of rising cycles, and the last existing one of each `every` cycles before it.

    >>> apart(np.array([1, 2, 3, 4, 5, 9]), 4).tolist()  # of 2 to 5, and of 6 to 9
    [0, 4, 5]
    """
    return np.flatnonzero(np.diff((cycles[-1] - cycles) // every, append=-1))


def last_windows(
    given: str | Path | Frame, manifest: Manifest, unit: Unit | None = None, last_cycle: float | None = None
) -> list[Window]:
    """Make the last window of each unit of a file or DataFrame.

    `unit` and `last_cycle` belong to a DataFrame without a column `unit` or `cycle`.

    Raises:
        InvalidData: it cannot be read, or has none of the model's columns.
    """
    from rul_client.commands.predict.input_file import read_frame, read_units  # noqa: PLC0415 loads pyarrow

    if isinstance(given, str | Path):
        units, absent = read_units(Path(given), manifest, fleet=None)
        has_cycle = True
    else:
        indexed = [n for n in given.index.names if n in {"unit", "cycle"} and n not in given.columns]
        frame = given.reset_index(level=indexed) if indexed else given
        units, absent = read_frame(frame, manifest)
        has_cycle = "cycle" in frame.columns
    windows = UnitWindows(units, context=manifest.context, every=LAST)
    places = [i for i, name in enumerate(manifest.schema_of_columns.names) if name not in absent]
    names = tuple(manifest.schema_of_columns.names[i] for i in places)
    return [
        window_of(
            each.unit or unit,
            each.last_cycle if has_cycle else last_cycle,
            each.readings[:, places],
            columns=names,
        )
        for each in windows.between(0, len(windows))
    ]
