"""Augmentation of training windows: noise, offsets, missing columns, readings and cycles, short histories.

Noise and offsets of a column follow from the data: its noise from cycle to cycle, and the part of its
level that a unit keeps for life. This module must not know networks, losses or files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from model.calibration import last_cycles
from model.domain import FloatArray, Trajectory, mean_of_known
from model.gaps import MOST_LOST, gaps
from model.layers import Standardise
from model.reference import second_differences

if TYPE_CHECKING:
    from model.training import TrainConfig

NOISY: Final = 0.4
"""Columns with at least this noise, in z-scores, get `TrainConfig.noise`; quieter ones get less."""
IN_ONE_GAP: Final = 0.5
"""Share of the windows with lost cycles that lose them in one gap."""
ENDS: Final = 10
"""Cycles at the start and end of a life, from whose means lasting differences of units are estimated."""
NORMAL: Final = math.sqrt(math.pi / 2)
"""Ratio of standard deviation to mean absolute deviation of a normal distribution."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnScales:
    """Two scales of each column, in z-scores within the regime."""

    noise: FloatArray  # float32 [F], noise from cycle to cycle
    kept: FloatArray  # float32 [F], standard deviation between units of the level that each keeps for life


def measure_columns(trajectories: Sequence[Trajectory], standardise: Standardise) -> ColumnScales:
    """Measure the scales over units that ran to failure.

    Single jumps hardly count as noise. A unit keeps the level that its first and its last cycles share; it
    does not keep a level that wear or a failure bound sets.
    """
    lives = [_scaled(trajectory, standardise) for trajectory in trajectories]
    noise = mean_of_known(np.abs(second_differences(lives))) * NORMAL / math.sqrt(6.0)
    long = [z for z in lives if len(z) >= 2 * ENDS]
    if len(long) < 2:
        return ColumnScales(noise, np.zeros_like(noise))
    first, last = (
        np.stack([mean_of_known(z[part]) for z in long]) for part in (slice(ENDS), slice(-ENDS, None))
    )
    shared = ((first - first.mean(0)) * (last - last.mean(0))).mean(0)
    return ColumnScales(noise, np.sqrt(np.maximum(shared, 0.0)))


def _scaled(trajectory: Trajectory, standardise: Standardise) -> FloatArray:
    """Return the z-scores of a life, [N, F], NaN where missing."""
    readings = torch.from_numpy(trajectory.readings.astype(np.float32, copy=False))[None]
    with torch.no_grad():
        scaled = standardise(readings, torch.tensor([len(trajectory)]))
    return torch.where(scaled.observed, scaled.z, torch.nan)[0].numpy()


class Augmentation:
    """Changes windows at random, by the generator of the run."""

    def __init__(self, config: TrainConfig, scales: ColumnScales, generator: torch.Generator) -> None:
        self._config = config
        self._noise = config.noise * torch.from_numpy(np.minimum(scales.noise / NOISY, 1.0))
        self._offset = config.offset * torch.from_numpy(scales.kept)
        self._generator = generator

    def __call__(
        self, readings: Tensor, lengths: Tensor, last_cycle: Tensor, standardise: Standardise
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Augment [B, T, F], [B] and [B]."""
        config = self._config
        windows, _, columns = readings.shape
        wanted = (self._chance(windows) * lengths).long() + 1
        hit = self._chance(windows) < config.history_missing
        readings, lengths = last_cycles(readings, lengths, torch.where(hit, wanted, lengths))
        _, deviation = standardise.statistics(readings, ~torch.isnan(readings))
        noise = self._noise * self._normal(*readings.shape) + self._offset * self._normal(windows, 1, columns)
        readings = readings + noise * deviation
        last_cycle = (last_cycle * (config.age_jitter * self._normal(windows)).exp()).maximum(lengths)
        lost = (self._chance(windows, 1) < config.columns_missing) & (self._chance(windows, columns) < 0.15)
        share = 0.3 * self._chance(windows, 1, 1) * (self._chance(windows, 1, 1) < config.readings_missing)
        lost = lost.unsqueeze(1) | (self._chance(*readings.shape) < share)
        if config.cycles_missing:
            lost |= self._lost_cycles(lengths, readings.shape[1]).unsqueeze(-1)
        hidden = self._chance(windows) < config.age_missing
        return readings.masked_fill(lost, torch.nan), lengths, last_cycle.masked_fill(hidden, torch.nan)

    def _lost_cycles(self, lengths: Tensor, cycles: int) -> Tensor:
        """Draw the cycles that some windows lose, bool [B, T]: single ones, or one gap."""
        windows = len(lengths)
        here_and_there = self._chance(windows, cycles) < MOST_LOST * self._chance(windows, 1)
        in_one_gap = gaps(lengths, cycles, self._generator)
        lost = torch.where(self._chance(windows, 1) < IN_ONE_GAP, in_one_gap, here_and_there)
        return lost & (self._chance(windows, 1) < self._config.cycles_missing)

    def _chance(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self._generator)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)
