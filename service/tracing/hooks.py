"""Where traces take hold: what a request, its stages and its batches tell of, wherever that is sent.

Tracing is off unless `RUL_TRACING` is set, and then there is no tracer: what would be told asks
whether there is one, and that is all it costs. `service.tracing.spans` is the one that there is,
imported with OpenTelemetry's SDK only when it is wanted.

    request ─┬ decode                       batch ── linked to every request that it served
             ├ queue
             ├ infer ── linked to its batches
             ├ explain
             └ encode
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

from service.labels import Route, Stage, Transport

TRACED_STAGES: Final = (Stage.DECODE, Stage.EXPLAIN, Stage.ENCODE)
"""Stages that end within their request; of the other two the batcher tells, from its own callbacks."""

UNTRACED: Final = frozenset({Route.LIVEZ, Route.READYZ, Route.METRICS, Route.V2_LIVE, Route.V2_READY})
"""Probes and scrapes: every few seconds the same, and nobody's request."""


class Waited(Protocol):
    """How a caller of the batcher fared; `service.core.caller.Caller` is one.

    Attributes:
        arrived, taken_at, done_at: Seconds of `perf_counter`; 0 where it never came to that.
    """

    arrived: float
    taken_at: float
    done_at: float

    @property
    def future(self) -> asyncio.Future[Any]:
        """What it came to."""
        ...


class Submission(Protocol):
    """Windows that a traced request has given to the batcher."""

    def ended(self, waited: Waited) -> None:
        """They were answered, failed, or given up."""
        ...


class RequestTrace(Protocol):
    """One request, traced or at least named in the log."""

    def begin(self, request_id: str) -> None:
        """The request has begun; from here on it is the current one."""
        ...

    def stage(self, stage: Stage, seconds: float) -> None:
        """A part of the work has just ended and took this long."""
        ...

    def submitted(self) -> Submission | None:
        """It has given windows to the batcher; None where the request is not recorded."""
        ...

    def end(self, *, code: str, error: BaseException | None, windows: int) -> None:
        """It has ended with this code label."""
        ...


class BatchTrace(Protocol):
    """One batch on an inference thread."""

    def end(self, error: BaseException | None) -> None:
        """It has been run, or has failed."""
        ...


class Tracer(Protocol):
    """What begins traces."""

    def request(
        self, transport: Transport, route: Route, carrier: Mapping[str, Any] | None
    ) -> RequestTrace | None:
        """A request; None for what is not traced.

        Args:
            transport: How it came.
            route: What was asked for.
            carrier: The ASGI scope, or gRPC's metadata: both may name the caller's trace. None for a
                part of the current request, such as a reading of a stream.
        """
        ...

    def batch(
        self, submissions: Iterable[Submission | None], *, model: str, windows: int
    ) -> BatchTrace | None:
        """A batch begins, on the thread that runs it; None where it serves no recorded request."""
        ...

    def close(self) -> None:
        """Send what is still held, for as long as is decent; blocks."""
        ...


current: Final[ContextVar[RequestTrace | None]] = ContextVar("request_trace", default=None)
"""The request that is being answered; None outside of one, and where it is not traced."""


def submitted() -> Submission | None:
    """The current request gives windows to the batcher; None where it is not recorded."""
    trace = current.get()
    return None if trace is None else trace.submitted()


class StageCounter(Protocol):
    """What counts the seconds of a stage."""

    def observe(self, value: float) -> None:
        """Count one value."""
        ...


class TracedStage:
    """Counts a stage's seconds and tells the current request's trace of them."""

    __slots__ = ("_counter", "_stage")

    def __init__(self, counter: StageCounter, stage: Stage) -> None:
        self._counter = counter
        self._stage: Stage = stage

    def observe(self, value: float) -> None:
        """Count one value, which ends now."""
        self._counter.observe(value)
        trace = current.get()
        if trace is not None:
            trace.stage(self._stage, value)


def trace_stages(stages: dict[Stage, StageCounter]) -> None:
    """Let the stages of requests tell of themselves: to be called once, where there is a tracer."""
    for stage in TRACED_STAGES:
        stages[stage] = TracedStage(stages[stage], stage)
