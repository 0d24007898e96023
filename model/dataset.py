"""Datasets of windows, cut out of trajectories: [N, F] in, [W, T, F] out.

Windows are ragged: early in a unit's life a window has fewer than T cycles. Rows past a window's
length are NaN. Units are dealt into folds by a seed: the same trajectories and seed give the same folds, so
all runs and experiments are measured on the same windows. Shape letters as in `model.domain`. This module
must not know torch, files or scaling.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from model.cells import counted
from model.censoring import failed_units
from model.domain import (
    BoolArray,
    FloatArray,
    IntArray,
    InvalidData,
    Trajectory,
    WindowSet,
    concatenated,
    cycles_left,
    cycles_until,
    longest_gap,
)
from model.fleet import Fleet

MOST_AT_CAP: Final = 4
"""Maximum windows at the cap for each window below it. In a life of 50 caps, windows near failure would be
too few to learn from and to judge, and novel because they are rare. Lives up to five caps keep all."""
MOST_FITTED: Final = 50_000
"""Maximum windows that fit scales, novelty and the baseline; more cost minutes and change little."""


class ReadingsByCycle:
    """Readings of units in order of their cycles, to cut windows from.

    A window covers the cycles up to its last one. A cycle between two readings counts, and is missing; after
    a gap above `longest_gap` the window begins anew.

    Args:
        units: At least one.
        context: Most cycles of a window.

    Attributes:
        lengths: int64 [N], cycles of the window that ends at each reading of all units.
    """

    def __init__(self, units: Sequence[Trajectory], *, context: int) -> None:
        sizes = [len(unit) for unit in units]
        steps = np.concatenate([np.diff(unit.cycles, prepend=unit.cycles[0] - 1) for unit in units])
        begins = steps > longest_gap(context) + 1
        begins[np.cumsum([0, *sizes[:-1]])] = True
        steps[begins] = 1
        self._places: Final[IntArray] = np.cumsum(steps) - 1
        first = np.maximum.accumulate(np.where(begins, self._places, 0))
        self.lengths: Final[IntArray] = np.minimum(self._places - first + 1, context)
        readings = np.concatenate([unit.readings for unit in units])
        # A row for each cycle, missing ones too, and more rows for short windows at the end.
        self._by_cycle: Final = np.full((self._places[-1] + context, readings.shape[1]), np.nan, np.float32)
        self._by_cycle[self._places] = readings

    def cut(self, ends: IntArray, *, cycles: int | None = None) -> FloatArray:
        """Cut the windows that end at readings `ends` [W]: float32 [W, T, F].

        T is `cycles`, at most the context, or the length of the longest. Rows past a window's length are NaN.
        """
        lengths, columns = self.lengths[ends], self._by_cycle.shape[1]
        count = int(lengths.max()) if cycles is None else cycles
        pieces = sliding_window_view(self._by_cycle.reshape(-1), count * columns)  # a window is one piece
        starts = self._places[ends] - lengths + 1
        windows = pieces[starts * columns].reshape(-1, count, columns)
        windows[np.arange(count) >= lengths[:, None]] = np.nan
        return windows


@dataclass(frozen=True, eq=False)
class CutWindows:
    """Windows with their labels, cut out of the units' readings when they are taken.

    Together the windows are as large as T times the readings. Fields as those of `WindowSet`.
    """

    readings: ReadingsByCycle
    length: int  # T
    ends: IntArray  # int64 [W], index of each window's last reading
    last_cycle: FloatArray
    rul: FloatArray
    unit: NDArray[np.str_]
    group: NDArray[np.str_]
    weight: FloatArray

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> IntArray:
        """Return the valid cycles of each window, int64 [W]."""
        return self.readings.lengths[self.ends]

    def take(self, which: IntArray) -> WindowSet:
        """Cut windows by their indices."""
        return WindowSet(
            readings=self.readings.cut(self.ends[which], cycles=self.length),
            lengths=self.lengths[which],
            last_cycle=self.last_cycle[which],
            rul=self.rul[which],
            unit=self.unit[which],
            group=self.group[which],
            weight=self.weight[which],
        )

    def batches(self, size: int) -> Iterator[WindowSet]:
        """Yield the windows in order, at most `size` at once."""
        for start in range(0, len(self), size):
            yield self.take(np.arange(start, min(start + size, len(self))))

    def sample(self, most: int) -> CutWindows:
        """Draw at most this many windows, in their order and always the same."""
        return self.keep(np.sort(np.random.default_rng(0).permutation(len(self))[:most]))

    def keep(self, which: IntArray) -> CutWindows:
        """Return the windows with these indices, uncut."""
        names = ("ends", "last_cycle", "rul", "unit", "group", "weight")
        return replace(self, **{name: getattr(self, name)[which] for name in names})


AnyWindows = WindowSet | CutWindows


def make_windows(units: Sequence[Trajectory], *, length: int) -> CutWindows:
    """Slide a window over each unit; a window ends at each reading.

    A window covers up to `length` cycles, missing ones included; its label is the RUL of its last cycle, and
    of a censored unit the lower bound of the RUL.

    >>> unit = Trajectory("1", np.arange(1, 51), np.zeros((50, 14), np.float32), failed=True)
    >>> make_windows([unit], length=30).take(np.arange(50)).readings.shape
    (50, 30, 14)
    """
    sizes = [len(unit) for unit in units]
    cycles = np.concatenate([unit.cycles for unit in units])
    last = np.repeat([unit.cycles[-1] for unit in units], sizes)
    return CutWindows(
        readings=ReadingsByCycle(units, context=length),
        length=length,
        ends=np.arange(len(cycles)),
        last_cycle=cycles.astype(np.float32),
        rul=cycles_until(last, cycles).astype(np.float32),
        unit=np.repeat([unit.unit for unit in units], sizes),
        group=np.repeat([group_of(unit) for unit in units], sizes),
        weight=np.repeat([unit.weight for unit in units], sizes).astype(np.float32),
    )


def without_most_at_cap(rul: FloatArray | IntArray, *, cap: float) -> IntArray:
    """Return the indices of one unit's windows [W], with at most `MOST_AT_CAP` at the cap for each below it.

    Those at the cap are evenly spaced over their part of the life.

    >>> without_most_at_cap(np.arange(20.0)[::-1], cap=2.0).tolist()
    [0, 2, 5, 7, 10, 12, 15, 17, 18, 19]
    """
    healthy, below = np.flatnonzero(rul >= cap), np.flatnonzero(rul < cap)
    most = MOST_AT_CAP * max(len(below), 1)
    if len(healthy) > most:
        healthy = healthy[np.linspace(0, len(healthy) - 1, most).round().astype(np.int64)]
    return np.concatenate((healthy, below))


def windows_ending_at(trajectory: Trajectory, ends: IntArray, *, length: int) -> WindowSet:
    """Cut the windows of one unit that end at these reading indices (0-based).

    `rul` is NaN if the unit is censored.
    """
    ends = np.asarray(ends, dtype=np.int64)
    outside = ends[(ends < 0) | (ends >= len(trajectory))]
    if len(outside):
        raise InvalidData(
            f"unit {trajectory.unit}: no window can end at reading {outside[0]} of {len(trajectory)}"
        )
    windows = make_windows([trajectory], length=length).take(ends)
    return windows if trajectory.failed else replace(windows, rul=np.full_like(windows.rul, np.nan))


def answerable(windows: WindowSet, most_missing: float) -> BoolArray:
    """Return which windows miss at most this share of readings, [W]; the service refuses the others."""
    within = np.arange(windows.readings.shape[1]) < windows.lengths[:, None]
    missing = (np.isnan(windows.readings) & within[:, :, None]).sum(axis=(1, 2))
    return missing <= most_missing * windows.lengths * windows.readings.shape[2]


def join_windows(sets: Sequence[WindowSet]) -> WindowSet:
    """Join sets of windows, in order."""
    shapes = sorted({windows.readings.shape[1:] for windows in sets})
    if len(shapes) != 1:
        raise InvalidData(f"windows to join must share one shape [T, F], got {shapes}")
    return concatenated(sets)


def truncated_windows(
    trajectories: Iterable[Trajectory],
    *,
    length: int,
    per_unit: int,
    rng: np.random.Generator,
    shortest: int = 1,
    cap: float = math.inf,
) -> WindowSet:
    """Cut each unit at random cycles of its life, as in a test set.

    Each unit gives up to `per_unit` different windows, which end from its `shortest`th reading to the
    last before its failure, all equally likely (`without_most_at_cap`). A shorter unit is cut as late as
    possible.
    """
    sets: list[WindowSet] = []
    for trajectory in trajectories:
        left = cycles_left(trajectory)
        latest = max(len(trajectory) - 2, 0)  # at the failure itself there is nothing to predict
        earliest = min(shortest - 1, latest)
        places = np.arange(earliest, latest + 1)
        places = places[without_most_at_cap(left[places], cap=cap)]
        ends = np.sort(rng.choice(places, size=min(per_unit, len(places)), replace=False))
        sets.append(windows_ending_at(trajectory, ends, length=length))
    return join_windows(sets)


def split_units(units: Iterable[str], *, parts: int, seed: int) -> list[list[str]]:
    """Split units, or groups of units, at random into sorted parts of equal size, to within one.

    The seed determines the split, whatever their order.

    >>> [len(part) for part in split_units(["a", "b", "c", "d"], parts=3, seed=0)]
    [2, 1, 1]
    """
    names = sorted(set(units))
    if len(names) < parts:
        raise InvalidData(f"{counted(len(names), 'unit')} cannot be split into {parts} parts")
    drawn = np.random.default_rng(seed).permutation(len(names))
    return [sorted(names[i] for i in part) for part in np.array_split(drawn, parts)]


def group_of(trajectory: Trajectory) -> str:
    """Return the name of what is held out and resampled as a whole: the unit's group, or the unit."""
    return trajectory.group or trajectory.unit


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Training and held-out units. No unit is in both."""

    trained: list[Trajectory]  # Trajectories of the training units
    training: CutWindows  # Their windows, without most of those at the cap in long lives
    held_out: WindowSet | None  # Truncated windows of the held-out units; None if all units train
    censored: Sequence[Trajectory] = ()  # Units that did not fail; their RUL is a lower bound

    @property
    def sample(self) -> CutWindows:
        """Draw the training windows that fit what gradients do not."""
        return self.training.sample(MOST_FITTED)


def split_fold(
    trajectories: Sequence[Trajectory], fleet: Fleet, *, fold: int, folds: int, seed: int, truncations: int
) -> Split:
    """Hold out the units of one fold; the other folds train.

    Over all folds, every unit with a known failure is held out once. Units of one group are in one fold;
    its censored units do not train while it is held out. Windows that the service would refuse judge nothing.
    """
    known = failed_units(trajectories)
    apart = set(split_units(map(group_of, known), parts=folds, seed=seed)[fold])
    held_out = truncated_windows(
        [each for each in known if group_of(each) in apart],
        length=fleet.context,
        per_unit=truncations,
        rng=np.random.default_rng([seed, fold]),
        shortest=fleet.shortest,
        cap=fleet.cap,
    )
    answered = np.flatnonzero(answerable(held_out, fleet.max_missing_fraction))
    if not len(answered):
        raise InvalidData(
            f"fold {fold + 1}: expected windows with at most {fleet.max_missing_fraction:.0%} of their "
            "readings missing, got none: `rul inspect` says what is missing"
        )
    return _split(trajectories, fleet, held_out.take(answered), apart)


def train_all(trajectories: Sequence[Trajectory], fleet: Fleet) -> Split:
    """Use every unit for training."""
    return _split(trajectories, fleet)


def held_out_windows(split: Split) -> WindowSet:
    """Return the held-out windows."""
    if split.held_out is None:
        raise InvalidData("no unit is held out: there is nothing to evaluate on")
    return split.held_out


def _split(
    trajectories: Sequence[Trajectory],
    fleet: Fleet,
    held_out: WindowSet | None = None,
    apart: Container[str] = (),
) -> Split:
    trained = [each for each in failed_units(trajectories) if group_of(each) not in apart]
    censored = [each for each in trajectories if not each.failed and group_of(each) not in apart]
    windows = make_windows(trained, length=fleet.context)
    starts = np.cumsum([0, *map(len, trained)])
    kept = [
        start + without_most_at_cap(windows.rul[start:end], cap=fleet.cap) for start, end in pairwise(starts)
    ]
    return Split(trained, windows.keep(np.concatenate(kept)), held_out, censored)
