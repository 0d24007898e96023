"""Which units of the data a bundle may be judged on: its fleet, its parts, whether it knows them.

For commands that hold a bundle against data. This module must not know torch or screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np

from export.bundle import Manifest
from model.dataset import truncated_windows, with_units
from model.domain import InvalidData, Trajectory, WindowSet
from model.fleet import Fleet, fleet_named
from model.parts import deal

TRUNCATIONS: Final = 20
"""Windows that each unit gives."""


class Part(StrEnum):
    """Which units to judge on."""

    ALL = "all"
    VALIDATION = "validation"
    CALIBRATION = "calibration"


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


def knows(manifest: Manifest, data: Sequence[Path], kind: Fleet, *, part: Part) -> bool:
    """Whether this is the very data that the bundle was trained on.

    Raises:
        InvalidData: it is not, and one of its parts is asked for.
    """
    from model.readers import data_files, data_sha256  # noqa: PLC0415 with PyArrow

    same = data_sha256(data_files(data, kind)) == manifest.training.data_sha256
    if part is not Part.ALL and not same:
        raise InvalidData(
            f"--part {part}: {manifest.name!r} was not trained on this data, so it has no parts"
        )
    return same


def judged_windows(
    trajectories: Sequence[Trajectory],
    kind: Fleet,
    manifest: Manifest,
    *,
    part: Part,
    truncations: int = TRUNCATIONS,
    seed: int = 0,
) -> WindowSet:
    """Truncated windows of the units that are asked for, and whose failure is known.

    Of a part they are those that training itself looked at, whatever `truncations` and `seed` say.

    Raises:
        InvalidData: no unit's failure is known.
    """
    if part is Part.ALL:
        known = [trajectory for trajectory in trajectories if trajectory.failed]
        if not known:
            raise InvalidData("no unit's failure is known: there is nothing to compare answers with")
        return truncated_windows(
            known,
            length=manifest.context,
            per_unit=truncations,
            rng=np.random.default_rng(seed),
            shortest=manifest.min_cycles,
        )
    kept = manifest.training.config.get("truncations", truncations)
    kind = replace(kind, context=manifest.context)  # some networks read less than the fleet allows
    parts = deal(trajectories, kind, seed=manifest.training.seed, truncations=kept)
    return parts.validation if part is Part.VALIDATION else parts.calibration


def units_of(windows: WindowSet, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories that these windows were cut from."""
    return with_units(trajectories, windows.unit.tolist())
