"""Keep-alive HTTP connections for load tests: httpx spends more CPU on a request than the service does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def request_bytes(method: str, path: str, body: bytes = b"", media_type: str = "application/json") -> bytes:
    """A request as it travels."""
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {media_type}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Connections:
    """Connections to one port, each with one request at a time; the others wait."""

    def __init__(self, free: asyncio.Queue[End]) -> None:
        self._free: Final = free

    @classmethod
    @asynccontextmanager
    async def open(cls, port: int, count: int) -> AsyncIterator[Connections]:
        """Open so many connections."""
        ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
        free: asyncio.Queue[End] = asyncio.Queue()
        for end in ends:
            free.put_nowait(end)
        try:
            yield cls(free)
        finally:
            for _, writer in ends:
                writer.close()

    async def ask(self, raw: bytes) -> tuple[int, bytes]:
        """Send a request and read its answer: status and body.

        Raises:
            OSError, asyncio.IncompleteReadError: the server is gone.
        """
        reader, writer = end = await self._free.get()
        try:
            writer.write(raw)
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            size = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            return int(lines[0].split()[1]), await reader.readexactly(size)
        finally:
            self._free.put_nowait(end)
