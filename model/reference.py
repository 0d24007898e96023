"""Reference statistics of the training readings, part of the bundle's manifest.

They scale a network's inputs, detect drift, and are the basis of `model.simulation`. This module must not
know networks, the rest of the manifest, or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
)

from model.cells import counted
from model.domain import (
    LARGEST_CYCLE,
    BoolArray,
    FloatArray,
    IntArray,
    InvalidData,
    Role,
    Schema,
    Trajectory,
    cycles_left,
)
from model.regimes import find_regimes

LOW_QUANTILE: Final = 0.001
HIGH_QUANTILE: Final = 0.999
DECILES: Final = tuple(i / 10 for i in range(1, 10))
LIFE_QUANTILES: Final = tuple(i / 10 for i in range(11))
RUL_GRID: Final = (0, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100, 125, 150, 175, 200, 250, 300, 400)
"""Dense near failure, where readings change fast. Longer lives continue in steps of a quarter."""
UNITS: Final = 6
"""Number of units whose own profiles are kept."""

FLOAT32_STEP: Final = float(np.finfo(np.float32).eps)

UNKNOWN: Final = -1
"""Regime of a reading without known settings, if there are several regimes; no regime counts it."""

_Array = NDArray[np.float64]


class Frozen(BaseModel):
    """A part of the manifest: immutable, finite numbers, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected letters that can be printed on one line")
    return text


Line = Annotated[str, AfterValidator(_printable)]
"""Text that logs, tables and labels can show unchanged."""
Cycles = Annotated[float, Field(ge=0, le=LARGEST_CYCLE)]
LARGEST_READING: Final = 1e30
"""In engineering units, for training. Its product with a z-score is finite in float32."""
Statistic = Annotated[float, Field(ge=-LARGEST_READING, le=LARGEST_READING)]
Deviation = Annotated[float, Field(ge=1e-38, le=LARGEST_READING)]
ZScore = Annotated[float, Field(ge=-1e6, le=1e6)]
"""The z-scores of N readings are at most the root of N."""
ZSpread = Annotated[float, Field(ge=0, le=1e6)]


class ColumnReference(Frozen):
    """One column and its training statistics."""

    name: Annotated[Line, Field(min_length=1)]
    role: Role
    unit: Line = ""
    description: Line = ""
    low: Statistic = Field(
        description="0.1 % quantile of the training readings; lower readings cause a warning"
    )
    high: Statistic = Field(
        description="99.9 % quantile of the training readings; higher ones cause a warning"
    )
    missing_fraction: float = Field(ge=0, le=1)


class Regime(Frozen):
    """One operating regime: a cluster of the settings.

    Lists run over all F columns, in schema order. `histogram_edges` are the nine inner deciles
    of the regime's training readings, for drift: each bin holds a tenth of them.
    """

    centre: list[Statistic] = Field(description="of the settings alone, in the order of the schema")
    share: float = Field(gt=0, le=1, description="of the training readings with a known regime")
    mean: list[Statistic]
    standard_deviation: list[Deviation]
    histogram_edges: list[list[Statistic]] = Field(description="[F][9]")

    def constant(self) -> BoolArray:
        """Tell which columns have one value in this regime, [F]; their `standard_deviation` is no spread."""
        edges, deviation = np.array(self.histogram_edges), np.array(self.standard_deviation)
        # Deciles do not see a tenth of the readings at either end; `_moments` tells constant columns apart.
        stored = (deviation >= 1.0) & (deviation <= 1.0 + FLOAT32_STEP * np.abs(self.mean))
        return stored & (edges[:, 0] == edges[:, -1])


class UnitProfile(Frozen):
    """Change of the columns of one training unit before failure."""

    life: PositiveInt = Field(le=LARGEST_CYCLE, description="cycles")
    z: list[list[ZScore]] = Field(
        description="[R'][F], at the first R' of `rul`: those of the life", min_length=1
    )


