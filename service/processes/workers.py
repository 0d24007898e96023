"""Supervises the Envoy processes that form one service on one port.

The kernel distributes connections among the processes that listen on a port. The first worker starts alone,
so that an error is reported once; the others start when it is ready, and listen once they are ready. A worker
that stops is restarted; one that hangs is killed first. `control` has the commands to a worker. `changes`
changes the models of all workers, or of none. This module must not know what is behind Envoy.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from export.bundle import InvalidBundle
from service import logs
from service.core.changes import Changed
from service.core.lifecycle import Phase
from service.errors import FrontEndFailed
from service.machine import usable_cores
from service.processes.admin import admin_of
from service.processes.changes import Changes
from service.processes.control import WorkerSpec, await_reply, send
from service.processes.copies import Copies
from service.processes.envoy_config import (
    accept_ipv4,
    answer_liveness,
    answer_old_proxies,
    hide_admin,
    limit_connections,
    limit_slow_clients,
    refuse_undecodable,
)
from service.processes.heartbeat import Heartbeat
from service.processes.tls import use_tls
from service.processes.tuning import library_variables, limit_caches, most_connections
from service.settings import Settings

if TYPE_CHECKING:
    from service.processes.envoy_server import EnvoyServer

APPLICATION: Final = "service.envoy:application"
ENVOY_IDLE_SECONDS: Final = 300
"""Envoy's default limit of silence on a request or a stream, in seconds."""
TELL_SECONDS: Final = 1
RESTART_SECONDS: Final = (0.1, 1.0, 2.0, 5.0, 10.0)
"""Pauses before restarts of a worker, in seconds: longer after each failed start."""


