"""How good a prognosis is over a unit's whole life, cycle by cycle, and where in that life.

A model answers each cycle of a unit that ran to failure. The metrics of Saxena, Celaya, Saha,
Saha and Goebel, "Metrics for offline evaluation of prognostic performance" (International Journal
of Prognostics and Health Management 1(1), 2010) then ask more than one mean error can say: from
when on it is right, whether it is right enough half-way, how the error shrinks with what is left.
Held against NASA's own `progpy.metrics.toe_profile_metrics`; differences are said where they are.

Letters as there: r the answer, r* the truth, EoL the end of life, alpha the error allowed, lambda
the part of the way from the first prediction t_P (0) to EoL (1). Above the cap an answer is "at
least" and no prediction, so t_P is the first cycle whose RUL is at the cap or below. Everything is
in cycles. This module knows numpy, and must not know networks, files or screens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.domain import BoolArray, FloatArray, IntArray, InvalidData, capped_rul
from model.evaluation import RESAMPLES, Answered, Figure, bootstrapped, join_answers, root_mean_square_error

ALPHA: Final = 0.2
"""Error allowed around r*, as a part of it."""
LAMBDA: Final = 0.5
"""Part of the way at which alpha-lambda accuracy is asked."""
HORIZON_ALPHA: Final = 0.05
"""Error allowed for the prognostic horizon, as a part of the unit's life."""
BANDS: Final = 5
"""Equal bands of RUL below the cap, for where in a life errors and intervals are good."""


@dataclass(frozen=True, slots=True, eq=False)
class Life:
    """One unit that ran to failure, answered at each of its cycles.

    Attributes:
        unit: Its name.
        cycle: [N] cycle numbers, increasing; the last is the end of life.
        truth: [N] RUL, not capped.
        rul: [N] answers.
        lower: [N] of the interval.
        upper: [N] of the interval.
        failure_probability: [N, K] of failing within each horizon.
    """

    unit: str
    cycle: FloatArray
    truth: FloatArray
    rul: FloatArray
    lower: FloatArray
    upper: FloatArray
    failure_probability: FloatArray


def join_lives(lives: Sequence[Life]) -> Answered:
    """Every cycle of every life as a window of its unit, in order."""
    return join_answers(
        [
            Answered(life.truth, life.rul, life.lower, life.upper, np.full(len(life.truth), life.unit))
            for life in lives
        ]
    )


def within_alpha(life: Life, *, cap: float, alpha: float = ALPHA) -> float:
    """Share of predictions inside the alpha-cone, (1 - alpha) r* <= r <= (1 + alpha) r*.

    Alpha-lambda accuracy (Saxena 2010) over all lambda below 1: the cone closes at
    EoL, where nothing but 0 would be right. NaN where there is no prediction.

    >>> cycle, truth, rul = (np.array(values) for values in ([1, 2, 3], [2, 1, 0], [2, 2, 0]))
    >>> unit = Life("1", cycle, truth, rul, rul - 1, rul + 1, np.zeros((3, 0)))
    >>> within_alpha(unit, cap=125.0)
    0.5
    """
    rows = _before_end(life, cap)
    inside = np.abs(life.rul - life.truth) <= alpha * life.truth
    return float(inside[rows].mean()) if rows.any() else float("nan")


def alpha_lambda_accuracy(life: Life, *, cap: float, alpha: float = ALPHA, part: float = LAMBDA) -> float:
    """1 where the prediction at t_lambda = t_P + lambda (EoL - t_P) is inside the alpha-cone, else 0.

    Saxena 2010, for an answer without its distribution. Between two readings the later one counts.
    NaN without a prediction.
    """
    rows = np.flatnonzero(life.truth <= cap)
    if len(rows) == 0:
        return float("nan")
    at = int(np.flatnonzero(life.truth <= (1 - part) * life.truth[rows[0]])[0])
    return float(abs(life.rul[at] - life.truth[at]) <= alpha * life.truth[at])


