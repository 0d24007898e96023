"""Judges predictions by the outcomes of units.

Pure functions over arrays with one element per prediction. Truth and prediction are both capped and compared
by the same definitions as in the evaluation of a bundle. This module must not know the database or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from model.domain import BoolArray, FloatArray, IntArray, capped_rul, cycles_until
from model.evaluation import has_nasa_score, nasa_score, root_mean_square_error


class OutcomeKind(StrEnum):
    """How a unit's life ended.

    `failed`: its last cycle is the failure. `removed`: it was taken out of service while it still ran, so
    only a lower bound of its life is known (censored).
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
    tenant: str = ""

    def differences(self, other: Outcome) -> list[str]:
        """Name what differs: kind, cycle or time; a missing time never differs."""
        times = {self.happened_at, other.happened_at} - {None}
        differs = {
            "kind": self.kind != other.kind,
            "cycle": self.cycle != other.cycle,
            "time": len(times) > 1,
        }
        return [name for name, different in differs.items() if different]


class OutcomeResult(StrEnum):
    """What the store did with a reported outcome."""

    CREATED = "created"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """Predictions compared with outcomes, all [W], in cycles.

    Attributes:
        truth: RUL, capped; for a removed unit its lower bound.
        error: Predicted minus true, so above 0 is late; NaN for a removed unit.
        held: Whether the interval agrees with the outcome: it holds the truth or, for a removed unit, its
            upper bound is at least `truth`.
        width: Width of the interval.
        is_scored: Whether NASA's score applies to the model's cap.
    """

    truth: FloatArray
    error: FloatArray
    held: BoolArray
    width: FloatArray
    is_scored: bool

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def failed(self) -> BoolArray:
        """Return whether the unit failed, so that its true RUL is known."""
        return ~np.isnan(self.error)

    @property
    def covered(self) -> BoolArray:
        """Return whether the unit failed and the interval held its true RUL."""
        return self.failed & self.held

    @property
    def contradicted(self) -> BoolArray:
        """Return whether a removed unit outlived the interval: a certain miss."""
        return ~(self.failed | self.held)


@dataclass(frozen=True, slots=True)
class VersionJudgement:
    """Predictions of one model version that an outcome judges for the first time."""

    model: str
    version: str
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Receipt:
    """The effect of a report, the stored outcome, and the new judgements to count."""

    result: OutcomeResult
    outcome: Outcome
    judgements: Sequence[VersionJudgement] = ()


def judge(
    rows: Sequence[Sequence[float]] | FloatArray,
    *,
    failed: bool | BoolArray,
    outcome_cycle: int | IntArray,
    cap: float,
) -> Judgement:
    """Compare predictions with the outcomes of their units.

    Args:
        rows: Last cycle, RUL, lower and upper of each prediction; an upper bound at the cap means "at least".
        failed: Whether the unit failed; False: it was removed.
        outcome_cycle: Cycle of the outcome, at or after the last cycle.
        cap: Cap of the model.

    >>> found = judge([(90, 12, 8, 9), (90, 12, 8, 9)], failed=np.array([True, False]), outcome_cycle=100,
    ...     cap=125)
    >>> found.error.tolist(), found.covered.tolist(), found.contradicted.tolist()
    ([2.0, nan], [False, False], [False, True])
    """
    last_cycle, rul, lower, upper = np.asarray(rows, dtype=np.float64).reshape(-1, 4).T
    truth = capped_rul(cycles_until(outcome_cycle, last_cycle.astype(np.int64)), cap=cap).astype(np.float64)
    error = np.where(failed, rul - truth, np.nan)
    held = (truth <= upper) & (np.logical_not(failed) | (lower <= truth))
    return Judgement(truth, error, held, upper - lower, has_nasa_score(cap))


def judge_unit(rows: Sequence[Sequence[float]], outcome: Outcome, *, cap: float) -> Judgement:
    """Compare predictions of one unit with its outcome; see `judge`."""
    failed = outcome.kind is OutcomeKind.FAILED
    return judge(rows, failed=failed, outcome_cycle=outcome.cycle, cap=cap)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Figures of judged predictions, in cycles; None if unknown.

    Attributes:
        predictions: Number of judged predictions; the mean width covers all of them.
        with_error: Number of predictions of failed units; errors and coverage cover these.
        covered: How many of these have an interval that held the truth.
        contradicted: Number of predictions whose interval a removed unit outlived.
        bias: Mean of predicted minus true; above 0 is late.
        nasa_score: Mean per prediction; None for models with a cap above 150 cycles.
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


def accuracy_of(judgement: Judgement) -> Accuracy:
    """Sum up judged predictions."""
    count, covered = len(judgement), int(np.count_nonzero(judgement.covered))
    contradicted = int(np.count_nonzero(judgement.contradicted))
    error = judgement.error[judgement.failed]
    width = float(judgement.width.mean()) if count else None
    if not len(error):
        return Accuracy(count, 0, covered, contradicted, mean_width=width)
    return Accuracy(
        count,
        len(error),
        covered,
        contradicted,
        covered / len(error),
        root_mean_square_error(error),
        float(np.abs(error).mean()),
        float(error.mean()),
        nasa_score(error) / len(error) if judgement.is_scored else None,
        width,
    )
