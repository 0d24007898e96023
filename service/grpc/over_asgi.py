"""gRPC over ASGI: the servicers, behind a front end that speaks HTTP/2 with trailers.

`grpc.aio` spends more CPU on an empty call than the model on a window, so where the front end
already speaks HTTP/2 the same servicers are called from here: a length-prefixed message in, one
out, and the status in the trailers (gRPC over HTTP/2, github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md).
This module knows the protocol; it must not know any service.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from inspect import isawaitable
from time import monotonic
from typing import Any, Final, NoReturn, Self
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError

from service import logs
from service.edge.asgi import Application, Message, Receive, Scope, Send, header, inflated
from service.edge.exchange import Limit
from service.errors import Disconnected, MalformedBody, ServiceError, TooLarge, public_detail, status_of

Names = Sequence[tuple[bytes, str]]
Metadata = Sequence[tuple[str, str | bytes]]

PREFIX: Final = struct.Struct(">BI")  # compressed?, length
Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes] | None

SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}

PLAIN: Final = (b"content-type", b"application/grpc")
START: Final[Message] = {"type": "http.response.start", "status": 200, "headers": [PLAIN], "trailers": True}
END: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": False}
OK: Final = (b"grpc-status", b"0")


class Aborted(Exception):
    """A servicer ended its call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.metadata = metadata


def framed(message: bytes) -> bytes:
    """A message as it stands in a body."""
    return PREFIX.pack(0, len(message)) + message


class Messages:
    """The request's messages, unframed and, where the caller compressed them, inflated.

    An iterator and not an async generator: the event loop keeps track of each of those, and ends
    one that was not run to its end, as that of a call with one message is not, by a task of its own.
    """

    def __init__(self, scope: Scope, receive: Receive, *, max_bytes: int) -> None:
        self._scope: Final = scope
        self._receive: Final = receive
        self._max_bytes: Final = max_bytes
        self._buffer = bytearray()
        self._more = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        buffer = self._buffer
        while len(buffer) < PREFIX.size or len(buffer) < PREFIX.size + self._checked_length():
            if not self._more:
                if buffer:
                    raise MalformedBody("the request ends within a message")
                raise StopAsyncIteration
            self.add(await self._receive())
        compressed, length = PREFIX.unpack_from(buffer)
        message = bytes(memoryview(buffer)[PREFIX.size : PREFIX.size + length])
        del buffer[: PREFIX.size + length]
        return self._inflated(message) if compressed else message

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
        """The first message, of a call that has one."""
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise MalformedBody("the request has no message") from None

    def _checked_length(self) -> int:
        length = PREFIX.unpack_from(self._buffer)[1]
        if length > self._max_bytes:
            raise TooLarge(f"the message has {length} bytes, the service reads {self._max_bytes} at most")
        return length

    def _inflated(self, message: bytes) -> bytes:
        encoding = header(self._scope, b"grpc-encoding")
        if encoding != b"gzip":
            raise Aborted(
                grpc.StatusCode.UNIMPLEMENTED,
                f"expected message encoding gzip or identity, got {encoding.decode('latin-1')!r}",
                [("grpc-accept-encoding", "identity,gzip")],
            )
        return inflated(message, "gzip", self._max_bytes)


