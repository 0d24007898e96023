"""Attack a running service with slow and many clients; print its memory before, during and after.

    python -m tests.hostile.slow_clients                              # short, some two minutes
    python -m tests.hostile.slow_clients --connections 1000 --hold 60 # longer

Each attack runs against a fresh service that needs a key. The table has the resident memory of all workers
(MiB), the number of the attack's connections that were cut at once and that are still open at the end, and
the slowest `/livez` of another caller.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import httpx
import psutil
import typer

from tests import http2
from tests.integration.conftest import KEY, Server, running, workers_of

MIB: Final = 1 << 20
BODY_BYTES: Final = 16 * MIB
PART_BYTES: Final = 15 * MIB
LIVEZ_SECONDS: Final = 5.0
STOPPED_SECONDS: Final = 1.0
"""Time after which a server that takes nothing has stopped reading."""
STREAMS_A_CONNECTION: Final = 100
PREDICT: Final = "/rul.v1.RulService/Predict"
WATCH: Final = "/grpc.health.v1.Health/Watch"
REFLECT: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@dataclass(frozen=True)
class Attack:
    """One attack; each of its clients opens one connection and keeps it."""

    name: str
    begin: Callable[[str, int], Awaitable[asyncio.StreamReader]]
    share: float = 1.0
    """Share of the requested connections, because bodies take long to send."""


_open: list[asyncio.StreamWriter] = []


async def connected(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(host, port)
    _open.append(writer)
    return reader, writer


def forget() -> None:
    """Abort all connections."""
    for writer in _open:
        writer.transport.abort()
    _open.clear()


async def send_slowly(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send until the server stops reading."""
    writer.write(data)
    with suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.drain(), STOPPED_SECONDS)


async def idle(host: str, port: int) -> asyncio.StreamReader:
    return (await connected(host, port))[0]


async def slow_headers(host: str, port: int) -> asyncio.StreamReader:
    reader, writer = await connected(host, port)
    writer.write(b"POST /v1/predict HTTP/1.1\r\nhost: a\r\nx-slow: ")
    return reader


def slow_body(key: str) -> Callable[[str, int], Awaitable[asyncio.StreamReader]]:
    async def begin(host: str, port: int) -> asyncio.StreamReader:
        reader, writer = await connected(host, port)
        head = f"POST /v1/predict HTTP/1.1\r\nhost: a\r\n{key}content-type: application/json\r\n"
        writer.write(f"{head}content-length: {BODY_BYTES}\r\n\r\n".encode())
        await send_slowly(writer, b" " * PART_BYTES)
        return reader

    return begin


def streams(
    path: str, message: bytes, *, count: int, key: str = "", ended: bool = False
) -> Callable[[str, int], Awaitable[asyncio.StreamReader]]:
    """Open streams on one connection; each sends the message, and may end its side."""

    async def begin(host: str, port: int) -> asyncio.StreamReader:
        reader, writer = await connected(host, port)
        writer.write(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0))
        block, rooms = (
            http2.grpc_head(path, **({"x-api-key": key} if key else {})),
            [http2.WINDOW_BYTES, http2.WINDOW_BYTES],
        )
        for number in range(count):
            writer.write(http2.frame(http2.HEADERS, http2.END_HEADERS, 2 * number + 1, block))
        for number in range(count):
            stream, sent = 2 * number + 1, 0
            while sent < len(message):
                while min(rooms) < http2.FRAME_BYTES:
                    try:
                        await asyncio.wait_for(grow(rooms, reader), STOPPED_SECONDS)
                    except TimeoutError:  # the server reads no more, and the connection stays
                        return reader
                part = message[sent : sent + http2.FRAME_BYTES]
                is_last = ended and sent + len(part) == len(message)
                await send_slowly(
                    writer, http2.frame(http2.DATA, http2.END_STREAM if is_last else 0, stream, part)
                )
                sent, rooms[:] = sent + len(part), [room - len(part) for room in rooms]
        return reader

    return begin


async def grow(rooms: list[int], reader: asyncio.StreamReader) -> None:
    """Read one frame; it may widen the windows of the connection and its streams."""
    head = await reader.readexactly(9)
    payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
    if head[3] == http2.WINDOW_UPDATE:
        rooms[head[5:9] != bytes(4)] += int.from_bytes(payload, "big")
    elif head[3] == http2.SETTINGS:
        rooms[1] += (
            http2.settings_of(payload).get(http2.INITIAL_WINDOW_SIZE, http2.WINDOW_BYTES) - http2.WINDOW_BYTES
        )


