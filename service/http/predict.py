"""`POST /v1/predict`: the route that is asked thousands of times a second, without a framework in its way.

An ASGI application of its own: what a framework does for a request costs more than the network
does for a window (docs/performance.md). This module knows headers, a body and a status; it must
not know what a model reads.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from service.edge.asgi import Patience, Receive, Scope, Send, body_of
from service.edge.exchange import Desk, Exchange
from service.errors import MalformedBody, UnsupportedMedia
from service.http.body import QueryDecoder
from service.http.problem import problem
from service.labels import Route, Stage, Transport

JSON: Final = "application/json"
Headers = dict[bytes, bytes]


class PredictRoute:
    """Answers windows by HTTP."""

    def __init__(self, desk: Desk) -> None:
        self._desk: Final = desk
        self._decoder: Final = QueryDecoder()
        self._encoder: Final = msgspec.json.Encoder()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers: Headers = dict(scope["headers"])
        status, kind, more, body = 499, JSON, {}, b""  # what nobody will read: the caller has gone
        given = headers.get(b"x-request-id")
        given = None if given is None else given.decode("latin-1")
        with self._desk.exchange(Transport.HTTP, Route.PREDICT, given, scope) as exchange:
            body = await self._answer(headers, receive, exchange)
            status = 200
        if exchange.error is not None:
            status, more, body = problem(exchange.error, exchange.request_id)
            kind = more.pop("content-type")
        answer = [
            (b"content-type", kind.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", exchange.request_id.encode("latin-1")),
            *((name.encode(), value.encode()) for name, value in more.items()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": answer})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, headers: Headers, receive: Receive, exchange: Exchange) -> bytes:
        desk = self._desk
        check_access(desk, headers)
        media_type = headers.get(b"content-type", b"")
        if media_type != b"application/json":
            _check_media_type(media_type)
        timeout = desk.request_timeout_seconds
        if b"request-timeout" in headers:
            timeout = min(timeout, asked_timeout(headers[b"request-timeout"]))
        with desk.lifecycle.request():
            body = await body_of(headers, receive, max_bytes=desk.max_body_bytes)
            with desk.metrics.stage(Stage.DECODE):
                query, typed = self._decoder.decode(body)
            exchange.windows = len(query.windows)
            reply = await desk.predictor.predict(
                query, deadline=Patience(timeout, receive), typed=typed, consume=True
            )
            with desk.metrics.stage(Stage.ENCODE):
                return self._encoder.encode(reply)


def check_access(desk: Desk, headers: Headers) -> None:
    """Pass who brings a right key, or where none is asked for.

    Raises:
        Unauthenticated, Forbidden: there is none, or a wrong one.
    """
    if not desk.credentials.asked_for:
        return
    authorization, api_key = headers.get(b"authorization", b""), headers.get(b"x-api-key", b"")
    desk.credentials.check(authorization.decode("latin-1"), api_key.decode("latin-1"))


def _check_media_type(given: bytes) -> None:
    media_type = given.decode("latin-1").partition(";")[0].strip().lower()
    if media_type != JSON:
        raise UnsupportedMedia(f"expected content-type {JSON}, got {media_type or 'none'}")


def asked_timeout(given: bytes) -> float:
    """The header `request-timeout`, in seconds.

    Raises:
        MalformedBody: it is no time.
    """
    text = given.decode("latin-1")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise MalformedBody(f"header request-timeout: expected seconds above 0, got {text[:32]!r}")
    return seconds
