"""Cheap callers: requests are made once, and only the status of answers is read.

A closed loop: each caller waits for its answer, or for the time that a refusal asks, before the next request.
HTTP/2 is that of `tests.http2`, because `grpc.aio` uses more CPU per call than the service.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from tests import http2
from tests.benchmarks.loads import GrpcCall, HttpCall

RECONNECT_SECONDS: Final = 0.1
STATUS_NAME: Final = bytes.fromhex("889acac8b21234da8f")
"""`grpc-status` as encoded in trailers, with its length (RFC 7541, 5.2)."""
CODES: Final = {status.value[0]: status.name for status in grpc.StatusCode}
PUSHBACK_NAME: Final = bytes.fromhex("909acac8b5854d9e96aed44f18c9d56a51")
EXHAUSTED_SECONDS: Final = 1.0
"""Pause of a refused gRPC caller."""


@dataclass
class Tally:
    """Numbers of calls by code, and the seconds of each answered call."""

    codes: Counter[str] = field(default_factory=Counter[str])
    seconds: list[float] = field(default_factory=list[float])


class Caller(asyncio.Protocol):
    """One connection, with one call at a time."""

    def __init__(
        self, target: tuple[str, int], calls: Sequence[Any], tally: Tally, *, turn: int, is_patient: bool
    ):
        self.target, self.calls, self.tally = target, calls, tally
        self.turn, self.is_patient = turn, is_patient
        self.begun, self.is_waiting, self.stopped = 0.0, False, False
        self.transport: Any = None
        self.received = bytearray()

    async def connect(self) -> None:
        """Open the connection and send the first call."""
        while not self.stopped:
            try:
                await asyncio.get_running_loop().create_connection(lambda: self, *self.target)
            except OSError:
                self.tally.codes["connect"] += 1
                await asyncio.sleep(RECONNECT_SECONDS)
            else:
                return

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.received.clear()
        self.begin()
        self.ask()

    def begin(self) -> None:
        """Send the preface of a connection."""

    def ask(self) -> None:
        """Send the next call."""
        if self.stopped or self.transport is None or self.transport.is_closing():
            return
        self.turn += 1
        self.begun, self.is_waiting = time.perf_counter(), True
        self.send(self.calls[self.turn % len(self.calls)])

    def send(self, call: Any) -> None:
        raise NotImplementedError

    def ended(self, code: str, pause: float) -> None:
        """Record an answer, and send the next call."""
        self.is_waiting = False
        self.tally.codes[code] += 1
        if code in {"200", "OK"}:
            self.tally.seconds.append(time.perf_counter() - self.begun)
        loop = asyncio.get_running_loop()
        if pause and self.is_patient:
            loop.call_later(pause * random.uniform(0.75, 1.25), self.ask)
        else:
            loop.call_soon(self.ask)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_waiting and not self.stopped:
            self.tally.codes["reset"] += 1
        self.is_waiting, self.transport = False, None
        if not self.stopped:
            loop = asyncio.get_running_loop()
            loop.call_later(RECONNECT_SECONDS, lambda: loop.create_task(self.connect()))

    def stop(self) -> None:
        """Stop sending, and disconnect."""
        self.stopped = True
        if self.transport is not None:
            self.transport.abort()


class HttpCaller(Caller):
    """A caller over HTTP/1.1."""

    def begin(self) -> None:
        self.missing = -1
        self.code, self.pause, self.closes = "", 0.0, False

    def send(self, call: bytes) -> None:
        self.transport.write(call)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.missing < 0:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.received[:end]).lower()
            self.code = head[9:12].decode()
            length = re.search(rb"\ncontent-length: *(\d+)", head)
            pause = re.search(rb"\nretry-after: *(\d+)", head)
            self.pause, self.closes = float(pause[1]) if pause else 0.0, b"\nconnection: close" in head
            self.missing = int(length[1]) if length else 0
            del self.received[: end + 4]
        if len(self.received) >= self.missing:
            self.received.clear()
            self.missing = -1
            self.ended(self.code, self.pause)
            if self.closes and self.transport is not None:
                self.transport.close()


class GrpcCaller(Caller):
    """A gRPC caller over HTTP/2 with empty header tables, so that each block can be read alone."""

    def begin(self) -> None:
        self.stream, self.unsent, self.frames = -1, memoryview(b""), http2.Frames()
        self.room = self.stream_room = self.first_room = http2.WINDOW_BYTES
        self.transport.write(http2.greeting())

    def send(self, call: tuple[bytes, bytes]) -> None:
        head, message = call
        self.stream += 2
        self.stream_room, self.unsent = self.first_room, memoryview(message)
        self.transport.write(http2.frame(http2.HEADERS, http2.END_HEADERS, self.stream, head))
        self.push()

    def push(self) -> None:
        """Send as much of the message as flow control allows."""
        while (
            self.unsent
            and (size := min(len(self.unsent), http2.FRAME_BYTES, self.room, self.stream_room)) > 0
        ):
            part, self.unsent = self.unsent[:size], self.unsent[size:]
            self.room -= size
            self.stream_room -= size
            self.transport.write(
                http2.frame(http2.DATA, 0 if self.unsent else http2.END_STREAM, self.stream, part)
            )

    def data_received(self, data: bytes) -> None:
        for each in self.frames.feed(data):
            self.take(*each)

    def take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        """Take one frame."""
        if kind == http2.SETTINGS and not flags & http2.ACK:
            first_room = http2.settings_of(body).get(http2.INITIAL_WINDOW_SIZE, self.first_room)
            self.stream_room += first_room - self.first_room
            self.first_room = first_room
            self.transport.write(http2.frame(http2.SETTINGS, http2.ACK, 0, b""))
            self.push()
        elif kind == http2.PING and not flags & http2.ACK:
            self.transport.write(http2.frame(http2.PING, http2.ACK, 0, body))
        elif kind == http2.WINDOW_UPDATE:
            self.widen(stream, int.from_bytes(body, "big"))
        elif kind == http2.GOAWAY:
            self.transport.close()
        elif (
            stream == self.stream
            and self.is_waiting
            and (kind == http2.RST_STREAM or flags & http2.END_STREAM)
        ):
            self.unsent = memoryview(b"")
            self.ended(*(("reset", 0.0) if kind != http2.HEADERS else status_of(body)))

    def widen(self, stream: int, more: int) -> None:
        """Widen the window of the connection or of the call."""
        if stream == 0:
            self.room += more
        elif stream == self.stream:
            self.stream_room += more
        self.push()


def status_of(trailers: bytes) -> tuple[str, float]:
    """Return the code of a call's end, and the pause of a refused caller."""
    code = CODES[int(_value(trailers, STATUS_NAME) or "2")]
    if code != "RESOURCE_EXHAUSTED":
        return code, 0.0
    pushback = _value(trailers, PUSHBACK_NAME)
    return code, int(pushback) / 1000 if pushback else EXHAUSTED_SECONDS


