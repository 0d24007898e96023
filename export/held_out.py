"""What a bundle may be judged on: its fleet, windows of its units, whether it trained on them.

For commands that hold a bundle against data. This module must not know torch or screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from export.bundle import Manifest
from model.dataset import truncated_windows, with_units
from model.domain import InvalidData, Trajectory, WindowSet
from model.fleet import Fleet, fleet_named
from model.parts import failed

TRUNCATIONS: Final = 20
"""Windows that each unit gives."""


def fleet_for(manifest: Manifest, name_or_path: str) -> Fleet:
    """A fleet whose columns are those that the model reads.

    Raises:
        InvalidData: there is no such fleet, or it has other columns.
    """
    kind = fleet_named(name_or_path)
    if kind.schema.names != manifest.schema_of_columns.names:
        raise InvalidData(
            f"fleet {kind.name!r} has the columns {', '.join(kind.schema.names)}; "
            f"{manifest.name!r} reads {', '.join(manifest.schema_of_columns.names)}"
        )
    return kind


def knows(manifest: Manifest, data: Sequence[Path], kind: Fleet) -> bool:
    """Whether this is the very data that the bundle was trained on."""
    from model.readers import data_files, data_sha256  # noqa: PLC0415 with PyArrow

    return data_sha256(data_files(data, kind)) == manifest.training.data_sha256


def judged_windows(
    trajectories: Sequence[Trajectory], manifest: Manifest, *, truncations: int = TRUNCATIONS, seed: int = 0
) -> WindowSet:
    """Truncated windows of the units whose failure is known.

    Raises:
        InvalidData: no unit's failure is known.
    """
    known = failed(trajectories)
    if not known:
        raise InvalidData("no unit's failure is known: there is nothing to compare answers with")
    return truncated_windows(
        known,
        length=manifest.context,
        per_unit=truncations,
        rng=np.random.default_rng(seed),
    )


def units_of(windows: WindowSet, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories that these windows were cut from."""
    return with_units(trajectories, windows.unit.tolist())
