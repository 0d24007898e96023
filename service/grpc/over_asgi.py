"""gRPC over ASGI: the servicers, behind a front end that speaks HTTP/2 with trailers.

`grpc.aio` spends more CPU on an empty call than the model on a window, so where the front end
already speaks HTTP/2 the same servicers are called from here: a length-prefixed message in, one
out, and the status in the trailers (gRPC over HTTP/2, github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md).
This module knows the protocol; it must not know any service.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, Self

import grpc
from google.protobuf.message import DecodeError

from service.edge.asgi import Application, Message, Receive, Scope, Send, header, inflated
from service.edge.exchange import Limit
from service.edge.intake import Intake, Share
from service.errors import Disconnected, MalformedBody, TooLarge
from service.grpc.call import Aborted, Call, Metadata, Names, failure

PREFIX: Final = struct.Struct(">BI")  # compressed?, length
Encode = Callable[[Any], bytes] | None

PLAIN: Final = (b"content-type", b"application/grpc")
START: Final[Message] = {"type": "http.response.start", "status": 200, "headers": [PLAIN], "trailers": True}
END: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": False}
OK: Final = (b"grpc-status", b"0")
MOST_FOREIGN_BYTES: Final = 64 * 1024
"""Largest message of health and reflection."""


def framed(message: bytes) -> bytes:
    """A message as it stands in a body."""
    return PREFIX.pack(0, len(message)) + message


class Messages:
    """The request's messages, unframed and, where the caller compressed them, inflated.

    An iterator and not an async generator: the event loop keeps track of each of those, and ends
    one that was not run to its end, as that of a call with one message is not, by a task of its own.
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
        encoding = header(self._scope, b"grpc-encoding")
        return await asyncio.to_thread(_inflated, message, encoding, self._max_bytes)

    async def _rest(self) -> None:
        """Read the rest of a message that has begun."""
        buffer, intake = self._buffer, self._intake
        with Share(intake) as share, Limit(None, reading_seconds=intake.seconds):
            while len(buffer) < PREFIX.size:
                share.hold(len(buffer))
                await self._read_on()
            size = PREFIX.size + self._checked_length()
            with intake.expected(size):
                while len(buffer) < size:
                    share.hold(len(buffer))
                    await self._read_on()

    async def _read_on(self) -> None:
        if not self._more:
            raise MalformedBody("the request ends within a message")
        self.add(await self._receive())

    def add(self, event: Message) -> None:
        """Read on in what has come.

        Raises:
            Disconnected: the caller has left.
        """
        if event["type"] == "http.disconnect":
            raise Disconnected
        self._buffer += event.get("body", b"")
        self._more = event.get("more_body", False)

    async def only(self) -> bytes:
        """The first message, of a call that has one and reads it before it knows its caller."""
        with Limit(None, reading_seconds=self._intake.seconds):
            async for message in self:
                return message
        raise MalformedBody("the request has no message")

    def _checked_length(self) -> int:
        length = PREFIX.unpack_from(self._buffer)[1]
        if length > self._max_bytes:
            raise TooLarge(f"the message has {length} bytes, the service reads {self._max_bytes} at most")
        return length


class StreamCall(Call):
    """A call with any number of answers."""

    __slots__ = ("_encode", "_send", "_started")

    def __init__(self, scope: Scope, receive: Receive, names: Names, send: Send, encode: Encode) -> None:
        super().__init__(scope, receive, names)
        self._send = send
        self._encode = encode
        self._started = False

    async def start(self) -> None:
        """Send the headers, once."""
        if not self._started:
            self._started = True
            await self._send(START)

    async def write(self, message: Any) -> None:  # noqa: ANN401 a message of any method
        """Send one answer.

        Raises:
            Disconnected: the caller has left.
        """
        body = framed(message if self._encode is None else self._encode(message))
        try:
            if not self._started:
                await self.start()
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
        except OSError:  # as the ASGI specification asks of servers
            raise Disconnected from None


