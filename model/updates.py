"""Number of updates: as many as the units of the first fold gain from.

The learning rate has one cycle over all updates, so each length is a training of its own. This module
must not know files or screens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from model.cluster import Cluster, mapped
from model.domain import Trajectory
from model.fleet import Fleet
from model.folds import Split, split_fold
from model.networks import fleet_for
from model.run import prepare
from model.training import TrainConfig, unwatched

LENGTHS: Final = (500, 1000, 2000)
"""Lengths to try, in updates. The longest keeps a training of 100,000 windows under ten minutes of CPU."""
LEAST_GAIN: Final = 0.02
"""Share by which the held-out RMSE must fall for twice the updates; less is not worth the time."""


def choose_updates(
    trajectories: Sequence[Trajectory],
    fleet: Fleet,
    *,
    network: str,
    config: TrainConfig,
    folds: int,
    options: Mapping[str, Any],
    tell: Callable[[int, float], None],
    cluster: Cluster | None = None,
) -> int:
    """Train on the first fold for longer until its held-out units stop gaining; return the length.

    The first fold is judged by the cross-validation too, so its figures are optimistic; the units of the
    other folds choose nothing. `tell` gets each length and its held-out RMSE. A cluster tries all
    lengths at once.
    """
    fleet = fleet_for(fleet, network)
    split = split_fold(
        trajectories, fleet, fold=0, folds=folds, seed=config.seed, truncations=config.truncations
    )

    tried = partial(_held_out_rmse, split, fleet, network=network, config=config, options=options)
    chosen, least = 0, math.inf
    for steps, found in zip(LENGTHS, mapped(tried, LENGTHS, cluster), strict=True):
        tell(steps, found)
        if found > (1.0 - LEAST_GAIN) * least:
            break
        chosen, least = steps, found
    return chosen


def _held_out_rmse(
    split: Split, fleet: Fleet, steps: int, *, network: str, config: TrainConfig, options: Mapping[str, Any]
) -> float:
    tried = replace(config, steps=steps, check_every=steps)
    trainer, _ = prepare(split, fleet, network=network, config=tried, options=options)
    trainer.learn(unwatched)
    return trainer.curve[-1].held_out_rmse
