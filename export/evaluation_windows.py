"""Windows to evaluate a bundle on: cut at random cycles, or spread over lives.

This module must not know torch or screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from export.bundle import Manifest
from model.dataset import join_windows, truncated_windows, windows_ending_at
from model.domain import InvalidData, Trajectory, WindowSet
from model.fleet import Fleet, fleet_named
from model.folds import failed_units
from model.prognostics import Life

if TYPE_CHECKING:
    from export.session import Session

TRUNCATIONS: Final = 20
"""Windows per unit."""


def matching_fleet(manifest: Manifest, name_or_path: str) -> Fleet:
    """Find a fleet and check that it has the model's columns."""
    kind = fleet_named(name_or_path)
    if kind.schema.names != manifest.schema_of_columns.names:
        raise InvalidData(
            f"fleet {kind.name!r} has the columns {', '.join(kind.schema.names)}; "
            f"{manifest.name!r} reads {', '.join(manifest.schema_of_columns.names)}"
        )
    return kind


def is_training_data(manifest: Manifest, data: Sequence[Path], kind: Fleet) -> bool:
    """Compare files with the data that trained the bundle."""
    from model.readers import data_files, data_sha256  # noqa: PLC0415 with PyArrow

    return data_sha256(data_files(data, kind)) == manifest.training.data_sha256


def labelled_windows(
    trajectories: Sequence[Trajectory], manifest: Manifest, *, truncations: int = TRUNCATIONS, seed: int = 0
) -> WindowSet:
    """Cut units with a known failure at random cycles."""
    known = failed_units(trajectories)
    if not known:
        raise InvalidData("no unit has a known failure: there is no RUL to compare answers with")
    rng = np.random.default_rng(seed)
    return truncated_windows(known, length=manifest.context, per_unit=truncations, rng=rng)


def spread_windows(trajectories: Sequence[Trajectory], manifest: Manifest, *, per_unit: int) -> WindowSet:
    """Cut at most `per_unit` windows, evenly spread over each unit's life, its end included.

    `rul` is NaN where the unit has not failed.
    """
    parts: list[WindowSet] = []
    for trajectory in trajectories:
        cycles = len(trajectory)
        ends = np.unique(np.linspace(cycles - 1, 0, min(per_unit, cycles)).round().astype(int))
        parts.append(windows_ending_at(trajectory, ends, length=manifest.context))
    return join_windows(parts)


def life_windows(trajectory: Trajectory, manifest: Manifest) -> WindowSet:
    """Cut a window at each cycle of one unit."""
    return spread_windows([trajectory], manifest, per_unit=len(trajectory))


def answer_life(session: Session, manifest: Manifest, trajectory: Trajectory) -> Life:
    """Predict at each cycle of one unit; the truth is NaN where it has not failed."""
    windows = life_windows(trajectory, manifest)
    answers = session.answer_all(windows.readings, windows.lengths, windows.last_cycle)
    lower, upper = answers["rul_interval"].T
    failure = answers["failure_probability"]
    return Life(trajectory.unit, windows.last_cycle, windows.rul, answers["rul"], lower, upper, failure)
