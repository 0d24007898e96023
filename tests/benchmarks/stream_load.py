"""Thousands of gRPC streams from one process: just enough HTTP/2 to keep them open and count what comes.

A gRPC library spends more CPU on a message than the service does, and here both share the cores. So
every stream's reading is one frame of bytes, made once, and what comes back is measured by its framing.
"""

from __future__ import annotations

import asyncio
import struct
from time import perf_counter
from typing import Final

from service.proto import rul_v1_pb2 as pb

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS = 4, 3
LARGEST_WINDOW: Final = 2**31 - 1
TOP_UP: Final = 2**28
HEAD: Final = 9
METHOD: Final = b"/rul.v1.RulService/PredictStream"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def message(request: pb.StreamRequest) -> bytes:
    """A message as gRPC puts it into a body."""
    raw = request.SerializeToString()
    return struct.pack(">BI", 0, len(raw)) + raw


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


# HPACK without a table: POST and http by their index, everything else in full.
HEADER_BLOCK: Final = (
    b"\x83\x86\x04" + bytes([len(METHOD)]) + METHOD + b"\x01\x04test"
    + _literal(b"content-type", b"application/grpc") + _literal(b"te", b"trailers")
)  # fmt: skip


class Connection(asyncio.Protocol):
    """One connection and its streams.

    Attributes:
        answers: How many messages have come.
        failed: Streams that the server ended.
        latencies: Seconds from each reading sent to its answer.
        most: Streams that the server allows on a connection.
    """

    def __init__(self) -> None:
        self.answers = 0
        self.failed = 0
        self.latencies: list[float] = []
        self.most: int | None = None
        self.greeted = asyncio.Event()
        self.streams: list[int] = []
        self.sent_at: dict[int, float] = {}
        self._buffer = bytearray()
        self._missing: dict[int, int] = {}  # of a message that came in part
        self._room = 65_535
        self._waiting: list[bytes] = []
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello, and that we read as much as comes."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, LARGEST_WINDOW)
        more = struct.pack(">I", LARGEST_WINDOW - 65_535)
        transport.write(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, more))

    def open(self, first: bytes) -> None:
        """Begin one more stream with this message."""
        stream = 1 + 2 * len(self.streams)
        self.streams.append(stream)
        self._transport.write(frame(HEADERS, END_HEADERS, stream, HEADER_BLOCK))
        self.write([frame(DATA, 0, stream, first)])

    def send(self, readings: list[tuple[int, bytes]]) -> None:
        """One reading on each of these streams."""
        now = perf_counter()
        for stream, _ in readings:
            self.sent_at.setdefault(stream, now)
        self.write([data for _, data in readings])

    def write(self, frames: list[bytes]) -> None:
        """Frames of data, as far as the server's window goes."""
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
        """Frames, whole or in part."""
        buffer = self._buffer
        buffer += data
        at, now = 0, perf_counter()
        while len(buffer) - at >= HEAD:
            length = buffer[at] << 16 | buffer[at + 1] << 8 | buffer[at + 2]
            if len(buffer) - at < HEAD + length:
                break
            stream = struct.unpack_from(">I", buffer, at + 5)[0]
            self._frame(
                buffer[at + 3], buffer[at + 4], stream, bytes(buffer[at + HEAD : at + HEAD + length]), now
            )
            at += HEAD + length
        del buffer[:at]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes, now: float) -> None:
        if kind == DATA:
            self._count(stream, payload, now)
        elif kind == SETTINGS and not flags & ACK:
            given = dict(struct.iter_unpack(">HI", payload))
            self.most = given.get(MAX_CONCURRENT_STREAMS)
            self._transport.write(frame(SETTINGS, ACK, 0, b""))
            self.greeted.set()
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE and stream == 0:
            self._room += struct.unpack(">I", payload)[0]
            self.write([])
        elif kind in {RST_STREAM, GOAWAY} or (kind == HEADERS and flags & END_STREAM):
            self.failed += 1

    def _count(self, stream: int, payload: bytes, now: float) -> None:
        self._received += len(payload)
        if self._received > TOP_UP:
            self._transport.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
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
        """Leave, with every stream."""
        self._transport.close()


async def connect(host: str, port: int, connections: int) -> list[Connection]:
    """So many connections, each greeted."""
    loop = asyncio.get_running_loop()
    made = [(await loop.create_connection(Connection, host, port))[1] for _ in range(connections)]
    for connection in made:
        await connection.greeted.wait()
    return made
