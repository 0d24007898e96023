"""Every metric of the service, with its help and its unit; docs/metrics.md is made from what is declared.

Label values come from the enums below and from the names of the loaded models, never from a
request; all children exist from the start, so that rates work from the first event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry

from model.domain import FloatArray
from service.core.answers import STATES, Answers
from service.core.ports import Batch, Stages
from service.core.runtime import Runtime
from service.labels import (
    PREDICTS,
    REJECTED,
    SUCCESS,
    Route,
    Side,
    Stage,
    Transport,
    code_of,
    codes,
    failure_code,
)
from service.metrics.board import Board
from service.metrics.buckets import (
    CYCLES,
    FRACTIONS,
    NOVELTY,
    SECONDS,
    STAGE_SECONDS,
    TWENTIETHS,
    WINDOWS,
    Buckets,
)
from service.metrics.counters import Counter, Gauge
from service.metrics.drift import DriftCollector
from service.metrics.histograms import Histogram
from service.metrics.manifests import declare_manifests
from service.metrics.store import StoreMetrics


class ModelMetrics:
    """The metrics of one model, observed once a batch."""

    def __init__(self, metrics: Metrics, model: Runtime) -> None:
        manifest, name = model.manifest, model.manifest.name
        self._inference: Final = metrics.inference.labels(name, model.provider)
        self._batch: Final = metrics.batch_windows.labels()
        self._queue: Final = metrics.stage_children[Stage.QUEUE]
        self._inference_stage: Final = metrics.stage_children[Stage.INFERENCE]
        self._cancelled: Final = metrics.cancelled
        self._peak: Final = metrics.peak_weight.labels(name)
        self._rul: Final = metrics.prediction.labels(name)
        self._width: Final = metrics.interval_width.labels(name)
        self._novelty: Final = metrics.novelty.labels(name)
        self._imputed: Final = metrics.imputed.labels()
        self._entropy: Final = metrics.entropy.labels(name, "mean")
        self._heads: Final = [metrics.entropy.labels(name, str(head)) for head in range(manifest.heads)]
        self._states: Final = [metrics.states.labels(name, state.value) for state in STATES]
        self._out: Final = {side: metrics.out_of_band.labels(name, side.value) for side in Side}
        self._band: Final = next((band for band in manifest.entropy if band.head == "mean"), None)
        self._drift: Final = metrics.drift.monitors[name].observe

    def cancelled(self, windows: int) -> None:
        """So many windows have nobody left who waits for their answers."""
        self._cancelled.inc(windows)

    def ran(self, batch: Batch) -> None:
        """Count a batch whose callers have been told its outcome."""
        self._queue.observe_each(batch.queued)
        self._inference_stage.observe_each(batch.answered)
        if batch.answers is None:
            return
        self._inference.observe(batch.seconds)
        self._batch.observe(batch.size)
        imputed: list[float] = []
        units: list[str | None] = []
        asked: list[bool] = []
        for caller, places in batch.shares:
            windows = caller.windows
            asked += [not windows.is_probe] * len(places)
            if not windows.is_probe:  # a probe is no prediction, and would look like a failing sensor
                imputed += [windows.imputed_fraction[i] for i in places]
                units += [windows.units[i] for i in places]
        if units:
            answers = batch.answers if len(units) == batch.size else batch.answers.only(np.array(asked))
            self._answers(answers, np.array(imputed))
            self._drift(answers.asked.readings, answers, units)

    def _answers(self, answers: Answers, imputed_fraction: FloatArray) -> None:
        """What it answered to the windows that were asked for."""
        self._peak.observe_many(answers.peak_weight)
        self._rul.observe_many(answers.outputs.rul)
        self._width.observe_many(answers.interval_width)
        self._novelty.observe_many(answers.outputs.novelty)
        self._imputed.observe_many(imputed_fraction)
        self._entropy.observe_many(answers.entropy_ratio)
        for i, child in enumerate(self._heads):
            if answers.head_entropy_ratio is not None:
                child.observe_many(answers.head_entropy_ratio[:, i])
        counts = np.bincount(answers.state, minlength=len(STATES)).tolist()
        for child, count in zip(self._states, counts, strict=True):
            if count:
                child.inc(count)
        if self._band is not None:
            self._count_out_of_band(answers.entropy_ratio, self._band.low, self._band.high)

    def _count_out_of_band(self, ratio: FloatArray, low: float, high: float) -> None:
        for side, outside in ((Side.LOW, ratio < low), (Side.HIGH, ratio > high)):
            count = int(np.count_nonzero(outside))
            if count:
                self._out[side].inc(count)


class Metrics:
    """The metrics of a service, on one registry; of one of its workers, added to the others' on the board."""

    def __init__(
        self, registry: CollectorRegistry, models: Sequence[Runtime], board: Board | None = None
    ) -> None:
        """Declare everything, with a child for each model that is loaded."""
        names = [model.manifest.name for model in models]
        self.registry: Final = registry
        self._board: Final = board or Board()
        self._published: Final[list[Histogram | Gauge | StoreMetrics | DriftCollector]] = []
        self._ready: Callable[[], bool] = lambda: False
        self._pending: list[Callable[[], int]] = []
        self._inflight = 0
        self._streams = 0
        self._declare_requests()
        self._declare_work(models)
        self._declare_answers(models, names)
        self._declare_now()
        self.store: Final = StoreMetrics(registry, self._board, names)
        self.drift: Final = DriftCollector.of(models, self._board, registry=registry)
        self._published.extend([self.store, self.drift])
        declare_manifests(registry, models)
        self.models: Final = {model.manifest.name: ModelMetrics(self, model) for model in models}

    def _declare_requests(self) -> None:
        keys = [(t, r) for t in Transport for r in Route if r.transport in {None, t}]
        # Probes and pages end well or not at all: all their codes from the start would be noise.
        common = {
            (t, r, c)
            for t, r in keys
            for c in ((*codes(t),) if r in PREDICTS else (SUCCESS[t], failure_code(t)))
        }
        every = [(t, r, c) for t, r in keys for c in codes(t)]
        requests = Counter(
            "rul_requests_total",
            "Requests by how they ended: HTTP status or gRPC code.",
            {"protocol": (), "route": (), "code": ()},
            combinations=[(t.value, r.value, c) for t, r, c in every if (t, r, c) in common],
            when_counted=[(t.value, r.value, c) for t, r, c in every if (t, r, c) not in common],
            registry=self.registry,
            board=self._board,
        )
        self._requests = {(t, r, c): requests.labels(t.value, r.value, c) for t, r, c in every}
        duration = self._histogram(
            "rul_request_duration_seconds",
            "From the whole request received to its answer encoded, errors included.",
            {"protocol": (), "route": ()},
            combinations=[(t.value, r.value) for t, r in keys if r is not Route.GRPC_STREAM],
            buckets=SECONDS,
        )
        self._durations = {
            (t, r): duration.labels(t.value, r.value) for t, r in keys if r is not Route.GRPC_STREAM
        }
        rejected = self._counter(
            "rul_rejected_total", "Requests refused, by reason.", {"reason": sorted({*REJECTED.values()})}
        )
        self._rejected = {kind: rejected.labels(reason) for kind, reason in REJECTED.items()}

    def _declare_work(self, models: Sequence[Runtime]) -> None:
        stage = self._histogram(
            "rul_stage_duration_seconds",
            "Parts of a request's time.",
            {"stage": [stage.value for stage in Stage]},
            buckets=STAGE_SECONDS,
        )
        self.stage_children = {s: stage.labels(s.value) for s in Stage}
        self.inference = self._histogram(
            "rul_inference_duration_seconds",
            "One call of the graph with one batch.",
            {"model": (), "provider": ()},
            combinations=[(model.manifest.name, model.provider) for model in models],
            buckets=STAGE_SECONDS,
        )
        self.batch_windows = self._histogram("rul_batch_windows", "Windows a batch.", buckets=WINDOWS)
        self.cancelled = self._counter(
            "rul_cancelled_total",
            "Windows whose caller left, or whose deadline passed, before they were answered.",
        ).labels()

    def _declare_answers(
        self,
        models: Sequence[Runtime],
        names: Sequence[str],
    ) -> None:
        self.entropy = self._histogram(
            "rul_attention_entropy_ratio",
            "Attention entropy over its largest possible value: 0 one cycle has all weight, 1 all the same.",
            {"model": (), "head": ()},
            combinations=[
                (model.manifest.name, head)
                for model in models
                for head in ("mean", *map(str, range(model.manifest.heads)))
            ],
            buckets=TWENTIETHS,
        )
        self.peak_weight = self._histogram(
            "rul_attention_peak_weight",
            "Largest attention weight of a window.",
            {"model": names},
            buckets=TWENTIETHS,
        )
        self.out_of_band = self._counter(
            "rul_attention_out_of_band_total",
            "Windows whose attention entropy is outside the reference band: low collapsed, high uniform.",
            {"model": names, "side": [side.value for side in Side]},
        )
        self.prediction = self._histogram(
            "rul_prediction_cycles",
            "Predicted RUL in cycles.",
            {"model": names},
            buckets=CYCLES,
        )
        self.interval_width = self._histogram(
            "rul_interval_width_cycles",
            "Upper minus lower bound of the prediction interval, in cycles.",
            {"model": names},
            buckets=CYCLES,
        )
        self.states = self._counter(
            "rul_state_total",
            "Answers by how they may be read.",
            {"model": names, "state": [state.value for state in STATES]},
        )
        self.novelty = self._histogram(
            "rul_novelty_ratio",
            "Distance from the training data; 1 is its 99.5 % quantile.",
            {"model": names},
            buckets=NOVELTY,
        )
        self.imputed = self._histogram(
            "rul_imputed_fraction",
            "Missing readings over all readings of a window.",
            buckets=FRACTIONS,
        )

    def _declare_now(self) -> None:
        self._gauge(
            "rul_inflight_requests", "Requests that have begun and not ended.", lambda: self._inflight
        )
        self._gauge("rul_open_streams", "Streams of readings that are open.", lambda: self._streams)
        self._gauge(
            "rul_pending_windows",
            "Windows that wait for a batch, all models together.",
            lambda: sum(pending() for pending in self._pending),
        )
        self._gauge("rul_workers", "Workers that are ready to answer.", self._answers)

    def _answers(self) -> float:
        return float(self._ready())

    def _counter(
        self, name: str, documentation: str, labels: Mapping[str, Sequence[str]] | None = None
    ) -> Counter:
        return Counter(name, documentation, labels, registry=self.registry, board=self._board)

    def _histogram(
        self,
        name: str,
        documentation: str,
        labels: Mapping[str, Sequence[str]] | None = None,
        *,
        combinations: Sequence[tuple[str, ...]] | None = None,
        buckets: Buckets,
    ) -> Histogram:
        histogram = Histogram(
            name,
            documentation,
            labels,
            combinations=combinations,
            buckets=buckets.bounds,
            registry=self.registry,
            board=self._board,
        )
        self._published.append(histogram)
        return histogram

    def _gauge(self, name: str, documentation: str, now: Callable[[], float]) -> None:
        self._published.append(Gauge(name, documentation, now, registry=self.registry, board=self._board))

    def publish(self) -> None:
        """Put on the board what other workers would not see yet: observations, and what is so now."""
        for metric in self._published:
            metric.publish()

    def watch_ready(self, ready: Callable[[], bool]) -> None:
        """Say what tells whether this worker answers."""
        self._ready = ready

    def watch_pending(self, pending: Callable[[], int]) -> None:
        """Add a queue to `rul_pending_windows`."""
        self._pending.append(pending)

    def begin(self, route: Route) -> None:
        """A request has begun. A stream is open for as long as its caller likes: it is counted by itself."""
        if route is Route.GRPC_STREAM:
            self._streams += 1
        else:
            self._inflight += 1

    def end(
        self,
        transport: Transport,
        route: Route,
        code: str,
        seconds: float,
        stages: Stages = [],  # noqa: B006 never changed
    ) -> None:
        """A request has ended with one of `codes(transport)`, and took these seconds in its stages."""
        for stage, start, end in stages:
            self.stage_children[stage].observe(end - start)
        if route is Route.GRPC_STREAM:
            self._streams -= 1
        else:
            self._inflight -= 1
            self._durations[transport, route].observe(seconds)
        child = self._requests.get((transport, route, code))
        if child is None:  # a code that is none of ours
            child = self._requests[transport, route, failure_code(transport)]
        child.inc()

    def failed(self, transport: Transport, error: BaseException) -> str:
        """Count a refusal by its reason; the code label of an error."""
        for kind in type(error).__mro__:
            if kind in self._rejected:
                self._rejected[kind].inc()
                break
        return code_of(transport, error)
