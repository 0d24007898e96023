"""Cross-fitting: a network trained on the other folds predicts each unit with a known failure.

The errors of the folds' networks calibrate and evaluate the network that trains on all units, after
Barber et al. (2021), "Predictive inference with the jackknife+". This module must not know files or
training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from model.calibration import (
    Read,
    at_cap,
    cut_windows,
    fit_distribution,
    fit_scale,
    held_out_coverage,
    interval_bounds,
    interval_ends,
    normalised_error,
    read_windows,
    rescaled,
    scale_factors,
    with_lacking,
)
from model.dataset import Split, answerable, group_of, held_out_windows, join_windows, windows_ending_at
from model.domain import BoolArray, FloatArray, Trajectory, WindowSet, capped_rul, concatenated
from model.evaluation import Answered, Figure
from model.faithfulness import (
    Faithfulness,
    Reply,
    faithfulness_figures,
    join_faithfulness,
    long_enough,
    measure_faithfulness,
    typical_readings,
)
from model.layers import set_buffer
from model.network import RulNetwork
from model.prognostics import Life
from model.reference import Reference
from model.regimes import Regimes
from model.sensitivity import (
    Sensitivity,
    measure_sensitivity,
    sensitivity_figures,
    worn_readings,
)

HIDDEN_SHARE: Final = 0.2
"""Share of a window's cycles that are hidden for the model card."""
SHORT_LACK: Final = 0.1
"""A history is insufficient if its coverage is below the nominal one by more than this."""
HIDDEN_WINDOWS: Final = 1000
"""Approximate number of windows in which cycles are hidden; each needs many predictions."""
MOST_WINDOWS: Final = 20_000
"""Approximate number of predicted windows; if lives have more cycles, every n-th one is predicted."""
FEWEST_ON_A_LIFE: Final = 20
"""Windows on a median life, from which fewer units are predicted instead of fewer of their cycles."""


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """A network and its answers to the held-out units."""

    net: RulNetwork  # Network with fitted scale
    windows: WindowSet  # Truncated windows of the held-out units
    read: Read  # Uncalibrated answers to these windows
    reference: Reference  # Statistics of the training readings


def held_out_fold(net: RulNetwork, split: Split, reference: Reference) -> Fold:
    """Fit the scale of a trained network and predict its held-out units."""
    windows = held_out_windows(split)
    fit_scale(net, with_lacking(split.sample))
    return Fold(net, windows, read_windows(net, windows), reference)


def joined(folds: Sequence[Fold]) -> tuple[Read, WindowSet]:
    """Join the held-out windows of all folds and their answers."""
    return concatenated([fold.read for fold in folds]), join_windows([fold.windows for fold in folds])


def scaled_by_rul(folds: Sequence[Fold]) -> tuple[list[Fold], FloatArray]:
    """Correct the scale of each fold's network by errors of the other folds; return the factors of all.

    No unit sets its own scale, so the coverage measured on the folds is that of new units.
    """
    config = folds[0].net.config

    def factors(of: Sequence[Fold]) -> FloatArray:
        return scale_factors(*joined(of), cap=config.cap, coverage=config.coverage)

    corrected: list[Fold] = []
    for fold in folds:
        own = factors([other for other in folds if other is not fold])
        set_buffer(fold.net, "scale_factors", own)
        corrected.append(replace(fold, read=rescaled(fold.read, own, cap=config.cap)))
    return corrected, factors(folds)


def cross_fitted(folds: Sequence[Fold]) -> Answered:
    """Return held-out answers, with intervals that ignore the unit's own errors."""
    config = folds[0].net.config
    read, windows = joined(folds)
    return held_out_coverage(read, windows, cap=config.cap, coverage=config.coverage)


def fewest_cycles_that_hold(folds: Sequence[Fold]) -> int:
    """Find the shortest window for which the interval still has its coverage.

    Held-out windows are cut to their last n cycles, for n from the context down by quarters, until
    the coverage is below the nominal one less `SHORT_LACK`.
    """
    config = folds[0].net.config
    read, windows = joined(folds)
    error, group = normalised_error(read, windows, cap=config.cap), at_cap(read.unclipped, cap=config.cap)
    bounds = interval_bounds(error, group, windows.unit, windows.weight, coverage=config.coverage)
    fewest = n = config.context
    while n >= 1:
        parts = [_cut_covered(fold, n, bounds) for fold in folds]
        covered, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
        if len(covered) and np.average(covered, weights=weight) < config.coverage - SHORT_LACK:
            break
        fewest, n = n, n * 3 // 4
    return fewest


