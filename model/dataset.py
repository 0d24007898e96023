"""Windows: what a network learns from and is judged on, cut out of trajectories.

[N, F] trajectories in, [W, T, F] windows out. Where trajectories come from is `model.readers`,
what their columns mean is `model.fleet`. This module must not know torch, files or scaling.

Windows are ragged: early in a unit's life there are fewer than T cycles, and such a window is
kept, with its length. Rows past a window's length are NaN. Shape letters as in `model.domain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from model.domain import FloatArray, IntArray, InvalidData, Trajectory, WindowSet, cycles_left


def make_windows(trajectory: Trajectory, *, length: int, shortest: int = 1, stride: int = 1) -> WindowSet:
    """Slide a window over one unit: window i ends at reading `shortest - 1 + i * stride`.

    Each window covers the last `length` cycles up to its end, or all of them where there are
    fewer; its label is the RUL of its last cycle. A trajectory of N cycles gives
    `(N - shortest) // stride + 1` windows, and none where N < shortest.

    Raises:
        InvalidData: the unit is censored, so its windows have no label.

    >>> unit = Trajectory("1", np.arange(1, 51), np.zeros((50, 14), np.float32), failed=True)
    >>> make_windows(unit, length=30).readings.shape
    (50, 30, 14)
    >>> make_windows(unit, length=30, shortest=30).rul[[0, -1]].tolist()
    [20.0, 0.0]
    """
    _require_positive(length=length, shortest=shortest, stride=stride)
    return windows_ending_at(trajectory, np.arange(shortest - 1, len(trajectory), stride), length=length)


def windows_ending_at(trajectory: Trajectory, ends: IntArray, *, length: int) -> WindowSet:
    """The labelled windows of one unit that end at these reading indices (0-based), in their order.

    Raises:
        InvalidData: the unit is censored, or an index is not one of its readings.
    """
    _require_positive(length=length)
    ends = np.asarray(ends, dtype=np.int64)
    outside = ends[(ends < 0) | (ends >= len(trajectory))]
    if len(outside):
        raise InvalidData(
            f"unit {trajectory.unit}: no window can end at reading {outside[0]} of {len(trajectory)}"
        )
    lengths = np.minimum(ends + 1, length)
    rows = (ends - lengths + 1)[:, None] + np.arange(length)  # [W, T]
    readings = trajectory.readings[np.minimum(rows, len(trajectory) - 1)]  # [W, T, F]
    readings = readings.astype(np.float32, copy=False)
    readings[np.arange(length) >= lengths[:, None]] = np.nan
    return WindowSet(
        readings=readings,
        lengths=lengths,
        last_cycle=trajectory.cycles[ends].astype(np.float32),
        rul=cycles_left(trajectory)[ends].astype(np.float32),
        unit=np.full(len(ends), trajectory.unit),
    )


def join_windows(sets: Sequence[WindowSet]) -> WindowSet:
    """One set of all windows, in order.

    Raises:
        InvalidData: there is no set, or they differ in T or F.
    """
    shapes = sorted({windows.readings.shape[1:] for windows in sets})
    if len(shapes) != 1:
        raise InvalidData(f"windows to join must share one shape [T, F], got {shapes}")
    return WindowSet(
        readings=np.concatenate([windows.readings for windows in sets]),
        lengths=np.concatenate([windows.lengths for windows in sets]),
        last_cycle=np.concatenate([windows.last_cycle for windows in sets]),
        rul=np.concatenate([windows.rul for windows in sets]),
        unit=np.concatenate([windows.unit for windows in sets]),
    )


def last_window(trajectory: Trajectory, *, length: int) -> tuple[FloatArray, float]:
    """The readings of the unit's last `length` cycles, float32 [<=T, F], and its last cycle number.

    It has no label, so the unit may be censored.
    """
    _require_positive(length=length)
    return trajectory.readings[-length:].astype(np.float32), float(trajectory.cycles[-1])


def truncated_windows(
    trajectories: Iterable[Trajectory],
    *,
    length: int,
    per_unit: int,
    rng: np.random.Generator,
    shortest: int = 1,
) -> WindowSet:
    """Windows as a test set has them: each unit is cut at random cycles of its life.

    Each unit gives `per_unit` windows (fewer where it has fewer places to cut), which end
    anywhere from its `shortest`th reading to the last before its failure, all equally likely
    and none twice. A unit too short for that is cut as late as possible.

    Raises:
        InvalidData: a unit is censored, or there is none.
    """
    _require_positive(length=length, per_unit=per_unit, shortest=shortest)
    sets: list[WindowSet] = []
    for trajectory in trajectories:
        latest = max(len(trajectory) - 2, 0)  # the failure itself is no longer a prediction
        earliest = min(shortest - 1, latest)
        places = np.arange(earliest, latest + 1)
        ends = np.sort(rng.choice(places, size=min(per_unit, len(places)), replace=False))
        sets.append(windows_ending_at(trajectory, ends, length=length))
    return join_windows(sets)


def split_units(units: Iterable[str], *, fractions: Sequence[float], seed: int) -> tuple[list[str], ...]:
    """Deal units into parts of these fractions, at random but the same for the same seed.

    A unit is in one part only, so no window of one part has seen a unit of another. The order
    (and repetition) in which units are given does not matter. Every part with a fraction above
    0 gets at least one unit; parts come out sorted.

    Raises:
        InvalidData: fractions are negative or do not sum to 1, or there are too few units.

    >>> train, validate = split_units(["a", "b", "c", "d"], fractions=(0.75, 0.25), seed=0)
    >>> len(train), len(validate)
    (3, 1)
    """
    shares = np.asarray(fractions, dtype=np.float64)
    if shares.ndim != 1 or (shares < 0).any() or not np.isclose(shares.sum(), 1.0):
        raise InvalidData(f"fractions must be 0 or more and sum to 1, got {list(fractions)}")
    names = sorted(set(units))
    sizes = _part_sizes(len(names), shares)
    dealt = np.random.default_rng(seed).permutation(len(names))
    bounds = np.cumsum(sizes)[:-1]
    return tuple(sorted(names[i] for i in part) for part in np.split(dealt, bounds))


def with_units(trajectories: Iterable[Trajectory], units: Iterable[str]) -> list[Trajectory]:
    """The trajectories of these units, in the order of the trajectories."""
    wanted = set(units)
    return [trajectory for trajectory in trajectories if trajectory.unit in wanted]


def _part_sizes(count: int, shares: FloatArray) -> IntArray:
    """Whole sizes that sum to `count`, by largest remainder, at least 1 where the share is above 0."""
    least = (shares > 0).astype(np.int64)
    if count < least.sum():
        raise InvalidData(f"{count} units cannot be split into {least.sum()} parts")
    exact = shares * count
    sizes = np.maximum(np.floor(exact + 1e-9).astype(np.int64), least)
    while sizes.sum() != count:
        short = sizes.sum() < count
        lack = np.where((shares > 0) & (short | (sizes > least)), exact - sizes, -np.inf if short else np.inf)
        sizes[np.argmax(lack) if short else np.argmin(lack)] += 1 if short else -1
    return sizes


def _require_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise InvalidData(f"{name} must be 1 or more, got {number}")
