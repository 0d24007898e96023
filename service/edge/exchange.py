"""What surrounds every request on every transport: its id, its measurement, its log line, its error."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Self

from service import logs
from service.core.lifecycle import Lifecycle
from service.core.ports import Tracer
from service.core.predictor import Predictor
from service.edge.access import Credentials
from service.edge.asgi import Disconnected
from service.errors import STATUS, RuntimeFailed, status_of
from service.labels import CLIENT_GONE, SUCCESS, Route, Transport
from service.metrics.metrics import Metrics
from service.streams.life import Streams


class Exchange:
    """One request and how it went; entered when it begins, left when it is answered.

    What is raised inside stays in `error`, for the transport to word. One object and few calls: everything
    asked of the service goes through it.

    Attributes:
        request_id: What the caller, the log and every error call it.
        code: What it is counted as.
        seconds: How long it took, once it has ended.
        error: What went wrong.
        gone: True where the caller has left: nobody waits for an answer.
        windows: How many windows were asked for.
    """

    __slots__ = (
        "_desk", "_route", "_start", "_token", "_trace", "_transport", "code", "error", "gone", "request_id",
        "seconds", "windows",
    )  # fmt: skip

    def __init__(
        self,
        desk: Desk,
        transport: Transport,
        route: Route,
        given: str | None,
        carrier: Mapping[str, Any] | None,
    ) -> None:
        self._desk = desk
        self._transport: Transport = transport
        self._route: Route = route
        self._trace = None if desk.tracer is None else desk.tracer.request(transport, route, carrier)
        self.request_id = logs.new_request_id() if given is None else logs.safe_request_id(given)
        self.code = SUCCESS[transport]
        self.error: Exception | None = None
        self.gone = False
        self.windows = 0

    def __enter__(self) -> Self:
        self._token = logs.request_id.set(self.request_id)
        if self._trace is not None:
            self._trace.begin(self.request_id)
        self._start = perf_counter()
        self._desk.metrics.begin(self._route)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        desk = self._desk
        if error is not None:
            self._fail(error)
        self.seconds = perf_counter() - self._start
        desk.metrics.end(self._transport, self._route, self.code, self.seconds)
        kept = error is None or isinstance(error, Exception)
        if kept:
            desk.log(self, self._transport, self._route)
        if self._trace is not None:
            self._trace.end(code=self.code, error=error, windows=self.windows)
        logs.request_id.reset(self._token)
        return kept

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Disconnected | asyncio.CancelledError):
            self.gone, self.code = True, CLIENT_GONE[self._transport]
        elif isinstance(error, Exception):
            self.error, self.code = error, self._desk.metrics.failed(self._transport, error)


class Desk:
    """What both transports need to answer a request."""

    def __init__(
        self,
        *,
        predictor: Predictor,
        metrics: Metrics,
        lifecycle: Lifecycle,
        access_log: logs.AccessLog,
        credentials: Credentials,
        max_body_bytes: int,
        request_timeout_seconds: float,
        max_streams: int,
        stream_idle_seconds: float,
        tracer: Tracer | None = None,
    ) -> None:
        self.predictor: Final = predictor
        self.metrics: Final = metrics
        self.lifecycle: Final = lifecycle
        self.credentials: Final = credentials
        self.max_body_bytes: Final = max_body_bytes
        self.request_timeout_seconds: Final = request_timeout_seconds
        self.streams: Final = Streams(lifecycle, most=max_streams, idle_seconds=stream_idle_seconds)
        self.tracer: Final = tracer
        self._log: Final = access_log

    def exchange(
        self,
        transport: Transport,
        route: Route,
        request_id: str | None,
        carrier: Mapping[str, Any] | None = None,
    ) -> Exchange:
        """Measure around a request, log it, trace it, and keep what it raises in `Exchange.error`.

        Args:
            transport: How it came.
            route: What is asked for.
            request_id: What the caller calls it.
            carrier: The ASGI scope or gRPC's metadata; None for a part of another request.
        """
        return Exchange(self, transport, route, request_id, carrier)

    def log(self, exchange: Exchange, transport: Transport, route: Route) -> None:
        """Write the line of a request that has ended, where it gets one."""
        error, code, seconds = exchange.error, exchange.code, exchange.seconds
        if error is None:
            self._log.answered(
                protocol=transport, route=route, code=code, seconds=seconds, windows=exchange.windows
            )
        elif status_of(error) is STATUS[RuntimeFailed]:
            self._log.failed(error, protocol=transport, route=route, code=code, seconds=seconds)
        else:
            self._log.refused(error, protocol=transport, route=route, code=code, seconds=seconds)
