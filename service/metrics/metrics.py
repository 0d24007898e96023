"""Every metric of the service, with its help and unit; docs/metrics.md is made from what is declared.

Label values come from the enums of `service.labels` and from the names of the loaded models, never from a
request; all children exist from the start, so that rates work from the first event.

A request or a batch costs a few appends to lists. One thread of the worker counts them every
50 ms and publishes them on the board; a scrape counts what waits by then, so its numbers are exact.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from time import sleep
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from service import logs
from service.core.ports import Stages
from service.core.runtime import Runtime
from service.labels import (
    PREDICTS,
    REJECTED,
    SUCCESS,
    Route,
    Stage,
    Transport,
    code_of,
    codes,
    failure_code,
)
from service.metrics.board import Board
from service.metrics.drift import DriftCollector
from service.metrics.instruments import SECONDS, STAGE_SECONDS, Processes, Shared, taken
from service.metrics.models import Families, ModelMetrics, declare_manifests
from service.metrics.store import StoreMetrics

PUBLISH_SECONDS: Final = 0.05
"""How far a scrape of one worker may lag behind the requests and histograms of the others."""
PAUSE_SECONDS: Final = 0.001
"""Between two parts of the counting, so that the event loop waits for one of them at most."""

Ended = tuple[Transport, Route, str, float, Stages]
"""A request: how it came, its route, code and seconds, and its stages."""


class Metrics(Collector):
    """The metrics of one worker, on one registry; added to the other workers' on the board.

    Attributes:
        models: The observer of each model's batches, by its name.
        store: Counts what is kept.
        drift: Drift of each model.
        in_flight: Requests that have begun and not ended, streams left out.
        open_streams: Streams of readings that are open.
        ended: Requests that have ended and wait to be counted. These three change without a call:
            every request does so.
    """

    def __init__(
        self, registry: CollectorRegistry, models: Sequence[Runtime], board: Board | None = None
    ) -> None:
        """Declare everything, with children for each model that is loaded."""
        names = [model.manifest.name for model in models]
        self.registry: Final = registry
        self._shared: Final = Shared(registry, board)
        self._lock: Final = threading.Lock()
        self.ended: Final[list[Ended]] = []
        self.in_flight = 0
        self.open_streams = 0
        self._ready: Callable[[], bool] = lambda: False
        self._pending: Final[list[Callable[[], int]]] = []
        self._due: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self.models: Final[dict[str, ModelMetrics]] = {}
        registry.register(self)  # first, so that a scrape counts what waits before it reads anything
        self._declare_requests()
        stage_seconds = self._shared.histogram(
            "rul_stage_duration_seconds",
            "Time of each stage of a request.",
            STAGE_SECONDS,
            stage=[stage.value for stage in Stage],
        )
        self._stages: Final = {s: stage_seconds.labels(s.value) for s in Stage}
        families = Families(self._shared, models, stage_seconds)
        self._declare_now()
        self.store: Final = StoreMetrics(self._shared, names)
        self.drift: Final = DriftCollector.of(models, self._shared)
        declare_manifests(registry, models)
        Processes(self._shared)
        for model in models:
            name = model.manifest.name
            self.models[name] = ModelMetrics(families, model, drift=self.drift.monitors[name])

    def _declare_requests(self) -> None:
        routes = [(t, r) for t in Transport for r in Route if r.transport in {None, t}]
        every = [(t.value, r.value, code) for t, r in routes for code in codes(t)]
        # Probes and pages end well or not at all: all their codes from the start would be noise.
        rare = {
            (t.value, r.value, code)
            for t, r in routes
            for code in codes(t)
            if r not in PREDICTS and code not in {SUCCESS[t], failure_code(t)}
        }
        self._codes = {*every}
        self._requests = self._shared.counter(
            "rul_requests_total",
            "Requests by HTTP status or gRPC code.",
            keys=[key for key in every if key not in rare],
            when_counted=[key for key in every if key in rare],
            protocol=(),
            route=(),
            code=(),
        )
        self._duration = self._shared.histogram(
            "rul_request_duration_seconds",
            "Time from a request fully received to its answer encoded, errors included.",
            SECONDS,
            keys=[(t.value, r.value) for t, r in routes if r is not Route.GRPC_STREAM],
            protocol=(),
            route=(),
        )
        self._rejected = self._shared.counter(
            "rul_rejected_total", "Requests refused, by reason.", reason=sorted({*REJECTED.values()})
        )

    def _declare_now(self) -> None:
        gauge = self._shared.gauge
        gauge("rul_inflight_requests", "Requests in flight.", lambda: self.in_flight)
        gauge("rul_open_streams", "Open streams of readings.", lambda: self.open_streams)
        gauge(
            "rul_pending_windows",
            "Windows that wait for a batch, all models together.",
            lambda: sum(pending() for pending in self._pending),
        )
        gauge("rul_workers", "Workers that are ready to answer.", self._is_ready)

    def _is_ready(self) -> float:
        return self._ready()

    def watch_ready(self, ready: Callable[[], bool]) -> None:
        """Ask this whether the worker answers."""
        self._ready = ready

    def watch_pending(self, pending: Callable[[], int]) -> None:
        """Add a queue to `rul_pending_windows`."""
        self._pending.append(pending)

    def failed(self, transport: Transport, error: BaseException) -> str:
        """Count a refusal by its reason, and return the error's code label."""
        reason = next((REJECTED[kind] for kind in type(error).__mro__ if kind in REJECTED), None)
        if reason is not None:
            self._rejected.labels(reason).inc()
        return code_of(transport, error)

    def start(self) -> None:
        """Count and publish regularly, on a thread of this worker."""
        self._thread = threading.Thread(target=self._publish_regularly, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and wait for it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._due.set()
            thread.join()

    def publish(self) -> None:
        """Count what waits and put it on the board, so that other workers see it; from any thread."""
        for count in self._parts:
            count()

    @cached_property
    def _parts(self) -> list[Callable[[], object]]:
        """List the parts of the counting, about half a millisecond each."""
        models = [model.count for model in self.models.values()]
        drift = [monitor.publish for monitor in self.drift.monitors.values()]
        return [self._count_ended, *models, self._shared.publish, *drift]

    def _publish_regularly(self) -> None:
        while self._thread is not None:
            self._due.wait(PUBLISH_SECONDS)
            self._due.clear()
            for count in self._parts:
                try:
                    count()
                except Exception as error:  # noqa: BLE001 - what could not be counted is lost, nothing else
                    logs.logger().error("metrics lost", reason=str(error), exc_info=error)
                sleep(PAUSE_SECONDS)

    def collect(self) -> Iterable[Metric]:
        """Count the requests and batches that wait, before the other collectors are asked."""
        self._count_ended()
        for model in self.models.values():
            model.count()
        return ()

    def _count_ended(self) -> None:
        with self._lock:  # held until all is counted: a scrape that comes meanwhile waits for it
            seconds: defaultdict[tuple[Transport, Route, str], list[float]] = defaultdict(list)
            parts: defaultdict[Stage, list[float]] = defaultdict(list)
            for transport, route, code, took, stages in taken(self.ended):
                seconds[transport, route, code].append(took)
                for stage, start, end in stages:
                    parts[stage].append(end - start)
            for stage, values in parts.items():
                self._stages[stage].observe_each(values)
            for (transport, route, code), values in seconds.items():
                is_ours = (transport.value, route.value, code) in self._codes
                counted = code if is_ours else failure_code(transport)
                self._requests.labels(transport.value, route.value, counted).inc(len(values))
                if route is not Route.GRPC_STREAM:
                    self._duration.labels(transport.value, route.value).observe_each(values)
