"""Protocols through which the core uses metrics, tracing, the store, and numbers that workers share.

The core imports none of the packages that implement them: `service.metrics`, `service.tracing` and
`service.store`. `service.assembly` joins them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from model.domain import FloatArray
from service.core.answers import Answers, Piece
from service.core.queries import ModelName, Prediction
from service.core.window import Windows
from service.labels import Route, Stage, Transport


class Caller(msgspec.Struct, eq=False):
    """A request in the batcher.

    Attributes:
        windows: Windows to answer.
        order: The order in which batches take its windows.
        trace: The request's trace, where it is recorded.
        arrived, taken_at, done_at: Seconds of `perf_counter`: submitted, first window taken, last window
            answered; 0 until then.
        missing: Number of windows without an answer so far.
        next: Number of windows that batches have taken.
        pieces: Answers so far.
    """

    windows: Windows
    order: Sequence[int]
    future: asyncio.Future[list[Piece]]
    trace: Submission | None
    arrived: float
    missing: int
    next: int = 0
    taken_at: float = 0.0
    done_at: float = 0.0
    pieces: list[Piece] = msgspec.field(default_factory=list[Piece])


class BatchReport(msgspec.Struct, eq=False):
    """Figures of a batch, to be counted later; they keep neither its requests nor all of their readings.

    Attributes:
        size: Windows of the batch.
        queued: Waiting time in seconds of each request whose first window is in this batch.
        answered: Seconds from the batch of its first window to its last answer, of each request that this
            batch completes.
        seconds: Duration of the run of the graph.
        answers: Answers of the graph, as `Answers.bare` returns them; None if it failed.
        units, imputed_fraction, is_probe: Of each answered window, as in `Windows`; a unit has its tenant, if
            there is one.
    """

    size: int
    queued: list[float] = msgspec.field(default_factory=list[float])
    answered: list[float] = msgspec.field(default_factory=list[float])
    seconds: float = 0.0
    answers: Answers | None = None
    units: list[str | None] = msgspec.field(default_factory=list[str | None])
    imputed_fraction: list[float] = msgspec.field(default_factory=list[float])
    is_probe: list[bool] = msgspec.field(default_factory=list[bool])


class Share(NamedTuple):
    """The windows of one caller in a batch, by their places in the request."""

    caller: Caller
    places: Sequence[int]


class Batch(msgspec.Struct, eq=False):
    """Windows that the graph answers at once, and its report.

    Attributes:
        shares: Whose windows they are, in the order of the batch's rows.
    """

    report: BatchReport
    shares: list[Share] = msgspec.field(default_factory=list[Share])
    answers: Answers | None = None


class Batcher(Protocol):
    """Answers windows; `service.core.batcher.MicroBatcher` is one."""

    async def submit(self, windows: Windows) -> list[Piece]:
        """Answer these windows, all or none."""
        ...


class BatchObserver(Protocol):
    """Counts the batcher's work; `service.metrics.models.ModelMetrics` implements it."""

    @property
    def ran(self) -> Callable[[BatchReport], None]:
        """Keeps the report of a batch to count it; never fails."""


Stages = list[tuple[Stage, float, float]]
"""Stages of a request, each with its start and end in seconds of `perf_counter`."""


class Recorder(Protocol):
    """Keeps predictions until outcomes are reported; `service.store.recorder.Recorder` is one."""

    def offer(
        self,
        model: ModelName,
        windows: Windows,
        predictions: Sequence[Prediction],
        pieces: Sequence[Piece],
        *,
        tenant: str,
    ) -> None:
        """Keep a tenant's predictions, made of these pieces; never waits or fails."""


class Submission(Protocol):
    """Windows that a recorded request has given to the batcher."""

    def ended(self, caller: Caller) -> None:
        """Record that they were answered, failed or cancelled."""


class RequestTrace(Protocol):
    """The trace of one request; its ids are in the log even if it is not recorded."""

    def begin(self, request_id: str) -> None:
        """Make this request the current one."""

    def stage(self, stage: Stage, start: float, end: float) -> None:
        """Record a stage of the request, in seconds of `perf_counter`."""

    def end(self, *, code: str, error: BaseException | None, windows: int) -> None:
        """Record that the request has ended with this code label."""


class BatchTrace(Protocol):
    """The trace of one batch, on the thread that runs it."""

    def end(self, error: BaseException | None) -> None:
        """Record that the batch has run or failed."""


class Tracer(Protocol):
    """Begins traces; `service.tracing.spans.SpanTracer` is one."""

    def request(
        self, transport: Transport, route: Route, carrier: Mapping[str, Any] | None
    ) -> RequestTrace | None:
        """Begin the trace of a request; return None if its route is not traced.

        Args:
            transport: How the request came.
            route: Its route.
            carrier: The ASGI scope or gRPC metadata, which may name the caller's trace; None for a part of
                the current request, such as a reading of a stream.
        """
        ...

    def submitted(self) -> Submission | None:
        """Note that the current request submits windows; return None if it is not recorded."""
        ...

    def batch(
        self, submissions: Iterable[Submission | None], *, model: str, windows: int
    ) -> BatchTrace | None:
        """Begin the trace of a batch; return None if it has no recorded request."""
        ...

    def close(self) -> None:
        """Send all buffered spans; blocks for a few seconds at most."""


class Slots(Protocol):
    """Numbers under one name that the workers of a service share; `service.metrics.board.Slots` is one.

    Attributes:
        own: This worker's numbers, float64 [size], to write to.
    """

    own: FloatArray

    def total(self) -> FloatArray:
        """The sum over all workers, [size]."""
        ...

    def each_living(self) -> FloatArray:
        """The values of each worker, [workers, size]; 0 for a worker that is not running."""
        ...
