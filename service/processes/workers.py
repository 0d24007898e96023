"""Several Envoy processes that answer on one port, as one service.

The kernel deals connections among the processes that listen on a port. The first worker starts alone,
so that what is wrong is said once; the others follow when it is ready, and listen when they are. A
worker that stops is started again while another one answers. See `control` for how they are spoken
with. This module must not know what is behind Envoy.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from service.core.lifecycle import Phase
from service.errors import FrontEndFailed
from service.processes.allocator import by_processor, sparing
from service.processes.control import say
from service.settings import FrontEnd, Settings

if TYPE_CHECKING:
    from pyvoy import PyvoyServer

APPLICATION: Final = "service.app:application"
CONNECT_POLL_SECONDS: Final = 0.02
ENVOY_IDLE_SECONDS: Final = 300
"""How long Envoy by itself lets a request or a stream be silent."""
RESTART_SECONDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Before a worker that stopped is started again: longer each time, until it has become ready."""


class Workers:
    """The workers of one service, from the first one's start to the last one's end.

    Args:
        settings: What the operator asks for.
        folder: A folder of our own, for the workers' sockets and their board.
        ready: Called once the first worker is, with what it says of itself and the service's URL.
    """

    def __init__(
        self, settings: Settings, folder: Path, *, ready: Callable[[dict[str, Any], str], None]
    ) -> None:
        self._settings: Final = settings
        self._folder: Final = folder
        self._say_ready: Final = ready
        self._count: Final = settings.worker_count()
        self._servers: Final[dict[int, PyvoyServer]] = {}
        self._port = settings.port
        self._stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain.

        Raises:
            FrontEndFailed: the first worker did not start, or no worker is left.
        """
        if self._count > 1:
            (self._folder / "board").touch()
        first = await self._start(0)
        self._port = first.listener_port
        serving = asyncio.ensure_future(self._serve())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            self._stopping = True
            await self._drain()
        finally:
            self._stopping = True
            for task in (serving, stopped):
                task.cancel()
            await asyncio.gather(serving, stopped, return_exceptions=True)
            await asyncio.gather(*(server.stop() for server in self._servers.values()))

    async def _serve(self) -> None:
        await asyncio.gather(self._keep(0), self._others())

    async def _others(self) -> None:
        """Say that the first worker is ready, then start the others and keep them all alive."""
        status = await self._ready(0)
        if status["phase"] != Phase.READY:
            return  # its log and /readyz say why; another one would fail likewise
        self._say_ready(status, f"http://{reachable(self._settings.host)}:{self._port}")
        await asyncio.gather(*(self._keep(worker) for worker in range(1, self._count)))

    async def _keep(self, worker: int) -> None:
        """Start a worker whenever it is not there.

        Raises:
            FrontEndFailed: it stopped, and no other answers.
        """
        failures = 0
        while True:
            server = self._servers.get(worker)
            try:
                server = server or await self._start(worker)
                status = await server.wait()
                reason = f"stopped by itself with status {status}"
                failures = 0
            except FrontEndFailed as error:
                reason = str(error)
            if self._stopping:
                return
            self._servers.pop(worker, None)
            if not self._servers:
                raise FrontEndFailed(f"the front end {reason}")
            pause = RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)]
            failures += 1
            print(f"rul: worker {worker} {reason}; again in {pause:g} s", file=sys.stderr, flush=True)  # noqa: T201
            await asyncio.sleep(pause)

    async def _start(self, worker: int) -> PyvoyServer:
        from pyvoy import PyvoyServer, StartupError  # noqa: PLC0415 not on every platform

        settings, socket, board = self._settings, self._socket(worker), self._folder / "board"
        # So that ours comes first.
        idle_seconds = max(ENVOY_IDLE_SECONDS, settings.stream_idle_seconds + 60)

        class Server(PyvoyServer):
            def get_envoy_config(self) -> dict[str, Any]:
                config = patient(super().get_envoy_config(), idle_seconds=idle_seconds)
                return sparing(config, processors=os.cpu_count() or 1)

        server = Server(
            APPLICATION,
            address=settings.host,
            port=self._port,
            lifespan=True,
            log_level="off",  # a start-up that fails would print Envoy's whole configuration after our reason
            env=settings.as_environment()
            | by_processor(os.environ)
            | {
                "RUL_FRONT_END": FrontEnd.ENVOY.value,
                "RUL_CONTROL": str(socket),
                "RUL_WORKER": str(worker),
                "RUL_WORKERS": str(self._count),
                "RUL_BOARD": str(board) if board.exists() else "",
            },
            # A process has one event loop to feed: with a second thread, both wait for the interpreter.
            additional_envoy_args=["--concurrency", "1"] if self._count > 1 else None,
            stdout=None,
            stderr=None,
        )
        socket.unlink(missing_ok=True)
        try:
            with interrupts_held():
                await server.start()
        except StartupError as error:
            raise FrontEndFailed("did not start, for the reason above") from error
        self._servers[worker] = server
        return server

    async def _drain(self) -> None:
        """Let every worker finish what it has begun; it refuses what is new meanwhile."""
        await asyncio.gather(*(self._drain_one(worker) for worker in list(self._servers)))

    async def _drain_one(self, worker: int) -> None:
        seconds = self._settings.drain_seconds + 1
        try:
            async with asyncio.timeout(seconds):
                await say(self._socket(worker), "drain")
        except (OSError, EOFError, TimeoutError) as error:
            # Whoever signals the whole process group stops Envoy too: then nothing is left to drain.
            exited = asyncio.ensure_future(self._servers[worker].wait())
            await asyncio.wait({exited}, timeout=seconds)
            if not exited.done():
                print(f"rul: worker {worker} could not drain: {error!r}", file=sys.stderr)  # noqa: T201

    async def _ready(self, worker: int) -> dict[str, Any]:
        """What a worker says of itself once it has tried whether it can answer."""
        while True:
            try:
                status: dict[str, Any] = json.loads(await say(self._socket(worker), "ready"))
            except (OSError, EOFError):  # it does not listen yet
                await asyncio.sleep(CONNECT_POLL_SECONDS)
            else:
                return status

    def _socket(self, worker: int) -> Path:
        return self._folder / f"worker-{worker}"


def patient(config: dict[str, Any], *, idle_seconds: float) -> dict[str, Any]:
    """Envoy's configuration, with streams that may be silent for this long."""
    for listener in config["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for one in chain["filters"]:
                one["typed_config"]["stream_idle_timeout"] = f"{idle_seconds:.3f}s"
    return config


@contextmanager
def interrupts_held() -> Generator[None]:
    """Start a process that Ctrl+C does not reach: the terminal tells the whole group, and we drain first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def reachable(host: str) -> str:
    """A host that listens, as one that can be asked."""
    if host in {"0.0.0.0", "::", "127.0.0.1"}:  # noqa: S104 compared, not bound
        return "localhost"
    return f"[{host}]" if ":" in host else host
