"""A gRPC call: what methods see of it, what all methods share, and how it ends with a status.

A method takes the raw messages of a call and returns its answer, or writes any number of answers. The same
methods run on `grpc.aio` and, through `over_asgi`, behind an HTTP/2 front end: on the wire a call with one
message is a stream of one. This module must not know what is asked.
"""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import accumulate
from time import monotonic, perf_counter
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from google.rpc.code_pb2 import Code

from service import logs
from service.core.turns import LARGE_BYTES
from service.edge.access import Credentials
from service.edge.asgi import Message as Event
from service.edge.asgi import Receive, Scope, Send, check_decodable
from service.edge.exchange import Desk, Exchange, Limit
from service.edge.keys import Grant, KeyScope
from service.errors import (
    MAX_PROBLEMS,
    Disconnected,
    MalformedBody,
    Problem,
    ServiceError,
    TooLarge,
    listed,
    public,
    release_frames,
    short,
    status_of,
)
from service.grpc.fields import check_fields
from service.labels import Route, Transport

MessageType = TypeVar("MessageType", bound=Message)
Answer = Callable[[bytes, Exchange, Limit], Awaitable[bytes]]
Metadata = Sequence[tuple[str, str | bytes]]

PREFIX: Final = struct.Struct(">BI")  # compressed?, length
PLAIN: Final = (b"content-type", b"application/grpc")
START: Final[Event] = {"type": "http.response.start", "status": 200, "headers": [PLAIN], "trailers": True}

TIMEOUT: Final = re.compile(rb"[0-9]{1,8}[HMSmun]")
SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
"""Units of the header `grpc-timeout`."""

READ: Final = ("x-request-id", "authorization", "x-api-key", "traceparent", "tracestate")
METADATA: Final = {name.encode(): name for name in READ}
"""Metadata that methods read, raw name to name: request id, API key and trace context."""

DETAILS: Final = "grpc-status-details-bin"  # carries google.rpc.Status

# Clients refuse trailers above 8 KiB. The detail is sent twice: percent-encoded, and in the details.
MAX_DETAIL_BYTES: Final = 1000
MAX_DETAILS_BYTES: Final = 3 * 1024  # 4 KiB in base64
RESERVED_BYTES: Final = (
    160  # for the type of the details, and the last violation, which counts the omitted ones
)

FOREIGN: Final = "/grpc."
"""Begin of the paths of gRPC's own services: health and reflection."""
MOST_FOREIGN_BYTES: Final = 4 * 1024
"""Maximum size of their messages, which hold a name: health has callers without a key."""


class Context(Protocol):
    """The interface of a call that methods use, on either transport."""

    def invocation_metadata(self) -> Any:  # noqa: ANN401 pairs or named tuples, by transport
        """The request's metadata."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None if it has none."""
        ...

    def set_trailing_metadata(self, trailing_metadata: Any, /) -> None:  # noqa: ANN401 as above
        """Send this with the status."""

    def write(self, message: bytes, /) -> Awaitable[None]:
        """Send one answer of a stream."""
        ...


Method = Callable[[AsyncIterator[bytes], Context], Awaitable[bytes | None]]
"""Answers a call; an error ends the call with the status of `failure`."""


class Aborted(Exception):
    """Ends a call with this status."""

    def __init__(self, code: Code, details: str, metadata: Metadata = ()) -> None:
        super().__init__(details)
        self.code: Final = code
        self.details: Final = details
        self.metadata: Final = metadata


class Call:
    """A call over ASGI: a `Context`."""

    __slots__ = ("_deadline", "_headers", "_send", "has_started", "receive", "trailing")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.receive = receive
        self._send = send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._deadline: float | None = None
        self.trailing: Metadata = ()
        self.has_started = False

    def check(self, scope: Scope) -> None:
        """Check the metadata, and start the caller's deadline.

        Raises:
            MalformedBody: a header is not UTF-8, or `grpc-timeout` is invalid.
        """
        if not b"".join(self._headers.values()).isascii():
            check_decodable(scope, self._headers)
        timeout = self._headers.get(b"grpc-timeout")
        if timeout is not None:
            if not TIMEOUT.fullmatch(timeout):
                got = short(timeout)
                raise MalformedBody(f"expected grpc-timeout as 1 to 8 digits and one of HMSmun, got {got}")
            self._deadline = monotonic() + int(timeout[:-1]) * SECONDS[timeout[-1:]]

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """The metadata that is read; binary values stay encoded."""
        found: list[tuple[str, str]] = []
        for key, name in METADATA.items():
            value = self._headers.get(key)
            if value is not None:
                found.append((name, value.decode("latin-1")))
        return found

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None if it has none."""
        return None if self._deadline is None else max(0.0, self._deadline - monotonic())

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Send this with the status."""
        self.trailing = metadata

    async def write(self, message: bytes) -> None:
        """Send one answer of a stream.

        Raises:
            Disconnected: the caller has left.
        """
        try:
            if not self.has_started:
                self.has_started = True
                await self._send(START)
            await self._send({"type": "http.response.body", "body": framed(message), "more_body": True})
        except OSError as error:  # raised by servers, as the ASGI specification says
            release_frames(error)  # pyvoy raises the same error for all, which would keep every message
            raise Disconnected from None


