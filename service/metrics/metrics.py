"""Every metric of the service, with help and unit; docs/metrics.md is generated from these declarations.

Label values come from the enums of `service.labels` and from the names of the loaded models, never from a
request; all children exist from the start, so that rates work from the first event.

A request or a batch costs a few appends to lists. Four times a second the event loop counts these and
publishes the counts on the board; a scrape first counts what still waits, so its numbers are exact. Its text
is written on a thread: that of a hundred models takes a fifth of a second.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from service import logs
from service.core.runtime import Runtime
from service.core.turns import Turns
from service.errors import STATUS, RuntimeFailed, status_of
from service.labels import (
    PREDICTS,
    REFUSED_BY_ENVOY,
    REJECTED,
    SUCCESS,
    Route,
    Stage,
    Transport,
    code_of,
    codes,
)
from service.metrics.board import Board
from service.metrics.buckets import SECONDS
from service.metrics.drift import DriftCollector
from service.metrics.instruments import Processes, Shared
from service.metrics.models import CANCELLED, STAGES, Manifests, ModelMetrics, declare
from service.metrics.store import StoreMetrics

PUBLISH_SECONDS: Final = 0.25
"""Seconds between counts: how far a scrape of one worker may lag behind the other workers."""
PAUSE_SECONDS: Final = 0.01
"""Pause between parts of the counting: a request takes several turns of the loop, and would wait for a part
in each of them."""


class Collected(NamedTuple):
    """The families of one scrape, for an encoder of `prometheus_client`."""

    families: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        """Return the families."""
        return self.families


class Metrics(Collector):
    """The metrics of one worker, on one registry; added to the other workers' on the board.

    Attributes:
        models: The observer of each model's batches, by its name.
        store: Counts stored predictions and outcomes.
        drift: Drift of each model.
        shared: Counters and histograms, by name.
        ready: Returns whether the worker answers.
        pending: Returns how many windows wait for a batch.
        in_flight: Requests in flight, without streams.
        open_streams: Open streams of readings.
        ended: Seconds of each request that has ended, by transport, route and code.
        cancelled: Counts windows whose caller left, or whose deadline passed, before their answer.
        stages: A histogram of seconds for each stage. Requests write the last five attributes directly, to
            save a call each.
    """

    def __init__(
        self, registry: CollectorRegistry, models: Sequence[Runtime], board: Board | None = None
    ) -> None:
        """Declare all metrics, with children for each loaded model."""
        self.registry: Final = registry
        self.shared: Final = Shared(registry, board)
        self.ended: Final[defaultdict[tuple[Transport, Route, str], list[float]]] = defaultdict(list)
        self.in_flight = 0
        self.open_streams = 0
        self.ready: Callable[[], bool] = lambda: False
        self.pending: Callable[[], int] = int
        self.models: Final[dict[str, ModelMetrics]] = {}
        self._beside: list[ModelMetrics] = []
        self._scrapes: Final = asyncio.Lock()
        registry.register(self)  # first, so that a scrape counts what waits before it reads anything
        self._declare_requests()
        declare(self.shared)
        self.cancelled: Final = self.shared.counters[CANCELLED].labels().inc
        self.stages: Final = {stage: self.shared.histograms[STAGES].labels(stage.value) for stage in Stage}
        self._declare_now()
        self.store: Final = StoreMetrics(self.shared)
        self.drift: Final = DriftCollector(self.shared)
        self._runtimes: Final[dict[str, Runtime]] = {}
        Manifests(registry, self._runtimes)
        Processes(self.shared)
        for model in models:
            self.add_model(model)

    def add_model(self, model: Runtime) -> ModelMetrics:
        """Count a model, in place of an older version; return its observer."""
        manifest = model.manifest
        name = manifest.name
        self._retire(name)
        heads = ("mean", *map(str, range(manifest.heads)))
        self.shared.add_model(name, provider=[model.provider], head=heads)
        observer = ModelMetrics(self.shared, model, drift=self.drift.add(model).count)
        self.models[name], self._runtimes[name] = observer, model
        return observer

    def add_canary(self, canary: Runtime) -> ModelMetrics:
        """Count a canary under the serving model's name, without drift; return its observer."""
        name, manifest = canary.manifest.name, canary.manifest
        serving = self._runtimes[name]
        heads = ("mean", *map(str, range(manifest.heads)))  # as many as the serving model has
        providers = [*dict.fromkeys((serving.provider, canary.provider))]
        self.shared.add_model(name, provider=providers, head=heads)
        self._beside.append(observer := ModelMetrics(self.shared, canary, drift=None))
        return observer

    def places(self, model: Runtime, *, canary: bool) -> Board:
        """Return a scratch board with all places that a model or a canary needs."""
        board = Board()
        alone = Metrics(
            CollectorRegistry(), [self._runtimes[model.manifest.name] if canary else model], board
        )
        if canary:
            alone.add_canary(model)
        return board

    def remove_model(self, name: str) -> None:
        """Remove the metrics of a model."""
        self._retire(name)
        self.drift.models.pop(name)
        self._runtimes.pop(name)
        self.shared.remove_model(name)

    def _retire(self, name: str) -> None:
        """Stop drift counts of a model that is replaced; batches in flight are still counted."""
        if name in self.models:
            self._beside.append(retired := self.models.pop(name))
            while retired.counted < retired.reported:
                retired.count()
            retired.drift = None

    def _declare_requests(self) -> None:
        routes = [(t, r) for t in Transport for r in Route if r.transport in {None, t}]
        # Probes and pages rarely fail: series of all their codes would be noise.
        is_usual = {
            (t.value, r.value, code): r in PREDICTS or code in {SUCCESS[t], code_of(t, STATUS[RuntimeFailed])}
            for t, r in routes
            for code in codes(t)
        }
        counter, histogram = self.shared.counter, self.shared.histogram
        text = "Requests by HTTP status or gRPC code."
        self._requests = counter("rul_requests_total", text, protocol=(), route=(), code=())
        self._requests.add(key for key, usual in is_usual.items() if usual)
        self._requests.add_rare([key for key, usual in is_usual.items() if not usual])
        text = "Time from the complete request to the encoded answer, errors included."
        self._duration = histogram("rul_request_duration_seconds", text, SECONDS, protocol=(), route=())
        self._duration.add((t.value, r.value) for t, r in routes if r is not Route.GRPC_STREAM)
        reasons = sorted({*REJECTED.values(), *REFUSED_BY_ENVOY.values()})
        self._rejected = counter("rul_rejected_total", "Requests refused, by reason.", reason=reasons)

    def _declare_now(self) -> None:
        gauge = self.shared.gauge
        gauge("rul_inflight_requests", "Requests in flight.", lambda: self.in_flight)
        gauge("rul_open_streams", "Open streams of readings.", lambda: self.open_streams)
        text = "Windows that wait for a batch, all models together."
        gauge("rul_pending_windows", text, lambda: float(self.pending()))
        gauge("rul_workers", "Workers that are ready to answer.", lambda: float(self.ready()))

    def refused(self, reason: str, count: int = 1) -> None:
        """Count refusals with a reason."""
        self._rejected.labels(reason).inc(count)

    def failed(self, transport: Transport, error: BaseException) -> str:
        """Count a refusal by its reason, and return the error's code label."""
        reason = next((REJECTED[kind] for kind in type(error).__mro__ if kind in REJECTED), None)
        if reason is not None:
            self.refused(reason)
        return code_of(transport, status_of(error))

    def publish(self) -> None:
        """Count what waits and write it to the board, so that other workers see it."""
        self.collect()
        self.shared.publish()

    async def exposition(self, encode: Callable[[Collected], bytes]) -> bytes:
        """Collect and encode every metric, one scrape at a time; requests run meanwhile."""
        async with self._scrapes:
            families, turns = list[Metric](), Turns()
            for family in self.registry.collect():
                families.append(family)
                await turns.give()
            return await asyncio.to_thread(encode, Collected(families))

    async def publish_regularly(self) -> None:
        """Publish every `PUBLISH_SECONDS`; let requests run between parts of the counting."""
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            for count in chain(self._counts(), [self.shared.publish]):
                try:
                    count()
                except Exception as error:  # noqa: BLE001 - what could not be counted is lost, nothing else
                    logs.logger().error("metrics lost", reason=str(error), exc_info=error)
                await asyncio.sleep(PAUSE_SECONDS)

    def collect(self) -> Iterable[Metric]:
        """Count the waiting requests and batches before the other collectors run."""
        for count in self._counts():
            count()
        return ()

    def _counts(self) -> Iterator[Callable[[], None]]:
        yield self._count_ended
        for model in [*self.models.values(), *self._beside]:
            last = model.reported  # later ones wait for the next round, or it would not end under load
            while model.counted < last:
                yield model.count
        self._beside = [
            model for model in self._beside if model.counted < model.reported or not model.is_released
        ]

    def _count_ended(self) -> None:
        ended = self.ended.copy()
        self.ended.clear()  # before counting, so that a failure is not repeated
        for (transport, route, code), seconds in ended.items():
            self._requests.labels(transport.value, route.value, code).inc(len(seconds))
            if route is not Route.GRPC_STREAM:
                self._duration.labels(transport.value, route.value).observe_each(seconds)
