"""Assembles the service from settings, starts, drains and stops it; for entries and tests.

Only this module knows all parts. Tests pass fake runtimes; all other parts are real.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, disable_created_metrics

from model.domain import RulError
from service import logs
from service.core.bundles import load_bundles, warn
from service.core.cores import Cores
from service.core.lifecycle import Lifecycle, Phase
from service.core.ports import Tracer
from service.core.predictor import LoadedModel, Predictor
from service.core.runtime import Runtime
from service.core.watch import Watch
from service.edge.exchange import Desk
from service.errors import RuntimeFailed
from service.factory import admission_of, desk_of, store_of, tracer_of
from service.grpc.health import Health
from service.grpc.over_asgi import GrpcOverAsgi
from service.grpc.servicers import SERVICES, methods_of
from service.http.routes import Schema, http_application
from service.metrics.board import Board
from service.metrics.metrics import Metrics
from service.models import Catalog, Joints
from service.processes.admin import admin_of, count_refusals
from service.processes.changes import WorkerChanges
from service.processes.control import Control, WorkerSpec
from service.processes.tuning import settle_interpreter
from service.settings import Settings
from service.store.recorder import FLUSH_SECONDS

if TYPE_CHECKING:
    import grpc.aio

STORE_SECONDS: Final = 5.0
"""Maximum seconds to write the last predictions at shutdown."""


class Parts:
    """The running service, from start-up to shutdown; `build` makes it.

    Attributes:
        catalog: Changes the serving models.
        http: Answers HTTP over ASGI.
        grpc: Answers gRPC over ASGI.
        handle: Answers both.
        health: Status of gRPC's health service.
        methods: The gRPC methods, by their paths.
    """

    def __init__(
        self, joints: Joints, desk: Desk, *, catalog: Catalog, worker: WorkerSpec | None, schema: Schema
    ) -> None:
        """Create both protocols on one desk."""
        self.joints, self.desk, self.catalog, self.worker = joints, desk, catalog, worker
        self.settings, self.store, self.lifecycle = joints.settings, joints.store, desk.lifecycle
        self.changes = WorkerChanges(catalog, None if worker is None else worker.supervisor)
        self.http = http_application(desk, schema, self.changes.change)
        self.health = Health(SERVICES, seconds=desk.intake.seconds)
        self.methods = methods_of(desk, self.health)
        self.grpc = GrpcOverAsgi(
            self.methods, max_message_bytes=self.settings.max_body_bytes, intake=desk.intake
        )
        self.handle = self.grpc.beside(self.http)
        self._log = logs.logger()
        self._server: grpc.aio.Server | None = None
        self._control: Control | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._regular: list[asyncio.Task[Any]] = []
        self._watch: Watch | None = None
        self._beginning: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Answer health checks at once, and requests once the interpreter is tuned."""
        spec = self.worker or WorkerSpec()
        if spec.index == 0:  # the others would log the same
            warn(self._log, self.settings, {name: m.placement for name, m in self._models.items()})
        if self.worker is None:
            from service.grpc import server  # noqa: PLC0415 loads grpcio, 10 MiB

            self._server = await server.serve(self.methods, self.settings)
            self._drain_on_sigterm()
        if self.settings.bundles_watch is not None and spec.index == 0:
            memory = None if spec.control is None else spec.control.with_name("watched")
            self._watch = Watch(
                self.settings.bundles_watch, self._models, self.changes.change, self._log, memory
            )
        proving = self._run(self.become_ready())
        self._beginning.append(proving)
        if spec.control is not None:
            commands = {
                "beat": self._beat,
                "ready": partial(self._status, proving),
                "leave": self._leave,
                "drain": self._drain,
                **self.changes.commands(),
            }
            self._control = Control(commands)
            await self._control.open(spec.control)
        # If other workers answer meanwhile, listen only when this one is ready.
        if spec.index > 0 or spec.serving.candidates:
            await proving
        self._regular = [
            self._run(self.desk.metrics.publish_regularly()),
            self._run(self.desk.credentials.watch()),
        ]
        if spec.control is not None:
            counting = count_refusals(admin_of(spec.control), self.desk.metrics.refused)
            self._regular.append(self._run(counting))

    async def stop(self) -> None:
        """Finish requests in flight within the time of the settings, and release everything."""
        for task in self._beginning:
            task.cancel()
        await self._drain()
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            await self._server.stop(grace=1)
        for batcher in list(self.joints.batchers):
            await batcher.close(drain_seconds=0)
        await self.store.close(STORE_SECONDS)
        self.joints.executor.shutdown(wait=False, cancel_futures=True)
        if self.desk.tracer is not None:
            await asyncio.to_thread(self.desk.tracer.close)
        for task in self._regular:
            task.cancel()
        self.desk.metrics.publish()
        self._log.info("service stopped")

    async def become_ready(self, settle: Callable[..., None] = settle_interpreter) -> None:
        """Tune the interpreter, then answer requests."""
        if self.worker is not None:
            await self.catalog.restore(self.worker.serving.candidates.values())
        if self._watch is not None and (self.worker is None or not self.worker.serving.digests):
            await self._watch.look(at_start=True)  # a worker that restarts has these models already
        settle(inference_threads=not all(b.runs_on_loop for b in self.joints.batchers))
        self.store.start()
        self.lifecycle.enter(Phase.READY)
        self.health.advertise(serving=self.lifecycle.phase is Phase.READY)
        log = self._log.info if self.worker is None or self.worker.index == 0 else self._log.debug
        for name, model in self._models.items():
            log("model ready", model=name, version=model.name.version, provider=model.provider)
        if self._watch is not None:
            self._beginning.append(self._run(self._watch.run()))

    async def _beat(self) -> str:
        """Return the thread of the event loop; nothing if only a restart helps."""
        try:
            self.lifecycle.check_alive()
        except RuntimeFailed:
            return ""
        return str(threading.get_native_id())

    async def _status(self, proving: asyncio.Task[Any]) -> str:
        """Return the phase once the start is over, `starting` if it failed, and the models."""
        await asyncio.wait({proving})
        models = {name: model.provider for name, model in self._models.items()}
        digests = {name: model.name.sha256 for name, model in self._models.items()}
        bundles = self.catalog.bundles
        return json.dumps(
            {"phase": self.lifecycle.phase, "models": models, "bundles": bundles, "digests": digests}
        )

    @property
    def _models(self) -> Mapping[str, LoadedModel]:
        return self.desk.predictor.models

    async def _leave(self) -> str:
        """Withdraw readiness so that load balancers stop sending; requests are still answered."""
        self.lifecycle.enter(Phase.LAME_DUCK, "it is about to shut down")
        self.health.advertise(serving=False)
        return "leaving"

    async def _drain(self) -> str:
        self.health.advertise(serving=False)
        return "drained" if await self.lifecycle.drain(self.settings.drain_seconds) else "gave up"

    def _drain_on_sigterm(self) -> None:
        """Refuse new requests from the signal on, not only after the HTTP server has drained."""
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
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Log a failure, after which only a restart helps."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("background task failed", reason=str(error), exc_info=error)
            self.lifecycle.fail()
            self.health.advertise(serving=False)


