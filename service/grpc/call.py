"""A gRPC call: what servicers see of it, what every method has in common, and how it ends with a status.

The same servicers run on `grpc.aio` and, through `over_asgi`, behind an HTTP/2 front end. This
module must not know what is asked.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from time import monotonic
from typing import Any, Final, NoReturn, Protocol, TypeVar
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from service import logs
from service.core.turns import LARGE_BYTES
from service.edge.access import Credentials
from service.edge.asgi import Receive, Scope, check_decodable
from service.edge.exchange import Desk, Exchange, Limit
from service.edge.keys import Grant, KeyScope
from service.errors import (
    MAX_PROBLEMS,
    Disconnected,
    MalformedBody,
    Problem,
    ServiceError,
    listed,
    problems_of,
    public_detail,
    retry_after_seconds,
    short,
    status_of,
)
from service.grpc.fields import check_fields
from service.labels import Route, Transport

MessageType = TypeVar("MessageType", bound=Message)
Answer = Callable[[bytes, Exchange, Limit], Awaitable[Any]]

Metadata = Sequence[tuple[str, str | bytes]]
Trailers = list[tuple[bytes, bytes]]
Names = Sequence[tuple[bytes, str]]

TIMEOUT: Final = re.compile(rb"[0-9]{1,8}[HMSmun]")
SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
"""Units of the header `grpc-timeout`."""

METADATA: Final = ("x-request-id", "authorization", "x-api-key", "traceparent", "tracestate")
"""The metadata that servicers read: request id, API key and trace context."""

DETAILS: Final = "grpc-status-details-bin"  # where google.rpc.Status travels

UNQUOTED: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"

# Clients refuse trailers above 8 KiB. The detail travels twice, percent-encoded and in the details.
MAX_DETAIL_BYTES: Final = 1000
MAX_DETAILS_BYTES: Final = 3 * 1024  # 4 KiB in base64
RESERVED_BYTES: Final = 160  # the type of the details, and the last violation, which counts the rest


class Context(Protocol):
    """The part of a call that servicers use, on either transport."""

    def invocation_metadata(self) -> Any:  # noqa: ANN401 pairs or named tuples, by transport
        """The request's metadata."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline."""
        ...

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:  # noqa: ANN401 as above
        """Send this with the status."""

    def write(self, message: Any) -> Awaitable[None]:  # noqa: ANN401 a message of any method
        """Send one answer of a stream."""
        ...

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> Any:  # noqa: ANN401
        """End the call with a status."""
        ...


class Aborted(Exception):
    """A servicer ended its call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.metadata = metadata


class Call:
    """A call over ASGI as a servicer sees it: a `Context`."""

    __slots__ = ("_deadline", "_headers", "_names", "receive", "trailing")

    def __init__(self, scope: Scope, receive: Receive, names: Names) -> None:
        self.receive = receive
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._names = names
        self._deadline: float | None = None
        self.trailing: Metadata = ()

    def check(self, scope: Scope) -> None:
        """Check the metadata, and begin the caller's deadline.

        Raises:
            MalformedBody: a header is not UTF-8, or `grpc-timeout` is none.
        """
        if not b"".join(self._headers.values()).isascii():
            check_decodable(scope, self._headers)
        timeout = self._headers.get(b"grpc-timeout")
        if timeout is not None:
            self._deadline = _deadline(timeout)

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
        """Send one answer of a stream: `over_asgi.StreamCall` does."""
        raise RuntimeError("this call has one answer, which its method returns")

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        """End the call with this status."""
        raise Aborted(code, details, trailing_metadata)


def _deadline(timeout: bytes) -> float:
    """Return the deadline on the monotonic clock that a header such as "250m" sets.

    Raises:
        MalformedBody: it is not one to eight digits and a unit.
    """
    if not TIMEOUT.fullmatch(timeout):
        raise MalformedBody(f"expected grpc-timeout as 1 to 8 digits and one of HMSmun, got {short(timeout)}")
    return monotonic() + int(timeout[:-1]) * SECONDS[timeout[-1:]]


def unary(
    desk: Desk,
    route: Route,
    answer: Answer,
    scope: KeyScope,
    *,
    needs_model: bool = False,
    encode: Callable[[Any], bytes] | None = None,
) -> Any:  # noqa: ANN401 grpc's
    """The handler of a method with one answer; `encode` makes bytes of what `answer` returns."""
    method = partial(exchanged, desk, route, answer, scope=scope, needs_model=needs_model)
    return grpc.stream_unary_rpc_method_handler(method, response_serializer=encode)


async def exchanged(
    desk: Desk,
    route: Route,
    answer: Answer,
    messages: AsyncIterator[bytes],
    context: Context,
    *,
    scope: KeyScope,
    needs_model: bool = False,
) -> Any:  # noqa: ANN401 what `answer` returns
    """Answer one call, measured and logged; end a failed one with the error's status.

    `answer` answers the raw message within the limit. The key is checked before the message is read, so the
    methods are registered with a stream of messages, which on the wire is the same. `scope` is what the call
    asks of an API key; a call that needs a model is refused while the service starts or drains.
    """
    reply: Any = None
    metadata: dict[str, Any] = dict(context.invocation_metadata())
    # `grpc.aio` itself cancels the call of a caller who has left.
    receive = context.receive if isinstance(context, Call) else None
    waiting = desk.limit(context.time_remaining(), receive, reads=True)
    with Exchange(desk, Transport.GRPC, route, metadata.get("x-request-id"), metadata) as exchange:
        if desk.credentials.asked_for:
            exchange.caller = caller_of(desk.credentials, scope, metadata)
        if needs_model:
            exchange.admit()
        with waiting:
            try:
                raw = await anext(messages)
            except StopAsyncIteration:
                raise MalformedBody("the request has no message") from None
            waiting.reading_seconds = None
            if waiting.is_late:
                waiting.start()
            if needs_model:
                await exchange.begin(len(raw), waiting)
            reply = await answer(raw, exchange, waiting)
    if exchange.error is not None or exchange.gone:
        await end_failed(exchange, context)
    context.set_trailing_metadata([("x-request-id", exchange.request_id)])
    return reply


def caller_of(credentials: Credentials, scope: KeyScope, metadata: Mapping[str, Any]) -> Grant:
    """Check the key in a call's metadata; see `Credentials.check`."""
    return credentials.check(scope, metadata.get("authorization", ""), metadata.get("x-api-key", ""))


