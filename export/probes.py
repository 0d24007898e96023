"""Probe windows made from a model's reference statistics: plausible and extreme ones.

This module must not know torch, and holds no data.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from export.bundle import Manifest
from model.dataset import join_windows, windows_ending_at
from model.domain import FloatArray, WindowSet
from model.simulation import simulate

SEED: Final = 20
UNITS: Final = 13


def probe_windows(manifest: Manifest) -> WindowSet:
    """Make 64 valid windows: 48 plausible ones of every length and age, 16 extreme ones."""
    context = manifest.context
    plausible = simulated_windows(manifest, count=48, seed=SEED)
    readings, lengths, last_cycle = plausible.readings, plausible.lengths, plausible.last_cycle
    rng = np.random.default_rng(SEED)
    readings[rng.random(readings.shape) < 0.03] = np.nan
    last_cycle[rng.random(len(last_cycle)) < 0.2] = np.nan
    lengths = np.concatenate([lengths, np.full(8, context), [1, 2, context, context], np.full(4, context)])
    longest = lengths[:48].argsort(kind="stable")[-1]  # full, unless all lives are shorter
    extreme = extreme_readings(readings[longest])
    return WindowSet(
        np.concatenate([readings, extreme]),
        lengths,
        np.concatenate([last_cycle, np.resize([np.nan, 0.0, -5.0, 1e30, 1.0, 200.0], 16)]).astype(np.float32),
        np.zeros(64, np.float32),
        unit := np.array(["probe"] * 64),
        unit,
        np.ones(64, np.float32),
    )


def extreme_readings(whole: FloatArray) -> FloatArray:
    """Make 16 extreme windows [16, T, F] from one: constant, huge, missing, broken."""
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
    with np.errstate(over="ignore"):
        extreme[13] *= 1e6
    extreme[14] *= 1e-6
    extreme[15] = whole[::-1]
    return extreme


def simulated_windows(manifest: Manifest, *, count: int, seed: int) -> WindowSet:
    """Cut windows from simulated units, float32 [count, context, F].

    They end in turn at the failure, early, just before the failure, and anywhere.
    """
    units = simulate(manifest, manifest.schema_of_columns, units=UNITS, seed=seed)
    rng = np.random.default_rng(seed)
    parts: list[WindowSet] = []
    for i in range(count):
        unit = units[i % UNITS]
        n, early, anywhere = len(unit), rng.integers(1, manifest.context + 1), rng.integers(1, len(unit) + 1)
        end = min(max((n, int(early), n - 10, int(anywhere))[i % 4], 1), n)
        parts.append(windows_ending_at(unit, np.array([end - 1]), length=manifest.context))
    return join_windows(parts)
