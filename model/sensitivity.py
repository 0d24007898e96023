"""Sensitivity of evidence: does it follow the readings, and only them?

A sudden wear of a few cycles must raise their evidence. Attention that lag alone explains is a
profile, whatever the readings say. One more cycle changes the answer little, so evidence must not
jump. This module must not know torch, ONNX or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.domain import FloatArray, WindowSet
from model.evaluation import Figure, bootstrapped, mean_of, ratio_of
from model.faithfulness import Ask, long_enough
from model.regimes import Regimes
from model.simulation import ReferenceStatistics

WEAR: Final = 4.0
"""Added wear, in standard deviations of each sensor in its regime."""
WORN_CYCLES: Final = 5
"""Number of cycles with added wear, in the middle of a window."""


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity:
    """Evidence of each window, or attention without it, before and after a change."""

    before: FloatArray  # [W] share of the cycles in mid-window
    after: FloatArray  # [W] their share with a sudden wear
    moved: FloatArray  # [W] share that one more cycle moves to other cycles, 0..1
    # [W, 2] squares of the weights of `attention` and of all heads about their mean at each lag, and
    # about their mean; 0 in windows that are not full.
    about_lag: FloatArray
    about_mean: FloatArray
    group: NDArray[np.str_]  # [W]


def wear_direction(reference: ReferenceStatistics, settings: Sequence[int]) -> FloatArray:
    """Return the sign of each column's change towards failure, [F]; 0 for settings."""
    z = np.array(reference.degradation.z)
    direction = np.sign(z[0] - z[-1])
    direction[list(settings)] = 0.0
    return direction


def worn_readings(
    readings: FloatArray, regimes: Regimes, reference: ReferenceStatistics, *, settings: Sequence[int]
) -> FloatArray:
    """Move each sensor towards failure by `WEAR` deviations of its regime.

    [W, T, F] -> float32 [W, T, F].
    """
    deviation = np.array([regime.standard_deviation for regime in reference.regimes])  # [R, F]
    moved = WEAR * wear_direction(reference, settings) * deviation[regimes.of_readings(readings, settings)]
    with np.errstate(over="ignore"):
        return (readings + moved).astype(np.float32)


def measure_sensitivity(ask: Ask, windows: WindowSet, worn: FloatArray) -> Sensitivity:
    """Measure the evidence of each long enough window; `worn` [W, T, F] are its readings after wear."""
    long = long_enough(windows)
    windows, worn = windows.take(long), worn[long]
    answers = ask(windows)
    first = (windows.lengths[:, None] - WORN_CYCLES) // 2
    place = np.arange(windows.readings.shape[1])
    middle = (place >= first) & (place < first + WORN_CYCLES)
    readings = np.where(middle[:, :, None], worn, windows.readings)
    after = ask(replace(windows, readings=readings)).ranking
    full = windows.lengths == windows.lengths.max()
    attention = answers.ranking if answers.attention is None else answers.attention
    heads = attention[:, None] if answers.head_attention is None else answers.head_attention
    squares = [_squares(weights, full) for weights in (attention[:, None], heads)]
    return Sensitivity(
        before=(answers.ranking * middle).sum(axis=1),
        after=(after * middle).sum(axis=1),
        moved=_moved(ask, windows),
        about_lag=np.stack([about_lag for about_lag, _ in squares], axis=1),
        about_mean=np.stack([about_mean for _, about_mean in squares], axis=1),
        group=windows.group,
    )


def sensitivity_figures(found: Sensitivity) -> dict[str, Figure]:
    """Compute figures over windows, with bootstrap intervals over groups.

    `anomaly`: evidence of cycles with a sudden wear, over that without. `lag_attention` and `lag_heads`:
    share of the variance that lag alone explains, of `attention` and of all heads. `moved`: mean.
    """
    by_lag = found.about_mean - found.about_lag
    statistics = {
        "anomaly": ratio_of(found.after, found.before),
        "lag_attention": ratio_of(by_lag[:, 0], found.about_mean[:, 0]),
        "lag_heads": ratio_of(by_lag[:, 1], found.about_mean[:, 1]),
        "moved": mean_of(found.moved),
    }
    return bootstrapped(statistics, found.group)


def _moved(ask: Ask, windows: WindowSet) -> FloatArray:
    """Compare windows without their last cycle and without their first, [W].

    Both have as many cycles, so the second is the same unit one cycle later. The result is the total
    variation over all cycles of both, each compared with itself.
    """
    rows, shorter = np.arange(len(windows)), windows.lengths - 1
    earlier = windows.readings.copy()
    earlier[rows, shorter] = np.nan
    later = np.full_like(earlier, np.nan)
    later[:, :-1] = windows.readings[:, 1:]
    one = ask(replace(windows, readings=earlier, lengths=shorter, last_cycle=windows.last_cycle - 1)).ranking
    other = ask(replace(windows, readings=later, lengths=shorter)).ranking
    other = np.concatenate([np.zeros_like(other[:, :1]), other[:, :-1]], axis=1)
    return np.abs(one - other).sum(axis=1) / 2


def _squares(weights: FloatArray, full: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """Sum the squares about the mean at each lag and about the head's mean, [W, H, T] -> [W], [W]."""
    known = weights[full].astype(np.float64)
    means = known.mean(axis=0), known.mean(axis=(0, 2))[:, None]
    found = np.zeros((2, len(weights)))
    found[:, full] = [np.square(known - mean).sum(axis=(1, 2)) for mean in means]
    return found[0], found[1]