def prognostic_horizon(
    life: Life, *, cap: float, alpha: float = HORIZON_ALPHA, lasting: bool = True
) -> float:
    """Cycles before EoL from which on the answer is within alpha EoL of the truth.

    Saxena 2010 takes the first prediction that meets |r - r*| <= alpha EoL; a lucky one is no
    warning, so `lasting` asks that all later ones meet it too. At most the cap; 0 where no prediction
    does; NaN without a prediction.
    """
    rows = np.flatnonzero(life.truth <= cap)
    if len(rows) == 0:
        return float("nan")
    met = np.abs(life.rul[rows] - life.truth[rows]) <= alpha * life.cycle[-1]
    if lasting:
        met = np.logical_and.accumulate(met[::-1])[::-1]
    return float(life.truth[rows[met.argmax()]]) if met.any() else 0.0


def cumulative_relative_accuracy(life: Life, *, cap: float, by_rul: bool = False) -> float:
    """Mean over predictions of 1 - |r* - r| / r*: 1 is perfect, and far off it falls below 0.

    Saxena 2010, with equal weights w(r). The last few cycles dominate it: a cycle off at r* = 1 is
    all of it. `by_rul` weighs by r*, which leaves
    1 - sum |r* - r| / sum r*. EoL itself is left out. NaN where there is no prediction.
    """
    rows = _before_end(life, cap)
    if not rows.any():
        return float("nan")
    truth, error = life.truth[rows], np.abs(life.truth - life.rul)[rows]
    return float(1 - error.sum() / truth.sum()) if by_rul else float(np.mean(1 - error / truth))


def monotonicity(life: Life, *, cap: float) -> float:
    """How steadily the answers fall: (falls - rises) / (n - 1) over the predictions, -1..1.

    Coble and Hines, "Identifying optimal prognostic parameters from data: a genetic algorithms
    approach" (Annual Conference of the PHM Society, 2009), without the absolute value: a RUL that
    rises is no merit.
    NaN with fewer than two predictions.
    """
    steps = np.diff(life.rul[life.truth <= cap])
    return float((np.sign(-steps)).mean()) if len(steps) else float("nan")


def life_coverage(life: Life, *, cap: float) -> float:
    """Share of the predictions whose interval holds the truth; NaN where there is none."""
    rows = life.truth <= cap
    held = (life.lower <= life.truth) & (life.truth <= life.upper)
    return float(held[rows].mean()) if rows.any() else float("nan")


def prognostic_figures(
    lives: Sequence[Life], *, cap: float, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Figure]:
    """Each metric's mean over units, with its interval by bootstrap over units.

    alpha_lambda, within_alpha, horizon, first_horizon, relative_accuracy,
    relative_accuracy_by_rul, monotonicity, life_coverage. A unit without predictions counts in none.

    Raises:
        InvalidData: there is no unit.
    """
    if not lives:
        raise InvalidData("nothing to evaluate: no unit whose failure is known")
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
    of_rows = {name: _mean_of(np.array([metric(life) for life in lives])) for name, metric in of_life.items()}
    names = np.array([str(i) for i in range(len(lives))])
    return bootstrapped(of_rows, names, seed=seed, resamples=resamples)


@dataclass(frozen=True, slots=True)
class Band:
    """Windows whose true RUL lies in low <= RUL < high, and how they were answered.

    Attributes:
        low: In cycles.
        high: In cycles; infinite in the band at and above the cap.
        windows: How many.
        units: That they were cut from.
        figures: rmse, mae, bias, coverage, width; truth capped.
    """

    low: float
    high: float
    windows: int
    units: int
    figures: dict[str, Figure]


