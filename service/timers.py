"""What measures around the work: on success, on failure, and where a caller leaves.

Plain classes and not generators under `@contextmanager`, which cost more than much of what they
would measure. This module must not know how anything is counted.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from types import TracebackType
from typing import Protocol, Self

from service.labels import CLIENT_GONE, SUCCESS, Route, Transport
from service.tracing.hooks import StageCounter


class RequestCounter(Protocol):
    """What counts requests; `service.metrics.Metrics` is one."""

    def begin(self) -> None:
        """A request has begun."""
        ...

    def end(self, transport: Transport, route: Route, code: str, seconds: float) -> None:
        """A request has ended."""
        ...

    def failed(self, transport: Transport, error: BaseException) -> str:
        """Count a refusal by its reason; the code label of an error."""
        ...

    def begin_stream(self) -> None:
        """A stream has been opened."""
        ...

    def end_stream(self, route: Route, code: str) -> None:
        """A stream has ended."""
        ...


class StageTimer:
    """Measures from its beginning to its end, also where that is an error."""

    __slots__ = ("_child", "_start")

    def __init__(self, child: StageCounter) -> None:
        self._child = child
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *_error: object) -> None:
        self._child.observe(perf_counter() - self._start)


class RequestTimer:
    """Measures a request.

    Attributes:
        code: What it is counted as, where it ends without an exception.
        seconds: How long it took, once it has ended.
    """

    __slots__ = ("_metrics", "_route", "_start", "_transport", "code", "seconds")

    def __init__(self, metrics: RequestCounter, transport: Transport, route: Route) -> None:
        self._metrics = metrics
        self._transport: Transport = transport
        self._route: Route = route
        self._start = 0.0
        self.code = SUCCESS[transport]
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._start = perf_counter()
        self._begin()
        return self

    def _begin(self) -> None:
        self._metrics.begin()

    def _end(self) -> None:
        self._metrics.end(self._transport, self._route, self.code, self.seconds)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.code = CLIENT_GONE[self._transport]
        elif isinstance(error, Exception):
            self.code = self._metrics.failed(self._transport, error)
        self.seconds = perf_counter() - self._start
        self._end()


class LongTimer(RequestTimer):
    """Counts a stream: it is open for as long as its caller likes, which is no duration of a request's."""

    __slots__ = ()

    def _begin(self) -> None:
        self._metrics.begin_stream()

    def _end(self) -> None:
        self._metrics.end_stream(self._route, self.code)