async def end_failed(exchange: Exchange, context: Context) -> None:
    """End a failed call with its error's status."""
    trailing = [("x-request-id", exchange.request_id)]
    if exchange.error is not None:
        error = exchange.error
        if (seconds := retry_after_seconds(error)) is not None:
            trailing.append(("grpc-retry-pushback-ms", f"{1000 * seconds:.0f}"))
        code, detail = status_of(error).grpc, _shortened(public_detail(error))
        await context.abort(code, detail, (*trailing, *_details(code, detail, problems_of(error))))
    raise Disconnected


def parsed(kind: type[MessageType], raw: bytes) -> MessageType:
    """A message of this kind.

    Raises:
        MalformedBody: the bytes are not one.
        TooLarge: a large one has too many fields.
    """
    if len(raw) > LARGE_BYTES:
        check_fields(kind.DESCRIPTOR, raw)
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise MalformedBody(f"the message is not a {kind.DESCRIPTOR.full_name}") from error


def serialized(message: Message) -> bytes:
    """A message as it travels."""
    return message.SerializeToString()


def _shortened(detail: str) -> str:
    """A detail that fits into the trailers, where a byte may take three."""
    encoded = detail.encode()
    if len(encoded) <= MAX_DETAIL_BYTES:
        return detail
    return encoded[: MAX_DETAIL_BYTES - 3].decode(errors="ignore") + "..."


def _details(code: grpc.StatusCode, detail: str, problems: tuple[Problem, ...]) -> list[tuple[str, bytes]]:
    """Word problems as google.rpc.BadRequest, as many as fit."""
    if not problems:
        return []
    number: int = code.value[0]
    status = status_pb2.Status(code=number, message=detail)
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


def failure(error: Exception) -> tuple[Trailers, Metadata]:
    """Word an error as trailers, and the metadata that goes with them."""
    if isinstance(error, Aborted):
        return _trailers(error.code, error.details), error.metadata
    if isinstance(error, ServiceError):
        return _trailers(status_of(error).grpc, public_detail(error)), ()
    if isinstance(error, TimeoutError):
        return _trailers(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed"), ()
    logs.logger().error("failed", protocol="grpc", exc_info=error)
    return _trailers(grpc.StatusCode.INTERNAL, public_detail(error)), ()


def _trailers(status: grpc.StatusCode, details: str) -> Trailers:
    code: int = status.value[0]
    trailers = [(b"grpc-status", b"%d" % code)]
    if details:
        trailers.append((b"grpc-message", quote(details, safe=UNQUOTED, errors="replace").encode()))
    return trailers
