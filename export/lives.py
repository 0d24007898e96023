"""Whole lives as a bundle answers them: windows that end all over a unit's life, failed or not.

This module must not know torch or screens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from export.bundle import Manifest
from export.session import Session
from model.domain import FloatArray, Trajectory, WindowSet, pad_windows
from model.prognostics import Life


def spread_windows(trajectories: Sequence[Trajectory], manifest: Manifest, *, per_unit: int) -> WindowSet:
    """At most `per_unit` windows of each unit that end evenly spread over its life, its end among them.

    Units need not have failed: `rul` is NaN where it is not known.
    """
    context = manifest.context
    readings: list[FloatArray] = []
    last_cycle: list[float] = []
    rul: list[float] = []
    unit: list[str] = []
    for trajectory in trajectories:
        for end in _ends(len(trajectory), per_unit):
            readings.append(trajectory.readings[max(0, end + 1 - context) : end + 1])
            last_cycle.append(float(trajectory.cycles[end]))
            left = float(trajectory.cycles[-1] - trajectory.cycles[end])
            rul.append(left if trajectory.failed else float("nan"))
            unit.append(trajectory.unit)
    return WindowSet(
        pad_windows(readings, length=context),
        np.array([len(window) for window in readings], dtype=np.int64),
        np.array(last_cycle, dtype=np.float32),
        np.array(rul, dtype=np.float32),
        np.array(unit),
    )


def life_windows(trajectory: Trajectory, manifest: Manifest) -> WindowSet:
    """A window that ends at each cycle of one unit, from the first that is answered."""
    return spread_windows([trajectory], manifest, per_unit=len(trajectory))


def answer_life(session: Session, manifest: Manifest, trajectory: Trajectory) -> Life:
    """One unit answered at each cycle of its life; its truth is NaN where it has not failed."""
    windows = life_windows(trajectory, manifest)
    answers = session.answer_all(windows.readings, windows.lengths, windows.last_cycle)
    return Life(
        unit=trajectory.unit,
        cycle=windows.last_cycle,
        truth=windows.rul,
        rul=answers["rul"],
        lower=answers["rul_interval"][:, 0],
        upper=answers["rul_interval"][:, 1],
        failure_probability=answers["failure_probability"],
    )


def _ends(cycles: int, count: int) -> list[int]:
    """At most `count` reading indices, from the first to the last."""
    return np.unique(np.linspace(cycles - 1, 0, min(count, cycles)).round().astype(int)).tolist()
