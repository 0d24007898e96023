"""gRPC over ASGI: the methods, behind a front end that speaks HTTP/2 with trailers.

`grpc.aio` spends more CPU on an empty call than the model on a window. If the front end already speaks
HTTP/2, this module calls the same methods: length-prefixed messages in and out, and the status in the
trailers (gRPC over HTTP/2, github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md). This module knows the protocol; it
must not know any service.
"""

from __future__ import annotations

import base64
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Self
from urllib.parse import quote

from google.rpc.code_pb2 import Code

from service.edge.asgi import Application, Message, Receive, Scope, Send
from service.edge.exchange import Limit
from service.edge.intake import Intake, Share
from service.errors import Disconnected, MalformedBody, TooLarge
from service.grpc.call import (
    FOREIGN,
    MOST_FOREIGN_BYTES,
    PLAIN,
    PREFIX,
    START,
    Aborted,
    Call,
    Metadata,
    Method,
    failure,
    framed,
)

OK: Final = (b"grpc-status", b"0")
ENCODINGS: Final = (b"grpc-accept-encoding", b"identity,deflate,gzip")
"""Supported compressions of messages."""
UNQUOTED: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


class Messages:
    """The request's messages, without their prefix, and inflated if they are compressed.

    It is an iterator, not an async generator: the event loop would track each generator and close an
    unfinished one, which that of a call with one message is, in a separate task.
    """

    def __init__(self, scope: Scope, receive: Receive, *, max_bytes: int, intake: Intake) -> None:
        self._scope: Final = scope
        self._intake: Final = intake
        self._receive: Final = receive
        self._max_bytes: Final = max_bytes
        self._buffer = bytearray()
        self._more = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        buffer = self._buffer
        while not buffer:
            if not self._more:
                raise StopAsyncIteration
            self.add(await self._receive())
        if len(buffer) < PREFIX.size or len(buffer) < PREFIX.size + self._checked_length():
            await self._rest()
        compressed, length = PREFIX.unpack_from(buffer)
        message = bytes(memoryview(buffer)[PREFIX.size : PREFIX.size + length])
        del buffer[: PREFIX.size + length]
        if not compressed:
            return message
        encoding = dict(self._scope["headers"]).get(b"grpc-encoding", b"")
        if encoding in {b"", b"identity"}:
            raise MalformedBody("a message is compressed, and grpc-encoding does not say how")
        return await self._intake.inflate(message, encoding.decode("latin-1"), self._max_bytes)

    async def _rest(self) -> None:
        """Read the rest of a message that has begun."""
        with Share(self._intake) as share, Limit(None, reading_seconds=self._intake.seconds):
            await self._fill(PREFIX.size, share)
            size = PREFIX.size + self._checked_length()
            with self._intake.expected(size):
                await self._fill(size, share)

    async def _fill(self, size: int, share: Share) -> None:
        while len(self._buffer) < size:
            share.hold(len(self._buffer))
            if not self._more:
                raise MalformedBody("the request ends within a message")
            self.add(await self._receive())

    def add(self, event: Message) -> None:
        """Append the part of the body in an event of the server.

        Raises:
            Disconnected: the caller has left.
        """
        if event["type"] == "http.disconnect":
            raise Disconnected
        self._buffer += event.get("body", b"")
        self._more = event.get("more_body", False)

    def _checked_length(self) -> int:
        length = PREFIX.unpack_from(self._buffer)[1]
        if length > self._max_bytes:
            raise TooLarge(f"the message has {length} bytes, the service reads {self._max_bytes} at most")
        return length


class GrpcOverAsgi:
    """An ASGI application that calls methods by path.

    Args:
        methods: The methods, and the handler of unknown paths.
        max_message_bytes: Larger request messages get RESOURCE_EXHAUSTED.
        intake: The budget and the deadline of messages that come in parts.
    """

    def __init__(self, methods: Mapping[str, Method], *, max_message_bytes: int, intake: Intake) -> None:
        self._methods: Final = methods
        self._max_message_bytes: Final = max_message_bytes
        self._intake: Final = intake

    def beside(self, http: Application) -> Application:
        """Return an application that answers gRPC calls and passes everything else to `http`.

        It is a plain function: a coroutine would be one more frame to resume at every step of a request.
        """

        def answer(scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
            return (self if _speaks_grpc(scope) else http)(scope, receive, send)

        return answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        most = MOST_FOREIGN_BYTES if scope["path"].startswith(FOREIGN) else self._max_message_bytes
        messages = Messages(scope, receive, max_bytes=most, intake=self._intake)
        call, body = Call(scope, receive, send), b""
        try:
            call.check(scope)
            reply = await self._methods[scope["path"]](messages, call)
            body = b"" if reply is None else framed(reply)
            trailers = [OK, *_pairs(call.trailing)]
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 without trailers the caller would wait or guess
            trailers = _trailers(failure(error))
        if not call.has_started:
            await send(START)
        await send({"type": "http.response.body", "body": body, "more_body": False})
        await send({"type": "http.response.trailers", "headers": trailers, "more_trailers": False})


def _speaks_grpc(scope: Scope) -> bool:
    """Return whether this is a gRPC call on HTTP/2; HTTP/1 has no trailers for the status."""
    if scope["http_version"][:1] == "1" or "http.response.trailers" not in scope.get("extensions", ()):
        return False
    for key, value in scope["headers"]:
        if key == PLAIN[0]:
            return value.startswith(PLAIN[1])
    return False


def _trailers(end: Aborted) -> list[tuple[bytes, bytes]]:
    trailers = [(b"grpc-status", b"%d" % end.code)]
    if end.details:
        message = quote(end.details, safe=UNQUOTED, errors="replace")
        trailers.append((b"grpc-message", message.encode()))
    if end.code == Code.UNIMPLEMENTED:
        trailers.append(ENCODINGS)
    return trailers + _pairs(end.metadata)


def _pairs(metadata: Metadata) -> list[tuple[bytes, bytes]]:
    """Encode metadata."""
    return [
        (
            key.encode("latin-1"),
            value.encode("latin-1") if isinstance(value, str) else base64.b64encode(value).rstrip(b"="),
        )
        for key, value in metadata
    ]