PARTIAL: Final = struct.pack(">BI", 0, BODY_BYTES - 1) + b"\x00" * PART_BYTES
EMPTY: Final = struct.pack(">BI", 0, 0)
ATTACKS: Final = [
    Attack("idle connections", idle),
    Attack("slow headers", slow_headers),
    Attack("slow bodies, no key", slow_body(""), 0.5),
    Attack("slow bodies, key", slow_body(f"x-api-key: {KEY}\r\n"), 0.5),
    Attack("gRPC bodies, no key", streams(PREDICT, PARTIAL, count=1), 0.2),
    Attack("gRPC bodies, key", streams(PREDICT, PARTIAL, count=1, key=KEY), 0.2),
    Attack("half-open unary streams", streams(PREDICT, b"", count=STREAMS_A_CONNECTION), 0.1),
    Attack("Health/Watch streams", streams(WATCH, EMPTY, count=STREAMS_A_CONNECTION, ended=True), 0.1),
    Attack("reflection streams", streams(REFLECT, b"", count=STREAMS_A_CONNECTION), 0.1),
]


def held(server: Server) -> float:
    """Return the resident memory of the workers, in MiB."""
    workers = workers_of(server) or psutil.Process(server.process.pid).children(recursive=True)
    return sum(process.memory_info().rss for process in workers) / MIB


def livez(server: Server) -> float:
    """Return the seconds until a new connection is answered; infinity if it is not."""
    start = time.monotonic()
    try:
        answer = httpx.get(server.http + "/livez", trust_env=False, timeout=LIVEZ_SECONDS, verify=False)
    except httpx.HTTPError:
        return float("inf")
    return time.monotonic() - start if answer.is_success else float("inf")


async def closes(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(1 << 16):
            pass


async def measure(server: Server, attack: Attack, connections: int, hold: float, after: float) -> str:
    """Run one attack; return its line of the table."""
    host, port = server.http.removeprefix("http://").split(":")
    count = max(1, round(connections * attack.share))
    before, most, slowest = held(server), 0.0, 0.0
    begun = asyncio.gather(*(attack.begin(host, int(port)) for _ in range(count)), return_exceptions=True)
    readers: list[asyncio.Task[None]] = []
    until = time.monotonic() + hold
    while time.monotonic() < until or not begun.done():
        if begun.done() and not readers:
            found = [r for r in begun.result() if isinstance(r, asyncio.StreamReader)]
            readers = [asyncio.ensure_future(closes(reader)) for reader in found]
            until = time.monotonic() + hold
        slowest = max(slowest, await asyncio.to_thread(livez, server))
        most = max(most, held(server))
        await asyncio.sleep(0.2)
    begun_badly = sum(not isinstance(r, asyncio.StreamReader) for r in begun.result())
    still_open = sum(not reader.done() for reader in readers)
    forget()
    await asyncio.gather(*readers)
    await asyncio.sleep(after)
    return (
        f"{attack.name:26} {count:6} {begun_badly:6} {before:8.0f} {most:8.0f} {held(server):8.0f}"
        f" {still_open:6} {slowest * 1000:10.0f}"
    )


def main(
    *,
    connections: int = 100,
    hold: float = 5.0,
    after: float = 5.0,
    bundle: str = "fd001",
    front_end: str = "envoy",
    only: Annotated[str, typer.Option(help="Attacks whose name holds this text.")] = "",
) -> None:
    """Run every attack and print the table."""
    names = f"{'conns':>6} {'cut':>6} {'before':>8} {'during':>8} {'after':>8} {'open':>6} {'/livez ms':>10}"
    print(f"{'attack':26} {names}")
    for attack in [attack for attack in ATTACKS if only in attack.name]:
        with tempfile.TemporaryDirectory() as folder:
            settings = {"api_keys": KEY, "front_end": front_end, "log_level": "error"}
            with running(Path(folder), bundle, **settings) as server:
                line = asyncio.run(measure(server, attack, connections, hold, after))
        print(line)
        sys.stdout.flush()


if __name__ == "__main__":
    typer.run(main)
