"""Opens a model on a server; retries temporary failures.

http://host:3000   https://host   JSON, POST /v1/predict
grpc://host:3000   grpcs://host   rul.v1.RulService; grpcs uses TLS
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeVar

import httpx

from export.bundle import Manifest
from rul_client.address import Tls
from rul_client.answers import Answer, Answerer, Explain, NoAnswer, RemoteModel, Window
from rul_client.errors import RemoteFailed, Retryable
from rul_client.grpc import GrpcTransport, grpc_channel
from rul_client.http import HttpTransport, http_client
from service.proto import rul_v1_pb2_grpc

MAX_WINDOWS: Final = 64
MAX_IN_FLIGHT: Final = 4
REQUEST_BYTES: Final = 8 * 1024 * 1024
"""Half of what a server reads by default; wide or long windows go fewer at a time."""
ATTEMPTS: Final = 6
MAX_PAUSE_SECONDS: Final = 30.0

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[None]]
Transport = HttpTransport | GrpcTransport


@asynccontextmanager
async def open_remote(
    url: str,
    *,
    model: str | None,
    api_key: str | None,
    tls: Tls = Tls(),  # noqa: B008 frozen
    transport: httpx.AsyncBaseTransport | None = None,
    sleep: Sleep = asyncio.sleep,
) -> AsyncGenerator[Answerer, None]:
    """Connect to a server and choose its model: the named one, or the only one."""
    async with AsyncExitStack() as stack:
        server: Transport
        if url.startswith("http"):
            client = await stack.enter_async_context(http_client(url, api_key, tls=tls, transport=transport))
            server = HttpTransport(client, url)
        else:
            channel = await stack.enter_async_context(grpc_channel(url, tls=tls))
            server = GrpcTransport(rul_v1_pb2_grpc.RulServiceStub(channel), url, api_key)
        name = choose(await with_retries(server.models, sleep=sleep), model, url)
        found = await with_retries(lambda: server.model(name), sleep=sleep)
        yield RemoteAnswerer(server, found, sleep=sleep)


class RemoteAnswerer:
    """An `Answerer` on a server."""

    def __init__(self, transport: Transport, model: RemoteModel, *, sleep: Sleep) -> None:
        self._transport: Final = transport
        self._sleep: Final = sleep
        self.name, self.manifest = model
        self.windows_per_request = windows_per_request(self.manifest, transport.bytes_per_reading)
        self.max_in_flight = MAX_IN_FLIGHT

    async def answer(self, windows: Sequence[Window], explain: Explain) -> list[Answer | NoAnswer]:
        """Answer each window, in order."""
        return await with_retries(
            lambda: self._transport.predict(self.name.name, windows, explain), sleep=self._sleep
        )


async def with_retries(call: Callable[[], Awaitable[Result]], *, sleep: Sleep) -> Result:
    """Call until it succeeds or fails for good, at most `ATTEMPTS` times."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return await call()
        except Retryable as failure:
            wanted = failure.after_seconds
            await sleep(min(MAX_PAUSE_SECONDS, 0.5 * 2.0**attempt if wanted is None else wanted))
    try:
        return await call()
    except Retryable as failure:
        raise RemoteFailed(f"{failure}; tried {ATTEMPTS} times") from failure


def windows_per_request(manifest: Manifest, bytes_per_reading: int) -> int:
    """Number of windows that fit in a request."""
    window_bytes = manifest.context * len(manifest.columns) * bytes_per_reading
    return max(1, min(MAX_WINDOWS, REQUEST_BYTES // window_bytes))


def choose(models: Sequence[str], wanted: str | None, url: str) -> str:
    """Pick the named model, or the only one."""
    names = ", ".join(sorted(models)) or "none"
    if wanted is None and len(models) > 1:
        raise RemoteFailed(f"{url} serves several models ({names}): choose one with --model")
    for name in models:
        if wanted in {None, name}:
            return name
    raise RemoteFailed(f"{url} serves no model {wanted!r}, only {names}")
