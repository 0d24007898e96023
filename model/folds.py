"""Folds: units split into training and held-out ones by a seed.

The same trajectories and seed give the same folds, so all runs and experiments are measured on the
same windows. This module must not know torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.dataset import (
    join_windows,
    make_windows,
    split_units,
    truncated_windows,
    windows_so_far,
    with_units,
)
from model.domain import InvalidData, Trajectory, WindowSet
from model.fleet import Fleet


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Training and held-out units. No unit is in both."""

    trained: list[Trajectory]  # Trajectories of the training units
    training: WindowSet  # Every window of these units
    held_out: WindowSet | None  # Truncated windows of the held-out units; None where all units train
    censored: WindowSet | None = None  # Windows of units that did not fail; their RUL is a lower bound


def split_fold(
    trajectories: Sequence[Trajectory], fleet: Fleet, *, fold: int, folds: int, seed: int, truncations: int
) -> Split:
    """Hold out the units of one fold; the other folds train.

    Over all folds, every unit with a known failure is held out once.
    """
    known = failed_units(trajectories)
    groups = split_units([each.unit for each in known], parts=folds, seed=seed)
    rest = [name for group in groups if group is not groups[fold] for name in group]
    held_out = truncated_windows(
        with_units(known, groups[fold]),
        length=fleet.context,
        per_unit=truncations,
        rng=np.random.default_rng([seed, fold]),
        shortest=fleet.shortest,
    )
    return _split(with_units(known, rest), trajectories, fleet, held_out)


def train_all(trajectories: Sequence[Trajectory], fleet: Fleet) -> Split:
    """Use every unit for training."""
    return _split(failed_units(trajectories), trajectories, fleet, None)


def held_out_windows(split: Split) -> WindowSet:
    """Return the held-out windows."""
    if split.held_out is None:
        raise InvalidData("no unit is held out: there is nothing to evaluate on")
    return split.held_out


def failed_units(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Select the units with a known failure; of the others only a lower bound of the RUL is known."""
    return [trajectory for trajectory in trajectories if trajectory.failed]


def with_censored(split: Split) -> WindowSet:
    """Join the training windows of units with a known failure and those of censored units, in this order."""
    return split.training if split.censored is None else join_windows([split.training, split.censored])


def _split(
    trained: list[Trajectory], every: Sequence[Trajectory], fleet: Fleet, held_out: WindowSet | None
) -> Split:
    windows = join_windows([make_windows(trajectory, length=fleet.context) for trajectory in trained])
    censored = [windows_so_far(each, length=fleet.context) for each in every if not each.failed]
    return Split(trained, windows, held_out, join_windows(censored) if censored else None)
