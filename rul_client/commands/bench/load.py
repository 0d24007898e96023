"""One process of `rul bench`: callers in a closed loop, and what they measured."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple
from uuid import uuid4

import aiohttp
import grpc
import grpc.aio

from rul_client.commands.bench.payloads import Call
from rul_client.grpc import grpc_channel

GOOD: Final = frozenset({"200", "OK"})
"""Codes of an answer; every other code is an error."""
TIMEOUT_SECONDS: Final = 30.0
RECONNECT_SECONDS: Final = 0.05
Send = Callable[[Call], Awaitable[str]]
"""Sends a request and returns the code of its answer; a failed connection is a code too."""


class Target(NamedTuple):
    """The service: http:// or https:// URLs of HTTP and of gRPC, and its API key."""

    url: str
    grpc_url: str
    api_key: str | None = None

    def prepare(self, call: Call) -> tuple[dict[str, str], bytes]:
        """Make headers or metadata, and the body, with a new request id."""
        request_id = uuid4().hex
        key = {} if self.api_key is None else {"x-api-key": self.api_key}
        named = {"x-request-id": request_id} if call.has_id else {}
        return call.headers | key | named, request_id.encode().join(call.parts)


async def _http(target: Target, stack: AsyncExitStack) -> Send:
    # A connector each: every caller has a connection of its own.
    session = await stack.enter_async_context(
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_SECONDS), auto_decompress=False)
    )

    async def send(call: Call) -> str:
        headers, body = target.prepare(call)
        try:
            async with session.post(target.url.rstrip("/") + call.path, data=body, headers=headers) as answer:
                await answer.read()
                return str(answer.status)
        except TimeoutError:
            return "timeout"
        except aiohttp.ClientError:
            await asyncio.sleep(RECONNECT_SECONDS)
            return "connection"

    return send


async def _grpc(target: Target, stack: AsyncExitStack, path: str) -> Send:
    # Without a pool of its own, a channel shares its connection with the other callers.
    channel = grpc_channel(target.grpc_url, ("grpc.use_local_subchannel_pool", 1))
    method: Any = (await stack.enter_async_context(channel)).unary_unary(path)

    async def send(call: Call) -> str:
        metadata, body = target.prepare(call)
        try:
            await method(body, metadata=list(metadata.items()), timeout=TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await asyncio.sleep(RECONNECT_SECONDS)
            return error.code().name
        return "OK"

    return send


class Tally(NamedTuple):
    """What one process measured: seconds of each answered call, calls by code, seconds, CPU seconds."""

    latencies: list[float]
    codes: Counter[str]
    elapsed: float
    cpu: float


def load(calls: Sequence[Call], target: Target, callers: int, seconds: float) -> Tally:
    """Run callers for some seconds, in an event loop of their own."""

    async def run() -> Tally:
        async with AsyncExitStack() as stack:
            path, by_http = calls[0].path, bool(calls[0].headers)
            crew = [
                await (_http(target, stack) if by_http else _grpc(target, stack, path))
                for _ in range(callers)
            ]
            return await closed_loop(crew, calls, seconds)

    if sys.platform == "win32":
        return asyncio.run(run())
    import uvloop  # noqa: PLC0415 not on Windows

    return uvloop.run(run())


async def closed_loop(
    callers: Sequence[Send],
    calls: Sequence[Call],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Tally:
    """Let each caller send, wait for its answer and send again, until the time is over.

    The first call of each, which connects, is not measured. Calls that have begun are waited for and
    counted, with their time: the slowest answers must not be lost.
    """
    await asyncio.gather(*(send(calls[i % len(calls)]) for i, send in enumerate(callers)))
    latencies, codes = list[float](), Counter[str]()
    cpu, start = time.process_time(), clock()

    async def repeat(send: Send, turn: int) -> None:
        begun = clock()
        while begun < start + seconds:
            code = await send(calls[turn % len(calls)])
            ended = clock()
            codes[code] += 1
            if code in GOOD:
                latencies.append(ended - begun)
            turn, begun = turn + 1, ended

    await asyncio.gather(*(repeat(send, i) for i, send in enumerate(callers)))
    return Tally(latencies, codes, clock() - start, time.process_time() - cpu)