def _cut_covered(fold: Fold, cycles: int, bounds: FloatArray) -> tuple[BoolArray, FloatArray]:
    """Tell which of the longer windows, cut to this many cycles, have their truth in the interval.

    Returns also the weights of these windows.
    """
    longer, cap = fold.windows.take(fold.windows.lengths > cycles), fold.net.config.cap
    weight = longer.weight.astype(np.float64)
    if len(longer) == 0:
        return np.zeros(0, np.bool_), weight
    cut = cut_windows(longer, np.full(len(longer), cycles))
    read = read_windows(fold.net, cut)
    lower, upper = interval_ends(read, bounds[at_cap(read.unclipped, cap=cap)], cap=cap)
    truth = capped_rul(cut.rul, cap=cap)
    return (lower <= truth) & (truth <= upper), weight


def held_out_lives(
    folds: Sequence[Fold], trajectories: Sequence[Trajectory], *, most_missing: float
) -> tuple[list[Life], list[int]]:
    """Predict lives of each fold at cycles where the service would; return them with their folds.

    The folds' scales are corrected already. The quantiles of each fold's network come from the errors
    of the other folds, so that no unit sets its own distribution.
    """
    known = {each.unit: each for each in trajectories}
    units = [np.unique(fold.windows.unit).tolist() for fold in folds]
    cycles = [len(known[unit]) for names in units for unit in names]
    every = -(-sum(cycles) // MOST_WINDOWS)
    sparsest = max(1, int(np.median(cycles)) // FEWEST_ON_A_LIFE)
    if every > sparsest:  # a life with few answers says little about decisions
        units = [names[:: -(-every // sparsest)] for names in units]
        every = sparsest
    lives: list[Life] = []
    which: list[int] = []
    for k, (fold, names) in enumerate(zip(folds, units, strict=True)):
        fit_distribution(fold.net, *joined([other for other in folds if other is not fold]))
        found = (_life(fold, known[unit], every, most_missing) for unit in names)
        lives += [life for life in found if life is not None]
        which += [k] * (len(lives) - len(which))
    return lives, which


def _life(fold: Fold, trajectory: Trajectory, every: int, most_missing: float) -> Life | None:
    """Predict one unit at every n-th reading, including its last, without windows that would be refused."""
    config = fold.net.config
    ends = np.arange(len(trajectory) - 1, -1, -every)[::-1]
    windows = windows_ending_at(trajectory, ends, length=config.context)
    windows = windows.take(np.flatnonzero(answerable(windows, most_missing)))
    if len(windows) == 0:
        return None
    read = read_windows(fold.net, windows)
    rul = np.clip(read.unclipped, 0.0, config.cap)
    with torch.no_grad():
        answers = fold.net.distribution(torch.from_numpy(rul)[:, None], torch.from_numpy(read.scale)[:, None])
    interval, failure = (each.numpy() for each in answers[:2])
    lower, upper = interval.T
    return Life(
        trajectory.unit, windows.last_cycle, windows.rul, rul, lower, upper, failure, group_of(trajectory)
    )


def attention_worth(folds: Sequence[Fold]) -> dict[str, Figure]:
    """Measure faithfulness and sensitivity on held-out windows, with a fifth of the cycles hidden.

    Names as in `faithfulness_figures` and `sensitivity_figures`; empty if every window is too short,
    and without figures that have no value.
    """
    every = max(1, sum(len(fold.windows) for fold in folds) // HIDDEN_WINDOWS)
    parts: list[tuple[Faithfulness, Sensitivity]] = []
    for fold in folds:
        windows = fold.windows.take(np.arange(0, len(fold.windows), every))
        if long_enough(windows).any():
            parts.append(_explained(fold, windows))
    if not parts:
        return {}
    hiding, changing = zip(*parts, strict=True)
    found = faithfulness_figures(join_faithfulness(hiding)) | sensitivity_figures(concatenated(changing))
    return {name: figure for name, figure in found.items() if np.isfinite(figure.value)}


def _explained(fold: Fold, windows: WindowSet) -> tuple[Faithfulness, Sensitivity]:
    net, reference, settings = fold.net, fold.reference, fold.net.config.settings

    def ask(asked: WindowSet) -> Reply:
        read = read_windows(net, asked)
        return Reply(read.unclipped, read.ranking, read.attention, read.head_attention, read.of_sensors)

    centre, mean = (
        np.array([getattr(regime, name) for regime in reference.regimes]) for name in ("centre", "mean")
    )
    regimes = Regimes(centre, np.array(reference.setting_scale))
    typical = typical_readings(windows.readings, regimes, settings=settings, mean=mean)
    worn = worn_readings(windows.readings, regimes, reference, settings=settings)
    return (
        measure_faithfulness(ask, windows, typical, shares=(HIDDEN_SHARE,)),
        measure_sensitivity(ask, windows, worn),
    )
