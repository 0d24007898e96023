"""Assemble the service from settings, start it, drain it and stop it. Entries and tests call this.

Only this module knows all the parts. Tests pass fake runtimes; everything else is what ships.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import grpc.aio
from prometheus_client import CollectorRegistry, disable_created_metrics

from model.domain import RulError
from service import logs
from service.core.batcher import MicroBatcher
from service.core.bundles import load_bundles, warn
from service.core.cores import Cores
from service.core.lifecycle import Lifecycle, Phase
from service.core.ports import Tracer
from service.core.predictor import LoadedModel, Predictor
from service.core.providers import CPU
from service.core.rules import WindowRules
from service.core.runtime import Runtime
from service.edge.access import Credentials
from service.edge.admission import Admission
from service.edge.exchange import Desk
from service.edge.hosts import Hosts
from service.edge.intake import Intake
from service.grpc.call import METADATA
from service.grpc.over_asgi import GrpcOverAsgi
from service.grpc.servicers import add_servicers
from service.http.routes import Schema, http_application
from service.metrics.board import Board, Slots
from service.metrics.metrics import Metrics
from service.processes.control import Control, WorkerSpec
from service.processes.tuning import settle_interpreter
from service.settings import Settings
from service.store.async_store import AsyncStore
from service.store.recorder import FLUSH_SECONDS
from service.store.rows import ModelVersion
from service.store.url import SQLITE, store_url

FEW_WINDOWS: Final = 2
"""Most windows of a batch on the loop of a worker with several cores: waking a thread takes longer."""
READING_BYTES: Final = 20
"""A reading as JSON, with 15 digits."""
BATCHES_IN_WORK: Final = 2
"""Batches in work for the event loop and for each thread: one runs while the next one is decoded."""
STORE_SECONDS: Final = 5.0
"""Time to write the last predictions at shutdown."""


@dataclass(eq=False)
class Parts:
    """The running service, from start-up to shutdown; `build` makes it.

    Attributes:
        http: Answers HTTP over ASGI.
        grpc: Answers gRPC over ASGI.
        handle: Answers both.
        health: The gRPC health services, one per server.
    """

    settings: Settings
    worker: WorkerSpec | None
    runtimes: Sequence[Runtime]
    registry: CollectorRegistry
    batchers: Mapping[str, MicroBatcher]
    store: AsyncStore
    desk: Desk
    executor: Executor
    schema: Schema

    def __post_init__(self) -> None:
        """Open both protocols over one desk."""
        self.lifecycle = self.desk.lifecycle
        self.http = http_application(self.desk, self.registry, self.store, self.schema)
        self.grpc = GrpcOverAsgi(
            max_message_bytes=self.settings.max_body_bytes, metadata=METADATA, intake=self.desk.intake
        )
        self.handle = self.grpc.beside(self.http)
        self.health = [add_servicers(self.grpc, self.desk)]
        self._log = logs.logger()
        self._server: grpc.aio.Server | None = None
        self._control: Control | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._regular: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Answer health checks at once, and requests when the interpreter has settled."""
        spec = self.worker or WorkerSpec()
        if spec.index == 0:  # the others would log the same
            warn(self._log, self.settings, {r.manifest.name: r.placement for r in self.runtimes})
        if self.worker is None:
            self._server = await self._serve_grpc()
            self._drain_on_sigterm()
        proving = self._run(self.become_ready())
        if spec.control is not None:
            commands = {
                "beat": _beat,
                "ready": partial(self._status, proving),
                "leave": self._leave,
                "drain": self._drained,
            }
            self._control = Control(commands)
            await self._control.open(spec.control)
        if spec.index > 0:  # other workers answer meanwhile: listen only when this one can
            await proving
        self._regular = [
            self._run(self.desk.metrics.publish_regularly()),
            self._run(self.desk.credentials.watch()),
        ]

    async def stop(self) -> None:
        """Finish requests in flight, for as long as the settings allow, and release everything."""
        await self._drain()
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            await self._server.stop(grace=1)
        for batcher in self.batchers.values():
            await batcher.close(drain_seconds=0)
        await self.store.close(STORE_SECONDS)
        self.executor.shutdown(wait=False, cancel_futures=True)
        if self.desk.tracer is not None:
            await asyncio.to_thread(self.desk.tracer.close)
        for task in self._regular:
            task.cancel()
        self.desk.metrics.publish()
        self._log.info("service stopped")

    async def become_ready(self, settle: Callable[..., None] = settle_interpreter) -> None:
        """Settle, then answer requests."""
        settle(inference_threads=not all(b.runs_on_loop for b in self.batchers.values()))
        self.lifecycle.enter(Phase.READY)
        self.store.start()
        self._advertise(serving=True)
        log = self._log.info if self.worker is None or self.worker.index == 0 else self._log.debug
        for r in self.runtimes:
            log("model ready", model=r.manifest.name, version=r.manifest.version, provider=r.provider)

    async def _status(self, proving: asyncio.Task[Any]) -> str:
        await proving
        models = {runtime.manifest.name: runtime.provider for runtime in self.runtimes}
        return json.dumps({"phase": self.lifecycle.phase, "models": models})

    async def _drained(self) -> str:
        return "drained" if await self._drain() else "gave up"

    async def _leave(self) -> str:
        """Let load balancers go elsewhere; requests are still answered."""
        if self.lifecycle.phase is Phase.READY:
            self.lifecycle.enter(Phase.LAME_DUCK, "it is about to shut down")
            self._advertise(serving=False)
        return "leaving"

    async def _drain(self) -> bool:
        self.lifecycle.enter(Phase.DRAINING, "it is shutting down")
        self._advertise(serving=False)
        return await self.lifecycle.drain(self.settings.drain_seconds)

    def _advertise(self, *, serving: bool) -> None:
        for health in self.health:
            health.advertise(serving=serving)

    async def _serve_grpc(self) -> grpc.aio.Server:
        """Serve gRPC on its own port, because the HTTP server has no HTTP/2."""
        settings = self.settings
        # With SO_REUSEPORT two servers would share a port, and each would get some of the calls.
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", settings.max_body_bytes)]
        server = grpc.aio.server(options=options)
        self.health.append(add_servicers(server, self.desk))
        port = server.add_insecure_port(f"{settings.host}:{settings.grpc_port}")
        await server.start()
        self._log.info("gRPC server started", port=port)
        return server

    def _drain_on_sigterm(self) -> None:
        """Refuse new requests at the signal, not only when the HTTP server has drained."""
        loop = asyncio.get_running_loop()
        previous = signal.getsignal(signal.SIGTERM)

        def begin(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(lambda: self._run(self._drain()))
            if callable(previous):
                previous(number, frame)

        signal.signal(signal.SIGTERM, begin)

    def _run(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def build(
    settings: Settings,
    *,
    worker: WorkerSpec | None = None,
    runtimes: Sequence[Runtime] | None = None,
    tracer: Tracer | None = None,
    flush_seconds: float = FLUSH_SECONDS,
    schema: Schema = dict,
) -> Parts:
    """Assemble the service; settings say what runs and what traces, unless given.

    Without a worker the process is alone, with gRPC on its own port; the store writes every `flush_seconds`.
    `schema` describes the API to clients of BentoML.

    Raises:
        InvalidBundle: a bundle is damaged or does not fit.
    """
    spec, registry = worker or WorkerSpec(), CollectorRegistry()
    models = load_bundles(settings) if runtimes is None else runtimes
    board = Board(spec.board, worker=spec.index, workers=spec.count)
    cores = Cores(board, settings.threads())
    metrics = Metrics(registry, models, board)
    progress = board.slots("rows of the store", 2)
    board.seal()
    tracer = tracer or _tracer(settings)
    executor = ThreadPoolExecutor(settings.threads(), "inference")
    batcher = partial(
        _batcher, settings, executor=executor, cores=cores, workers=spec.count, metrics=metrics, tracer=tracer
    )
    batchers = {runtime.manifest.name: batcher(runtime) for runtime in models}
    lifecycle = Lifecycle(lambda: all(batcher.healthy for batcher in batchers.values()))
    metrics.watch_ready(lambda: lifecycle.phase is Phase.READY)
    store = _store(settings, models, metrics, progress, flush_seconds)
    loaded_model = partial(LoadedModel.of, max_window_cycles=settings.max_window_cycles)
    admission = _admission(settings, models)
    desk = Desk(
        predictor=Predictor(
            {r.manifest.name: loaded_model(r, batchers[r.manifest.name]) for r in models},
            max_request_windows=settings.max_request_windows,
            recorder=store.recorder,
        ),
        metrics=metrics,
        lifecycle=lifecycle,
        log=logs.logger(),
        log_sample=settings.log_sample,
        credentials=_credentials(settings, spec),
        max_body_bytes=settings.max_body_bytes,
        intake=Intake(
            most_bytes=settings.max_reading_bytes,
            seconds=settings.body_timeout_seconds,
            expected=admission.expected,
        ),
        request_timeout_seconds=settings.request_timeout_seconds,
        max_streams=settings.max_streams,
        stream_idle_seconds=settings.stream_idle_seconds,
        admission=admission,
        tracer=tracer,
        hosts=_hosts(settings),
    )
    return Parts(settings, worker, models, registry, batchers, store, desk, executor, schema)


def _hosts(settings: Settings) -> Hosts | None:
    if settings.asks_for_keys():
        return None
    names = settings.host_names()
    return Hosts(names, any_name=not (names or settings.is_local()))


def _credentials(settings: Settings, spec: WorkerSpec) -> Credentials:
    return Credentials(
        settings.keys(),
        Path(settings.keys_file) if settings.keys_file else None,
        open_pages=settings.open_pages,
        log=logs.logger() if spec.index == 0 else None,  # the others would log the same
    )


def _admission(settings: Settings, models: Sequence[Runtime]) -> Admission:
    readings = max((m.manifest.context * len(m.manifest.columns) for m in models), default=1)
    batches = BATCHES_IN_WORK * (settings.threads() + 1)
    return Admission(
        window_bytes=READING_BYTES * readings,
        room_windows=batches * settings.max_batch_windows,
        limit_seconds=settings.request_timeout_seconds,
    )


async def _beat() -> str:
    return str(threading.get_native_id())


def _tracer(settings: Settings) -> Tracer | None:
    if not settings.tracing:
        return None
    from service.tracing.otlp import otlp_tracer  # noqa: PLC0415 OpenTelemetry's SDK, which only tracing needs

    return otlp_tracer(settings.otlp_endpoint, sample=settings.trace_sample)


def _batcher(
    settings: Settings,
    runtime: Runtime,
    *,
    executor: Executor,
    cores: Cores,
    workers: int,
    metrics: Metrics,
    tracer: Tracer | None,
) -> MicroBatcher:
    windows, has_one_core = settings.max_batch_windows, settings.threads() <= workers
    on_loop = 0 if runtime.provider != CPU else windows if has_one_core else FEW_WINDOWS
    batcher = MicroBatcher(
        runtime,
        WindowRules.of(runtime.manifest, max_window_cycles=settings.max_window_cycles),
        executor=executor,
        threads=settings.threads(),
        max_batch_windows=windows,
        max_pending_windows=settings.max_pending_windows,
        observer=metrics.models[runtime.manifest.name],
        loop_windows=on_loop,
        cores=cores,
        tracer=tracer,
    )
    metrics.watch_pending(lambda: batcher.pending_windows)
    return batcher


def _store(
    settings: Settings, models: Sequence[Runtime], metrics: Metrics, progress: Slots, flush_seconds: float
) -> AsyncStore:
    manifests = [runtime.manifest for runtime in models]
    url = store_url(settings.store_url.get_secret_value()) if settings.store else None
    store = AsyncStore(
        url,
        [ModelVersion(m.name, m.version, m.cap, m.nominal_coverage) for m in manifests],
        most_rows=settings.store_queue_rows,
        progress=progress if url is not None and url.startswith(SQLITE) else None,
        explanations=settings.store_explanations,
        retention_days=settings.store_retention_days,
        timeout_seconds=settings.request_timeout_seconds,
        observer=metrics.store,
        log=logs.logger(),
        flush_seconds=flush_seconds,
    )
    recorder = store.recorder
    if recorder is not None:
        metrics.store.watch_pending(lambda: recorder.pending_rows)
    return store


class Host:
    """Starts and stops the one service of this process."""

    def __init__(self) -> None:
        self.parts: Parts | None = None

    async def start(self, schema: Schema) -> None:
        """Load every bundle; a damaged one ends the start."""
        settings = Settings.read()
        disable_created_metrics()  # a second series for each counter, which nothing here reads
        logs.configure(level=settings.log_level, log_format=settings.log_format)
        try:
            self.parts = build(settings, worker=WorkerSpec.read(), schema=schema)
        except (RulError, OSError) as error:
            logs.logger().error("start failed", reason=str(error))
            raise
        except Exception:
            logs.logger().exception("start failed")
            raise
        await self.parts.start()

    async def stop(self) -> None:
        """Finish requests in flight."""
        if self.parts is not None:
            await self.parts.stop()
            self.parts = None


HOST: Final = Host()
