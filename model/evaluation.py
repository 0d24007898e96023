"""How good answers are: errors in cycles and honest doubt about them.

Truth and answers are compared as they are reported: both capped. This module must not know
networks, files or where the answers came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.domain import FloatArray, IntArray, InvalidData, capped_rul

RESAMPLES: Final = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """Windows with their truth and what was answered, all [W] and in cycles.

    Attributes:
        truth: RUL, not capped.
        rul: The answer.
        lower: Of the interval.
        upper: Of the interval; at the cap it means "at least".
        unit: The unit that each window was cut from.
    """

    truth: FloatArray
    rul: FloatArray
    lower: FloatArray
    upper: FloatArray
    unit: NDArray[np.str_]


def join_answers(parts: Sequence[Answered]) -> Answered:
    """All windows of all parts, in order."""
    return Answered(
        truth=np.concatenate([part.truth for part in parts]),
        rul=np.concatenate([part.rul for part in parts]),
        lower=np.concatenate([part.lower for part in parts]),
        upper=np.concatenate([part.upper for part in parts]),
        unit=np.concatenate([part.unit for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure with its 95 % interval, by bootstrap over units."""

    value: float
    low: float
    high: float


def root_mean_square_error(error: FloatArray) -> float:
    """In cycles.

    >>> root_mean_square_error(np.array([3.0, -4.0, 0.0, 0.0]))
    2.5
    """
    return float(np.sqrt(np.mean(np.square(error))))


def nasa_score(error: FloatArray) -> float:
    """The PHM08 challenge's score of `predicted - true`, summed: late answers cost more than early ones.

    exp(-d / 13) - 1 where the answer is early (d < 0), exp(d / 10) - 1 where it is late.

    >>> round(nasa_score(np.array([-13.0, 10.0])), 3)
    3.437
    """
    d = error.astype(np.float64)
    return float(np.expm1(np.where(d < 0, -d / 13.0, d / 10.0)).sum())


def figures(
    answered: Answered, *, cap: float, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Figure]:
    """Every figure by its name: rmse, mae, bias, score (NASA, mean a window), coverage, width.

    The truth is capped. Units are resampled whole, because windows of one unit err together.

    Raises:
        InvalidData: there is no window.
    """
    if len(answered.truth) == 0:
        raise InvalidData("nothing to evaluate: no window of a unit whose failure is known")
    truth = capped_rul(answered.truth, cap=cap)
    error = answered.rul - truth
    covered = (answered.lower <= truth) & (truth <= answered.upper)
    width = answered.upper - answered.lower
    of_windows: dict[str, Callable[[IntArray], float]] = {
        "rmse": lambda rows: root_mean_square_error(error[rows]),
        "mae": lambda rows: float(np.abs(error[rows]).mean()),
        "bias": lambda rows: float(error[rows].mean()),
        "score": lambda rows: nasa_score(error[rows]) / len(rows),
        "coverage": lambda rows: float(covered[rows].mean()),
        "width": lambda rows: float(width[rows].mean()),
    }
    return bootstrapped(of_windows, answered.unit, seed=seed, resamples=resamples)


def bootstrapped(
    of_rows: Mapping[str, Callable[[IntArray], float]],
    unit: NDArray[np.str_],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Figure]:
    """Figures of rows with their 95 % intervals, by resampling whole units, [W] names of them.

    A figure that some resample cannot give (NaN) is judged by the others; without any it has none.
    """
    samples = _unit_samples(unit, seed=seed, resamples=resamples)
    everything = np.arange(len(unit))
    found: dict[str, Figure] = {}
    for name, figure in of_rows.items():
        drawn = np.array([figure(rows) for rows in samples])
        drawn = drawn[~np.isnan(drawn)]
        low, high = np.quantile(drawn, (0.025, 0.975)) if len(drawn) else (np.nan, np.nan)
        found[name] = Figure(figure(everything), float(low), float(high))
    return found


def _unit_samples(unit: NDArray[np.str_], *, seed: int, resamples: int) -> list[IntArray]:
    """Window indices of as many units as there are, drawn with replacement, many times over."""
    rng = np.random.default_rng(seed)
    rows = [np.flatnonzero(unit == name) for name in np.unique(unit)]
    return [
        np.concatenate([rows[i] for i in rng.integers(len(rows), size=len(rows))]) for _ in range(resamples)
    ]
