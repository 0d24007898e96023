"""Predictions of whole lives by the networks of other folds, calibrated on the other folds.

`model.replay` keeps and replays them. This module must not know files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch

from model.calibration import fit_distribution, read_windows, rescaled
from model.crossfit import Fold, joined
from model.dataset import windows_ending_at
from model.domain import Trajectory
from model.prognostics import Life

MOST_WINDOWS: Final = 20_000
"""Approximate number of windows that are predicted; lives of more cycles in all are read every n-th cycle."""


def held_out_lives(folds: Sequence[Fold], trajectories: Sequence[Trajectory]) -> tuple[list[Life], list[int]]:
    """Predict the lives of each fold's units; return them with their folds.

    The folds' scales are corrected already. The quantiles of each fold's network come from the errors
    of the other folds, so that no unit sets its own distribution.
    """
    known = {each.unit: each for each in trajectories}
    units = [np.unique(fold.windows.unit).tolist() for fold in folds]
    cycles = sum(len(known[unit]) for names in units for unit in names)
    every = -(-cycles // MOST_WINDOWS)
    lives: list[Life] = []
    which: list[int] = []
    for k, (fold, names) in enumerate(zip(folds, units, strict=True)):
        fit_distribution(fold.net, *joined([other for other in folds if other is not fold]))
        lives += [_life(fold, known, unit, every) for unit in names]
        which += [k] * len(names)
    return lives, which


def _life(fold: Fold, known: Mapping[str, Trajectory], unit: str, every: int) -> Life:
    """Predict one unit at every n-th reading, its last included."""
    trajectory, config = known[unit], fold.net.config
    ends = np.arange(len(trajectory) - 1, -1, -every)[::-1]
    windows = windows_ending_at(trajectory, ends, length=config.context)
    read = read_windows(fold.net, windows)
    if fold.factors is not None:
        read = rescaled(read, fold.factors, cap=config.cap)
    rul = np.clip(read.unclipped, 0.0, config.cap)
    with torch.no_grad():
        answers = fold.net.distribution(torch.from_numpy(rul), torch.from_numpy(read.scale))
    interval, failure = (each.numpy() for each in answers[:2])
    lower, upper = interval.T
    return Life(unit, windows.last_cycle, windows.rul, rul, lower, upper, failure)
