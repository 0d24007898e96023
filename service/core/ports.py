"""What the core needs from outside, as protocols: counting, tracing, keeping, and numbers that workers share.

The core calls these and imports none of the packages that implement them: `service.metrics` counts,
`service.tracing` traces, `service.store` keeps predictions. `service.app` joins them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from model.domain import FloatArray
from service.core.answers import Answers, Piece
from service.core.window import Windows
from service.labels import Route, Stage, Transport


class BatchReport(NamedTuple):
    """One batch, as it is counted.

    Attributes:
        windows: Windows of the batch.
        queued: Seconds that each request waited whose first window is in this batch.
        answered: Seconds from the first window's batch to the last answer, of each request that it ended.
        seconds: One run of the graph; None where it failed.
        answers: What the graph answered, probes left out; None where nothing is left.
        imputed: Missing readings over all readings of each of these windows.
        units: The unit of each.
    """

    windows: int
    queued: Sequence[float]
    answered: Sequence[float]
    seconds: float | None
    answers: Answers | None
    imputed: Sequence[float]
    units: Sequence[str | None]


class BatchObserver(Protocol):
    """Counts the batcher's work, on the event loop; `service.metrics.metrics.ModelMetrics` is one."""

    def ran(self, batch: BatchReport) -> None:
        """Count a batch whose callers have been answered."""
        ...

    def cancelled(self, windows: int) -> None:
        """Count windows whose caller left before they were answered."""
        ...


class StageTimer(Protocol):
    """Counts the stages of a request; `service.edge.exchange.Exchange` is one."""

    def timed(self, stage: Stage, start: float) -> None:
        """Count a stage that began at `start`, in seconds of `perf_counter`, and ends now."""
        ...


class Limit(Protocol):
    """Limits the time of awaited work, with TimeoutError; `service.edge.exchange.Limit` is one.

    Attributes:
        seconds: The limit; None: there is none.
    """

    @property
    def seconds(self) -> float | None:
        """The limit."""
        ...

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Recorder(Protocol):
    """Keeps predictions until outcomes are reported; `service.store.recorder.Recorder` is one."""

    def offer(self, model: str, windows: Windows, pieces: Sequence[Piece]) -> None:
        """Keep these answers; never waits and never fails."""
        ...


class Waited(Protocol):
    """Times of one request in the batcher; `service.core.batch.Caller` is one.

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
