"""Simulation of units from a model's reference statistics, for demos, load and tests.

A simulated unit ages as one of a few training units did, over a different life, with different noise and
operating regimes. Simulated units cannot evaluate a model, because they come from too few real ones. This
module must not know bundles or networks.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from model.domain import FloatArray, IntArray, InvalidData, Schema, Trajectory
from model.reference import ColumnReference, Degradation, Regime

MARGIN: Final = 0.1
"""Sensors without their noise exceed the training range by at most this share of it; settings never do."""
MOST_CYCLES: Final = 100_000
"""Maximum cycles of a simulated unit: of a longer life, the last ones."""
PLACES: Final = [NormalDist().inv_cdf(p) for p in (0.01, *(n / 10 for n in range(1, 10)), 0.99)]
"""Z-scores of a normal distribution at the nine deciles, and of its ends."""

_Array = NDArray[np.float64]


class ReferenceStatistics(Protocol):
    """Statistics in a `Reference` or a bundle's manifest."""

    @property
    def columns(self) -> Sequence[ColumnReference]: ...  # noqa: D102
    @property
    def regimes(self) -> Sequence[Regime]: ...  # noqa: D102
    @property
    def degradation(self) -> Degradation: ...  # noqa: D102


def simulate(
    reference: ReferenceStatistics, schema: Schema, *, units: int, seed: int, truncate: bool = False
) -> list[Trajectory]:
    """Simulate units `1`, `2`, .. that run to failure.

    `truncate` stops them at a random cycle before. Unit n depends only on the seed and n, so more
    units do not change the first ones.
    """
    if units < 1:
        raise InvalidData(f"units must be 1 or more, got {units}")
    if len(reference.columns) != len(schema):
        raise InvalidData(f"statistics of {len(reference.columns)} columns, schema of {len(schema)}")
    made: list[Trajectory] = []
    for n in range(1, units + 1):
        rng = np.random.default_rng([seed, n])
        unit = _unit(reference, name=str(n), schema=schema, rng=rng)
        if truncate:
            cycles = int(rng.integers(1, max(2, len(unit))))
            unit = Trajectory(unit.unit, unit.cycles[:cycles], unit.readings[:cycles], failed=False)
        made.append(unit)
    return made


def json_columns(trajectory: Trajectory, schema: Schema) -> dict[str, list[float | None]]:
    """List the readings of each column as JSON has them; missing readings are None."""
    return {
        # The shortest text that reads back as the same float32.
        name: [None if x != x else float(str(x)) for x in trajectory.readings[:, i]]  # noqa: PLR0124
        for i, name in enumerate(schema.names)
    }


def _unit(
    reference: ReferenceStatistics, *, name: str, schema: Schema, rng: np.random.Generator
) -> Trajectory:
    aging = reference.degradation
    quantiles, quantile = np.asarray(aging.life_quantiles), rng.random()
    life = max(1, round(float(np.interp(quantile, np.linspace(0, 1, len(quantiles)), quantiles))))
    made = min(life, MOST_CYCLES)
    rul = np.arange(made - 1, -1, -1, dtype=np.float64)
    like = aging.units[int(quantile * len(aging.units))]  # they are in order of their lives
    z = aging.along(like.z, rul * like.life / life)  # [N, F]
    noise = rng.normal(size=z.shape) * np.asarray(aging.noise)
    settings = list(schema.indices("setting"))
    z[:, settings] += noise[:, settings]
    regime = _regimes(reference, made, rng)
    mean = np.array([each.mean for each in reference.regimes])[regime]
    deviation = np.array([each.standard_deviation for each in reference.regimes])[regime]
    readings = mean + deviation * z
    readings[:, settings] = _settings(reference, z[:, settings], regime, settings)
    # Noise of sensors is not clipped, or sensors at the end of their range would look frozen.
    noise[:, settings] = 0.0
    readings = _in_range(readings, reference.columns, settings) + deviation * noise
    return Trajectory(name, life - rul.astype(np.int64), readings.astype(np.float32), failed=True)


def _regimes(reference: ReferenceStatistics, life: int, rng: np.random.Generator) -> IntArray:
    """Draw a regime for each cycle, [N]: the same as before, or another one by share."""
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


def _settings(
    reference: ReferenceStatistics, z: _Array, regime: IntArray, settings: Sequence[int]
) -> FloatArray:
    """Place z-scores [N, S] in the deciles of their regime: half of the Mach numbers there are one value."""
    placed = np.empty_like(z)
    for r, known in enumerate(reference.regimes):
        rows = regime == r
        for s, column in enumerate(settings):
            deciles = known.histogram_edges[column]
            low, high = 2 * deciles[0] - deciles[1], 2 * deciles[-1] - deciles[-2]
            placed[rows, s] = np.interp(z[rows, s], PLACES, [low, *deciles, high])
    return placed


def _in_range(readings: _Array, columns: Sequence[ColumnReference], settings: list[int]) -> FloatArray:
    low = np.array([column.low for column in columns])
    high = np.array([column.high for column in columns])
    slack = MARGIN * (high - low)
    slack[settings] = 0.0  # a Mach number at sea level is near 0 and not below
    return np.clip(readings, low - slack, high + slack)
