"""Messages between a supervisor and its workers.

At start a worker reads its `WorkerSpec` from one private environment variable. Later the supervisor sends
one line and gets one line, on a Unix socket that only its owner can open:

    beat  -> the thread of the event loop, at once; nothing if only a restart helps
    ready -> the worker's phase and its models, once it knows whether it can answer
    leave -> leaving, once readiness is off; requests are still answered
    drain -> drained | gave up, when requests in flight have finished or the time is over
    prepare CHANGE -> the result that the change would have, once its candidate is checked and warm
    commit -> the same result, once the prepared change is made
    abort -> an empty result, once the prepared change is discarded

A worker that gets a client's request for a change sends `change CHANGE` to the socket of its supervisor.
All workers share the clients' port, so no single worker can be addressed there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from service.core.changes import Changed

VARIABLE: Final = "RULSERVE_WORKER"
POLL_SECONDS: Final = 0.02
LINE_BYTES: Final = 1 << 24
"""Maximum bytes of a line; asyncio's default, 64 KiB, is too few for the results of some hundred models."""

Commands = Mapping[str, Callable[..., Awaitable[str]]]
"""Functions by the first word of a line; the rest of the line is the argument, if any."""


class WorkerSpec(msgspec.Struct, frozen=True):
    """One worker, as its supervisor describes it.

    Attributes:
        index: Number of the worker, from 0.
        count: Number of workers.
        board: File of the numbers that workers share; None: there is one worker.
        control: Unix socket for the supervisor's commands; None: there is no supervisor.
        supervisor: Unix socket of the supervisor; None: likewise.
        serving: Bundles and candidates that the running workers have loaded.
    """

    index: int = 0
    count: int = 1
    board: Path | None = None
    control: Path | None = None
    supervisor: Path | None = None
    serving: Changed = Changed()

    @classmethod
    def read(cls) -> WorkerSpec | None:
        """Read the description of this process; None: `rul serve` did not start it behind Envoy."""
        text = os.environ.get(VARIABLE)
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value)) if text else None

    def as_environment(self) -> dict[str, str]:
        """Return the variable from which the worker reads its description."""
        return {VARIABLE: msgspec.json.encode(self, enc_hook=str).decode()}


class Control:
    """The answering end of a socket."""

    def __init__(self, commands: Commands) -> None:
        """Answer commands with the result of their function."""
        self._commands: Final = commands
        self._server: asyncio.Server | None = None

    async def open(self, path: Path) -> None:
        """Listen at this path."""
        self._server = await asyncio.start_unix_server(self._answer, path, limit=LINE_BYTES)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = (await reader.readline()).decode("utf-8", errors="replace").strip()
            name, *argument = line.split(" ", 1)
            command = self._commands.get(name)
            reply = f"expected {' or '.join(self._commands)}" if command is None else await command(*argument)
            writer.write(f"{reply}\n".encode())
            await writer.drain()
        except OSError:  # the other end has disconnected
            pass
        finally:
            writer.close()


async def send(path: Path, command: str) -> str:
    """Send a command to a worker or the supervisor and return the reply.

    Raises:
        OSError: no process listens at this path.
        EOFError: the process ended before it replied.
    """
    reader, writer = await asyncio.open_unix_connection(path, limit=LINE_BYTES)
    try:
        writer.write(f"{command}\n".encode())
        await writer.drain()
        reply = await reader.readline()
    finally:
        writer.close()
    if not reply:
        raise EOFError(f"the process at {path} ended before it replied to {command!r}")
    return reply.decode().strip()


async def await_reply(path: Path, command: str) -> str:
    """Wait until a worker listens, and return its reply."""
    while True:
        try:
            return await send(path, command)
        except (OSError, EOFError):
            await asyncio.sleep(POLL_SECONDS)
