"""What a real outcome says of the predictions that came before it.

Pure functions over arrays, one element a prediction: truth and answers are compared as they are
reported, both capped, by the same definitions that judge a bundle when it is made. This module must
not know where predictions are stored, nor how an outcome came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from model.domain import BoolArray, FloatArray, IntArray, capped_rul, cycles_until
from model.evaluation import nasa_score, root_mean_square_error


class OutcomeKind(StrEnum):
    """How a unit's life was seen to end.

    `failed`: its last cycle is the failure. `removed`: it was taken out of service while it still ran,
    so all that is known of its RUL is that it was no less (a censored life).
    """

    FAILED = "failed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How and when a unit's life ended; times are seconds since 1970."""

    model: str
    unit: str
    kind: OutcomeKind
    cycle: int
    happened_at: float | None
    recorded_at: float

    def agrees_with(self, other: Outcome) -> bool:
        """Whether both say the same; a time that one leaves out is no disagreement."""
        times = {self.happened_at, other.happened_at} - {None}
        return (self.kind, self.cycle) == (other.kind, other.cycle) and len(times) <= 1


class Taken(StrEnum):
    """What became of an outcome that was reported."""

    CREATED = "created"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"
    CONFLICT = "conflict"
    UNKNOWN_UNIT = "unknown_unit"


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Predictions beside what then happened, all [W], in cycles.

    Attributes:
        truth: RUL, capped; of a unit that was removed, what it was at least.
        error: Predicted less true, so that late is above 0; NaN where a unit was removed.
        covered: Whether the interval held the truth. Of a unit that was removed: whether its upper end
            is not below what the unit is known to have run, which is all that can be told.
        width: Of the interval.
    """

    truth: FloatArray
    error: FloatArray
    covered: BoolArray
    width: FloatArray

    def __len__(self) -> int:
        return len(self.truth)


@dataclass(frozen=True, slots=True)
class Scored:
    """Predictions of one model version that an outcome has been counted against."""

    model: str
    version: str
    judged: Judged


@dataclass(frozen=True, slots=True)
class Report:
    """What became of an outcome, what is known now, and what is to be counted for it."""

    taken: Taken
    outcome: Outcome | None
    scored: Sequence[Scored] = ()


def judged(
    *,
    failed: bool | BoolArray,
    outcome_cycle: int | IntArray,
    last_cycle: IntArray,
    rul: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    cap: float,
) -> Judged:
    """Judge predictions by the outcomes of their units.

    Args:
        failed: Whether the unit failed; False: it was removed.
        outcome_cycle: When it did, at or after `last_cycle`.
        last_cycle: The cycle of the last reading that a prediction knew.
        rul: What was predicted.
        lower: Of the interval.
        upper: Of the interval; at the cap it means "at least".
        cap: Of the model.

    >>> two = np.array([12.0, 12.0])
    >>> found = judged(failed=np.array([True, False]), outcome_cycle=100, last_cycle=np.array([90, 90]),
    ...     rul=two, lower=two - 4, upper=two - 3, cap=125.0)
    >>> found.error.tolist(), found.covered.tolist()
    ([2.0, nan], [False, False])
    """
    truth = capped_rul(cycles_until(outcome_cycle, last_cycle), cap=cap).astype(np.float64)
    error = np.where(failed, rul - truth, np.nan)
    covered = (truth <= upper) & (np.logical_not(failed) | (lower <= truth))
    return Judged(truth, error, covered, np.asarray(upper, np.float64) - lower)


@dataclass(frozen=True, slots=True)
class Fared:
    """How predictions fared, in cycles; none where there is nothing to tell it from.

    Attributes:
        predictions: How many were judged; the coverage is of all of them.
        with_error: How many of them are of units that failed; the errors are of these.
        covered: How many intervals held.
        bias: Mean of predicted less true: above 0 the answers were late.
        nasa_score: Mean a prediction.
    """

    predictions: int
    with_error: int
    covered: int
    coverage: float | None = None
    rmse: float | None = None
    mean_absolute_error: float | None = None
    bias: float | None = None
    nasa_score: float | None = None
    mean_width: float | None = None


def fared(predictions: Judged) -> Fared:
    """The figures of judged predictions."""
    count, covered = len(predictions), int(np.count_nonzero(predictions.covered))
    error = predictions.error[~np.isnan(predictions.error)]
    if not count:
        return Fared(0, 0, 0)
    coverage, width = covered / count, float(predictions.width.mean())
    if not len(error):
        return Fared(count, 0, covered, coverage, mean_width=width)
    return Fared(
        count,
        len(error),
        covered,
        coverage,
        root_mean_square_error(error),
        float(np.abs(error).mean()),
        float(error.mean()),
        nasa_score(error) / len(error),
        width,
    )
