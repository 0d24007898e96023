"""Number of updates: as many as the units of the first fold gain from.

The learning rate has one cycle over all updates, so each length is a training of its own. This module
must not know files or screens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from model.domain import Trajectory
from model.fleet import Fleet
from model.folds import split_fold
from model.networks import fleet_for
from model.run import prepare
from model.training import TrainConfig

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
) -> int:
    """Train on the first fold for longer until its held-out units stop gaining; return the length.

    The first fold is judged by the cross-validation too, so its figures are optimistic; the units of the
    other folds choose nothing. `tell` gets each length and its held-out RMSE.
    """
    fleet = fleet_for(fleet, network)
    split = split_fold(
        trajectories, fleet, fold=0, folds=folds, seed=config.seed, truncations=config.truncations
    )

    def held_out_rmse(steps: int) -> float:
        tried = replace(config, steps=steps, check_every=steps)
        trainer, _ = prepare(split, fleet, network=network, config=tried, options=options)
        trainer.learn(lambda _step, _loss, _check: None)
        tell(steps, trainer.curve[-1].held_out_rmse)
        return trainer.curve[-1].held_out_rmse

    chosen, least = LENGTHS[0], held_out_rmse(LENGTHS[0])
    for longer in LENGTHS[1:]:
        found = held_out_rmse(longer)
        if found > (1.0 - LEAST_GAIN) * least:
            break
        chosen, least = longer, found
    return chosen
