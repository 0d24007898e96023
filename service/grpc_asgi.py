"""gRPC over ASGI: the servicers of `grpc_api`, behind a front end that speaks HTTP/2 with trailers.

`grpc.aio` spends more CPU on an empty call than the model on a window, so where the front end
already speaks HTTP/2 the same servicers are called from here: a length-prefixed message in, one
out, and the status in the trailers (gRPC over HTTP/2, github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md).
This module knows the protocol; it must not know any service.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from time import monotonic
from typing import Any, Final, NoReturn, Self
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError

from service import logs
from service.asgi import Disconnected, Receive, Scope, Send, header, unless_disconnected
from service.errors import public_detail

Metadata = Sequence[tuple[str, str | bytes]]

PREFIX: Final = struct.Struct(">BI")  # compressed?, length
SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
GZIP: Final = 16 + zlib.MAX_WBITS


class Aborted(Exception):
    """A servicer ended its call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.metadata = metadata


class Call:
    """What a servicer sees of its call: the part of `grpc.aio.ServicerContext` that ours use."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._deadline = _deadline(header(scope, b"grpc-timeout"))
        self.trailing: Metadata = ()
        self._write: Callable[[Any], Awaitable[None]] | None = None

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """The request's metadata; binary values are left as they came."""
        return [(key.decode("latin-1"), value.decode("latin-1")) for key, value in self._scope["headers"]]

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline, or None where it set none."""
        return None if self._deadline is None else max(0.0, self._deadline - monotonic())

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Send this with the status."""
        self.trailing = metadata

    def answer_by(self, write: Callable[[Any], Awaitable[None]]) -> None:
        """How `write` sends."""
        self._write = write

    def write(self, message: Any) -> Awaitable[None]:  # noqa: ANN401 a message of any method
        """Send one answer of a stream."""
        if self._write is None:
            raise RuntimeError("this call has one answer, which its method returns")
        return self._write(message)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        """End the call with this status."""
        raise Aborted(code, details, trailing_metadata)


