"""How the supervisor speaks with a worker: one word each way, on a socket that only its owner can open.

    ready -> when the worker knows whether it can answer: its phase and its models
    drain -> when what it had begun is finished, or it ran out of patience: drained | gave up

The port that callers use is shared by all workers, so nobody can be addressed there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

Words = Mapping[str, Callable[[], Awaitable[str]]]


class Control:
    """The worker's end."""

    def __init__(self, words: Words) -> None:
        """Answer these words, each with what its function says in one line."""
        self._words: Final = words
        self._server: asyncio.Server | None = None

    async def open(self, path: Path) -> None:
        """Listen at this path."""
        self._server = await asyncio.start_unix_server(self._answer, path)

    def close(self) -> None:
        """Listen no longer."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            word = (await reader.readline()).decode("utf-8", errors="replace").strip()
            known = self._words.get(word)
            reply = f"expected {' or '.join(self._words)}" if known is None else await known()
            writer.write(f"{reply}\n".encode())
            await writer.drain()
        except OSError:  # the supervisor has gone
            pass
        finally:
            writer.close()


async def say(path: Path, word: str) -> str:
    """The supervisor's end: say a word to a worker and wait for its answer.

    Raises:
        OSError: nobody listens at this path.
        EOFError: the worker ended before it answered.
    """
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(f"{word}\n".encode())
        await writer.drain()
        reply = await reader.readline()
    finally:
        writer.close()
    if not reply:
        raise EOFError(f"the worker at {path} ended before it answered {word!r}")
    return reply.decode().strip()
