"""Metrics of stored predictions and outcomes; `metrics` has the rules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from model.evaluation import nasa_score
from service.metrics.buckets import ERROR_CYCLES
from service.metrics.instruments import Shared
from service.store.judgement import Judgement, OutcomeKind, OutcomeResult
from service.store.rows import Drop

VERDICTS: Final = ("contradicted", "open")
SIDES: Final = ("late", "early")
ERRORS: Final = "rul_outcome_absolute_error_cycles"
COUNTERS: Final[Mapping[str, tuple[str, Mapping[str, Sequence[str]]]]] = {
    "rul_outcomes_total": ("Outcomes reported, by kind.", {"kind": [kind.value for kind in OutcomeKind]}),
    "rul_coverage_hits_total": (
        "Predictions of units that failed, whose interval held the true RUL.",
        {"model": ()},
    ),
    "rul_coverage_trials_total": ("Predictions of units that failed.", {"model": ()}),
    "rul_coverage_units_total": ("Units that failed, of which there were predictions.", {"model": ()}),
    "rul_removed_predictions_total": (
        "Predictions of units that were removed; contradicted: the unit outlived the interval.",
        {"model": (), "verdict": VERDICTS},
    ),
    "rul_outcome_error_cycles_total": (
        "Sum of the cycles by which predictions were late or early.",
        {"model": (), "side": SIDES},
    ),
    "rul_outcome_nasa_score_total": (
        "NASA scores of predictions of units that failed; 0 for models with a cap above 150 cycles.",
        {"model": ()},
    ),
    "rul_store_rows_total": ("Rows committed to the store.", {"kind": ("prediction", "outcome", "reading")}),
    "rul_store_dropped_total": (
        "Predictions that were not stored, by reason.",
        {"reason": [reason.value for reason in Drop]},
    ),
}


class StoreMetrics:
    """Counts stored predictions and outcomes, from any thread: a `StoreObserver`.

    Attributes:
        pending: Returns how many predictions wait to be written.
    """

    def __init__(self, shared: Shared) -> None:
        self.pending: Callable[[], int] = int
        self._is_down = False
        self._counters: Final = {
            name: shared.counter(name, text, **labels) for name, (text, labels) in COUNTERS.items()
        }
        self._errors: Final = shared.histogram(
            ERRORS,
            "Absolute error of predictions of units that failed, in cycles; prediction and truth are capped.",
            ERROR_CYCLES,
            model=(),
        )
        shared.gauge(
            "rul_store_pending_rows", "Predictions that wait to be written.", lambda: float(self.pending())
        )
        shared.gauge(
            "rul_store_up",
            "0 while a worker cannot reach the database of predictions; 1 otherwise, also without a store.",
            lambda: self._is_down,
            of_all=operator.not_,
        )

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        self._counters[name].labels(*labels).inc(by)

    def wrote(self, rows: int) -> None:
        """Count committed predictions."""
        self._count("rul_store_rows_total", "prediction", by=rows)

    def ingested(self, rows: int) -> None:
        """Count committed readings."""
        self._count("rul_store_rows_total", "reading", by=rows)

    def dropped(self, reason: Drop, rows: int) -> None:
        """Count predictions that were not stored."""
        self._count("rul_store_dropped_total", reason.value, by=rows)

    def up(self, *, up: bool) -> None:
        """Show whether the database answers this worker."""
        self._is_down = not up

    def taken(self, kind: OutcomeKind, result: OutcomeResult) -> None:
        """Count a committed outcome; a correction is not a second end of the unit."""
        self._count("rul_store_rows_total", "outcome")
        if result is OutcomeResult.CREATED:
            self._count("rul_outcomes_total", kind.value)

    def scored(self, model: str, judgement: Judgement, *, is_late: bool) -> None:
        """Count a unit's predictions that its outcome has judged, and the unit unless they are late."""
        error = judgement.error[judgement.failed]
        contradicted = int(np.count_nonzero(judgement.contradicted))
        still_open = len(judgement) - len(error) - contradicted
        self._count("rul_coverage_trials_total", model, by=len(error))
        self._count("rul_coverage_units_total", model, by=int(len(error) > 0 and not is_late))
        self._count("rul_coverage_hits_total", model, by=int(np.count_nonzero(judgement.covered)))
        for verdict, count in zip(VERDICTS, (contradicted, still_open), strict=True):
            self._count("rul_removed_predictions_total", model, verdict, by=count)
        self._errors.labels(model).observe_each(np.abs(error).tolist())
        for side, cycles in zip(SIDES, (error[error > 0].sum(), -error[error < 0].sum()), strict=True):
            self._count("rul_outcome_error_cycles_total", model, side, by=float(cycles))
        if judgement.is_scored:
            self._count("rul_outcome_nasa_score_total", model, by=nasa_score(error))
