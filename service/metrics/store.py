"""Metrics of the store and of the accuracy that outcomes show; `metrics` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from model.evaluation import nasa_score
from service.metrics.board import Board
from service.metrics.buckets import ERROR_CYCLES
from service.metrics.counters import Counter, Gauge
from service.metrics.histograms import Histogram
from service.store.judgement import Judgement, OutcomeKind, OutcomeResult
from service.store.rows import Drop

SIDES: Final = ("early", "late")
KINDS: Final = ("prediction", "outcome")
VERDICTS: Final = ("contradicted", "open")


class StoreMetrics:
    """Counts events of the store, from any thread; a `service.store.rows.StoreObserver`."""

    def __init__(self, registry: CollectorRegistry, board: Board, models: Sequence[str]) -> None:
        self._pending: Callable[[], int] = int

        def counter(name: str, documentation: str, **labels: Sequence[str]) -> Counter:
            return Counter(name, documentation, labels, registry=registry, board=board)

        outcomes = counter(
            "rul_outcomes_total", "Outcomes reported, by kind.", kind=[kind.value for kind in OutcomeKind]
        )
        hits = counter(
            "rul_coverage_hits_total",
            "Predictions of units that then failed, whose interval held the true RUL.",
            model=models,
        )
        trials = counter("rul_coverage_trials_total", "Predictions of units that then failed.", model=models)
        removed = counter(
            "rul_removed_predictions_total",
            "Predictions of units that were then removed; contradicted: the unit had outrun the interval.",
            model=models,
            verdict=VERDICTS,
        )
        error = Histogram(
            "rul_outcome_absolute_error_cycles",
            "How far predictions of units that then failed were off, in cycles; both sides capped.",
            {"model": models},
            buckets=ERROR_CYCLES.bounds,
            registry=registry,
            board=board,
        )
        sides = counter(
            "rul_outcome_error_cycles_total",
            "Cycles by which predictions were late or early, added up.",
            model=models,
            side=SIDES,
        )
        nasa = counter(
            "rul_outcome_nasa_score_total", "NASA scores of predictions of units that failed.", model=models
        )
        rows = counter("rul_store_rows_total", "Rows committed to the store.", kind=KINDS)
        drops = counter(
            "rul_store_dropped_total",
            "Predictions that were not kept, by reason.",
            reason=[reason.value for reason in Drop],
        )
        self._outcomes: Final = {kind: outcomes.labels(kind.value) for kind in OutcomeKind}
        self._hits: Final = {name: hits.labels(name) for name in models}
        self._trials: Final = {name: trials.labels(name) for name in models}
        self._contradicted, self._open = (
            {name: removed.labels(name, verdict) for name in models} for verdict in VERDICTS
        )
        self._error_histogram: Final = error
        self._error: Final = {name: error.labels(name) for name in models}
        self._early, self._late = ({name: sides.labels(name, side) for name in models} for side in SIDES)
        self._nasa: Final = {name: nasa.labels(name) for name in models}
        self._prediction_rows, self._outcome_rows = (rows.labels(kind) for kind in KINDS)
        self._drops: Final = {reason: drops.labels(reason.value) for reason in Drop}
        self._waiting: Final = Gauge(
            "rul_store_pending_rows",
            "Predictions that wait to be written.",
            self._rows_now,
            registry=registry,
            board=board,
        )
        self._up: Final = _Up(registry, board)

    def watch_pending(self, pending: Callable[[], int]) -> None:
        """Set the function that counts waiting predictions."""
        self._pending = pending

    def _rows_now(self) -> float:
        return self._pending()

    def publish(self) -> None:
        """Share the counts with the other workers."""
        self._error_histogram.publish()
        self._waiting.publish()

    def wrote(self, rows: int) -> None:
        """Count committed predictions."""
        self._prediction_rows.inc(rows)

    def dropped(self, reason: Drop, rows: int) -> None:
        """Count predictions that will not be stored."""
        self._drops[reason].inc(rows)

    def up(self, *, up: bool) -> None:
        """Note whether the database answers this worker."""
        self._up.set(up=up)

    def taken(self, kind: OutcomeKind, result: OutcomeResult) -> None:
        """Count a committed outcome; a correction is no second outcome of the unit."""
        self._outcome_rows.inc()
        if result is OutcomeResult.CREATED:
            self._outcomes[kind].inc()

    def scored(self, model: str, judgement: Judgement) -> None:
        """Count newly judged predictions of a loaded model."""
        error = judgement.error[judgement.failed]
        contradicted = int(np.count_nonzero(judgement.contradicted))
        self._trials[model].inc(len(error))
        self._hits[model].inc(int(np.count_nonzero(judgement.covered)))
        self._contradicted[model].inc(contradicted)
        self._open[model].inc(len(judgement) - len(error) - contradicted)
        self._error[model].observe_many(np.abs(error))
        self._late[model].inc(float(error[error > 0].sum()))
        self._early[model].inc(float(-error[error < 0].sum()))
        self._nasa[model].inc(nasa_score(error))


class _Up(Collector):
    """1 while the database answers every live worker; a sum over workers cannot say that."""

    NAME: Final = "rul_store_up"
    HELP: Final = "0 while a worker cannot reach the database of predictions; 1 otherwise, also with none."

    def __init__(self, registry: CollectorRegistry, board: Board) -> None:
        self._down: Final = board.slots(self.NAME, 1)
        registry.register(self)

    def set(self, *, up: bool) -> None:
        """Note whether it answers this worker."""
        self._down.own[0] = float(not up)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Give the family without samples; a registry uses it to find duplicate names."""
        yield GaugeMetricFamily(self.NAME, self.HELP)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read all workers."""
        yield GaugeMetricFamily(self.NAME, self.HELP, value=float(not self._down.total_of_living()[0]))
