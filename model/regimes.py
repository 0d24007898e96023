"""Operating regimes: clusters of settings; readings of healthy units differ between them.

Each split of the settings is the one that explains the sensors best; both sides have readings of several
units. Splitting ends if the best split explains too little. Noisy settings (C-MAPSS FD001) give one regime,
six flight conditions (FD002) six.
The result is deterministic. This module must not know scaling, networks or files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.domain import FloatArray, IntArray, Schema, Trajectory, mean_of_known

MOST_REGIMES: Final = 12
TIE: Final = 1e-3
"""Preference for earlier centres in squared scaled distances, so that rounding does not decide ties."""
LEAST_GAIN: Final = 0.1
"""Minimum share of the remaining variance that a split explains, mean over sensors."""
LEAST_SHARE: Final = 0.01
"""Minimum share of the readings in a regime."""
LEAST_UNITS: Final = 5
"""Minimum number of units on each side of a split, or half of a small fleet: means of fewer are their own."""
MOST_MOVES: Final = 50
"""Maximum iterations of the centres; well separated settings need two or three."""
MOST_READINGS: Final = 60_000
"""Maximum number of readings, for speed; drawn at random, because every n-th could miss a duty cycle."""

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Regimes:
    """Centres of the settings."""

    centre: FloatArray  # float64 [R, S], in engineering units, in the schema's order of settings
    # float64 [S], divisor of the differences of a setting: its standard deviation over all readings, or 1
    # if that is 0.
    scale: FloatArray

    def of(self, settings: FloatArray) -> IntArray:
        """Find the nearest centre over the known settings, [n, S] -> int64 [n].

        If the known settings do not decide, the first of the nearest centres.
        """
        square = np.tile(TIE * np.arange(len(self.centre)), (len(settings), 1))
        for s, scale in enumerate(self.scale):
            difference = (settings[:, s, None].astype(np.float64) - self.centre[:, s]) / scale
            square += np.where(np.isnan(difference), 0.0, difference**2)
        return square.argmin(axis=1).astype(np.int64)

    def of_readings(self, readings: FloatArray, settings: Sequence[int]) -> IntArray:
        """Find the regime of each cycle, [..., F] -> int64 [...]; `settings` are indices of columns."""
        where = readings[..., list(settings)].reshape(math.prod(readings.shape[:-1]), len(settings))
        return self.of(where).reshape(readings.shape[:-1])

    def __len__(self) -> int:
        return len(self.centre)


def find_regimes(trajectories: Sequence[Trajectory], schema: Schema) -> Regimes:
    """Find the regimes of these units, in the order of their centres.

    A fleet without settings, or with settings that explain nothing of its sensors, has one regime.
    """
    where, sensors_at = schema.indices("setting"), schema.indices("sensor")
    everything = np.concatenate([trajectory.readings for trajectory in trajectories]).astype(np.float64)
    drawn = np.sort(np.random.default_rng(0).permutation(len(everything))[:MOST_READINGS])
    thinned = everything[drawn]
    unit = np.repeat(np.arange(len(trajectories)), [len(trajectory) for trajectory in trajectories])[drawn]
    settings = thinned[:, where]
    complete = ~np.isnan(settings).any(axis=1)
    if not where or not sensors_at or not complete.any():
        return Regimes(mean_of_known(everything[:, where])[None], np.ones(len(where)))
    settings, sensors = settings[complete], _unit_variance(thinned[complete][:, sensors_at])
    cells = _grow(settings, sensors, unit[complete])
    centre = np.unique(np.stack([settings[cell].mean(axis=0) for cell in cells]), axis=0)
    deviation = settings.std(axis=0)
    scale = np.where(deviation > 1e-6 * np.abs(settings).max(axis=0), deviation, 1.0)
    return _settled(Regimes(centre, scale), settings)


def cycles_without_settings(trajectories: Sequence[Trajectory], schema: Schema) -> dict[str, int]:
    """Count the cycles with sensor readings that lack each setting; empty if there is one regime.

    Their regime is the nearest by the other settings or, without any, the first.
    """
    missing = np.isnan(np.concatenate([trajectory.readings for trajectory in trajectories]))
    read = ~missing[:, schema.indices("sensor")].all(axis=1)
    counts = {schema.names[s]: int((read & missing[:, s]).sum()) for s in schema.indices("setting")}
    return counts if any(counts.values()) and len(find_regimes(trajectories, schema)) > 1 else {}


class _Split(NamedTuple):
    gain: float
    cell: int
    setting: int
    threshold: float


def _grow(settings: _Array, sensors: _Array, unit: IntArray) -> list[IntArray]:
    """Split cells of rows repeatedly, by the setting and threshold that explain most."""
    cells: list[IntArray] = [np.arange(len(settings))]
    least = (
        max(1, int(np.ceil(LEAST_SHARE * len(settings)))),
        min(LEAST_UNITS, (len(np.unique(unit)) + 1) // 2),
    )
    while len(cells) < MOST_REGIMES:
        left_over = np.sum([_squares(sensors[cell]) for cell in cells], axis=0)
        best = max(
            _best_split(settings[cell, s], sensors[cell], unit[cell], left_over, cell=i, which=s, least=least)
            for i, cell in enumerate(cells)
            for s in range(settings.shape[1])
        )
        if best.gain < LEAST_GAIN:
            break
        cell = cells.pop(best.cell)
        below = settings[cell, best.setting] <= best.threshold
        cells += [cell[below], cell[~below]]
    return cells


def _best_split(
    setting: _Array,
    sensors: _Array,
    unit: IntArray,
    left_over: _Array,
    *,
    cell: int,
    which: int,
    least: tuple[int, int],
) -> _Split:
    """Find the best threshold of one setting in one cell; gain is a mean over sensors.

    Each side has `least` readings and units or more.

    Computed for all cuts at once: if the sensors of the cell are centred and the first n of N rows sum
    to s, the cut after row n explains s^2 N / (n (N - n)) of the squares.
    """
    order = np.argsort(setting, kind="stable")
    values = setting[order]
    sums = (sensors[order] - sensors.mean(axis=0)).cumsum(axis=0)[:-1]  # [N - 1, G]
    n, rows = np.arange(1, len(values)), len(values)
    explained = sums**2 * (rows / (n * (rows - n)))[:, None] / np.where(left_over > 0, left_over, np.inf)
    below, above = _units(unit[order])[:-1], _units(unit[order[::-1]])[-2::-1]
    legal = (values[1:] > values[:-1]) & (np.minimum(n, rows - n) >= least[0])
    legal &= np.minimum(below, above) >= least[1]
    if not legal.any():
        return _Split(0.0, cell, which, 0.0)
    gain = np.where(legal, explained.mean(axis=1), 0.0)
    at = int(gain.argmax())
    return _Split(float(gain[at]), cell, which, float(values[at] + values[at + 1]) / 2)


def _units(unit: IntArray) -> IntArray:
    """Count the units up to each row, [n] -> [n]."""
    new = np.zeros(len(unit), dtype=np.int64)
    new[np.unique(unit, return_index=True)[1]] = 1
    return new.cumsum()


def _squares(sensors: _Array) -> _Array:
    """Sum the squares about the mean, [n, G] -> [G]."""
    return ((sensors - sensors.mean(axis=0)) ** 2).sum(axis=0)


def _settled(regimes: Regimes, settings: _Array) -> Regimes:
    """Move each centre to the mean of its nearest readings, and delete tiny regimes.

    The move corrects readings that a cut left on the wrong side of a gap.
    """
    for _ in range(MOST_MOVES):
        nearest = regimes.of(settings)
        share = np.bincount(nearest, minlength=len(regimes)) / len(settings)
        if len(regimes) > 1 and share.min() < LEAST_SHARE:
            regimes = replace(regimes, centre=np.delete(regimes.centre, share.argmin(), axis=0))
            continue
        centre = np.stack([settings[nearest == r].mean(axis=0) for r in range(len(regimes))])
        if np.array_equal(centre, regimes.centre):
            break
        regimes = replace(regimes, centre=centre[np.lexsort(centre.T[::-1])])
    return regimes


def _unit_variance(sensors: _Array) -> _Array:
    """Scale sensors to mean 0 and variance 1; missing values and constant sensors become 0."""
    mean = mean_of_known(sensors)
    centred = np.where(np.isnan(sensors), 0.0, sensors - mean)
    deviation = np.sqrt((centred**2).mean(axis=0))
    moves = deviation > 1e-6 * np.abs(mean)
    return np.where(moves, centred / np.where(moves, deviation, 1.0), 0.0)