class GrpcOverAsgi:
    """An ASGI application that calls registered gRPC method handlers.

    It takes the place of a `grpc.Server` in the generated `add_..._to_server` functions.

    Args:
        max_message_bytes: A larger request message is answered RESOURCE_EXHAUSTED.
        metadata: The names of the request's metadata that servicers read; they see no other.
        intake: The budget and the deadline of messages that come in parts.
    """

    def __init__(self, *, max_message_bytes: int, metadata: Iterable[str], intake: Intake) -> None:
        self._max_message_bytes = max_message_bytes
        self._intake = intake
        self._names: Names = tuple((name.encode("latin-1"), name) for name in metadata)
        self._handlers: dict[str, Any] = {}  # grpc types its handlers as synchronous: these are not

    def add_generic_rpc_handlers(self, _handlers: Sequence[Any]) -> None:
        """Part of `grpc.Server`; the registered method handlers below say the same."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Serve these methods of a service."""
        for method, handler in handlers.items():
            self._handlers[f"/{service}/{method}"] = handler

    def beside(self, http: Application) -> Application:
        """An application that answers gRPC itself and leaves everything else to `http`.

        A plain function: a coroutine would be one more frame to resume at every step of every request.
        """

        def answer(scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
            return (self if _speaks_grpc(scope) else http)(scope, receive, send)

        return answer

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Answer one call."""
        handler = self._handlers.get(scope["path"])
        if handler is not None and not handler.response_streaming:
            return self._answer(handler, scope, receive, send)
        return self._answer_stream(handler, scope, receive, send)

    async def _answer(self, handler: Any, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ANN401
        """Answer with one message; the method itself limits its waiting."""
        decode, encode = handler.request_deserializer, handler.response_serializer
        messages = Messages(scope, receive, max_bytes=self._max_message_bytes, intake=self._intake)
        call = Call(scope, receive, self._names)
        try:
            call.check(scope)
            if handler.stream_unary is not None:  # it reads its message once it knows its caller
                response = await handler.stream_unary(messages, call)
            else:
                message = await messages.only()
                response = await handler.unary_unary(
                    message if decode is None else _decoded(decode, message), call
                )
            body = framed(response if encode is None else encode(response))
            trailers = [OK, *_pairs(call.trailing)]
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 without trailers the caller would wait or guess
            body, trailers = b"", _failed(error)
        await send(START)
        await send({"type": "http.response.body", "body": body, "more_body": False})
        await send({"type": "http.response.trailers", "headers": trailers, "more_trailers": False})

    async def _answer_stream(
        self,
        handler: Any,  # noqa: ANN401 as above; None where there is no such method
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        encode = None if handler is None else handler.response_serializer
        call = StreamCall(scope, receive, self._names, send, encode)
        try:
            call.check(scope)
            await self._converse(handler, call, scope, receive)
            trailers = [OK, *_pairs(call.trailing)]
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 as above
            trailers = _failed(error)
        await call.start()
        await send(END)
        await send({"type": "http.response.trailers", "headers": trailers, "more_trailers": False})

    async def _converse(self, handler: Any, call: StreamCall, scope: Scope, receive: Receive) -> None:  # noqa: ANN401
        if handler is None:
            raise Aborted(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {scope['path']}")
        requests = Messages(scope, receive, max_bytes=self._max_message_bytes, intake=self._intake)
        decode = handler.request_deserializer
        if handler.unary_stream is not None:
            message = await requests.only()
            request = message if decode is None else _decoded(decode, message)
            with Limit(None, receive):
                await _write_all(handler.unary_stream(request, call), call)
        else:
            incoming = (_decoded(decode, message) async for message in requests) if decode else requests
            answers = handler.stream_stream(incoming, call)
            # As in grpc.aio: a method yields its answers, or writes them and returns nothing.
            await (answers if isawaitable(answers) else _write_all(answers, call))


def _speaks_grpc(scope: Scope) -> bool:
    """Return whether this is a gRPC call on HTTP/2; HTTP/1 has no trailers for the status."""
    if scope["http_version"][:1] == "1" or "http.response.trailers" not in scope.get("extensions", ()):
        return False
    for key, value in scope["headers"]:
        if key == PLAIN[0]:
            return value.startswith(PLAIN[1])
    return False


async def _write_all(responses: AsyncIterator[Any], call: StreamCall) -> None:
    async for response in responses:
        await call.write(response)


def _decoded(decode: Callable[[bytes], Any], message: bytes) -> Any:  # noqa: ANN401 a message of any method
    """Decode a message of health or reflection.

    Raises:
        TooLarge: it is above `MOST_FOREIGN_BYTES`.
        MalformedBody: it cannot be read.
    """
    if len(message) > MOST_FOREIGN_BYTES:
        raise TooLarge(f"expected a message of at most {MOST_FOREIGN_BYTES} bytes, got {len(message)}")
    try:
        return decode(message)
    except DecodeError as error:
        raise MalformedBody(f"the message cannot be read: {error}") from error


def _inflated(message: bytes, encoding: bytes, max_bytes: int) -> bytes:
    """Inflate a message that is compressed with gzip.

    Raises:
        Aborted: the encoding is another one.
        TooLarge: it has more bytes than allowed.
    """
    if encoding != b"gzip":
        raise Aborted(
            grpc.StatusCode.UNIMPLEMENTED,
            f"expected message encoding gzip or identity, got {encoding.decode('latin-1')!r}",
            [("grpc-accept-encoding", "identity,gzip")],
        )
    return inflated(message, "gzip", max_bytes)


def _failed(error: Exception) -> list[tuple[bytes, bytes]]:
    trailers, metadata = failure(error)
    return trailers + _pairs(metadata)


def _pairs(metadata: Metadata) -> list[tuple[bytes, bytes]]:
    """Metadata as it travels."""
    return [
        (
            key.encode("latin-1"),
            value.encode("latin-1") if isinstance(value, str) else base64.b64encode(value).rstrip(b"="),
        )
        for key, value in metadata
    ]
