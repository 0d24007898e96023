"""Who trains and who is held out: units dealt into folds by a seed.

The same trajectories and seed always give the same folds, so that every row of an experiment and
every run is judged on the same windows. This module must not know torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.dataset import join_windows, make_windows, split_units, truncated_windows, with_units
from model.domain import InvalidData, Trajectory, WindowSet
from model.fleet import Fleet


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Units dealt into those that train and those that are held out. No unit is in both.

    Attributes:
        trained: Units that train, as trajectories.
        training: Every window of these.
        held_out: Truncated windows of units that do not train; None where all of them do.
    """

    trained: list[Trajectory]
    training: WindowSet
    held_out: WindowSet | None


def deal_fold(
    trajectories: Sequence[Trajectory], fleet: Fleet, *, fold: int, folds: int, seed: int, truncations: int
) -> Parts:
    """Fold `fold` of `folds`: its units are held out, and the rest trains.

    Over all folds every unit with a known failure is held out once.

    Raises:
        InvalidData: there are fewer of them than folds.
    """
    known = failed(trajectories)
    groups = split_units([each.unit for each in known], fractions=[1 / folds] * folds, seed=seed)
    rest = [name for group in groups if group is not groups[fold] for name in group]
    held_out = truncated_windows(
        with_units(known, groups[fold]),
        length=fleet.context,
        per_unit=truncations,
        rng=np.random.default_rng([seed, fold]),
        shortest=fleet.shortest,
    )
    return _parts(with_units(known, rest), fleet, held_out)


def deal_all(trajectories: Sequence[Trajectory], fleet: Fleet) -> Parts:
    """Every unit with a known failure trains, and none is held out."""
    return _parts(failed(trajectories), fleet, None)


def held_out_windows(parts: Parts) -> WindowSet:
    """The windows to judge on.

    Raises:
        InvalidData: no unit is held out.
    """
    if parts.held_out is None:
        raise InvalidData("no unit is held out: there is nothing to judge on")
    return parts.held_out


def failed(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The units whose failure is known: the others have no RUL to learn or to be judged by."""
    return [trajectory for trajectory in trajectories if trajectory.failed]


def _parts(trained: list[Trajectory], fleet: Fleet, held_out: WindowSet | None) -> Parts:
    windows = join_windows([make_windows(trajectory, length=fleet.context) for trajectory in trained])
    return Parts(trained, windows, held_out)
