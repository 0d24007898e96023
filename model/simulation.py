"""Plausible units, made from a model's reference statistics alone: for demos, load and tests.

A simulated unit lives about as long as the training units did, moves between operating regimes
as they did, drifts from healthy to failed along their mean profile, and carries its own offset
and their noise. It has one way to fail, the average one. So it exercises a model; it is no
ground to judge one on. This module must not know bundles or networks.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from model.domain import FloatArray, IntArray, InvalidData, Schema, Trajectory

MARGIN: Final = 0.1
"""Settings, and sensors without their noise, stay within the training range and this share of it beyond."""
SPEEDS: Final = 0.2
"""Units age faster or slower than the profile: standard deviation of log speed."""

_Array = NDArray[np.float64]
_Floats = Sequence[float]


class ColumnStatistics(Protocol):
    """What simulation reads of a column."""

    @property
    def low(self) -> float: ...  # noqa: D102
    @property
    def high(self) -> float: ...  # noqa: D102


class RegimeStatistics(Protocol):
    """What simulation reads of a regime."""

    @property
    def share(self) -> float: ...  # noqa: D102
    @property
    def mean(self) -> _Floats: ...  # noqa: D102
    @property
    def standard_deviation(self) -> _Floats: ...  # noqa: D102


class DegradationStatistics(Protocol):
    """What simulation reads of how units age."""

    @property
    def rul(self) -> _Floats: ...  # noqa: D102
    @property
    def z(self) -> Sequence[_Floats]: ...  # noqa: D102
    @property
    def spread(self) -> Sequence[_Floats]: ...  # noqa: D102
    @property
    def noise(self) -> _Floats: ...  # noqa: D102
    @property
    def life_quantiles(self) -> _Floats: ...  # noqa: D102
    @property
    def regime_persistence(self) -> float: ...  # noqa: D102


class ReferenceStatistics(Protocol):
    """What simulation reads of a `Reference` or of a bundle's manifest."""

    @property
    def columns(self) -> Sequence[ColumnStatistics]: ...  # noqa: D102
    @property
    def regimes(self) -> Sequence[RegimeStatistics]: ...  # noqa: D102
    @property
    def degradation(self) -> DegradationStatistics: ...  # noqa: D102


def simulate(
    reference: ReferenceStatistics, schema: Schema, *, units: int, seed: int, truncate: bool = False
) -> list[Trajectory]:
    """Make units `1`, `2`, .. that run to failure, or with `truncate` stop at a random cycle before.

    Unit n depends on the seed and n alone, so asking for more units changes none of the first.

    Raises:
        InvalidData: fewer than one unit is asked for, or the statistics are not of this schema.
    """
    if units < 1:
        raise InvalidData(f"units must be 1 or more, got {units}")
    if len(reference.columns) != len(schema):
        raise InvalidData(f"statistics of {len(reference.columns)} columns, schema of {len(schema)}")
    made: list[Trajectory] = []
    for n in range(1, units + 1):
        rng = np.random.default_rng([seed, n])
        unit = _unit(reference, name=str(n), schema=schema, rng=rng)
        made.append(_stopped_early(unit, rng) if truncate else unit)
    return made


def _unit(
    reference: ReferenceStatistics, *, name: str, schema: Schema, rng: np.random.Generator
) -> Trajectory:
    aging = reference.degradation
    quantiles = np.asarray(aging.life_quantiles)
    life = max(1, round(float(np.interp(rng.random(), np.linspace(0, 1, len(quantiles)), quantiles))))
    rul = np.arange(life - 1, -1, -1, dtype=np.float64)
    # All columns age together, at this unit's own speed, and meet the same end.
    at = rul * np.exp(rng.normal(0.0, SPEEDS))
    own = rng.normal(size=len(schema)) * _own_offset(schema)
    z = _along(aging.z, aging.rul, at) + own * _along(aging.spread, aging.rul, at)  # [N, F]
    noise = rng.normal(size=z.shape) * np.asarray(aging.noise)
    settings = list(schema.indices("setting"))
    z[:, settings] += noise[:, settings]
    regime = _regimes(reference, life, rng)
    mean = np.array([each.mean for each in reference.regimes])[regime]
    deviation = np.array([each.standard_deviation for each in reference.regimes])[regime]
    # A sensor's noise on top: standing at the end of its range it would look frozen. A setting is steered.
    noise[:, settings] = 0.0
    readings = _in_range(mean + deviation * z, reference.columns) + deviation * noise
    return Trajectory(name, np.arange(1, life + 1), readings.astype(np.float32), failed=True)


def _along(profile: Sequence[_Floats], rul: _Floats, at: _Array) -> _Array:
    """A profile [R][F] over `rul` at other RULs, [N] -> [N, F]; constant beyond its last."""
    return np.stack([np.interp(at, rul, column) for column in np.asarray(profile).T], axis=1)


def _own_offset(schema: Schema) -> _Array:
    """1 for a sensor, 0 for a setting: settings are set, and set alike for every unit."""
    return np.array([float(column.role == "sensor") for column in schema.columns])


def _regimes(reference: ReferenceStatistics, life: int, rng: np.random.Generator) -> IntArray:
    """A regime for each cycle, [N]: it stays, or changes to another one by their shares."""
    share = np.array([regime.share for regime in reference.regimes])
    if len(share) == 1:
        return np.zeros(life, dtype=np.int64)
    others = np.where(np.eye(len(share), dtype=np.bool_), 0.0, share)
    stays = reference.degradation.regime_persistence
    chance = stays * np.eye(len(share)) + (1.0 - stays) * others / others.sum(axis=1, keepdims=True)
    bounds: list[list[float]] = chance.cumsum(axis=1)[:, :-1].tolist()
    walk = [int(rng.choice(len(share), p=share / share.sum()))]
    for draw in rng.random(life - 1).tolist():
        walk.append(bisect.bisect(bounds[walk[-1]], draw))
    return np.array(walk)


def _in_range(readings: _Array, columns: Sequence[ColumnStatistics]) -> FloatArray:
    low = np.array([column.low for column in columns])
    high = np.array([column.high for column in columns])
    slack = MARGIN * (high - low)
    return np.clip(readings, low - slack, high + slack)


def _stopped_early(trajectory: Trajectory, rng: np.random.Generator) -> Trajectory:
    """The unit up to a random cycle before its failure; a unit of one cycle stays whole."""
    cycles = int(rng.integers(1, max(2, len(trajectory))))
    return Trajectory(trajectory.unit, trajectory.cycles[:cycles], trajectory.readings[:cycles], failed=False)