class Call:
    """The call as a servicer sees it: the part of `grpc.aio.ServicerContext` that ours use."""

    __slots__ = ("_deadline", "_headers", "_names", "receive", "trailing")

    def __init__(self, scope: Scope, receive: Receive, names: Names) -> None:
        self.receive = receive
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._names = names
        timeout = self._headers.get(b"grpc-timeout")
        self._deadline = None if timeout is None else _deadline(timeout)
        self.trailing: Metadata = ()

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """Of the request's metadata what is read; binary values are left as they came."""
        found: list[tuple[str, str]] = []
        for key, name in self._names:
            value = self._headers.get(key)
            if value is not None:
                found.append((name, value.decode("latin-1")))
        return found

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline, or None where it set none."""
        return None if self._deadline is None else max(0.0, self._deadline - monotonic())

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Send this with the status."""
        self.trailing = metadata

    def write(self, message: Any) -> Awaitable[None]:  # noqa: ANN401, ARG002 a message of any method
        """Send one answer of a stream: see `StreamCall`."""
        raise RuntimeError("this call has one answer, which its method returns")

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        """End the call with this status."""
        raise Aborted(code, details, trailing_metadata)


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
    """

    def __init__(self, *, max_message_bytes: int, metadata: Iterable[str]) -> None:
        self._max_message_bytes = max_message_bytes
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
        if handler is not None and handler.unary_unary is not None:
            return self._answer(handler, scope, receive, send)
        return self._answer_stream(handler, scope, receive, send)

    async def _answer(self, handler: Any, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ANN401
        """Answer one message with one; the method itself limits its waiting."""
        call = Call(scope, receive, self._names)
        decode, encode = handler.request_deserializer, handler.response_serializer
        try:
            message = await Messages(scope, receive, max_bytes=self._max_message_bytes).only()
            request = message if decode is None else _decoded(decode, message)
            response = await handler.unary_unary(request, call)
            body = framed(response if encode is None else encode(response))
            trailers = [OK, *_pairs(call.trailing)]
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 without trailers the caller would wait or guess
            body, trailers = b"", _failure(error)
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
            await self._converse(handler, call, scope, receive)
            trailers = [OK, *_pairs(call.trailing)]
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 as above
            trailers = _failure(error)
        await call.start()
        await send(END)
        await send({"type": "http.response.trailers", "headers": trailers, "more_trailers": False})

    async def _converse(self, handler: Any, call: StreamCall, scope: Scope, receive: Receive) -> None:  # noqa: ANN401
        if handler is None:
            raise Aborted(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {scope['path']}")
        requests = Messages(scope, receive, max_bytes=self._max_message_bytes)
        decode = handler.request_deserializer
        if handler.unary_stream is not None:
            message = await requests.only()
            request = message if decode is None else _decoded(decode, message)
            with Limit(None, receive):
                await _write_all(handler.unary_stream(request, call), call)
        elif handler.stream_stream is not None:
            incoming = (_decoded(decode, message) async for message in requests) if decode else requests
            answers = handler.stream_stream(incoming, call)
            # As in grpc.aio: a method yields its answers, or writes them and returns nothing.
            await (answers if isawaitable(answers) else _write_all(answers, call))
        else:
            raise Aborted(grpc.StatusCode.UNIMPLEMENTED, "client streaming is not served")


def _speaks_grpc(scope: Scope) -> bool:
    """Return whether this is a gRPC call on HTTP/2; HTTP/1 has no trailers for the status."""
    if scope["http_version"][:1] == "1" or "http.response.trailers" not in scope.get("extensions", ()):
        return False
    return any(key == PLAIN[0] and value.startswith(PLAIN[1]) for key, value in scope["headers"])


def _decoded(decode: Decode, message: bytes) -> Any:  # noqa: ANN401 a message of any method
    try:
        return decode(message)
    except DecodeError as error:
        raise MalformedBody(f"the message cannot be read: {error}") from error


async def _write_all(responses: AsyncIterator[Any], call: StreamCall) -> None:
    async for response in responses:
        await call.write(response)


def _deadline(timeout: bytes) -> float | None:
    """A `grpc-timeout` header ("250m") as a time on the monotonic clock; None where there is none."""
    text = timeout.decode("latin-1")
    if not text or text[-1] not in SECONDS or not text[:-1].isdigit():
        return None
    return monotonic() + int(text[:-1]) * SECONDS[text[-1]]


def _failure(error: Exception) -> list[tuple[bytes, bytes]]:
    """The trailers of a call that has failed."""
    if isinstance(error, Aborted):
        return _trailers(error.code, error.details, error.metadata)
    if isinstance(error, ServiceError):
        return _trailers(status_of(error).grpc, public_detail(error))
    if isinstance(error, TimeoutError):
        return _trailers(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed")
    logs.logger().error("failed", protocol="grpc", exc_info=error)
    return _trailers(grpc.StatusCode.INTERNAL, public_detail(error))


def _trailers(status: grpc.StatusCode, details: str, metadata: Metadata = ()) -> list[tuple[bytes, bytes]]:
    code: int = status.value[0]
    trailers = [(b"grpc-status", b"%d" % code)]
    if details:
        trailers.append((b"grpc-message", quote(details, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~").encode()))
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