def framed(message: bytes) -> bytes:
    """A message with its length prefix."""
    return PREFIX.pack(0, len(message)) + message


async def exchanged(
    desk: Desk,
    route: Route,
    answer: Answer,
    messages: AsyncIterator[bytes],
    context: Context,
    *,
    scope: KeyScope,
    needs_model: bool = False,
) -> bytes:
    """Answer one call with one message, measured and logged.

    `answer` answers the raw message within the limit. The key is checked before the message is read. The API
    key needs `scope`; a call that needs a model is refused while the service starts or drains.

    Raises:
        Aborted: with the status of the error.
        Disconnected: the caller has left.
    """
    reply = b""
    metadata: dict[str, Any] = dict(context.invocation_metadata())
    waiting = desk.limit(context.time_remaining(), receive_of(context), reads=True)
    with Exchange(desk, Transport.GRPC, route, metadata.get("x-request-id"), metadata) as exchange:
        if desk.credentials.asked_for:
            exchange.caller = caller_of(desk.credentials, scope, metadata)
        if needs_model:
            exchange.admit()
        with waiting:
            if (raw := await anext(messages, None)) is None:
                raise MalformedBody("the request has no message")
            waiting.reading_seconds = None
            exchange.start = perf_counter()
            if waiting.is_late:
                waiting.start()
            if needs_model:
                await exchange.begin(len(raw), waiting)
            reply = await answer(raw, exchange, waiting)
    finish(exchange, context)
    return reply


def caller_of(credentials: Credentials, scope: KeyScope, metadata: Mapping[str, Any]) -> Grant:
    """Check the key in a call's metadata; see `Credentials.check`."""
    return credentials.check(scope, metadata.get("authorization", ""), metadata.get("x-api-key", ""))


def receive_of(context: Context) -> Receive | None:
    """Return where a disconnect is received; None on `grpc.aio`, which cancels the call itself."""
    return getattr(context, "receive", None)


def finish(exchange: Exchange, context: Context) -> None:
    """Send the request's id with the status.

    Raises:
        Aborted: with the status of the error.
        Disconnected: the caller has left.
    """
    trailing, error = [("x-request-id", exchange.request_id)], exchange.error
    if exchange.gone:
        raise Disconnected
    if error is None:
        context.set_trailing_metadata(trailing)
        return
    shown = public(error)
    if shown.retry_after_seconds is not None:
        trailing.append(("grpc-retry-pushback-ms", f"{1000 * shown.retry_after_seconds:.0f}"))
    code, detail = status_of(error).grpc, _shortened(str(shown))
    raise Aborted(code, detail, (*trailing, *_details(code, detail, shown.problems)))


def parsed(kind: type[MessageType], raw: bytes) -> MessageType:
    """Decode a message of this kind.

    Raises:
        MalformedBody: the bytes are not such a message.
        TooLarge: a large message has too many fields.
    """
    if len(raw) > LARGE_BYTES:
        check_fields(kind.DESCRIPTOR, raw)
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise MalformedBody(f"the message is not a {kind.DESCRIPTOR.full_name}") from error


def foreign(kind: type[MessageType], raw: bytes) -> MessageType:
    """Decode a message of health or reflection.

    Raises:
        MalformedBody: the bytes are not such a message.
        TooLarge: it is above `MOST_FOREIGN_BYTES`.
    """
    if len(raw) > MOST_FOREIGN_BYTES:
        raise TooLarge(f"expected a message of at most {MOST_FOREIGN_BYTES} bytes, got {len(raw)}")
    return parsed(kind, raw)


def _shortened(detail: str) -> str:
    """Shorten a detail to fit into the trailers, where a byte may take three."""
    encoded = detail.encode()
    if len(encoded) <= MAX_DETAIL_BYTES:
        return detail
    return encoded[: MAX_DETAIL_BYTES - 3].decode(errors="ignore") + "..."


def _details(code: Code, detail: str, problems: tuple[Problem, ...]) -> list[tuple[str, bytes]]:
    """Convert as many problems as fit to google.rpc.BadRequest."""
    if not problems:
        return []
    status = status_pb2.Status(code=code, message=detail)
    sizes = accumulate(4 + _violation(p).ByteSize() for p in problems[:MAX_PROBLEMS])
    room = MAX_DETAILS_BYTES - RESERVED_BYTES - status.ByteSize()
    fitting = sum(size <= room for size in sizes)
    violations = [_violation(p) for p in listed(problems, fitting)]
    status.details.add().Pack(error_details_pb2.BadRequest(field_violations=violations))
    return [(DETAILS, status.SerializeToString())]


def _violation(problem: Problem) -> error_details_pb2.BadRequest.FieldViolation:
    return error_details_pb2.BadRequest.FieldViolation(
        field=problem.pointer, description=problem.detail, reason=problem.code.upper()
    )


def failure(error: Exception) -> Aborted:
    """Convert an error of a method to a status."""
    if isinstance(error, Aborted):
        return error
    if isinstance(error, ServiceError):
        return Aborted(status_of(error).grpc, str(public(error)))
    if isinstance(error, TimeoutError):
        return Aborted(Code.DEADLINE_EXCEEDED, "the deadline passed")
    logs.logger().error("failed", protocol="grpc", exc_info=error)
    return Aborted(Code.INTERNAL, str(public(error)))
