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
        held: Whether the interval agrees with what is known: it holds the truth or, where a unit was
            removed, reaches as far as the unit is known to have run.
        width: Of the interval.
    """

    truth: FloatArray
    error: FloatArray
    held: BoolArray
    width: FloatArray

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def failed(self) -> BoolArray:
        """Whether the unit failed: only then is the truth known, and the interval put to the test."""
        return ~np.isnan(self.error)

    @property
    def covered(self) -> BoolArray:
        """Whether the interval held the truth; never where that is not known."""
        return self.failed & self.held

    @property
    def contradicted(self) -> BoolArray:
        """Whether the unit was removed and had outrun the interval: a miss that is known all the same."""
        return ~(self.failed | self.held)


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
    >>> found.error.tolist(), found.covered.tolist(), found.contradicted.tolist()
    ([2.0, nan], [False, False], [False, True])
    """
    truth = capped_rul(cycles_until(outcome_cycle, last_cycle), cap=cap).astype(np.float64)
    error = np.where(failed, rul - truth, np.nan)
    held = (truth <= upper) & (np.logical_not(failed) | (lower <= truth))
    return Judged(truth, error, held, np.asarray(upper, np.float64) - lower)


@dataclass(frozen=True, slots=True)
class Fared:
    """How predictions fared, in cycles; none where there is nothing to tell it from.

    Attributes:
        predictions: How many met an outcome; the width is of all of them.
        with_error: How many of them are of units that failed; errors and coverage are of these.
        covered: How many intervals of these held the truth.
        contradicted: How many of the others were too short for what a removed unit ran.
        bias: Mean of predicted less true: above 0 the answers were late.
        nasa_score: Mean a prediction.
    """

    predictions: int
    with_error: int
    covered: int
    contradicted: int
    coverage: float | None = None
    rmse: float | None = None
    mean_absolute_error: float | None = None
    bias: float | None = None
    nasa_score: float | None = None
    mean_width: float | None = None


def fared(predictions: Judged) -> Fared:
    """The figures of judged predictions."""
    count, covered = len(predictions), int(np.count_nonzero(predictions.covered))
    contradicted = int(np.count_nonzero(predictions.contradicted))
    error = predictions.error[predictions.failed]
    width = float(predictions.width.mean()) if count else None
    if not len(error):
        return Fared(count, 0, covered, contradicted, mean_width=width)
    return Fared(
        count,
        len(error),
        covered,
        contradicted,
        covered / len(error),
        root_mean_square_error(error),
        float(np.abs(error).mean()),
        float(error.mean()),
        nasa_score(error) / len(error),
        width,
    )
