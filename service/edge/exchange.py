"""The frame of every request: id, access, time limit, measurement, log line, error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Self

from service import logs
from service.core.lifecycle import Lifecycle, Phase
from service.core.ports import Stages, Tracer
from service.core.predictor import Predictor
from service.core.sampling import AtMost, evenly
from service.edge.access import NOBODY, Credentials
from service.edge.admission import Admission, Lane
from service.edge.asgi import Message, Receive
from service.edge.hosts import Hosts
from service.edge.intake import Intake
from service.errors import (
    STATUS,
    BodyTimeout,
    DeadlineExceeded,
    Disconnected,
    Forbidden,
    RuntimeFailed,
    release_frames,
    status_of,
)
from service.labels import CLIENT_GONE, SUCCESS, Route, Transport
from service.metrics.metrics import Metrics
from service.settings import Settings
from service.store.async_store import AsyncStore
from service.store.rows import cause_of
from service.streams.life import Streams
from service.units import UnitWindows

LOOK_SECONDS: Final = 0.25
"""Seconds between checks whether a caller is still connected. Too low: each, a message to another thread and
back behind Envoy, takes 30 microseconds of CPU. Too high: the service works for disconnected callers."""
MOST_LINES: Final = 20
"""Maximum log lines a minute for one error and key: a flood of refusals adds 8 MB a day to a worker's log."""