class GrpcOverAsgi:
    """An ASGI application that calls registered gRPC method handlers.

    It takes the place of a `grpc.Server` in the generated `add_..._to_server` functions.

    Args:
        max_message_bytes: A larger request message is answered RESOURCE_EXHAUSTED.
    """

    def __init__(self, *, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._handlers: dict[str, Any] = {}  # grpc types its handlers as synchronous: these are not

    def add_generic_rpc_handlers(self, _handlers: Sequence[Any]) -> None:
        """Part of `grpc.Server`; the registered method handlers below say the same."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Serve these methods of a service."""
        for method, handler in handlers.items():
            self._handlers[f"/{service}/{method}"] = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        call = Call(scope)
        started = False

        async def start() -> None:
            nonlocal started
            if not started:
                started = True
                await send(
                    {
                        "type": "http.response.start",
                        "status": 200,
                        "headers": [(b"content-type", b"application/grpc")],
                        "trailers": True,
                    }
                )

        async def reply(message: bytes, *, more: bool) -> None:
            if not started:
                await start()
            body = PREFIX.pack(0, len(message)) + message
            await send({"type": "http.response.body", "body": body, "more_body": more})

        status, details, metadata, body_ended = grpc.StatusCode.OK, "", call.trailing, False
        try:
            body_ended = await self._dispatch(call, scope, receive, reply)
            metadata = call.trailing
        except Aborted as aborted:
            status, details, metadata = aborted.code, aborted.details, aborted.metadata
        except TimeoutError:
            status, details = grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed"
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 without trailers the caller would wait or guess
            logs.logger().error("failed", protocol="grpc", exc_info=error)
            status, details = grpc.StatusCode.INTERNAL, public_detail(error)
        await start()
        if not body_ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        trailers = _trailers(status, details, metadata)
        await send({"type": "http.response.trailers", "headers": trailers, "more_trailers": False})

    async def _dispatch(
        self, call: Call, scope: Scope, receive: Receive, reply: Callable[..., Awaitable[None]]
    ) -> bool:
        """Run one method; True where the response body has ended with its last message."""
        handler = self._handlers.get(scope["path"])
        if handler is None:
            raise Aborted(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {scope['path']}")
        requests = Messages(scope, receive, max_bytes=self._max_message_bytes)
        decode, encode = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary is not None:
            request = _decoded(decode, await requests.only())
            response = await unless_disconnected(handler.unary_unary(request, call), receive)
            await reply(encode(response), more=False)
            return True
        if handler.unary_stream is not None:
            request = _decoded(decode, await requests.only())
            await unless_disconnected(_stream(handler.unary_stream(request, call), encode, reply), receive)
            return False
        if handler.stream_stream is not None:
            incoming = (_decoded(decode, message) async for message in requests) if decode else requests
            call.answer_by(lambda message: reply(encode(message), more=True))
            answers = handler.stream_stream(incoming, call)
            # As in grpc.aio: a method yields its answers, or writes them and returns nothing.
            await (answers if isawaitable(answers) else _stream(answers, encode, reply))
            return False
        raise Aborted(grpc.StatusCode.UNIMPLEMENTED, "client streaming is not served")


class Messages:
    """The request's messages, unframed and, where the caller compressed them, inflated.

    An iterator and not an async generator: the event loop keeps track of each of those, and ends
    one that was not run to its end, as that of a call with one message is not, by a task of its own.
    """

    def __init__(self, scope: Scope, receive: Receive, *, max_bytes: int) -> None:
        self._scope: Final = scope
        self._receive: Final = receive
        self._max_bytes: Final = max_bytes
        self._buffer: Final = bytearray()
        self._more = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        buffer = self._buffer
        while len(buffer) < PREFIX.size or len(buffer) < PREFIX.size + self._checked_length():
            if not self._more:
                if buffer:
                    raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "the request ends within a message")
                raise StopAsyncIteration
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise Disconnected
            buffer += event.get("body", b"")
            self._more = event.get("more_body", False)
        compressed, length = PREFIX.unpack_from(buffer)
        message = bytes(memoryview(buffer)[PREFIX.size : PREFIX.size + length])
        del buffer[: PREFIX.size + length]
        return self._inflated(message) if compressed else message

    async def only(self) -> bytes:
        """The first message, of a call that has one."""
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "the request has no message") from None

    def _checked_length(self) -> int:
        length = PREFIX.unpack_from(self._buffer)[1]
        if length > self._max_bytes:
            raise Aborted(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the message has {length} bytes, the server reads {self._max_bytes} at most",
            )
        return length

    def _inflated(self, message: bytes) -> bytes:
        encoding = header(self._scope, b"grpc-encoding")
        if encoding != b"gzip":
            raise Aborted(
                grpc.StatusCode.UNIMPLEMENTED,
                f"message encoding {encoding.decode('latin-1')!r} is not known: use gzip or identity",
                [("grpc-accept-encoding", "identity,gzip")],
            )
        inflater = zlib.decompressobj(GZIP)
        try:
            plain = inflater.decompress(message, self._max_bytes + 1)
        except zlib.error as error:
            raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "the message is not gzip") from error
        if len(plain) > self._max_bytes:
            raise Aborted(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the message inflates to more than {self._max_bytes} bytes",
            )
        if not inflater.eof or inflater.unused_data:
            raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "the message is not one whole gzip member")
        return plain


def speaks_grpc(scope: Scope) -> bool:
    """Whether this is a gRPC call that can be answered: status goes into trailers, which HTTP/1 lacks."""
    can_answer = scope["http_version"][:1] != "1" and "http.response.trailers" in scope.get("extensions", ())
    return can_answer and header(scope, b"content-type").startswith(b"application/grpc")


def _decoded(decode: Callable[[bytes], Any] | None, message: bytes) -> Any:  # noqa: ANN401 a message of any method
    try:
        return message if decode is None else decode(message)
    except DecodeError as error:
        raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, f"the message cannot be read: {error}") from error


async def _stream(
    responses: AsyncIterator[Any], encode: Callable[[Any], bytes], reply: Callable[..., Awaitable[None]]
) -> None:
    async for response in responses:
        await reply(encode(response), more=True)


def _deadline(timeout: bytes) -> float | None:
    """A `grpc-timeout` header ("250m") as a time on the monotonic clock; None where there is none."""
    text = timeout.decode("latin-1")
    if not text or text[-1] not in SECONDS or not text[:-1].isdigit():
        return None
    return monotonic() + int(text[:-1]) * SECONDS[text[-1]]


def _trailers(status: grpc.StatusCode, details: str, metadata: Metadata) -> list[tuple[bytes, bytes]]:
    code: int = status.value[0]
    trailers = [(b"grpc-status", b"%d" % code)]
    if details:
        trailers.append((b"grpc-message", quote(details, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~").encode()))
    for key, value in metadata:
        raw = base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value.encode("latin-1")
        trailers.append((key.encode("latin-1"), raw))
    return trailers
