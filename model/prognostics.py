"""Prognostic metrics over a unit's whole life, cycle by cycle.

A model predicts each cycle of a unit that ran to failure. The metrics are from Saxena, Celaya, Saha,
Saha and Goebel, "Metrics for offline evaluation of prognostic performance" (International Journal of
Prognostics and Health Management 1(1), 2010): the cycle from which predictions are accurate, accuracy
half-way, and the error relative to the RUL. Docstrings name the differences from that article.

Letters of that article: r the answer, r* the truth, EoL the end of life, alpha the allowed error, lambda
the part of the way from the first prediction t_P (0) to EoL (1). Above the cap an answer is "at least"
and no prediction, so t_P is the first cycle whose RUL is at the cap or below. Times are cycles.
This module must not know networks, files or screens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.domain import BoolArray, FloatArray, IntArray, InvalidData, concatenated
from model.evaluation import Answered, Figure, bootstrapped, figures, mean_of

ALPHA: Final = 0.2
"""Allowed error, as a part of r*."""
LAMBDA: Final = 0.5
"""Part of the way at which alpha-lambda accuracy is evaluated."""
HORIZON_ALPHA: Final = 0.05
"""Allowed error of the prognostic horizon, as a part of the unit's life."""
BANDS: Final = 5
"""Equal bands of RUL below the cap."""
THIRDS: Final = 3
"""Equal bands of the predicted RUL."""
EDGES: Final = (0.0, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.975, 0.99, 1.0)
"""Bins of stated probabilities; both ends, where decisions are made, have narrow ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Life:
    """One unit that ran to failure, with its predictions, mostly at each cycle."""

    unit: str  # Name of the unit
    cycle: FloatArray  # [N] cycle numbers, increasing
    truth: FloatArray  # [N] RUL, not capped
    rul: FloatArray  # [N] predicted RUL
    lower: FloatArray  # [N] lower bound of the interval
    upper: FloatArray  # [N] upper bound of the interval
    failure_probability: FloatArray  # [N, K] for each horizon
    group: str  # Its group, or the unit

    @property
    def end(self) -> float:
        """The cycle of failure; its window may have no prediction."""
        return float(self.cycle[0] + self.truth[0])


def join_lives(lives: Sequence[Life]) -> Answered:
    """Return every cycle of every life as a window of its unit, in order, all of equal weight."""
    return concatenated(
        [
            Answered(
                *(life.truth, life.rul, life.lower, life.upper),
                unit=np.full(len(life.truth), life.unit),
                group=np.full(len(life.truth), life.group),
                weight=np.ones(len(life.truth)),
            )
            for life in lives
        ]
    )


def groups_of(lives: Sequence[Life]) -> NDArray[np.str_]:
    """Return the group of each life, named by the place of its first life: the order decides the draws."""
    first: dict[str, int] = {}
    return np.array([str(first.setdefault(life.group, i)) for i, life in enumerate(lives)])


def within_alpha(life: Life, *, cap: float) -> float:
    """Compute the share of predictions with (1 - `ALPHA`) r* <= r <= (1 + `ALPHA`) r*.

    Alpha-lambda accuracy (Saxena 2010) over all lambda below 1, because the cone closes at EoL. NaN
    if there is no prediction.

    >>> cycle, truth, rul = (np.array(values) for values in ([1, 2, 3], [2, 1, 0], [2, 2, 0]))
    >>> unit = Life("1", cycle, truth, rul, rul - 1, rul + 1, np.zeros((3, 0)), "1")
    >>> within_alpha(unit, cap=125.0)
    0.5
    """
    rows = _before_end(life, cap)
    inside = np.abs(life.rul - life.truth) <= ALPHA * life.truth
    return float(inside[rows].mean()) if rows.any() else float("nan")


def alpha_lambda_accuracy(life: Life, *, cap: float, alpha: float = ALPHA, part: float = LAMBDA) -> float:
    """Return 1 if the prediction at t_lambda is inside the alpha-cone, else 0.

    t_lambda = t_P + lambda (EoL - t_P), after Saxena 2010 for answers without a distribution. If
    t_lambda is between two readings, the later one counts. NaN if no prediction follows t_lambda.
    """
    rows = np.flatnonzero(life.truth <= cap)
    if len(rows) == 0:
        return float("nan")
    later = np.flatnonzero(life.truth <= (1 - part) * life.truth[rows[0]])
    if len(later) == 0:
        return float("nan")
    at = int(later[0])
    return float(abs(life.rul[at] - life.truth[at]) <= alpha * life.truth[at])


def prognostic_horizon(life: Life, *, cap: float, lasting: bool = True) -> float:
    """Compute the RUL of the first prediction with |r - r*| <= `HORIZON_ALPHA` EoL.

    The definition of Saxena 2010; with `lasting` all later predictions must meet the bound too. At most
    the cap; 0 if no prediction meets the bound; NaN if there is no prediction.
    """
    rows = np.flatnonzero(life.truth <= cap)
    if len(rows) == 0:
        return float("nan")
    met = np.abs(life.rul[rows] - life.truth[rows]) <= HORIZON_ALPHA * life.end
    if lasting:
        met = np.logical_and.accumulate(met[::-1])[::-1]
    return float(life.truth[rows[met.argmax()]]) if met.any() else 0.0


def cumulative_relative_accuracy(life: Life, *, cap: float, by_rul: bool = False) -> float:
    """Compute the mean of 1 - |r* - r| / r* over predictions: 1 is perfect.

    Saxena 2010, with equal weights w(r), so the last few cycles dominate. `by_rul` weights by r*:
    1 - sum |r* - r| / sum r*. EoL itself is ignored. NaN if there is no prediction.
    """
    rows = _before_end(life, cap)
    if not rows.any():
        return float("nan")
    truth, error = life.truth[rows], np.abs(life.truth - life.rul)[rows]
    return float(1 - error.sum() / truth.sum()) if by_rul else float(np.mean(1 - error / truth))


def monotonicity(life: Life, *, cap: float) -> float:
    """Compute (falls - rises) / (n - 1) over the predictions, -1..1.

    Coble and Hines, "Identifying optimal prognostic parameters from data: a genetic algorithms
    approach" (Annual Conference of the PHM Society, 2009), without the absolute value, because a RUL
    should fall. NaN with fewer than two predictions.
    """
    steps = np.diff(life.rul[life.truth <= cap])
    return float((np.sign(-steps)).mean()) if len(steps) else float("nan")


def life_coverage(life: Life, *, cap: float) -> float:
    """Compute the share of predictions whose interval contains the truth; NaN if there is no prediction."""
    rows = life.truth <= cap
    held = (life.lower <= life.truth) & (life.truth <= life.upper)
    return float(held[rows].mean()) if rows.any() else float("nan")


def prognostic_figures(lives: Sequence[Life], *, cap: float) -> dict[str, Figure]:
    """Compute each metric's mean over units, with bootstrap intervals over groups.

    Units without predictions are ignored.
    """
    if not lives:
        raise InvalidData("nothing to evaluate: no unit with a known failure")
    of_life: dict[str, Callable[[Life], float]] = {
        "alpha_lambda": lambda life: alpha_lambda_accuracy(life, cap=cap),
        "within_alpha": lambda life: within_alpha(life, cap=cap),
        "horizon": lambda life: prognostic_horizon(life, cap=cap),
        "first_horizon": lambda life: prognostic_horizon(life, cap=cap, lasting=False),
        "relative_accuracy": lambda life: cumulative_relative_accuracy(life, cap=cap),
        "relative_accuracy_by_rul": lambda life: cumulative_relative_accuracy(life, cap=cap, by_rul=True),
        "monotonicity": lambda life: monotonicity(life, cap=cap),
        "life_coverage": lambda life: life_coverage(life, cap=cap),
    }
    statistics = {
        name: mean_of(np.array([metric(life) for life in lives])) for name, metric in of_life.items()
    }
    return bootstrapped(statistics, groups_of(lives))


@dataclass(frozen=True, slots=True)
class Band:
    """Windows with a RUL in low <= RUL < high, and their figures."""

    low: float  # In cycles
    high: float  # In cycles; infinite in the band at and above the cap of the truth
    windows: int  # Number of windows
    units: int  # Number of their units
    figures: dict[str, Figure]  # See `evaluation.figures`


def by_rul(answered: Answered, *, cap: float) -> list[Band]:
    """Compute figures in bands of true RUL: equal ones below the cap, one above.

    Empty bands are omitted.
    """
    edges = [*np.linspace(0.0, cap, BANDS + 1).tolist(), float("inf")]
    return _banded(answered, answered.truth, edges, cap=cap)


def by_answer(answered: Answered, *, cap: float) -> list[Band]:
    """Compute figures in equal bands of predicted RUL; the last one includes the cap.

    Callers know the answer but not the truth, so their coverage is that of these bands. Empty bands are
    omitted.
    """
    edges = np.linspace(0.0, cap, THIRDS + 1).tolist()
    inside = np.minimum(answered.rul, np.nextafter(cap, 0.0))
    return _banded(answered, inside, edges, cap=cap)


def _banded(answered: Answered, by: FloatArray, edges: Sequence[float], *, cap: float) -> list[Band]:
    found: list[Band] = []
    for low, high in pairwise(edges):
        part = answered.take((by >= low) & (by < high))
        if len(part.truth):
            units = len(np.unique(part.unit))
            found.append(Band(low, high, len(part.truth), units, figures(part, cap=cap)))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """Predicted probabilities and observed shares, for one horizon."""

    stated: FloatArray  # [K] mean probability of the windows in each bin of `EDGES`
    observed: FloatArray  # [K] share of them that failed within the horizon
    windows: IntArray  # [K]


def reliability(probability: FloatArray, truth: FloatArray, *, horizon: int) -> Reliability:
    """Bin the probabilities of failing within the horizon, [W], by `EDGES`; RUL [W].

    An empty bin is NaN.
    """
    if len(probability) == 0:
        raise InvalidData("nothing to evaluate: no window of a unit with a known failure")
    which, bins = np.searchsorted(EDGES[1:-1], probability, side="right"), len(EDGES) - 1
    counts = np.bincount(which, minlength=bins)
    there = np.where(counts > 0, counts, np.nan)
    return Reliability(
        stated=np.bincount(which, probability, minlength=bins) / there,
        observed=np.bincount(which, truth <= horizon, minlength=bins) / there,
        windows=counts,
    )


def brier_figures(
    probability: FloatArray,
    truth: FloatArray,
    group: NDArray[np.str_],
    *,
    horizons: Sequence[int],
    weight: FloatArray | None = None,
) -> dict[int, Figure]:
    """Compute the Brier score of each horizon from [W, K], [W], group and weight [W]: 0 is perfect.

    The score is the mean square of probability minus outcome (0 or 1): Brier, "Verification of forecasts
    expressed in terms of probability" (Monthly Weather Review 78, 1950).
    """
    square = np.square(probability - (truth[:, None] <= np.array(horizons)))
    statistics = {str(horizon): mean_of(square[:, k], weight) for k, horizon in enumerate(horizons)}
    found = bootstrapped(statistics, group)
    return {horizon: found[str(horizon)] for horizon in horizons}


def ignorant_brier(truth: FloatArray, *, horizon: int, weight: FloatArray | None = None) -> float:
    """Compute the Brier score of a constant forecast, the share of failures, by weight [W]."""
    weights = None if weight is None else weight.astype(np.float64)
    share = float(np.average(truth <= horizon, weights=weights))
    return share * (1 - share)


def _before_end(life: Life, cap: float) -> BoolArray:
    """Return the mask of predictions before EoL, which has no relative error."""
    return (life.truth <= cap) & (life.truth > 0)
