"""Routing, reading of bodies and sending of answers, for every HTTP request.

There is no framework: its overhead per request would exceed the network's time per window
(docs/performance.md). This module knows paths, headers and bodies; it must not know what is asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from time import perf_counter
from typing import Any, Final, NamedTuple

import msgspec
import orjson
from numpy.typing import NDArray
from starlette.datastructures import QueryParams
from starlette.routing import compile_path

from service.edge.asgi import QUOTED_SLASH, Message, Receive, Scope, Send, check_decodable, path_of
from service.edge.exchange import Desk, Exchange, Limit
from service.edge.intake import Share
from service.edge.keys import KeyScope
from service.errors import (
    Disconnected,
    MalformedBody,
    MethodNotAllowed,
    TooLarge,
    UnknownRoute,
    UnsupportedMedia,
    release_frames,
)
from service.http.problem import problem, read_number
from service.labels import Route, Transport

JSON: Final = b"application/json"
NO_STORE: Final = (b"cache-control", b"no-store")
Schema = Mapping[str, Any]
"""A JSON schema."""
Content = type | Mapping[str, type | Schema]
TEXT: Final = {"type": "string"}
CHANGE_SECONDS: Final = 150.0
"""Maximum time of a change, a little more than workers may take to check a bundle, and of a scrape: the
service's deadline is for predictions."""


class Reply(msgspec.Struct, frozen=True):
    """An answer on its way out.

    Attributes:
        stream: The body in parts, instead of `body`; ends when the caller disconnects.
    """

    body: bytes = b""
    status: int = 200
    media_type: bytes = JSON
    headers: Sequence[tuple[bytes, bytes]] = ()
    stream: AsyncGenerator[bytes, None] | None = None


class Call(msgspec.Struct, frozen=True, eq=False):
    """One request: its parameters by name, its body, and its running time limit.

    Attributes:
        body: The whole body; empty if the endpoint reads none.
    """

    desk: Desk
    endpoint: Endpoint
    scope: Scope
    headers: dict[bytes, bytes]
    exchange: Exchange
    limit: Limit
    path: Mapping[str, str]
    body: bytes

    @property
    def query(self) -> QueryParams:
        """The query parameters."""
        return QueryParams(self.scope.get("query_string", b""))


Handler = Callable[[Call], Awaitable[Reply]]


class Parameter(NamedTuple):
    """A query parameter or header, for the OpenAPI document."""

    name: str
    description: str
    schema: Schema = TEXT
    place: str = "query"


class Operation(NamedTuple):
    """Description of an endpoint that the OpenAPI document cannot derive from it.

    Attributes:
        name: Its `operationId`, of which generators name functions.
        answer: The type of the answer as JSON, or a type or a schema for each media type.
        errors: HTTP statuses of the endpoint's own errors.
        body: Type of the request's body, given as `answer` is; None: no body is read.
    """

    name: str
    summary: str
    answer: Content
    errors: tuple[int, ...] = ()
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: Content | None = None


class Endpoint(NamedTuple):
    """A handler at a path.

    Attributes:
        path: Has parameters in braces; `{name:path}` may hold slashes.
        scope: Scope that the API key needs; `admin` and `metrics` requests have the limit CHANGE_SECONDS.
        needs_model: Whether requests are refused while the service starts or drains.
        media_type: Accepted content type of the body, or several; None: any.
        doc: Its description; None: not in the OpenAPI document.
    """

    method: str
    path: str
    route: Route
    handler: Handler
    scope: KeyScope
    needs_model: bool = False
    media_type: bytes | tuple[bytes, ...] | None = None
    doc: Operation | None = None


def _array_as_json(values: NDArray[Any]) -> msgspec.Raw:
    """Encode an array as JSON, in a third of the time and three fifths of the bytes of a list."""
    return msgspec.Raw(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))


encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder(enc_hook=_array_as_json).encode
"""Encode a value as JSON, arrays as lists."""


def json_reply(body: object) -> Reply:
    """Make a reply with a JSON body."""
    return Reply(encode(body))


def unknown_route(call: Call) -> UnknownRoute:
    """Make the error for a path without an endpoint."""
    return UnknownRoute(f"no endpoint at {call.scope['path'][:80]}; /docs lists all endpoints")


async def _unknown(call: Call) -> Reply:
    raise unknown_route(call)


