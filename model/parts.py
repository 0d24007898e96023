"""Who trains, who selects, who calibrates: units dealt into parts by a seed.

The same trajectories and seed always give the same parts, so that a bundle can be evaluated again
on the units that it was selected on. This module must not know torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from model.dataset import join_windows, make_windows, split_units, truncated_windows, with_units
from model.domain import Trajectory, WindowSet
from model.fleet import Fleet

FRACTIONS: Final = (0.70, 0.15, 0.15)
"""Of the units: train, validate (select), calibrate."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Units dealt into parts, as windows. No unit is in two parts.

    Attributes:
        trained: Units that train, as trajectories.
        training: Every window of these.
        validation: Truncated windows of units that select.
        calibration: Truncated windows of units that neither train nor select.
    """

    trained: list[Trajectory]
    training: WindowSet
    validation: WindowSet
    calibration: WindowSet


def deal(trajectories: Sequence[Trajectory], fleet: Fleet, *, seed: int, truncations: int) -> Parts:
    """Units with a known failure, dealt by the seed.

    Raises:
        InvalidData: there are too few of them.
    """
    known = [trajectory for trajectory in trajectories if trajectory.failed]
    names = split_units([trajectory.unit for trajectory in known], fractions=FRACTIONS, seed=seed)
    return _parts([with_units(known, part) for part in names], fleet, seed=seed, truncations=truncations)


def deal_fold(
    trajectories: Sequence[Trajectory], fleet: Fleet, *, fold: int, folds: int, seed: int, truncations: int
) -> Parts:
    """Fold `fold` of `folds`: its units calibrate, and the rest trains and selects.

    Over all folds every unit with a known failure is held out once.

    Raises:
        InvalidData: there are too few of them.
    """
    known = [trajectory for trajectory in trajectories if trajectory.failed]
    groups = split_units([each.unit for each in known], fractions=[1 / folds] * folds, seed=seed)
    rest = [name for group in groups if group is not groups[fold] for name in group]
    select = FRACTIONS[1] / (1 - FRACTIONS[2])
    train, validate = split_units(rest, fractions=(1 - select, select), seed=seed)
    dealt = [with_units(known, part) for part in (train, validate, groups[fold])]
    return _parts(dealt, fleet, seed=seed, truncations=truncations)


def _parts(dealt: Sequence[list[Trajectory]], fleet: Fleet, *, seed: int, truncations: int) -> Parts:
    trained, validated, calibrated = dealt

    def truncated(part: list[Trajectory], *, draw: int) -> WindowSet:
        return truncated_windows(
            part,
            length=fleet.context,
            per_unit=truncations,
            rng=np.random.default_rng([seed, draw]),
            shortest=fleet.shortest,
        )

    return Parts(
        trained=trained,
        training=join_windows([make_windows(trajectory, length=fleet.context) for trajectory in trained]),
        validation=truncated(validated, draw=1),
        calibration=truncated(calibrated, draw=2),
    )
