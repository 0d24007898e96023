"""Connections that `rul bench` asks over, with little work a call: it may run on the service's own cores.

Answers are read by the parser that uvicorn reads requests with, and nothing is kept of them but
their status. No proxy is asked. This module must not know windows.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

import grpc
import grpc.aio
import httptools

from rul_client.commands.bench.requests import Calls

BROKEN: Final = "connection"
LATE: Final = "timeout"
GOOD: Final = frozenset({"200", "OK"})
"""Codes of an answer; every other code is an error."""

PAUSE_SECONDS: Final = 0.05
"""Between two attempts to connect."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the service is.

    Attributes:
        url: http:// or https://.
        grpc_target: HOST:PORT of gRPC, where it is not that of the URL.
        api_key: Sent with every call.
        timeout_seconds: After so long without an answer a call has failed.
    """

    url: str
    grpc_target: str | None = None
    api_key: str | None = None
    timeout_seconds: float = 30.0


class Caller(Protocol):
    """One connection, one call at a time."""

    async def call(self, body: bytes) -> str:
        """Ask, and return the code of the answer; never raises for what the service or network does."""
        ...

    async def close(self) -> None:
        """Leave."""
        ...


def caller_for(calls: Calls, target: Target) -> Caller:
    """A caller of the calls' protocol; it connects when it first asks."""
    return GrpcCaller(calls, target) if calls.grpc else HttpCaller(calls, target)


class HttpCaller:
    """Asks over one HTTP/1.1 connection, and over a new one where that breaks or is closed."""

    def __init__(self, calls: Calls, target: Target) -> None:
        parts = urlsplit(target.url)
        secure = parts.scheme == "https"
        self._host: Final = parts.hostname or ""
        self._port: Final = parts.port or (443 if secure else 80)
        self._tls: Final = ssl.create_default_context() if secure else None
        self._timeout: Final = target.timeout_seconds
        headers = {"host": parts.netloc.rpartition("@")[2], "accept": "*/*"} | calls.headers
        if target.api_key is not None:
            headers["x-api-key"] = target.api_key
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        path = parts.path.rstrip("/") + calls.path
        self._head: Final = f"POST {path} HTTP/1.1\r\n{lines}content-length: ".encode("latin-1")
        self._connection: _Connection | None = None

    async def call(self, body: bytes) -> str:
        """See `Caller`."""
        try:
            async with asyncio.timeout(self._timeout):
                connection = self._connection or await self._connected()
                code = await connection.ask(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        except TimeoutError:
            await self.close()
            return LATE
        except (OSError, httptools.HttpParserError):
            await self.close()
            await asyncio.sleep(PAUSE_SECONDS)
            return BROKEN
        if connection.closed:
            self._connection = None
        return code

    async def close(self) -> None:
        """See `Caller`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        self._connection = made
        return made


class _Connection(asyncio.Protocol):
    """One answer after another; all that is kept of one is its status."""

    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[str] | None = None
        self._parser: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._fail(exc or ConnectionResetError("closed without an answer"))

    def data_received(self, data: bytes) -> None:
        if self._parser is not None:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                self._fail(error)

    def on_message_complete(self) -> None:
        """The parser has seen the end of an answer."""
        if self._parser.get_status_code() < 200:  # 100 Continue and its like: the answer is yet to come
            return
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(str(self._parser.get_status_code()))

    async def ask(self, request: bytes) -> str:
        if self._transport is None or self.closed:
            raise ConnectionResetError("closed before the call")
        self._answer = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class GrpcCaller:
    """Asks by gRPC, on messages that are already bytes."""

    def __init__(self, calls: Calls, target: Target) -> None:
        parts = urlsplit(target.url)
        secure = parts.scheme == "https"
        host = parts.netloc.rpartition("@")[2]
        where = target.grpc_target or (host if parts.port else f"{host}:{443 if secure else 80}")
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),  # else all callers would share one connection
        ]
        self._channel: Final = (
            grpc.aio.secure_channel(where, grpc.ssl_channel_credentials(), options=options)
            if secure
            else grpc.aio.insecure_channel(where, options=options)
        )
        self._metadata: Final = [("x-api-key", target.api_key)] if target.api_key is not None else []
        self._timeout: Final = target.timeout_seconds
        self._method: Final[Any] = self._channel.unary_unary(calls.path)

    async def call(self, body: bytes) -> str:
        """See `Caller`."""
        try:
            await self._method(body, metadata=self._metadata, timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await asyncio.sleep(PAUSE_SECONDS)
            return error.code().name
        return "OK"

    async def close(self) -> None:
        """See `Caller`."""
        await self._channel.close()