async def _not_allowed(call: Call) -> Reply:
    method, path = call.scope["method"], call.scope["path"][:80]
    raise MethodNotAllowed(f"{path}: expected {call.path['allowed']}, got {method}")


UNKNOWN: Final = Endpoint("", "", Route.OTHER, _unknown, KeyScope.OPEN)
NOT_ALLOWED: Final = Endpoint("", "", Route.OTHER, _not_allowed, KeyScope.OPEN)

Found = tuple[Endpoint, Mapping[str, str]]


class Shell:
    """The ASGI application for HTTP."""

    def __init__(self, desk: Desk, endpoints: Sequence[Endpoint], *, hot_paths: Sequence[str] = ()) -> None:
        """Serve these endpoints: the first that matches a path; matches of hot paths are cached."""
        self._desk: Final = desk
        self._patterns: Final[list[tuple[re.Pattern[str], Endpoint]]] = [
            # A name may hold any character, even a line break.
            (re.compile(compile_path(endpoint.path)[0].pattern, re.DOTALL), endpoint)
            for endpoint in endpoints
        ]
        fixed = [(endpoint.method, endpoint.path) for endpoint in endpoints if "{" not in endpoint.path]
        hot = [("POST", path) for path in hot_paths]
        self._fixed: Final = {place: self._match(*place) for place in (*fixed, *hot)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        method, path = scope["method"], scope["path"]
        endpoint, parameters = self._fixed.get((method, path)) or self._match(method, path_of(scope))
        headers: dict[bytes, bytes] = dict(scope["headers"])
        reply = Reply(status=499)  # reaches nobody: the caller has disconnected
        desk, given_id = self._desk, headers.get(b"x-request-id")
        if given_id is not None:
            given_id = given_id.decode("latin-1")
        with Exchange(desk, Transport.HTTP, endpoint.route, given_id, scope) as exchange:
            hosts = desk.hosts
            if hosts is not None and (headers.get(b"host") not in hosts.known or b"origin" in headers):
                hosts.check(headers)
            has_escapes = b"%" in (scope.get("raw_path") or b"") + scope["query_string"]
            if has_escapes or not b"".join(headers.values()).isascii():
                check_decodable(scope, headers)
            if desk.credentials.asked_for or endpoint.scope is KeyScope.ADMIN:
                given = [
                    headers.get(name, b"").decode("latin-1") for name in (b"authorization", b"x-api-key")
                ]
                basic = endpoint.method == "GET"
                asks = basic and headers.get(b"sec-fetch-mode") != b"cors"  # scripts have their own dialog
                exchange.caller = desk.credentials.check(endpoint.scope, *given, basic=basic, asks=asks)
            if endpoint.needs_model:
                exchange.admit()
            reads = endpoint.method == "POST"
            # ASGI servers report a disconnect only after the body has been read.
            with _limit(desk, endpoint, headers, receive if reads else None) as limit:
                body = b""
                if reads:
                    body = await _body(desk, endpoint, headers, receive)
                    limit.reading_seconds = None
                    exchange.start = perf_counter()
                    if limit.is_late:
                        limit.start()
                if endpoint.needs_model:
                    await exchange.begin(len(body), limit)
                call = Call(desk, endpoint, scope, headers, exchange, limit, parameters, body)
                reply = await endpoint.handler(call)
        if exchange.error is not None:
            allowed = parameters["allowed"] if endpoint is NOT_ALLOWED else ""
            status, media_type, more, body = problem(exchange.error, exchange.request_id, path, allowed)
            reply = Reply(body, status, media_type, more)
        await _send(reply, exchange.request_id, method, receive, send)

    def _match(self, method: str, path: str) -> Found:
        allowed: dict[str, None] = {}
        for pattern, endpoint in self._patterns:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            if method == endpoint.method or (method, endpoint.method) == ("HEAD", "GET"):
                return endpoint, {key: v.replace(QUOTED_SLASH, "/") for key, v in match.groupdict().items()}
            allowed["GET, HEAD" if endpoint.method == "GET" else endpoint.method] = None
        return (NOT_ALLOWED, {"allowed": ", ".join(allowed)}) if allowed else (UNKNOWN, {})


async def _send(reply: Reply, request_id: str, method: str, receive: Receive, send: Send) -> None:
    """Send an answer at once, or in parts until the last one or a disconnect."""
    stream = reply.stream
    headers = [
        *([(b"content-type", reply.media_type)] if reply.media_type else ()),
        *([(b"content-length", b"%d" % len(reply.body))] if stream is None and reply.status != 304 else ()),
        (b"x-request-id", request_id.encode("latin-1")),
        *reply.headers,
    ]
    # Shared caches know `authorization` but not `x-api-key`. No cache stores answers to POST.
    if method != "POST" and all(name != NO_STORE[0] for name, _ in reply.headers):
        headers.append(NO_STORE)
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if stream is not None and method != "HEAD":
        await _send_parts(stream, receive, send)
    # Not every ASGI server drops the body of an answer to HEAD.
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else reply.body})