class Workers:
    """The workers of one service, from the first start to the last end.

    The empty `folder` is for their sockets, board and copies of bundles; all listen on `address`, an IP
    address and a port. `ready` is called when the first worker is ready, with the providers by model and the
    service's URL.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        *,
        address: tuple[str, int],
        ready: Callable[[dict[str, str], str], None],
    ) -> None:
        self._settings: Final = settings
        self._folder: Final = folder
        self._board: Final = folder / "board"
        self._supervisor: Final = folder / "supervisor"
        self._announce: Final = ready
        self._count: Final = settings.worker_count()
        self._servers: Final[dict[int, EnvoyServer]] = {}
        self._watches: Final[dict[int, asyncio.Task[None]]] = {}
        self._log: Final = logs.logger()
        self._changes: Final = Changes(self._socket, Copies(folder / "bundles"))
        self._address, self._port = address
        self._stopping = False

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Serve until `stop` is set; then withdraw readiness, wait unless `hurry` is set, and drain.

        Raises:
            FrontEndFailed: the first worker did not start, the bundles cannot be copied, or no worker is
                left.
        """
        if self._count > 1:
            self._board.touch()
        await self._changes.control.open(self._supervisor)
        serving = asyncio.ensure_future(self._serve())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            self._stopping = True
            serving.cancel()  # else a worker that restarts now would be ready
            await self._leave(hurry)
            await asyncio.gather(*(self._drain(worker) for worker in list(self._servers)))
        finally:
            self._stopping = True
            tasks = (serving, stopped, *self._watches.values())
            for task in tasks:
                if not task.cancelling():  # again, it would not wait for the end of a worker that starts
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(server.stop() for server in self._servers.values()))
            self._changes.control.close()

    async def _serve(self) -> None:
        async with self._changes.none_while_starting():
            await self._start(0)
        await asyncio.gather(self._keep(0), self._start_others())

    async def _start_others(self) -> None:
        """Announce the first worker, then start the others and keep them alive."""
        status: dict[str, Any] = json.loads(await await_reply(self._socket(0), "ready"))
        if status["phase"] == Phase.STARTING:
            raise FrontEndFailed("the service did not start; its log has the reason")
        if status["phase"] != Phase.READY:
            return  # it is draining
        if not self._changes.serving.digests:  # else the watched folder has changed them already
            try:
                self._changes.keep(Changed(bundles=status["bundles"], digests=status["digests"]))
            except (InvalidBundle, OSError) as error:
                raise FrontEndFailed(f"the bundles cannot be copied: {error}; start again") from error
        scheme = "https" if self._settings.tls_cert else "http"
        self._announce(status["models"], f"{scheme}://{reachable(self._settings.host)}:{self._port}")
        await asyncio.gather(*(self._keep(worker) for worker in range(1, self._count)))

    async def _keep(self, worker: int) -> None:
        """Start a worker, and restart it whenever it stops.

        Raises:
            FrontEndFailed: no other worker answers, and several restarts in a row fail.
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
            if not self._servers and failures == len(RESTART_SECONDS):
                raise FrontEndFailed(f"no worker is left: {reason}")
            pause = RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)]
            failures += 1
            self._log.error("worker stopped", worker=worker, reason=reason, restart_seconds=pause)
            await asyncio.sleep(pause)

    async def _start(self, worker: int) -> EnvoyServer:
        from service.processes.envoy_server import EnvoyServer  # noqa: PLC0415 not on every platform

        settings, socket = self._settings, self._socket(worker)
        admin = admin_of(socket)
        spec = WorkerSpec(
            index=worker,
            count=self._count,
            board=self._board if self._count > 1 else None,
            control=socket,
            supervisor=self._supervisor,
            serving=self._changes.serving,
        )
        # Beside other workers one thread: a second one would wait for the GIL. Alone, one per usable core:
        # Envoy would count the cores of the machine, although a container may have fewer.
        threads = ["--concurrency", str(usable_cores() if self._count == 1 else 1)]
        server = EnvoyServer(
            APPLICATION,
            host=self._address,
            port=self._port,
            admin=admin,
            configure=lambda config: self._configure(config, admin=admin),
            environment=settings.as_environment() | library_variables(os.environ) | spec.as_environment(),
            arguments=["--drain-time-s", str(math.ceil(settings.lame_duck_seconds)), *threads],
        )
        leave_removed_folder()
        socket.unlink(missing_ok=True)
        self._watches[worker] = asyncio.ensure_future(self._watch(worker, server))
        await server.start()
        self._servers[worker] = server
        self._changes.workers.add(worker)
        return server

    def _configure(self, config: dict[str, Any], *, admin: Path) -> dict[str, Any]:
        settings = self._settings
        accept_ipv4(config)
        hide_admin(config, socket=admin)
        silent = max(ENVOY_IDLE_SECONDS, settings.stream_idle_seconds + 60)  # our own limit ends first
        limit_slow_clients(config, body_seconds=settings.body_timeout_seconds, silent_seconds=silent)
        answer_old_proxies(config)
        limit_connections(config, most=most_connections(settings.max_connections))
        answer_liveness(config)
        refuse_undecodable(config)
        config = use_tls(config, settings, folder=self._folder)
        return limit_caches(config, processors=os.cpu_count() or 1)

    async def _leave(self, hurry: asyncio.Event) -> None:
        """Withdraw readiness and ask clients to reconnect, while requests are still answered."""
        await asyncio.gather(*(self._tell_to_leave(worker) for worker in self._servers))
        ended = asyncio.gather(*(server.wait() for server in self._servers.values()))
        hurried = asyncio.ensure_future(hurry.wait())
        seconds = self._settings.lame_duck_seconds
        await asyncio.wait({ended, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()

    async def _tell_to_leave(self, worker: int) -> None:
        with suppress(OSError, EOFError, TimeoutError):  # it has ended, has not started, or hangs
            async with asyncio.timeout(TELL_SECONDS):
                await send(self._socket(worker), "leave")
                await self._servers[worker].close_connections()

    async def _watch(self, worker: int, server: EnvoyServer) -> None:
        """Kill a worker that hangs, so that it is restarted."""
        process = await server.process
        tasks, limit = Path(f"/proc/{process.pid}/task"), self._settings.hang_seconds
        heartbeat = Heartbeat(self._socket(worker), tasks, limit_seconds=limit)
        while process.returncode is None:
            if await heartbeat.beat():
                self._log.error("worker hung", worker=worker, silent_seconds=heartbeat.silent_seconds)
                process.kill()
                return
            await server.set_alive(is_alive=not heartbeat.is_silent)

    async def _drain(self, worker: int) -> None:
        """Let a worker finish its requests in flight; it refuses new ones meanwhile."""
        seconds = self._settings.drain_seconds + 1
        try:
            async with asyncio.timeout(seconds):
                await send(self._socket(worker), "drain")
                await self._servers[worker].flush()
        except (OSError, EOFError) as error:
            if not isinstance(error, TimeoutError):
                # A signal to the whole process group also stops Envoy: then nothing is left to drain.
                exited = asyncio.ensure_future(self._servers[worker].wait())
                await asyncio.wait({exited}, timeout=seconds)
                if exited.done():
                    return
            self._log.error("drain failed", worker=worker, error=repr(error))

    def _socket(self, worker: int) -> Path:
        return self._folder / f"worker-{worker}"


def leave_removed_folder() -> None:
    """Move to / if the working folder was removed: Envoy does not start there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        os.chdir("/")


def reachable(host: str) -> str:
    """Return the host of a URL that reaches this listening address."""
    if host in {"0.0.0.0", "::", "127.0.0.1"}:  # noqa: S104 compared, not bound
        return "localhost"
    return f"[{host}]" if ":" in host else host