def build(
    settings: Settings,
    *,
    worker: WorkerSpec | None = None,
    runtimes: Sequence[Runtime] | None = None,
    tracer: Tracer | None = None,
    flush_seconds: float = FLUSH_SECONDS,
    schema: Schema = dict,
) -> Parts:
    """Assemble the service; the settings decide runtimes and tracer, unless they are given.

    Without a worker the process is alone and has gRPC on its own port. The store writes every
    `flush_seconds`. `schema` describes the API to clients of BentoML.

    Raises:
        InvalidBundle: a bundle is damaged or does not fit.
        InvalidStoreUrl: the store cannot be addressed.
        FrontEndFailed: the board that workers share is full.
    """
    spec = worker or WorkerSpec()
    loaded = load_bundles(settings, [*spec.serving.bundles.values()]) if runtimes is None else []
    board = Board(spec.board, worker=spec.index, workers=spec.count)
    metrics = Metrics(CollectorRegistry(auto_describe=True), [], board)  # names that collide are refused
    joints = Joints(
        settings=settings,
        executor=ThreadPoolExecutor(settings.threads(), "inference"),
        cores=Cores(board.slots("running batches", 1), settings.threads()),
        workers=spec.count,
        board=board,
        metrics=metrics,
        store=store_of(settings, metrics, board.slots("rows of the store", 2), flush_seconds),
        admission=admission_of(settings),
        tracer=tracer or tracer_of(settings),
    )
    models = [joints.serve(runtime) for runtime in runtimes or [runtime for _, runtime in loaded]]
    lifecycle = Lifecycle(lambda: all(batcher.healthy for batcher in joints.batchers))
    metrics.ready = lambda: lifecycle.phase is Phase.READY
    metrics.pending = lambda: sum(batcher.pending_windows for batcher in joints.batchers)
    predictor = Predictor(
        {model.name.name: model for model in models},
        max_request_windows=settings.max_request_windows,
        recorder=joints.store.recorder,
    )
    paths = {runtime.manifest.name: str(folder.path.resolve()) for folder, runtime in loaded}
    desk = desk_of(joints, predictor, lifecycle, logs_keys=spec.index == 0)  # the others would log the same
    catalog = Catalog(joints, predictor, paths)
    return Parts(joints, desk, catalog=catalog, worker=worker, schema=schema)


class Host:
    """Starts and stops the service of this process."""

    def __init__(self) -> None:
        self.parts: Parts | None = None

    async def start(self, schema: Schema) -> None:
        """Load every bundle; a damaged one ends the start."""
        settings = Settings.read()
        disable_created_metrics()  # unused second series of each counter
        logs.configure(level=settings.log_level, log_format=settings.log_format)
        try:
            self.parts = build(settings, worker=WorkerSpec.read(), schema=schema)
            await self.parts.start()
        except (RulError, OSError) as error:
            logs.logger().error("start failed", reason=str(error))
            raise
        except Exception:
            logs.logger().exception("start failed")
            raise

    async def stop(self) -> None:
        """Finish requests in flight."""
        if self.parts is not None:
            await self.parts.stop()
            self.parts = None


HOST: Final = Host()