async def _send_parts(stream: AsyncGenerator[bytes, None], receive: Receive, send: Send) -> None:
    """Send the parts of a body until the last one or a disconnect."""
    try:
        with Limit(None, receive):
            async with aclosing(stream):
                async for part in stream:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
    except (Disconnected, OSError) as error:  # a send fails after a disconnect
        release_frames(error)  # pyvoy raises the same error for all, which would keep every frame


def media_type_of(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the media type of the body; b"": none given."""
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


def _limit(desk: Desk, endpoint: Endpoint, headers: dict[bytes, bytes], receive: Receive | None) -> Limit:
    """Limit the time of a request; disconnects are noticed only if it has a body."""
    reads = receive is not None
    if endpoint.scope in {KeyScope.ADMIN, KeyScope.METRICS}:
        return Limit(CHANGE_SECONDS, receive, reading_seconds=desk.intake.seconds if reads else None)
    return desk.limit(_wanted_seconds(headers), receive, reads=reads)


async def _body(desk: Desk, endpoint: Endpoint, headers: dict[bytes, bytes], receive: Receive) -> bytes:
    """The whole body, inflated where it is compressed.

    Raises:
        UnsupportedMedia: the endpoint does not read its media type, or the service not its encoding.
        TooLarge: it exceeds the limit; the rest is not read.
        IntakeFull: all unfinished bodies together exceed the budget.
        Overloaded: the request would wait too long; the rest is not read.
        Disconnected: the caller disconnected before the end of the body.
        MalformedBody: it cannot be inflated.
    """
    given, wanted = headers.get(b"content-type", b""), endpoint.media_type
    limit = desk.settings.max_body_bytes
    if wanted is not None and given != wanted:
        media_type, read = media_type_of(headers), wanted if isinstance(wanted, tuple) else (wanted,)
        if media_type not in read:
            shown = media_type.decode("latin-1") or "none"
            raise UnsupportedMedia(f"expected content-type {b' or '.join(read).decode()}, got {shown}")
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced) > limit:
        raise TooLarge(f"expected a body of at most {limit} bytes, got {int(announced)}")
    event = await receive()
    if event["type"] == "http.request" and not event.get("more_body", False):
        body: bytes = event.get("body", b"")
        if len(body) > limit:
            raise TooLarge(f"expected a body of at most {limit} bytes, got {len(body)}")
    else:
        with Share(desk.intake) as share, desk.intake.expected(int(announced) if announced.isdigit() else 0):
            body = await _joined(event, receive, limit, share)
    encoding = headers.get(b"content-encoding")
    if encoding is None:
        return body
    return await desk.intake.inflate(body, encoding.decode("latin-1").strip().lower(), limit)


async def _joined(event: Message, receive: Receive, limit: int, share: Share) -> bytes:
    """Read the rest of a body that begins with this part."""
    parts: list[bytes] = []  # a growing bytearray would be copied, which fragments the heap
    size = 0
    while True:
        if event["type"] == "http.disconnect":
            raise Disconnected
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise TooLarge(f"expected a body of at most {limit} bytes, got more")
        share.hold(size)
        if not event.get("more_body", False):
            return b"".join(parts)
        event = await receive()


def _wanted_seconds(headers: dict[bytes, bytes]) -> float | None:
    """The time limit given in the header `request-timeout`."""
    given = headers.get(b"request-timeout")
    if given is None:
        return None
    text = given.decode("latin-1")
    try:
        seconds = read_number(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise MalformedBody(f"header request-timeout: expected seconds above 0, got {text[:32]!r}")
    return seconds