class Degradation(Frozen):
    """Change of the columns before failure; `rul simulate` makes units from it.

    Z-scores are relative to a regime, so all regimes share one profile.
    """

    rul: list[Cycles] = Field(description="[R], cycles, ascending")
    z: list[list[ZScore]] = Field(description="[R][F], mean z-score at that RUL")
    spread: list[list[ZSpread]] = Field(description="[R][F], standard deviation between units at that RUL")
    noise: list[ZSpread] = Field(description="[F], standard deviation of the z-score from cycle to cycle")
    units: list[UnitProfile] = Field(
        min_length=1, description="profiles of some units, from short lives to long ones"
    )
    life_quantiles: list[Cycles] = Field(
        description="eleven quantiles (0, 0.1, .. 1) of the cycles a unit lived"
    )
    regime_persistence: float = Field(
        ge=0, le=1, description="chance that the next cycle is in the same regime"
    )

    def along(self, profile: list[list[float]], rul: FloatArray | IntArray) -> _Array:
        """Interpolate `z`, `spread` or a unit's `z` at RULs, [...] -> [..., F]; constant beyond the ends."""
        at = self.rul[: len(profile)]
        return np.stack([np.interp(rul, at, column) for column in np.array(profile).T], axis=-1)


@dataclass(frozen=True, slots=True)
class Reference:
    """All reference statistics of a set of training units."""

    columns: list[ColumnReference]  # In schema order
    regimes: list[Regime]  # In order of their centres
    degradation: Degradation  # One profile, shared by all regimes
    setting_scale: list[float]  # [S], see `Regimes.scale`


def fit_reference(trajectories: Sequence[Trajectory], schema: Schema) -> Reference:
    """Compute the reference statistics of training units; `rul train` passes only failed units.

    Profiles and lives come from failed units, all else from all units.

    Raises:
        InvalidData: no unit has failed, or a column has no reading.
    """
    if not any(trajectory.failed for trajectory in trajectories):
        raise InvalidData(
            f"none of {counted(len(trajectories), 'unit')} ran to failure: training needs a RUL label"
        )
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
        columns=[
            ColumnReference(**asdict(column), low=low[f], high=high[f], missing_fraction=missing[f])
            for f, column in enumerate(schema.columns)
        ],
        regimes=[
            Regime(
                centre=regimes.centre[r].tolist(),
                share=(regime == r).sum() / known.sum(),
                mean=mean[r].tolist(),
                standard_deviation=deviation[r].tolist(),
                histogram_edges=_deciles(readings, regime == r),
            )
            for r in range(len(regimes))
        ],
        degradation=_degradation(trajectories, z, regime),
        setting_scale=regimes.scale.tolist(),
    )


def _moments(readings: _Array, regime: IntArray, *, count: int) -> tuple[_Array, _Array]:
    """Compute mean and standard deviation per regime and column, both [R, F].

    A column without readings in a regime has the statistics of all regimes. A constant column has
    standard deviation 1, so z-scores stay finite; if its readings differ by less than a step of float32, it
    has the larger of 1 and that step.
    """
    mean = np.tile(np.nanmean(readings, axis=0), (count, 1))
    deviation = np.tile(np.nanstd(readings, axis=0), (count, 1))
    for r in range(count):
        rows = readings[regime == r]
        seen = ~np.isnan(rows).all(axis=0)
        mean[r, seen] = np.nanmean(rows[:, seen], axis=0)
        deviation[r, seen] = np.nanstd(rows[:, seen], axis=0)
    # Readings are float32: a deviation below one of its steps is rounding.
    step = FLOAT32_STEP * np.abs(mean)
    return mean, np.where(deviation > step, deviation, np.maximum(step * (deviation > 0), 1.0))


def _deciles(readings: _Array, rows: NDArray[np.bool_]) -> list[list[float]]:
    """Compute the nine inner deciles of each column, [F][9]; of all rows if the chosen ones are empty."""
    edges: list[list[float]] = []
    for column in readings.T:
        there = column[rows & ~np.isnan(column)]
        edges.append(np.quantile(there if len(there) else column[~np.isnan(column)], DECILES).tolist())
    return edges


