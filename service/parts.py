"""The running service: what starts, answers, drains and stops. `service.assembly.build` makes it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final

import grpc.aio
from prometheus_client import CollectorRegistry

from model.domain import RulError
from service import logs
from service.core.batcher import MicroBatcher
from service.core.bundles import warn
from service.core.lifecycle import Phase
from service.core.runtime import Runtime
from service.edge.exchange import Desk
from service.grpc.call import METADATA
from service.grpc.over_asgi import GrpcOverAsgi
from service.grpc.servicers import add_servicers
from service.http.routes import http_application
from service.processes.control import Control, WorkerSpec
from service.processes.tuning import settle_interpreter
from service.settings import Settings
from service.store.async_store import AsyncStore

STORE_SECONDS: Final = 5.0
"""Time to write the last predictions at shutdown."""


@dataclass(eq=False)
class Parts:
    """The running service, from start-up to shutdown; `build` makes it.

    Attributes:
        proofs: Checks to pass before the service is ready: each bundle's golden windows.
        http: Answers HTTP over ASGI.
        grpc: Answers gRPC over ASGI.
        handle: Answers both.
        health: The gRPC health services, one per server.
    """

    settings: Settings
    worker: WorkerSpec | None
    runtimes: Sequence[Runtime]
    proofs: Sequence[Callable[[], None]]
    registry: CollectorRegistry
    batchers: Mapping[str, MicroBatcher]
    store: AsyncStore
    desk: Desk
    executor: Executor

    def __post_init__(self) -> None:
        """Open both protocols over one desk."""
        self.lifecycle = self.desk.lifecycle
        self.http = http_application(self.desk, self.registry, self.store)
        self.grpc = GrpcOverAsgi(max_message_bytes=self.settings.max_body_bytes, metadata=METADATA)
        self.handle = self.grpc.beside(self.http)
        self.health = [add_servicers(self.grpc, self.desk)]
        self._log = logs.logger()
        self._server: grpc.aio.Server | None = None
        self._control: Control | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Answer health checks at once, and requests when the proofs have passed."""
        spec = self.worker or WorkerSpec()
        if spec.index == 0:  # the others would log the same
            warn(self._log, self.settings, {r.manifest.name: r.placement for r in self.runtimes})
        if self.worker is None:
            self._server = await self._serve_grpc()
            self._drain_on_sigterm()
        proving = self._run(self.become_ready())
        if spec.control is not None:
            self._control = Control({"ready": partial(self._status, proving), "drain": self._drained})
            await self._control.open(spec.control)
        if spec.index > 0:  # other workers answer meanwhile: listen only when this one can
            await proving
        self.desk.metrics.start()

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
        await asyncio.to_thread(self.desk.metrics.close)
        self._log.info("service stopped")

    async def become_ready(self, settle: Callable[[], None] = settle_interpreter) -> None:
        """Run the proofs and settle; then answer requests, or log why not."""
        try:
            for proof in self.proofs:
                await asyncio.get_running_loop().run_in_executor(self.executor, proof)
        except RulError as error:
            self.lifecycle.enter(Phase.FAILED, str(error))
            self._log.error("start failed", reason=str(error))
            return
        settle()
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
