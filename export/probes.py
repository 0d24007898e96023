"""Windows to try a model on, made from its reference statistics alone: plausible ones and extreme ones.

This module must not know torch, and holds no data of anybody.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from export.bundle import Manifest
from model.domain import FloatArray, Trajectory, WindowSet, pad_windows
from model.simulation import simulate

SEED: Final = 20
UNITS: Final = 13


def probe_windows(manifest: Manifest) -> WindowSet:
    """64 windows: plausible ones of every length and age, and legal ones that nobody hopes for."""
    context = manifest.context
    plausible = simulated_windows(manifest, count=48, seed=SEED)
    readings, lengths, last_cycle = plausible.readings, plausible.lengths, plausible.last_cycle
    rng = np.random.default_rng(SEED)
    readings[rng.random(readings.shape) < 0.03] = np.nan
    last_cycle[rng.random(len(last_cycle)) < 0.2] = np.nan
    lengths = np.concatenate([lengths, np.full(8, context), [1, 2, context, context], np.full(4, context)])
    extreme = extreme_readings(readings[lengths[:48] == context][-1])
    return WindowSet(
        np.concatenate([readings, extreme]),
        lengths,
        np.concatenate([last_cycle, np.resize([np.nan, 0.0, -5.0, 1e30, 1.0, 200.0], 16)]).astype(np.float32),
        np.zeros(64, np.float32),
        np.array(["probe"] * 64),
    )


def extreme_readings(whole: FloatArray) -> FloatArray:
    """Sixteen windows [16, T, F] made from one: constant, huge, all missing, nearly all missing, broken."""
    extreme = np.stack([whole] * 16)
    extreme[0] = np.nan
    extreme[1] = 0.0
    extreme[2] = 1e30
    extreme[3] = -1e30
    extreme[4] = whole[0]
    extreme[5, :, ::2] = np.nan
    extreme[6, ::2] = np.nan
    extreme[7, :-1] = np.nan
    extreme[8, 1:] = np.nan
    extreme[9, 2:] = np.inf
    extreme[10, ::3] = 1e30
    extreme[11, ::2] *= -1
    extreme[12, :, 0] = np.inf
    extreme[13] *= 1e6
    extreme[14] *= 1e-6
    extreme[15] = whole[::-1]
    return extreme


def simulated_windows(manifest: Manifest, *, count: int, seed: int) -> WindowSet:
    """Windows cut from simulated units, float32 [count, context, F]: some whole lives, some beginnings."""
    units = simulate(manifest, manifest.schema_of_columns, units=UNITS, seed=seed)
    rng = np.random.default_rng(seed)
    cuts = [_cut(units[i % UNITS], i, manifest.context, rng) for i in range(count)]
    windows = [unit.readings[max(0, end - manifest.context) : end] for unit, end in cuts]
    return WindowSet(
        pad_windows(windows, length=manifest.context),
        np.array([len(window) for window in windows], dtype=np.int64),
        np.array([unit.cycles[end - 1] for unit, end in cuts], dtype=np.float32),
        np.array([unit.cycles[-1] - unit.cycles[end - 1] for unit, end in cuts], dtype=np.float32),
        np.array([unit.unit for unit, _ in cuts]),
    )


def _cut(unit: Trajectory, i: int, context: int, rng: np.random.Generator) -> tuple[Trajectory, int]:
    """Where to end window i: in turn at the failure, early, just before failure, and anywhere."""
    ends = (len(unit), int(rng.integers(1, context + 1)), len(unit) - 10, int(rng.integers(1, len(unit) + 1)))
    return unit, min(max(ends[i % 4], 1), len(unit))