def _degradation(trajectories: Sequence[Trajectory], z: _Array, regime: IntArray) -> Degradation:
    bounds = np.cumsum([len(trajectory) for trajectory in trajectories])[:-1]
    parts = list(zip(trajectories, np.split(z, bounds), np.split(regime, bounds), strict=True))
    failed = [(trajectory, part) for trajectory, part, _ in parts if trajectory.failed]
    lives = np.array([float(trajectory.cycles[-1]) for trajectory, _ in failed])
    noise = _noise([part for _, part, _ in parts])
    rul, means, counts = _unit_means([(cycles_left(trajectory), part) for trajectory, part in failed])
    profile, spread = _over_units(means, counts, noise)
    stays = np.concatenate([_stays(part) for _, _, part in parts])
    return Degradation(
        rul=rul.tolist(),
        z=profile.round(4).tolist(),
        spread=spread.round(4).tolist(),
        noise=noise.tolist(),
        units=_some_units(lives.astype(np.int64), rul, means, profile, spread),
        life_quantiles=_quantiles(lives, np.array([each.weight for each, _ in failed])).tolist(),
        regime_persistence=float(stays.mean()) if len(stays) else 1.0,
    )


def _quantiles(lives: _Array, weights: _Array) -> _Array:
    """Compute the `LIFE_QUANTILES` of lives [U] with weights [U], interpolated between lives."""
    order = np.argsort(lives, kind="stable")
    weight = weights[order]
    place = np.cumsum(weight) - (weight + weight[0]) / 2
    return np.interp(LIFE_QUANTILES, place / max(place[-1], 1.0), lives[order])


def _unit_means(units: Sequence[tuple[IntArray, _Array]]) -> tuple[_Array, _Array, _Array]:
    """Compute a RUL grid [R], and mean and count [U, R, F] of units with RUL [N] and z [N, F].

    Each reading belongs to the nearest RUL of the grid. A mean over no readings is NaN.
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
) -> list[UnitProfile]:
    """Choose one unit of each sixth of the lives [U], with means [U, R, F] on the grid [R].

    Mean and standard deviation of the chosen units are close to profile and spread [R, F] of all units. A RUL
    without readings is interpolated between its neighbours; a column without readings has the profile.
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
    rows = [max(1, int((rul < lives[n]).sum())) for n in chosen]
    return [
        UnitProfile(life=max(1, lives[n]), z=whole[n, :count].round(2).tolist())
        for n, count in zip(chosen, rows, strict=True)
    ]


def _over_units(means: _Array, counts: _Array, noise: _Array) -> tuple[_Array, _Array]:
    """Compute mean and standard deviation over units, [R, F], of means [U, R, F] of `counts` readings each.

    The standard deviation excludes the noise of the means.
    """
    known = counts > 0
    units = np.maximum(known.sum(axis=0), 1)
    profile = np.where(known, means, 0.0).sum(axis=0) / units
    variance = (np.where(known, means - profile, 0.0) ** 2).sum(axis=0) / units
    left_of_noise = (known / np.maximum(counts, 1)).sum(axis=0) / units * noise**2
    return profile, np.sqrt(np.maximum(variance - left_of_noise, 0.0))


def _stays(regime: IntArray) -> NDArray[np.bool_]:
    """Return whether each pair of successive cycles has one regime; pairs with an unknown one are omitted."""
    before, after = regime[:-1], regime[1:]
    return (before == after)[(before != UNKNOWN) & (after != UNKNOWN)]


def _noise(parts: Sequence[_Array]) -> _Array:
    """Estimate the standard deviation of the noise from cycle to cycle, [F]."""
    bends = second_differences(parts)
    there = ~np.isnan(bends)
    squares = np.where(there, bends, 0.0) ** 2
    return np.sqrt(squares.sum(axis=0) / np.maximum(there.sum(axis=0), 1) / 6.0)


def second_differences(lives: Sequence[FloatArray]) -> FloatArray:
    """Return the second differences of lives [N, F], which have no linear trend, [n, F]; NaN if unknown.

    Their weights 1, -2 and 1 give six times the variance of the noise. They are of three cycles in a row
    or, in a column that never has three readings in a row, of its next readings.
    """
    bends = np.concatenate([np.diff(life, n=2, axis=0) for life in lives])
    for f in np.flatnonzero(np.isnan(bends).all(axis=0)):
        apart = np.concatenate([np.diff(life[~np.isnan(life[:, f]), f], n=2) for life in lives])
        bends[: len(apart), f] = apart
    return bends
