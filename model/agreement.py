"""Agreement of a ranking of cycles or sensors with the change of the answer when they are hidden.

Place alone agrees well: wear grows slowly, so most windows have the same profile. The part beyond place
is of the window itself. This module must not know torch, windows or files.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.domain import FloatArray, IntArray

LEAST_EVIDENT: Final = 0.05
"""Share of the evidence that the least evident cycles hold together."""


def agreement_beyond_place(
    ranking: FloatArray, single: FloatArray, lengths: IntArray, unit: NDArray[np.str_]
) -> FloatArray:
    """Compute the rank agreement that a cycle's place does not explain, [W, T] -> [W].

    `single` [W, T] is the change of the RUL from hiding each cycle alone. The control is its mean profile
    over the windows of other units, by lag. The result is the partial rank correlation given the
    control; NaN where there is no other unit.
    """
    rows, cycles = np.nonzero(np.arange(single.shape[1]) < lengths[:, None])
    lag = lengths[rows] - 1 - cycles
    total = single.sum(axis=1, where=np.arange(single.shape[1]) < lengths[:, None])
    part = single[rows, cycles] / np.where(total > 0, total, 1.0)[rows]
    names, owner = np.unique(unit, return_inverse=True)
    sums, counts = np.zeros((2, len(names), single.shape[1]))
    np.add.at(sums, (owner[rows], lag), part)
    np.add.at(counts, (owner[rows], lag), 1.0)
    others = counts.sum(axis=0) - counts
    profile = np.full(sums.shape, np.nan)
    np.divide(sums.sum(axis=0) - sums, others, out=profile, where=others > 0)
    found = np.full(len(lengths), np.nan)
    for w, n in enumerate(lengths):
        control = profile[owner[w], n - 1 :: -1]
        seen = ~np.isnan(control)
        if seen.any():
            found[w] = partial_rank_correlation(ranking[w, :n][seen], single[w, :n][seen], control[seen])
    return found


def leak(ranking: FloatArray, single: FloatArray, lengths: IntArray) -> FloatArray:
    """Compute the share of influence on cycles that the ranking neglects, [W, T] -> [W].

    Influence is `single`, as in `agreement_beyond_place`. The neglected cycles are the least evident ones,
    which together hold `LEAST_EVIDENT` of the ranking at most. NaN where no cycle has any influence.
    """
    valid = np.arange(single.shape[1]) < lengths[:, None]
    order = np.argsort(np.where(valid, ranking, np.inf), axis=1, kind="stable")
    weight, influence = (np.take_along_axis(np.where(valid, a, 0.0), order, 1) for a in (ranking, single))
    neglected = np.cumsum(weight, axis=1) <= LEAST_EVIDENT * weight.sum(axis=1, keepdims=True)
    total = influence.sum(axis=1)
    lost = (influence * neglected).sum(axis=1)
    return np.divide(lost, total, out=np.full(len(lengths), np.nan), where=total > 0)


def sensor_agreement(of_sensors: FloatArray | None, effects: FloatArray) -> FloatArray:
    """Compute the rank correlation of columns' contributions with hiding each column, [W, F] -> [W].

    `effects` are signed: the RUL less that with the column hidden in all cycles. Columns without either,
    such as settings, are ignored. NaN without contributions.
    """
    if of_sensors is None:
        return np.full(len(effects), np.nan)
    used = (effects != 0).any(axis=0) | (of_sensors != 0).any(axis=0)
    pairs = zip(of_sensors[:, used], effects[:, used], strict=True)
    return np.array([rank_correlation(contribution, effect) for contribution, effect in pairs])


def partial_rank_correlation(a: FloatArray, b: FloatArray, control: FloatArray) -> float:
    """Compute Spearman's rank correlation with the control's part removed from both; 0 if it is all.

    >>> a, b = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 4.0, 3.0])
    >>> partial_rank_correlation(a, b, control=a)
    0.0
    """
    both, of_a, of_b = rank_correlation(a, b), rank_correlation(a, control), rank_correlation(b, control)
    left = (1.0 - of_a**2) * (1.0 - of_b**2)
    return (both - of_a * of_b) / math.sqrt(left) if left > 1e-9 else 0.0


def rank_correlation(a: FloatArray, b: FloatArray) -> float:
    """Compute Spearman's rank correlation, with shared ranks for ties; 0 for constant values.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0]))
    0.5
    """
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / size) if size > 0 else 0.0


def _ranks(values: FloatArray) -> FloatArray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
