"""Join the parts together, once, and hang them into BentoML.

Only this module knows all the others. `bentoml serve service.app:RulService` runs the service on
BentoML's own server, with gRPC beside it; `rul serve` runs the same BentoML application behind
Envoy, which brings gRPC by the same port as HTTP (see `front_end` and docs/adr/0001).
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Coroutine
from functools import cache, partial
from types import FrameType
from typing import Any, Final

import bentoml
import grpc.aio
from prometheus_client import CollectorRegistry, disable_created_metrics

from export.bundle import BundleFolder, Golden
from model.domain import RulError
from service import logs
from service.core.batcher import MicroBatcher
from service.core.bundles import load_bundles, warn
from service.core.cores import Cores
from service.core.inference_threads import InferenceThreads
from service.core.lifecycle import Lifecycle, Phase
from service.core.on_loop import OnLoop
from service.core.ports import Tracer
from service.core.predictor import LoadedModel, Predictor
from service.core.providers import CPU
from service.core.runtime import OnnxRuntime, replay_golden
from service.edge.access import Credentials
from service.edge.asgi import Receive, Scope, Send
from service.edge.exchange import Desk
from service.grpc.call import METADATA
from service.grpc.over_asgi import GrpcOverAsgi, speaks_grpc
from service.grpc.servicers import add_servicers
from service.http.routes import HttpApi
from service.labels import Stage
from service.metrics.board import Board
from service.metrics.metrics import Metrics
from service.processes.control import Control
from service.processes.interpreter import settle
from service.settings import FrontEnd, Settings
from service.store.keeping import Keeping
from service.store.rows import ModelVersion
from service.store.url import store_url

# Above the longest request that Settings allows, so that our own answer comes first. BentoML keeps a
# timer this long for each request: 60 s of them grew to 25 MB in 39,000 requests.
BENTOML_TIMEOUT_SECONDS: Final = 30
STORE_SECONDS: Final = 5.0
"""How long what has been predicted may take to be written at shutdown."""


class Parts:
    """The running service: everything that lives from start-up to shut-down.

    Raises:
        InvalidBundle: a bundle is damaged or does not fit; start-up ends here.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings: Final = settings
        self._log: Final = logs.logger()
        self._loaded: Final = load_bundles(settings)
        registry = CollectorRegistry()
        workers = 1 if settings.board is None else settings.worker_count()
        board = Board(settings.board, worker=settings.worker, workers=workers)
        cores = Cores(board, settings.threads())
        self._metrics: Final = Metrics(registry, [runtime for _, runtime in self._loaded], board)
        board.seal()
        metrics = self._metrics
        self._tracer: Final = _tracer(settings)
        if self._tracer is not None:
            metrics.trace(self._tracer)
        self._executor: Final = InferenceThreads(settings.threads())
        cores_of_worker = max(1, settings.threads() // workers)
        self._batchers: Final = {
            runtime.manifest.name: MicroBatcher(
                runtime,
                executor=self._executor,
                threads=settings.threads(),
                max_batch_windows=settings.max_batch_windows,
                max_pending_windows=settings.max_pending_windows,
                observer=metrics.models[runtime.manifest.name],
                tracer=self._tracer,
                eager_threads=cores_of_worker,
                cores=cores,
                on_loop=OnLoop.of_worker(
                    cores=cores_of_worker,
                    on_cpu=runtime.provider == CPU,
                    max_batch_windows=settings.max_batch_windows,
                ),
            )
            for _, runtime in self._loaded
        }
        for batcher in self._batchers.values():
            metrics.watch_pending(lambda batcher=batcher: batcher.pending_windows)
        self.lifecycle: Final = Lifecycle(lambda: all(b.healthy for b in self._batchers.values()))
        metrics.watch_ready(lambda: self.lifecycle.phase is Phase.READY)
        self._keeping: Final = self._keep(metrics)
        self._desk: Final = Desk(
            predictor=self._predictor(metrics),
            metrics=metrics,
            lifecycle=self.lifecycle,
            access_log=logs.AccessLog(self._log, sample=settings.log_sample),
            credentials=Credentials(settings.keys()),
            max_body_bytes=settings.max_body_bytes,
            request_timeout_seconds=settings.request_timeout_seconds,
            max_streams=settings.max_streams,
            stream_idle_seconds=settings.stream_idle_seconds,
            tracer=self._tracer,
        )
        self._http: Final = HttpApi(self._desk, registry, self._keeping.units)
        self._grpc: Final = GrpcOverAsgi(max_message_bytes=settings.max_body_bytes, metadata=METADATA)
        self._health: Final = [add_servicers(self._grpc, self._desk)]
        self._server: grpc.aio.Server | None = None
        self._control: Control | None = None
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    def _predictor(self, metrics: Metrics) -> Predictor:
        models = {
            runtime.manifest.name: LoadedModel.of(
                runtime,
                self._batchers[runtime.manifest.name],
                max_window_cycles=self._settings.max_window_cycles,
            )
            for _, runtime in self._loaded
        }
        return Predictor(
            models,
            max_request_windows=self._settings.max_request_windows,
            explain_timer=metrics.stages[Stage.EXPLAIN],
            recorder=self._keeping.recorder,
        )

    def _keep(self, metrics: Metrics) -> Keeping:
        settings = self._settings
        manifests = [runtime.manifest for _, runtime in self._loaded]
        keeping = Keeping(
            store_url(settings.store_url.get_secret_value()) if settings.store else None,
            [ModelVersion(m.name, m.version, m.cap, m.nominal_coverage) for m in manifests],
            most_rows=settings.store_queue_rows,
            retention_days=settings.store_retention_days,
            observer=metrics.store,
            log=self._log,
        )
        recorder = keeping.recorder
        if recorder is not None:
            metrics.store.watch_pending(lambda: recorder.pending_rows)
        return keeping

    async def start(self) -> None:
        """Answer health checks at once, and everything else when golden windows agree."""
        if self._settings.worker == 0:  # the others would say the same
            warn(self._log, self._settings, {r.manifest.name: r.placement for _, r in self._loaded})
        if self._settings.front_end is not FrontEnd.ENVOY:
            self._server = await self._grpc_beside_http()
            self._drain_on_sigterm()
        trying = self._run(self._become_ready())
        if self._settings.control is not None:
            self._control = Control({"ready": partial(self._say_ready, trying), "drain": self._say_drained})
            await self._control.open(self._settings.control)
        if self._settings.worker > 0:  # others answer meanwhile: listen only when there is something to say
            await trying
        self._metrics.start()

    def handle(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Answer one request of either protocol.

        What answers is handed on, not waited for: whenever a request goes on it goes through every call that
        waits, and a stream does so for every reading.
        """
        answer = self._grpc if speaks_grpc(scope) else self._http
        return answer(scope, receive, send)

    async def stop(self) -> None:
        """Finish what is in flight, within the settings' patience, and let go of everything."""
        await self._drain()
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            await self._server.stop(grace=1)
        for batcher in self._batchers.values():
            await batcher.close(drain_seconds=0)
        await self._keeping.close(STORE_SECONDS)
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        await asyncio.to_thread(self._metrics.close)
        self._log.info("stopped")

    async def _become_ready(self) -> None:
        try:
            for folder, runtime in self._loaded:
                await asyncio.get_running_loop().run_in_executor(self._executor, _replay, folder, runtime)
        except RulError as error:
            self.lifecycle.enter(Phase.FAILED, str(error))
            self._log.error("not ready", reason=str(error))
            return
        settle()
        self.lifecycle.enter(Phase.READY)
        self._keeping.start()
        self._advertise(serving=True)
        for _, runtime in self._loaded:
            manifest = runtime.manifest
            self._log.info("ready", model=manifest.name, version=manifest.version, provider=runtime.provider)

    async def _say_ready(self, trying: asyncio.Task[None]) -> str:
        await trying
        models = [{"name": r.manifest.name, "provider": r.provider} for _, r in self._loaded]
        return json.dumps({"phase": self.lifecycle.phase, "models": models})

    async def _say_drained(self) -> str:
        return "drained" if await self._drain() else "gave up"

    async def _drain(self) -> bool:
        self.lifecycle.enter(Phase.DRAINING, "it is shutting down")
        self._advertise(serving=False)
        return await self.lifecycle.drain(self._settings.drain_seconds)

    def _advertise(self, *, serving: bool) -> None:
        for health in self._health:
            health.advertise(serving=serving)

    async def _grpc_beside_http(self) -> grpc.aio.Server:
        """A gRPC server on its own port, where the HTTP server speaks no HTTP/2."""
        settings = self._settings
        # Two servers on one port would each get some of the calls: a port that is taken is an error.
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", settings.max_body_bytes)]
        server = grpc.aio.server(options=options)
        self._health.append(add_servicers(server, self._desk))
        port = server.add_insecure_port(f"{settings.host}:{settings.grpc_port}")
        await server.start()
        self._log.info("grpc", port=port)
        return server

    def _drain_on_sigterm(self) -> None:
        """Refuse new requests from the signal on, not only when the HTTP server has drained."""
        loop = asyncio.get_running_loop()
        previous = signal.getsignal(signal.SIGTERM)

        def begin(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(lambda: self._run(self._begin_drain()))
            if callable(previous):
                previous(number, frame)

        signal.signal(signal.SIGTERM, begin)

    async def _begin_drain(self) -> None:
        await self._drain()

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _tracer(settings: Settings) -> Tracer | None:
    if not settings.tracing:
        return None
    from service.tracing.otlp import otlp_tracer  # noqa: PLC0415 OpenTelemetry's SDK, which only tracing needs

    return otlp_tracer(settings.otlp_endpoint, sample=settings.trace_sample)


def _replay(folder: BundleFolder, runtime: OnnxRuntime) -> None:
    replay_golden(runtime, Golden.load(folder.golden))


class Host:
    """Holds the running service between BentoML's hooks."""

    def __init__(self) -> None:
        self.parts: Parts | None = None


HOST: Final = Host()


class Front:
    """An ASGI middleware in BentoML's chain that answers every request itself."""

    def __init__(self, app: Any) -> None:  # noqa: ANN401 any ASGI application
        self._app: Final = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Requests are ours; lifespan events are BentoML's. Nothing is waited for here: see `handle`."""
        if scope["type"] == "http" and HOST.parts is not None:
            return HOST.parts.handle(scope, receive, send)
        return self._app(scope, receive, send)


@bentoml.service(
    name="rulserve",
    workers=1,  # `rul serve` starts several itself, behind one port: docs/adr/0005
    traffic={"timeout": BENTOML_TIMEOUT_SECONDS},
    metrics={"enabled": False},  # ours: BentoML labels by raw path, so an unknown URL makes a new series
    logging={"access": {"enabled": False}},  # ours is sampled: theirs costs 0.2 ms a request
    tracing={"excluded_urls": ".*"},  # 0.6 ms a request
)
class RulService:
    """Remaining useful life of units, with the attention and contribution of every cycle."""

    @bentoml.on_startup
    async def start(self) -> None:
        """Load every bundle; a damaged one ends start-up here."""
        settings = Settings.read()
        disable_created_metrics()  # a second series for each counter, which nothing here reads
        logs.configure(level=settings.log_level, log_format=settings.log_format)
        try:
            HOST.parts = Parts(settings)
        except RulError as error:
            logs.logger().error("cannot start", reason=str(error))
            raise
        await HOST.parts.start()

    @bentoml.on_shutdown
    async def stop(self) -> None:
        """Finish what is in flight."""
        if HOST.parts is not None:
            await HOST.parts.stop()
            HOST.parts = None


# BentoML types a middleware as a function of an application, and takes classes too.
RulService.add_asgi_middleware(Front)  # pyright: ignore[reportArgumentType]


@cache
def _front() -> Front:
    return Front(RulService.to_asgi(is_main=True))


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """The same service for another ASGI server: requests skip BentoML's own middleware."""
    await _front()(scope, receive, send)