class Exchange:
    """One request and its outcome: a context that is entered at its begin and left at its answer.

    An error raised inside is kept in `error`, for the transport to encode. Every request goes through this
    class, so it is one object with few calls.

    Attributes:
        request_id: The id in the answer, the log and every error.
        code: The code label that it is counted with.
        start: When it was fully received, in seconds of `perf_counter`; until then, when it began.
        seconds: Duration from `start`, once it has ended.
        error: The error, if any.
        caller: The grant of the API key.
        gone: Whether the caller has disconnected.
        windows: Number of windows in the request.
        stages: Stages with their start and end in seconds of `perf_counter`. Callers append to the list
            directly: a method call would cost more.
    """

    __slots__ = (
        "_admitted", "_desk", "_lane", "_route", "_size", "_token", "_trace", "_transport",
        "caller", "code", "error", "gone", "request_id", "seconds", "stages", "start", "windows",
    )  # fmt: skip

    def __init__(
        self,
        desk: Desk,
        transport: Transport,
        route: Route,
        given_id: str | None,
        carrier: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin a request; replace an id that is unfit for logs.

        `carrier` is the ASGI scope or gRPC metadata; None for a part of another request.
        """
        self._desk = desk
        self._transport: Transport = transport
        self._route: Route = route
        self._trace = None if desk.tracer is None else desk.tracer.request(transport, route, carrier)
        fits = given_id is not None and logs.SAFE_ID.fullmatch(given_id)
        self.request_id = given_id if given_id is not None and fits else os.urandom(16).hex()
        self.code = SUCCESS[transport]
        self.error: Exception | None = None
        self.caller = NOBODY
        self.gone = False
        self.windows = self._size = 0
        self._admitted = False
        self._lane: Lane | None = None
        self.stages: Stages = []

    def __enter__(self) -> Self:
        self._token = logs.request_id.set(self.request_id)
        if self._trace is not None:
            self._trace.begin(self.request_id)
        self.start = perf_counter()
        if self._route is Route.GRPC_STREAM:
            self._desk.metrics.open_streams += 1
        else:
            self._desk.metrics.in_flight += 1
        return self

    def admit(self) -> None:
        """Count a request that needs a model as in flight; a drain waits for it.

        Raises:
            NotReady: the service is starting or draining.
        """
        lifecycle = self._desk.lifecycle
        if lifecycle.phase is not Phase.READY:
            lifecycle.check_answers()
        lifecycle.in_flight += 1
        self._admitted = True

    async def begin(self, size: int, limit: Limit) -> None:
        """Wait for room to decode and run a request of this many bytes; release it at the end.

        Raises:
            NotReady: the service is starting or draining.
            Overloaded: it would wait too long.
        """
        if not self._admitted:
            self.admit()
        admission = self._desk.admission
        lane = admission.small if size <= admission.small_bytes else admission.large
        if lane.line or lane.in_work >= lane.room:
            await lane.wait(size, limit.seconds)
        else:
            lane.in_work += size
        self._lane, self._size = lane, size

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        desk = self._desk
        if self._admitted:
            self._release()
        if error is not None:
            self._fail(error)
        self.seconds = perf_counter() - self.start
        if self._route is Route.GRPC_STREAM:
            desk.metrics.open_streams -= 1
        else:
            desk.metrics.in_flight -= 1
        desk.metrics.ended[self._transport, self._route, self.code].append(self.seconds)
        for stage, start, end in self.stages:
            desk.metrics.stages[stage].observe(end - start)
        kept = error is None or isinstance(error, Exception)
        if kept and (self.error is not None or desk.settings.log_sample):
            self._log()
        if self._trace is not None:
            for stage, start, end in self.stages:
                self._trace.stage(stage, start, end)
            self._trace.end(code=self.code, error=error, windows=self.windows)
        logs.request_id.reset(self._token)
        if self.error is not None:
            release_frames(self.error)
        return kept

    def _release(self) -> None:
        lifecycle, lane = self._desk.lifecycle, self._lane
        if lane is not None:
            lane.in_work -= self._size
            if lane.line:
                lane.advance()
        lifecycle.in_flight -= 1
        if lifecycle.phase is not Phase.READY:
            lifecycle.ended()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Disconnected | asyncio.CancelledError):
            self.gone, self.code = True, CLIENT_GONE[self._transport]
        elif isinstance(error, Exception):
            self.error, self.code = error, self._desk.metrics.failed(self._transport, error)
        is_unanswered = self.gone or isinstance(error, DeadlineExceeded)
        # Readings of a stream are counted one by one.
        if is_unanswered and self._route is not Route.GRPC_STREAM:
            self._desk.metrics.cancelled(self.windows)

    def _log(self) -> None:
        desk, error = self._desk, self.error
        if error is None and not next(desk.is_logged):
            return
        key = error.key if isinstance(error, Forbidden) else self.caller.name
        left_out = 0 if error is None else desk.errors.left_out((type(error), key))
        if left_out is None:
            return
        fields: dict[str, Any] = {"protocol": self._transport, "route": self._route}
        fields |= {"code": self.code, "seconds": self.seconds}
        rare = ("key", key), ("left_out", left_out), ("cause", cause_of(error))
        fields |= {name: value for name, value in rare if value}
        if error is None:
            event = "caller disconnected" if self.gone else "request answered"
            desk.log.info(event, windows=self.windows, **fields)
        elif status_of(error) is STATUS[RuntimeFailed]:
            desk.log.error("request failed", exc_info=error, **fields)
        else:
            desk.log.warning("request refused", error=type(error).__name__, **fields)


@dataclass(kw_only=True, eq=False)
class Desk:
    """Shared parts that both transports need to answer requests."""

    settings: Settings
    predictor: Predictor
    metrics: Metrics
    lifecycle: Lifecycle
    log: logs.FilteringBoundLogger
    credentials: Credentials
    intake: Intake
    admission: Admission
    store: AsyncStore
    units: UnitWindows
    tracer: Tracer | None = None
    hosts: Hosts | None = None

    def __post_init__(self) -> None:
        """Create the shared state of requests and streams; revoked keys end their streams."""
        # Held while a large body is decoded, so that all large bodies share one share of the event loop.
        self.large_requests = asyncio.Lock()
        most, idle_seconds = self.settings.max_streams, self.settings.stream_idle_seconds
        self.streams = Streams(self.lifecycle, most=most, idle_seconds=idle_seconds)
        self.credentials.when_changed(self.streams.end_revoked)
        self.is_logged = evenly(self.settings.log_sample)  # for answered requests
        self.errors = AtMost(MOST_LINES)

    def limit(self, seconds: float | None, receive: Receive | None, *, reads: bool = False) -> Limit:
        """Limit a request to the settings' time, or to `seconds` if that is less; see `Limit`."""
        most, reading = self.settings.request_timeout_seconds, self.intake.seconds if reads else None
        return Limit(most if seconds is None or seconds > most else seconds, receive, reading_seconds=reading)


class Limit:
    """Limit the time to read a body and to answer; end the request when its caller disconnects.

    It costs half of `asyncio.timeout` per request. Every `LOOK_SECONDS` it asks the server for a disconnect.
    This `receive` call is never cancelled: the server may be about to return the event, and does so when the
    exchange ends. pyvoy returns at once while the caller is connected, so the call is repeated.

    Args:
        seconds: Maximum time of the work; then DeadlineExceeded is raised. None: no limit.
        reading_seconds: Maximum time to read the body; then BodyTimeout is raised. The reader sets None at
            its end and calls `start` only `if is_late`, to save a call for ordinary requests.
        receive: Returns the ASGI event of a disconnect; then Disconnected is raised. None: the server cancels
            the task itself.
    """

    __slots__ = (
        "_again", "_cancelling", "_expired", "_finished", "_left", "_receive", "_task", "_timer", "_watch",
        "is_late", "reading_seconds", "seconds",
    )  # fmt: skip

    def __init__(
        self, seconds: float | None, receive: Receive | None = None, *, reading_seconds: float | None = None
    ) -> None:
        self.seconds = seconds
        self.reading_seconds = reading_seconds
        self.is_late = seconds is not None and seconds <= LOOK_SECONDS
        self._receive: Final = receive
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.Future[Message] | None = None
        self._again: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._expired = self._finished = self._left = False

    def __enter__(self) -> Self:
        self._task = task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a limit needs a task to cancel")
        self._cancelling = task.cancelling()
        self.start()
        return self

    def shorten(self, seconds: float) -> None:
        """Lower the limit to this many seconds from now."""
        if self.seconds is not None and seconds < self.seconds and self._timer is not None:
            self.seconds = seconds
            self.start()

    def start(self) -> None:
        """Start the time limit of the body or, after its end, of the answer."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        is_unwatched = self._receive is not None and self._watch is None
        if self.reading_seconds is not None:
            after = min(LOOK_SECONDS, self.reading_seconds)
            self._timer = loop.call_later(after, self._look, after)
        elif is_unwatched and (self.seconds is None or self.seconds > LOOK_SECONDS):
            self._timer = loop.call_later(LOOK_SECONDS, self._look)
        elif self.seconds is not None:
            self._timer = loop.call_later(max(0.0, self.seconds), self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished = True
        if self._timer is not None:
            self._timer.cancel()
        if self._again is not None:
            self._again.cancel()
        if self._task is None or not (self._expired or self._left):
            return
        # A cancellation by others stays a cancellation, even at the same moment, as in asyncio.timeout.
        counts = [self._task.uncancel() for _ in range(self._expired + self._left)]
        if counts[-1] <= self._cancelling and kind is asyncio.CancelledError:
            if self._left:
                raise Disconnected from None
            if self.reading_seconds is not None:
                raise BodyTimeout(f"expected the whole body within {self.reading_seconds:g} s") from None
            raise DeadlineExceeded(f"the request was not answered within {self.seconds:g} s") from None

    def _expire(self) -> None:
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    def _look(self, after: float = LOOK_SECONDS) -> None:
        reading = self.reading_seconds
        seconds = self.seconds if reading is None else reading
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds - after), self._expire)
        self.is_late |= reading is not None
        if reading is None:
            self._ask()

    def _ask(self) -> None:
        if self._receive is not None:
            with suppress(BaseException):  # a stopping server raises at once; one in Rust raises a panic
                self._watch = asyncio.ensure_future(self._receive())
                self._watch.add_done_callback(self._told)

    def _told(self, event: asyncio.Future[Message]) -> None:
        if (not event.cancelled() and event.exception()) or self._finished or self._task is None:
            return
        self._left = event.cancelled() or event.result()["type"] == "http.disconnect"
        if self._left:
            self._task.cancel()
        else:
            self._again = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._ask)
