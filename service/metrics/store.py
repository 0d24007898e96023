"""The metrics of predictions and outcomes that are kept; see `metrics` for the rules that they follow."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from model.evaluation import nasa_score
from service.metrics.buckets import ERROR_CYCLES
from service.metrics.instruments import Shared
from service.store.judgement import Judgement, OutcomeKind, OutcomeResult
from service.store.rows import Drop


class Judged(NamedTuple):
    """Predictions of one model that outcomes have judged since the service started.

    Attributes:
        trials: Predictions of units that failed.
        hits: Of those, intervals that held the true RUL.
        absolute_error: Sum, in cycles.
        error: Sum of predicted less true RUL, in cycles.
        contradicted: Predictions of removed units that outlived the interval.
        open: Predictions of other removed units.
    """

    trials: float
    hits: float
    absolute_error: float
    error: float
    contradicted: float
    open: float


class StoreMetrics:
    """Counts predictions and outcomes that are kept, from any thread: a `StoreObserver`."""

    def __init__(self, shared: Shared) -> None:
        self._pending: Callable[[], int] = int
        self._outcomes: Final = shared.counter(
            "rul_outcomes_total", "Outcomes reported, by kind.", kind=[kind.value for kind in OutcomeKind]
        )
        self._hits: Final = shared.counter(
            "rul_coverage_hits_total",
            "Predictions of units that failed, whose interval held the true RUL.",
            model=(),
        )
        self._trials: Final = shared.counter(
            "rul_coverage_trials_total", "Predictions of units that failed.", model=()
        )
        self._removed: Final = shared.counter(
            "rul_removed_predictions_total",
            "Predictions of units that were removed; contradicted: the unit outlived the interval.",
            model=(),
            verdict=("contradicted", "open"),
        )
        self._error: Final = shared.histogram(
            "rul_outcome_absolute_error_cycles",
            "Absolute error of predictions of units that failed, in cycles; prediction and truth are capped.",
            ERROR_CYCLES,
            model=(),
        )
        self._sides: Final = shared.counter(
            "rul_outcome_error_cycles_total",
            "Sum of the cycles by which predictions were late or early.",
            model=(),
            side=("early", "late"),
        )
        self._nasa: Final = shared.counter(
            "rul_outcome_nasa_score_total", "NASA scores of predictions of units that failed.", model=()
        )
        self._rows: Final = shared.counter(
            "rul_store_rows_total", "Rows committed to the store.", kind=("prediction", "outcome", "reading")
        )
        self._drops: Final = shared.counter(
            "rul_store_dropped_total",
            "Predictions that were not kept, by reason.",
            reason=[reason.value for reason in Drop],
        )
        shared.gauge(
            "rul_store_pending_rows", "Predictions that wait to be written.", lambda: float(self._pending())
        )
        self._is_down = False
        shared.gauge(
            "rul_store_up",
            "0 while a worker cannot reach the database of predictions; 1 otherwise, also with none.",
            lambda: self._is_down,
            of_all=operator.not_,
        )

    def judged(self, model: str) -> Judged:
        """Return what all workers have counted of a model's predictions against outcomes."""
        errors = self._error.labels(model).total()
        late, early = (self._sides.total(model, side) for side in ("late", "early"))
        return Judged(
            self._trials.total(model),
            self._hits.total(model),
            float(errors[-1]),
            late - early,
            *(self._removed.total(model, verdict) for verdict in ("contradicted", "open")),
        )

    def watch_pending(self, pending: Callable[[], int]) -> None:
        """Ask this how many predictions wait to be written."""
        self._pending = pending

    def wrote(self, rows: int) -> None:
        """Count predictions that are committed."""
        self._rows.labels("prediction").inc(rows)

    def ingested(self, rows: int) -> None:
        """Count readings that are committed."""
        self._rows.labels("reading").inc(rows)

    def dropped(self, reason: Drop, rows: int) -> None:
        """Count predictions that are not kept."""
        self._drops.labels(reason.value).inc(rows)

    def up(self, *, up: bool) -> None:
        """Show whether the database answers this worker."""
        self._is_down = not up

    def taken(self, kind: OutcomeKind, result: OutcomeResult) -> None:
        """Count an outcome that is committed; one that corrects another is no second end of the unit."""
        self._rows.labels("outcome").inc()
        if result is OutcomeResult.CREATED:
            self._outcomes.labels(kind.value).inc()

    def scored(self, model: str, judgement: Judgement) -> None:
        """Count predictions of a loaded model that an outcome has been reported for."""
        error = judgement.error[judgement.failed]
        contradicted = int(np.count_nonzero(judgement.contradicted))
        self._trials.labels(model).inc(len(error))
        self._hits.labels(model).inc(int(np.count_nonzero(judgement.covered)))
        self._removed.labels(model, "contradicted").inc(contradicted)
        self._removed.labels(model, "open").inc(len(judgement) - len(error) - contradicted)
        self._error.labels(model).observe_each(np.abs(error).tolist())
        self._sides.labels(model, "late").inc(float(error[error > 0].sum()))
        self._sides.labels(model, "early").inc(float(-error[error < 0].sum()))
        self._nasa.labels(model).inc(nasa_score(error))
