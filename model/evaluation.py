"""Evaluation of answers: errors in cycles, with bootstrap intervals over units, or over groups of units.

Truth and answers are both capped, as they are reported. This module must not know networks or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from model.domain import BoolArray, FloatArray, IntArray, InvalidData, capped_rul

RESAMPLES: Final = 1000
SCORE_CAP: Final = 150.0
"""Highest cap, in cycles, for which NASA's score is computed; see `nasa_score`."""
TITLES: Final = {
    "rmse": "RMSE, cycles",
    "rmse_below_cap": "RMSE below the cap, cycles",
    "mae": "MAE, cycles",
    "bias": "bias, cycles",
    "score": "NASA score per window",
    "coverage": "coverage of the interval",
    "coverage_below_cap": "coverage of the interval below the cap",
    "width": "width of the interval, cycles",
}
"""Titles of the figures of `figures`, in the order of every table."""
BOOSTING_TITLES: Final = {
    "boosting_rmse": "RMSE of gradient boosting, cycles",
    "boosting_rmse_below_cap": "RMSE of gradient boosting below the cap, cycles",
    "boosting_difference": "RMSE less that of gradient boosting, cycles",
}
"""Titles of the metrics that a run keeps of `boosting_figures`."""


Total = Callable[[FloatArray], FloatArray]
"""Sums values of rows [W] over all rows and over those of each resample, [1 + resamples]."""
Statistic = Callable[[Total], FloatArray]
"""A figure of all rows and of each resample, by such sums; NaN without a value."""


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """Windows with their truth and answers, all [W] and in cycles."""

    truth: FloatArray  # RUL, not capped
    rul: FloatArray  # Predicted RUL
    lower: FloatArray  # Lower bound of the interval
    upper: FloatArray  # Upper bound of the interval; at the cap it means "at least"
    unit: NDArray[np.str_]  # The unit of each window
    group: NDArray[np.str_]  # The group of each unit, or the unit
    weight: FloatArray  # Weight of its unit

    def take(self, which: IntArray | BoolArray) -> Answered:
        """Select windows by indices or by a mask."""
        return Answered(*(getattr(self, field.name)[which] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure with its 95 % interval, by bootstrap over units, or groups of units; NaN without one."""

    value: float
    low: float
    high: float


def root_mean_square_error(error: FloatArray, weight: FloatArray | None = None) -> float:
    """Compute the root mean square error, in cycles, with equal weights or these; NaN without an error.

    >>> root_mean_square_error(np.array([3.0, -4.0, 0.0, 0.0]))
    2.5
    """
    return math.sqrt(np.average(np.square(error), weights=weight)) if len(error) else math.nan


def nasa_score(error: FloatArray) -> float:
    """Compute the PHM08 challenge's score of d = `predicted - true`, summed.

    exp(-d / 13) - 1 if the answer is early (d < 0), exp(d / 10) - 1 if it is late. The constants
    fit turbofans whose RUL is capped near 125 cycles. Compare scores of the same windows only. Where
    errors of many tens of cycles are usual, as with caps of hundreds of cycles, a few windows decide
    the sum and the score means nothing: `figures` omits it above `SCORE_CAP`.

    >>> round(nasa_score(np.array([-13.0, 10.0])), 3)
    3.437
    """
    return float(_penalty(error).sum())


def has_nasa_score(cap: float) -> bool:
    """Return whether NASA's score is meaningful for a model with this cap, in cycles."""
    return cap <= SCORE_CAP


def _penalty(error: FloatArray) -> FloatArray:
    d = error.astype(np.float64)
    return np.expm1(np.where(d < 0, -d / 13.0, d / 10.0))


def figures(answered: Answered, *, cap: float) -> dict[str, Figure]:
    """Compute the figures of `TITLES`; the truth is capped.

    `score` is NASA's, the mean per window, and absent above `SCORE_CAP`. `rmse_below_cap` and
    `coverage_below_cap` are of the windows with a true RUL below the cap, where an answer can be too late,
    and absent without one. Windows count by their `weight`. Whole groups are resampled (`bootstrapped`).
    """
    if len(answered.truth) == 0:
        raise InvalidData("nothing to evaluate: no window of a unit with a known failure")
    truth = capped_rul(answered.truth, cap=cap)
    error = answered.rul - truth
    covered = (answered.lower <= truth) & (truth <= answered.upper)
    width = answered.upper - answered.lower
    below = answered.truth < cap

    def mean(values: FloatArray | BoolArray, among: BoolArray | None = None) -> Statistic:
        return mean_of(values if among is None else np.where(among, values, np.nan), answered.weight)

    of_windows = {
        "rmse": root_of(mean(np.square(error))),
        "rmse_below_cap": root_of(mean(np.square(error), below)),
        "mae": mean(np.abs(error)),
        "bias": mean(error),
        **({"score": mean(_penalty(error))} if has_nasa_score(cap) else {}),
        "coverage": mean(covered),
        "coverage_below_cap": mean(covered, below),
        "width": mean(width),
    }
    if not below.any():
        del of_windows["rmse_below_cap"], of_windows["coverage_below_cap"]
    return bootstrapped(of_windows, answered.group)


def rmse_difference(ours: Answered, theirs: Answered, *, cap: float) -> Figure:
    """Compute our RMSE minus theirs on the same windows, with a paired bootstrap."""
    if not (np.array_equal(ours.unit, theirs.unit) and np.array_equal(ours.truth, theirs.truth)):
        raise InvalidData("answers to different windows cannot be compared")
    truth = capped_rul(ours.truth, cap=cap)
    one, other = (root_of(mean_of(np.square(each.rul - truth), ours.weight)) for each in (ours, theirs))
    return bootstrapped({"rmse": lambda total: one(total) - other(total)}, ours.group)["rmse"]


def boosting_figures(answered: Answered, boosted: FloatArray, *, cap: float) -> dict[str, Figure]:
    """Compare answers of a network with `boosted` ones to the same windows, [W].

    `rmse` and `rmse_below_cap` are those of gradient boosting. `difference` is the RMSE of the network
    less that of gradient boosting, with groups resampled in pairs.
    """
    rival = replace(answered, rul=boosted, lower=boosted, upper=boosted)
    found = {name: figure for name, figure in figures(rival, cap=cap).items() if name.startswith("rmse")}
    return {**found, "difference": rmse_difference(answered, rival, cap=cap)}


def boosting_caution(metrics: Mapping[str, float]) -> str | None:
    """Warn if gradient boosting has the lower error, from the metrics of a run.

    None if the network is better or equal, or if the run did not compare.
    """
    if metrics.get("boosting_difference", 0.0) <= 0:
        return None
    errors = (
        f"Gradient boosting on window statistics has an RMSE of {metrics['boosting_rmse']:.1f} cycles where "
        f"this network has {metrics['crossvalidation_rmse']:.1f}"
    )
    if metrics["boosting_difference_low"] <= 0:
        return f"{errors}. The difference may be chance: its 95 % interval includes 0."
    return f"{errors}: do not rely on this model until more data or other options close the gap."


def bootstrapped(
    statistics: Mapping[str, Statistic], group: NDArray[Any], *, resamples: int = RESAMPLES
) -> dict[str, Figure]:
    """Compute figures of rows with 95 % intervals, by resampling whole groups [W], mostly of one unit each.

    Errors of one unit are correlated, and so are those of units of one group. This is the pairs cluster
    bootstrap of Cameron, Gelbach and Miller, "Bootstrap-based improvements for inference with clustered
    errors" (Review of Economics and Statistics 90(3), 2008).
    Resamples without a value (NaN) are ignored. The interval is NaN if all are, or if a single group has
    values: every resample would repeat it.
    """
    rng = np.random.default_rng(0)
    names, which = np.unique(group, return_inverse=True)
    count = len(names)
    times = np.ones((1 + resamples, count))  # how often each group counts
    for row in times[1:]:
        row[:] = np.bincount(rng.integers(count, size=count), minlength=count)

    def figure(statistic: Statistic) -> Figure:
        groups = 0  # that have values

        def total(values: FloatArray) -> FloatArray:
            nonlocal groups
            sums = np.bincount(which, weights=values, minlength=count)
            groups = max(groups, np.count_nonzero(sums))
            return times @ sums

        value, *others = statistic(total).tolist()
        known = [other for other in others if not math.isnan(other)] if groups > 1 else []
        low, high = np.quantile(known, (0.025, 0.975)) if known else (math.nan, math.nan)
        return Figure(value, float(low), float(high))

    return {name: figure(statistic) for name, statistic in statistics.items()}


def named_figures(part: str, found: Mapping[str, Figure]) -> dict[str, float]:
    """Name values and bounds `crossvalidation_rmse`, `crossvalidation_rmse_low` and so on.

    A figure without an interval has no bounds.
    """
    flat: dict[str, float] = {}
    for name, figure in found.items():
        flat[f"{part}_{name}"] = figure.value
        if not math.isnan(figure.low):
            flat |= {f"{part}_{name}_low": figure.low, f"{part}_{name}_high": figure.high}
    return flat


def named_figure(metrics: Mapping[str, float], name: str) -> Figure:
    """Return the figure of this name in the metrics of a run, as `named_figures` names it."""
    return Figure(metrics[name], *(metrics.get(f"{name}_{end}", math.nan) for end in ("low", "high")))


def mean_of(values: FloatArray | BoolArray, weight: FloatArray | None = None) -> Statistic:
    """Return the mean over rows, of equal weights or these, that ignores NaN; NaN without a value."""
    known = ~np.isnan(values)
    counts = np.where(known, 1.0 if weight is None else weight, 0.0)
    return ratio_of(np.where(known, values, 0.0) * counts, counts)


def root_of(statistic: Statistic) -> Statistic:
    """Return the square root of a statistic."""
    return lambda total: np.sqrt(statistic(total))


def ratio_of(above: FloatArray, below: FloatArray) -> Statistic:
    """Return the ratio of the sums over rows; NaN if the divisor is 0."""

    def ratio(total: Total) -> FloatArray:
        base = total(below)
        return total(above) / np.where(base > 0, base, np.nan)

    return ratio