def by_rul(
    answered: Answered, *, cap: float, bands: int = BANDS, seed: int = 0, resamples: int = RESAMPLES
) -> list[Band]:
    """Figures in equal bands of true RUL below the cap, and in one at and above it; none is empty."""
    edges = [*np.linspace(0.0, cap, bands + 1).tolist(), float("inf")]
    found: list[Band] = []
    for low, high in pairwise(edges):
        rows = (answered.truth >= low) & (answered.truth < high)
        if rows.any():
            part = _rows(answered, rows)
            of_rows = _band_figures(part, cap=cap)
            found.append(
                Band(
                    low,
                    high,
                    int(rows.sum()),
                    len(np.unique(part.unit)),
                    bootstrapped(of_rows, part.unit, seed=seed, resamples=resamples),
                )
            )
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """Stated probabilities beside what happened, for one horizon.

    Attributes:
        horizon: In cycles.
        stated: [K] mean probability of the windows in each bin.
        observed: [K] share of them that failed within the horizon.
        windows: [K].
    """

    horizon: int
    stated: FloatArray
    observed: FloatArray
    windows: IntArray


def reliability(probability: FloatArray, truth: FloatArray, *, horizon: int, bins: int = 10) -> Reliability:
    """Whether probabilities of failing within the horizon come true, [W] and RUL [W].

    Empty bins are left out.

    Raises:
        InvalidData: there is no window.
    """
    if len(probability) == 0:
        raise InvalidData("nothing to evaluate: no window of a unit whose failure is known")
    which = np.minimum((probability * bins).astype(np.int64), bins - 1)
    counts = np.bincount(which, minlength=bins)
    there = counts > 0
    return Reliability(
        horizon=horizon,
        stated=np.bincount(which, probability, minlength=bins)[there] / counts[there],
        observed=np.bincount(which, truth <= horizon, minlength=bins)[there] / counts[there],
        windows=counts[there],
    )


def brier_figures(
    probability: FloatArray,
    truth: FloatArray,
    unit: NDArray[np.str_],
    *,
    horizons: Sequence[int],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[int, Figure]:
    """Brier score of each horizon, [W, K], [W] and [W] names: 0 is perfect.

    Mean square of the stated probability less what happened, 0 or 1; Brier, "Verification of
    forecasts expressed in terms of probability" (Monthly Weather Review 78, 1950).
    """
    square = np.square(probability - (truth[:, None] <= np.array(horizons)))
    of_rows = {str(horizon): _mean_of(square[:, k]) for k, horizon in enumerate(horizons)}
    found = bootstrapped(of_rows, unit, seed=seed, resamples=resamples)
    return {horizon: found[str(horizon)] for horizon in horizons}


def ignorant_brier(truth: FloatArray, *, horizon: int) -> float:
    """The Brier score of stating the share of all windows that fail within the horizon."""
    share = float((truth <= horizon).mean())
    return share * (1 - share)


def _before_end(life: Life, cap: float) -> BoolArray:
    """Predictions, less the one at EoL, whose relative error has no meaning."""
    return (life.truth <= cap) & (life.truth > 0)


def _mean_of(values: FloatArray) -> Callable[[IntArray], float]:
    """Mean of the units that have the metric; NaN where none has."""

    def mean(rows: IntArray) -> float:
        known = values[rows][~np.isnan(values[rows])]
        return float(known.mean()) if len(known) else float("nan")

    return mean


def _band_figures(part: Answered, *, cap: float) -> dict[str, Callable[[IntArray], float]]:
    truth = capped_rul(part.truth, cap=cap)
    error, width = part.rul - truth, part.upper - part.lower
    covered = (part.lower <= truth) & (truth <= part.upper)
    return {
        "rmse": lambda rows: root_mean_square_error(error[rows]),
        "mae": lambda rows: float(np.abs(error[rows]).mean()),
        "bias": lambda rows: float(error[rows].mean()),
        "coverage": lambda rows: float(covered[rows].mean()),
        "width": lambda rows: float(width[rows].mean()),
    }


def _rows(answered: Answered, rows: BoolArray) -> Answered:
    return Answered(
        answered.truth[rows],
        answered.rul[rows],
        answered.lower[rows],
        answered.upper[rows],
        answered.unit[rows],
    )