def _value(trailers: bytes, name: bytes) -> str:
    """Read the digits after a name; in Huffman's code 0 to 2 have five bits, the others six (RFC 7541, B)."""
    at = trailers.find(name) + len(name)
    if at < len(name):
        return ""
    size, is_short = trailers[at] & 127, trailers[at] < 128
    raw = trailers[at + 1 : at + 1 + size]
    if is_short:
        return raw.decode()
    bits, digits = "".join(f"{byte:08b}" for byte in raw), ""
    while len(bits) > 7 or "0" in bits:
        width, first = (5, 0) if bits[:2] == "00" else (6, 22)
        digits += str(int(bits[:width], 2) - first)
        bits = bits[width:]
    return digits


def prepared(call: HttpCall | GrpcCall, address: str) -> Any:
    """A call as bytes to send."""
    if isinstance(call, HttpCall):
        return call.raw(address)
    message = b"\0" + len(call.message).to_bytes(4, "big") + call.message
    return http2.grpc_head(f"/{call.method}", address), message


@dataclass
class Ends:
    """Outcome of a load: calls by code, seconds of answered calls, share of a core used by the callers."""

    codes: Counter[str]
    seconds: list[float]
    elapsed: float
    cpu_share: float


async def closed_loop(
    address: str,
    calls: Sequence[HttpCall | GrpcCall],
    callers: int,
    seconds: float,
    *,
    settle: float,
    is_patient: bool,
) -> Ends:
    """Run callers for `seconds`, after `settle` seconds that do not count."""
    host, _, port = address.partition(":")
    kind = HttpCaller if isinstance(calls[0], HttpCall) else GrpcCaller
    made, tally = [prepared(call, address) for call in calls], Tally()
    crew = [kind((host, int(port)), made, tally, turn=turn, is_patient=is_patient) for turn in range(callers)]
    await asyncio.gather(*(caller.connect() for caller in crew))
    await asyncio.sleep(settle)
    tally.codes.clear()
    tally.seconds.clear()
    cpu, start = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed, busy = time.perf_counter() - start, time.process_time() - cpu
    ends = Ends(Counter(tally.codes), list(tally.seconds), elapsed, busy / elapsed)
    for caller in crew:
        caller.stop()
    return ends
