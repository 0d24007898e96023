"""Supervise several Envoy processes that answer on one port as one service.

The kernel distributes connections among the processes that listen on a port. The first worker starts
alone, so that an error is reported once; the others start when it is ready, and listen when they are
ready themselves. A worker that stops is restarted while another one answers. `control` has the commands
to a worker. `changes` changes the models of all workers, or of none. This module must not know what is
behind Envoy.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from service import logs
from service.core.lifecycle import Phase
from service.errors import FrontEndFailed
from service.processes.changes import Changes
from service.processes.control import WorkerSpec, send
from service.processes.tuning import limit_caches, per_processor_caches
from service.settings import Settings

if TYPE_CHECKING:
    from pyvoy import PyvoyServer

APPLICATION: Final = "service.envoy:application"
CONNECT_POLL_SECONDS: Final = 0.02
ENVOY_IDLE_SECONDS: Final = 300
"""Envoy's default limit of silence on a request or a stream."""
RESTART_SECONDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses before a stopped worker restarts: each is longer, until the worker has been ready."""


class Workers:
    """The workers of one service, from the first one's start to the last one's end.

    The empty `folder` is for their sockets and their board. `ready` is called when the first worker is ready,
    with the models' providers and the service's URL.
    """

    def __init__(
        self, settings: Settings, folder: Path, *, ready: Callable[[dict[str, str], str], None]
    ) -> None:
        self._settings: Final = settings
        self._folder: Final = folder
        self._announce: Final = ready
        self._count: Final = settings.worker_count()
        self._servers: Final[dict[int, PyvoyServer]] = {}
        self._log: Final = logs.logger()
        self._changes: Final = Changes(self._socket)
        self._port = settings.port
        self._stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain.

        Raises:
            FrontEndFailed: the first worker did not start, or no worker is left.
        """
        if self._count > 1:
            self._board.touch()
        await self._changes.open(self._supervisor)
        first = await self._start(0)
        self._port = first.listener_port
        serving = asyncio.ensure_future(self._serve())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            self._stopping = True
            await asyncio.gather(*(self._drain(worker) for worker in list(self._servers)))
        finally:
            self._stopping = True
            for task in (serving, stopped):
                task.cancel()
            await asyncio.gather(serving, stopped, return_exceptions=True)
            await asyncio.gather(*(server.stop() for server in self._servers.values()))
            self._changes.close()

    async def _serve(self) -> None:
        await asyncio.gather(self._keep(0), self._start_others())

    async def _start_others(self) -> None:
        """Announce the first worker, then start the others and keep them alive."""
        status = await self._ready(0)
        if status["phase"] != Phase.READY:
            return  # its log and /readyz give the reason, which holds for every worker
        self._changes.digests = status["digests"]
        self._announce(status["models"], f"http://{reachable(self._settings.host)}:{self._port}")
        await asyncio.gather(*(self._keep(worker) for worker in range(1, self._count)))

    async def _keep(self, worker: int) -> None:
        """Start a worker, and restart it whenever it stops.

        Raises:
            FrontEndFailed: it stopped, and no other worker answers.
        """
        failures = 0
        while True:
            server = self._servers.get(worker)
            try:
                async with self._changes.none_while_starting():
                    server = server or await self._start(worker)
                reason = f"stopped with status {await server.wait()}"
                failures = 0
            except FrontEndFailed as error:
                reason = str(error)
            if self._stopping:
                return
            self._servers.pop(worker, None)
            self._changes.workers.discard(worker)
            if not self._servers:
                raise FrontEndFailed(f"the front end {reason}")
            pause = RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)]
            failures += 1
            self._log.error("worker stopped", worker=worker, reason=reason, restart_seconds=pause)
            await asyncio.sleep(pause)

    async def _start(self, worker: int) -> PyvoyServer:
        from pyvoy import PyvoyServer, StartupError  # noqa: PLC0415 not on every platform

        settings, socket = self._changes.applied_to(self._settings), self._socket(worker)
        board = self._board if self._count > 1 else None
        spec = WorkerSpec(
            index=worker, count=self._count, board=board, control=socket, supervisor=self._supervisor,
            digests=self._changes.digests,
        )  # fmt: skip
        idle_seconds = max(ENVOY_IDLE_SECONDS, settings.stream_idle_seconds + 60)  # our own limit ends first

        class Server(PyvoyServer):
            def get_envoy_config(self) -> dict[str, Any]:
                config = allow_silence(super().get_envoy_config(), idle_seconds=idle_seconds)
                return limit_caches(config, processors=os.cpu_count() or 1)

        server = Server(
            APPLICATION,
            address=settings.host,
            port=self._port,
            lifespan=True,
            log_level="off",  # else a failed start prints Envoy's whole configuration after our reason
            env=settings.as_environment() | per_processor_caches(os.environ) | spec.as_environment(),
            # One thread per event loop: a second one would only wait for the GIL.
            additional_envoy_args=["--concurrency", "1"] if self._count > 1 else None,
            stdout=None,
            stderr=None,
        )
        socket.unlink(missing_ok=True)
        try:
            with interrupts_blocked():
                await server.start()
        except StartupError as error:
            raise FrontEndFailed("did not start; the log has the reason") from error
        self._servers[worker] = server
        self._changes.workers.add(worker)
        return server

    async def _drain(self, worker: int) -> None:
        """Let a worker finish its requests in flight; it refuses new ones meanwhile."""
        seconds = self._settings.drain_seconds + 1
        try:
            async with asyncio.timeout(seconds):
                await send(self._socket(worker), "drain")
        except (OSError, EOFError, TimeoutError) as error:
            # A signal to the whole process group stops Envoy too: then nothing is left to drain.
            exited = asyncio.ensure_future(self._servers[worker].wait())
            await asyncio.wait({exited}, timeout=seconds)
            if not exited.done():
                self._log.error("drain failed", worker=worker, error=repr(error))

    async def _ready(self, worker: int) -> dict[str, Any]:
        """Return the status of a worker, as soon as it knows whether it can answer."""
        while True:
            try:
                status: dict[str, Any] = json.loads(await send(self._socket(worker), "ready"))
            except (OSError, EOFError):  # not listening yet
                await asyncio.sleep(CONNECT_POLL_SECONDS)
            else:
                return status

    @property
    def _board(self) -> Path:
        return self._folder / "board"

    @property
    def _supervisor(self) -> Path:
        return self._folder / "supervisor"

    def _socket(self, worker: int) -> Path:
        return self._folder / f"worker-{worker}"


def allow_silence(config: dict[str, Any], *, idle_seconds: float) -> dict[str, Any]:
    """Return Envoy's configuration with streams that may be silent this long."""
    for listener in config["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for one in chain["filters"]:
                one["typed_config"]["stream_idle_timeout"] = f"{idle_seconds:.3f}s"
    return config


@contextmanager
def interrupts_blocked() -> Generator[None]:
    """Start a process that ignores Ctrl+C: the terminal signals the whole group, and we drain first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def reachable(host: str) -> str:
    """Return the host of a URL that reaches this listening address."""
    if host in {"0.0.0.0", "::", "127.0.0.1"}:  # noqa: S104 compared, not bound
        return "localhost"
    return f"[{host}]" if ":" in host else host
