"""What the core needs from outside, as protocols: counting, tracing, keeping, and numbers that workers share.

The core calls these and imports none of the packages that implement them: `service.metrics` counts,
`service.tracing` traces, `service.store` keeps predictions. `service.app` joins them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from model.domain import FloatArray
from service.core.answers import Answers, WindowOutputs
from service.core.window import Window
from service.labels import Route, Stage, Transport


class BatchObserver(Protocol):
    """Counts the batcher's work; `service.metrics.metrics.ModelMetrics` is one.

    The batcher calls it from the event loop and from inference threads.
    """

    def queued(self, seconds: Sequence[float], /) -> None:
        """Count how long the first window of each request waited in the queue."""
        ...

    def answered(self, seconds: Sequence[float], /) -> None:
        """Count how long each request took from its first window's batch to its last answer."""
        ...

    def ran(self, windows: int, seconds: float) -> None:
        """Count one run of the graph."""
        ...

    def answers(self, answers: Answers, imputed_fraction: FloatArray) -> None:
        """Count what the graph answered to the windows of a batch; probes are left out."""
        ...

    def windows(self, readings: FloatArray, answers: Answers, units: Sequence[str | None], /) -> None:
        """Count the same windows, readings [B, T, F], and their units."""
        ...

    def cancelled(self, windows: int, /) -> None:
        """Count windows whose caller left before they were answered."""
        ...


class StageTimer(Protocol):
    """Counts the seconds of a stage."""

    def observe(self, value: float) -> None:
        """Count one value, in seconds."""
        ...


class Recorder(Protocol):
    """Keeps predictions until outcomes are reported; `service.store.recorder.Recorder` is one."""

    def offer(self, model: str, windows: Sequence[Window], outputs: Sequence[WindowOutputs]) -> None:
        """Keep these answers; never waits and never fails."""
        ...


class Waited(Protocol):
    """Times of one request in the batcher; `service.core.caller.Caller` is one.

    Attributes:
        arrived, taken_at, done_at: Seconds of `perf_counter`; 0 where the request never got that far.
    """

    arrived: float
    taken_at: float
    done_at: float

    @property
    def future(self) -> asyncio.Future[Any]:
        """The request's outcome."""
        ...


class Submission(Protocol):
    """Windows that a recorded request has given to the batcher."""

    def ended(self, waited: Waited) -> None:
        """Record that they were answered, failed or cancelled."""
        ...


class RequestTrace(Protocol):
    """The trace of one request; one that is not recorded still names the request in the log."""

    def begin(self, request_id: str) -> None:
        """Make this request the current one."""
        ...

    def end(self, *, code: str, error: BaseException | None, windows: int) -> None:
        """Record that the request has ended with this code label."""
        ...


class BatchTrace(Protocol):
    """The trace of one batch, on the thread that runs it."""

    def end(self, error: BaseException | None) -> None:
        """Record that the batch has run or failed."""
        ...


class Tracer(Protocol):
    """Begins traces; `service.tracing.spans.SpanTracer` is one."""

    def request(
        self, transport: Transport, route: Route, carrier: Mapping[str, Any] | None
    ) -> RequestTrace | None:
        """Begin the trace of a request; None where its route is not traced.

        Args:
            transport: How the request came.
            route: Its route.
            carrier: The ASGI scope or gRPC's metadata; both may name the caller's trace. None for a part
                of the current request, such as a reading of a stream.
        """
        ...

    def stage(self, stage: Stage, seconds: float) -> None:
        """Record a stage of the current request, which has just ended and took this long."""
        ...

    def submitted(self) -> Submission | None:
        """Note that the current request gives windows to the batcher; None where it is not recorded."""
        ...

    def batch(
        self, submissions: Iterable[Submission | None], *, model: str, windows: int
    ) -> BatchTrace | None:
        """Begin the trace of a batch; None where no recorded request is in it."""
        ...

    def close(self) -> None:
        """Send what is still held; blocks for a few seconds at most."""
        ...


class Slots(Protocol):
    """Numbers under one name that the workers of a service share; `service.metrics.board.Slots` is one."""

    @property
    def own(self) -> FloatArray:
        """This worker's numbers, float64 [size], to write to."""
        ...

    def total(self) -> FloatArray:
        """The sum over all workers, [size]."""
        ...


class Board(Protocol):
    """Hands out `Slots`; `service.metrics.board.Board` is one."""

    def slots(self, name: str, size: int) -> Slots:
        """Reserve numbers under a name, all 0 when the service starts."""
        ...
