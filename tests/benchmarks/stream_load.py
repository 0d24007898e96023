"""Thousands of gRPC streams from one process, by minimal HTTP/2 that keeps them open and counts answers.

A gRPC library uses more CPU per message than the service, and both share the cores here. So every stream's
reading is one frame of bytes, made once, and answers are counted by their framing.
"""

from __future__ import annotations

import asyncio
import struct
from time import perf_counter
from typing import Final

from tests import http2

TOP_UP: Final = 2**28
HEADER_BLOCK: Final = http2.grpc_head("/rul.v1.RulService/PredictStream")


class Connection(asyncio.Protocol):
    """One connection and its streams.

    Attributes:
        answers: Number of received messages.
        failed: Streams that the server ended.
        latencies: Seconds from each reading to its answer.
        most: Maximum streams that the server allows on a connection.
    """

    def __init__(self) -> None:
        self.answers = 0
        self.failed = 0
        self.latencies: list[float] = []
        self.most: int | None = None
        self.greeted = asyncio.Event()
        self.streams: list[int] = []
        self.sent_at: dict[int, float] = {}
        self._frames = http2.Frames()
        self._missing: dict[int, int] = {}  # part of a message
        self._room = http2.WINDOW_BYTES
        self._waiting: list[bytes] = []
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface, and let the server send without limit."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(http2.greeting())

    def open(self, first: bytes) -> None:
        """Open a stream with this message."""
        stream = 1 + 2 * len(self.streams)
        self.streams.append(stream)
        self._transport.write(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, HEADER_BLOCK))
        self.write([http2.frame(http2.DATA, 0, stream, first)])

    def send(self, readings: list[tuple[int, bytes]]) -> None:
        """Send one reading on each of these streams."""
        now = perf_counter()
        for stream, _ in readings:
            self.sent_at.setdefault(stream, now)
        self.write([data for _, data in readings])

    def write(self, frames: list[bytes]) -> None:
        """Send frames of data within the server's window."""
        self._waiting += frames
        ready: list[bytes] = []
        for data in self._waiting:
            if self._room < len(data):
                break
            self._room -= len(data)
            ready.append(data)
        del self._waiting[: len(ready)]
        self._transport.write(b"".join(ready))

    def data_received(self, data: bytes) -> None:
        """Take received frames, whole or in part."""
        now = perf_counter()
        for kind, flags, stream, payload in self._frames.feed(data):
            self._frame(kind, flags, stream, payload, now)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes, now: float) -> None:
        if kind == http2.DATA:
            self._count(stream, payload, now)
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            self.most = http2.settings_of(payload).get(http2.MAX_CONCURRENT_STREAMS)
            self._transport.write(http2.frame(http2.SETTINGS, http2.ACK, 0, b""))
            self.greeted.set()
        elif kind == http2.PING and not flags & http2.ACK:
            self._transport.write(http2.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.WINDOW_UPDATE and stream == 0:
            self._room += struct.unpack(">I", payload)[0]
            self.write([])
        elif kind in {http2.RST_STREAM, http2.GOAWAY} or (kind == http2.HEADERS and flags & http2.END_STREAM):
            self.failed += 1

    def _count(self, stream: int, payload: bytes, now: float) -> None:
        self._received += len(payload)
        if self._received > TOP_UP:
            self._transport.write(http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
            self._received = 0
        missing = self._missing.pop(stream, 0)
        while payload:
            if not missing:
                missing = 5 + struct.unpack_from(">I", payload, 1)[0]
            taken = min(missing, len(payload))
            missing, payload = missing - taken, payload[taken:]
            if not missing:
                self.answers += 1
                sent = self.sent_at.pop(stream, None)
                if sent is not None:
                    self.latencies.append(now - sent)
        if missing:
            self._missing[stream] = missing

    def close(self) -> None:
        """Close the connection and all its streams."""
        self._transport.close()


async def connect(host: str, port: int, connections: int) -> list[Connection]:
    """Open connections and wait for their settings."""
    loop = asyncio.get_running_loop()
    made = [(await loop.create_connection(Connection, host, port))[1] for _ in range(connections)]
    for connection in made:
        await connection.greeted.wait()
    return made
