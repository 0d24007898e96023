"""Reference statistics of the training readings, for the bundle's manifest.

They scale a network's inputs, detect drift, and are the basis of `model.simulation`. Field names are
those of the manifest. This module must not know networks, bundles or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.domain import FloatArray, IntArray, InvalidData, Schema, Trajectory, cycles_left
from model.regimes import find_regimes

LOW_QUANTILE: Final = 0.001
HIGH_QUANTILE: Final = 0.999
DECILES: Final = tuple(i / 10 for i in range(1, 10))
LIFE_QUANTILES: Final = tuple(i / 10 for i in range(11))
RUL_GRID: Final = (0, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100, 125, 150, 175, 200, 250, 300, 400)
"""Dense near failure, where readings change fast. Longer lives continue in steps of a quarter."""
UNITS: Final = 6
"""Units whose own profiles are kept."""

UNKNOWN: Final = -1
"""Regime of a reading without known settings, if there are several regimes; no regime counts it."""

_Array = NDArray[np.float64]
Floats = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ColumnReference:
    """Usual range of one column over all training readings, and its share of missing values."""

    low: float
    high: float
    missing_fraction: float


@dataclass(frozen=True, slots=True)
class RegimeReference:
    """One regime: centre, share of the readings, and statistics of each column."""

    centre: Floats
    share: float
    mean: Floats
    standard_deviation: Floats
    histogram_edges: tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class UnitReference:
    """Life of one unit, and its own change of z-scores as it nears failure."""

    life: int  # Cycles
    z: tuple[Floats, ...]  # [R'][F], at the first R' RULs of the profile: those of its life


@dataclass(frozen=True, slots=True)
class DegradationReference:
    """Change of z-scores within a regime as units near failure, and lengths of lives."""

    rul: Floats  # [R], cycles, rising
    z: tuple[Floats, ...]  # [R][F], mean z-score around that RUL
    spread: tuple[Floats, ...]  # [R][F], standard deviation between the means of units around that RUL
    noise: Floats  # [F], standard deviation of the z-score from cycle to cycle
    units: tuple[UnitReference, ...]  # At most `UNITS`, from short lives to long ones
    life_quantiles: Floats  # Eleven quantiles (0, 0.1, .. 1) of the cycles of a life
    regime_persistence: float  # Probability that the next cycle is in the same regime


@dataclass(frozen=True, slots=True)
class Reference:
    """All reference statistics of a set of training units."""

    columns: tuple[ColumnReference, ...]  # In schema order
    regimes: tuple[RegimeReference, ...]  # In order of their centres
    degradation: DegradationReference  # One profile, shared by all regimes
    setting_scale: Floats  # [S], see `Regimes.scale`


def fit_reference(trajectories: Sequence[Trajectory], schema: Schema) -> Reference:
    """Compute the reference statistics of training units.

    Ranges and regimes include censored units; degradation and lives do not.
    """
    if not any(trajectory.failed for trajectory in trajectories):
        raise InvalidData(f"none of {len(trajectories)} units ran to failure: training needs a RUL label")
    readings = np.concatenate([trajectory.readings for trajectory in trajectories]).astype(np.float64)
    missing = np.isnan(readings).mean(axis=0)
    empty = [name for name, fraction in zip(schema.names, missing, strict=True) if fraction == 1]
    if empty:
        raise InvalidData(f"no unit has a reading in {', '.join(empty)}: remove these columns from the fleet")
    regimes = find_regimes(trajectories, schema)
    settings = readings[:, schema.indices("setting")]
    regime = regimes.of(settings)
    if len(regimes) > 1:
        regime[np.isnan(settings).all(axis=1)] = UNKNOWN
    known = regime != UNKNOWN
    mean, deviation = _moments(readings, regime, count=len(regimes))
    z = np.where(known[:, None], (readings - mean[regime]) / deviation[regime], np.nan)
    low, high = np.nanquantile(readings, (LOW_QUANTILE, HIGH_QUANTILE), axis=0)
    return Reference(
        columns=tuple(ColumnReference(*map(float, each)) for each in zip(low, high, missing, strict=True)),
        regimes=tuple(
            RegimeReference(
                centre=_floats(regimes.centre[r]),
                share=float((regime == r).sum() / known.sum()),
                mean=_floats(mean[r]),
                standard_deviation=_floats(deviation[r]),
                histogram_edges=_deciles(readings, regime == r),
            )
            for r in range(len(regimes))
        ),
        degradation=_degradation(trajectories, z, regime),
        setting_scale=_floats(regimes.scale),
    )


def _moments(readings: _Array, regime: IntArray, *, count: int) -> tuple[_Array, _Array]:
    """Compute mean and standard deviation per regime and column, both [R, F].

    A column without readings in a regime has the statistics of all regimes. A constant column has
    standard deviation 1, so z-scores stay finite.
    """
    mean = np.tile(np.nanmean(readings, axis=0), (count, 1))
    deviation = np.tile(np.nanstd(readings, axis=0), (count, 1))
    for r in range(count):
        rows = readings[regime == r]
        seen = ~np.isnan(rows).all(axis=0)
        mean[r, seen] = np.nanmean(rows[:, seen], axis=0)
        deviation[r, seen] = np.nanstd(rows[:, seen], axis=0)
    # Readings are float32: a deviation of a few of its steps is rounding.
    rounding = 4 * float(np.finfo(np.float32).eps) * np.abs(mean)
    return mean, np.where(deviation > rounding, deviation, 1.0)


def _deciles(readings: _Array, rows: NDArray[np.bool_]) -> tuple[Floats, ...]:
    """Compute the nine inner deciles of each column, [F][9]; of all rows if these have none."""
    edges: list[Floats] = []
    for column in readings.T:
        there = column[rows & ~np.isnan(column)]
        edges.append(_floats(np.quantile(there if len(there) else column[~np.isnan(column)], DECILES)))
    return tuple(edges)


def _degradation(trajectories: Sequence[Trajectory], z: _Array, regime: IntArray) -> DegradationReference:
    bounds = np.cumsum([len(trajectory) for trajectory in trajectories])[:-1]
    parts = list(zip(trajectories, np.split(z, bounds), np.split(regime, bounds), strict=True))
    failed = [(trajectory, part) for trajectory, part, _ in parts if trajectory.failed]
    lives = np.array([float(trajectory.cycles[-1]) for trajectory, _ in failed])
    noise = _noise([part for _, part, _ in parts])
    rul, means, counts = _unit_means([(cycles_left(trajectory), part) for trajectory, part in failed])
    profile, spread = _over_units(means, counts, noise)
    stays = np.concatenate([_stays(part) for _, _, part in parts])
    return DegradationReference(
        rul=_floats(rul),
        z=tuple(_floats(row) for row in profile.round(4)),
        spread=tuple(_floats(row) for row in spread.round(4)),
        noise=_floats(noise),
        units=_some_units(lives.astype(np.int64), rul, means, profile, spread),
        life_quantiles=_floats(np.quantile(lives, LIFE_QUANTILES)),
        regime_persistence=float(stays.mean()) if len(stays) else 1.0,
    )


def _unit_means(units: Sequence[tuple[IntArray, _Array]]) -> tuple[_Array, _Array, _Array]:
    """Compute a RUL grid [R], and mean and count [U, R, F] of units with RUL [N] and z [N, F].

    Each reading belongs to the nearest RUL of the grid. The mean of no reading is NaN.
    """
    longest = max(int(rul[0]) for rul, _ in units)
    further, steps = RUL_GRID[-1] + 200, list[int](RUL_GRID)
    while further <= longest:
        steps.append(further)
        further += further // 4
    grid = np.array(steps, dtype=np.float64)
    sums = np.zeros((len(units), len(grid), units[0][1].shape[1]))
    counts = np.zeros_like(sums)
    for n, (rul, z) in enumerate(units):
        place = np.searchsorted((grid[1:] + grid[:-1]) / 2, rul)
        there = ~np.isnan(z)
        np.add.at(sums[n], place, np.where(there, z, 0.0))
        np.add.at(counts[n], place, there)
    known = counts > 0
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=known)
    seen = known.any(axis=(0, 2))  # omit a RUL without readings
    return grid[seen], means[:, seen], counts[:, seen]


def _some_units(
    lives: IntArray, rul: _Array, means: _Array, profile: _Array, spread: _Array
) -> tuple[UnitReference, ...]:
    """Choose one unit of each sixth of the lives [U], with means [U, R, F] on the grid [R].

    Mean and standard deviation of the chosen ones are close to profile and spread [R, F] of all units. A RUL
    without readings of the unit has the mean between its neighbours; a column without any has the profile.
    """
    whole = np.broadcast_to(profile, means.shape).copy()
    for n, f in np.argwhere(~np.isnan(means).all(axis=1)):
        known = ~np.isnan(means[n, :, f])
        whole[n, :, f] = np.interp(rul, rul[known], means[n, known, f])
    groups = np.array_split(np.argsort(lives, kind="stable"), min(UNITS, len(lives)))
    chosen = [int(group[len(group) // 2]) for group in groups]
    for k, group in enumerate(groups):
        sets = np.repeat(whole[None, chosen], len(group), axis=0)  # [G, K, R, F]
        sets[:, k] = whole[group]
        off = np.square(sets.mean(axis=1) - profile) + np.square(sets.std(axis=1) - spread)
        chosen[k] = int(group[off.sum(axis=(1, 2)).argmin()])
    rows = [whole[n, rul < lives[n]].round(2) for n in chosen]
    return tuple(
        UnitReference(int(lives[n]), tuple(_floats(row) for row in z))
        for n, z in zip(chosen, rows, strict=True)
    )


def _over_units(means: _Array, counts: _Array, noise: _Array) -> tuple[_Array, _Array]:
    """Compute mean and standard deviation over units, [R, F], of means [U, R, F] of `counts` readings each.

    The noise of such a mean is subtracted.
    """
    known = counts > 0
    units = np.maximum(known.sum(axis=0), 1)
    profile = np.where(known, means, 0.0).sum(axis=0) / units
    variance = (np.where(known, means - profile, 0.0) ** 2).sum(axis=0) / units
    left_of_noise = (known / np.maximum(counts, 1)).sum(axis=0) / units * noise**2
    return profile, np.sqrt(np.maximum(variance - left_of_noise, 0.0))


def _stays(regime: IntArray) -> NDArray[np.bool_]:
    """Compare the regimes of each two successive cycles, where both are known."""
    before, after = regime[:-1], regime[1:]
    return (before == after)[(before != UNKNOWN) & (after != UNKNOWN)]


def _noise(parts: Sequence[_Array]) -> _Array:
    """Estimate the standard deviation of the noise from cycle to cycle, [F].

    Second differences remove any linear trend; their weights 1, -2 and 1 give six times the variance
    of the noise.
    """
    bends = np.concatenate([np.diff(part, n=2, axis=0) for part in parts])
    there = ~np.isnan(bends)
    squares = np.where(there, bends, 0.0) ** 2
    return np.sqrt(squares.sum(axis=0) / np.maximum(there.sum(axis=0), 1) / 6.0)


def _floats(values: FloatArray) -> Floats:
    return tuple(float(value) for value in values)
