"""Admission: which requests are decoded and run now, which wait undecoded, and which are refused.

    request -> in work, while there is room
            -> the line, while it moves fast enough for the request's time limit -> in work
            -> Overloaded

The cost of a request is its size in bytes: it is known before decoding and the same for every protocol. The
speed of a line is measured from the requests that wait in it. This module must not know protocols or models.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Final

from service.errors import Overloaded

WAIT_SHARE: Final = 0.2
"""Share of its time limit that a request may wait undecoded. Too high: answers come late, memory grows."""
ROOMS_WAITING: Final = 16
"""Maximum waiting bytes as a multiple of the room: limits memory while the line's speed is unknown."""
RECEIVING_SECONDS: Final = 1.0
"""Seconds after which a body that is still being received no longer counts: its sender is slow."""
FEW_WINDOWS: Final = 2
"""Maximum windows of a small request."""
SMOOTHING: Final = 1 / 8
"""Weight of the newest measurement of a line's speed."""
REFUSALS: Final = (0.25, 1.0)
"""Refusals per request that a line admits, below and above which `Retry-After` halves and doubles:
refusals take time from answers."""
RETRY_SECONDS: Final = (1.0, 32.0)
"""Minimum and maximum of `Retry-After`."""


class Admission:
    """The lanes of a worker: requests of one or two windows never wait behind large ones.

    Args:
        room_windows: Windows of the largest model in work per lane before requests wait.
        limit_seconds: Maximum time limit of a request.
    """

    def __init__(self, *, room_windows: int, limit_seconds: float) -> None:
        self._room_windows: Final = room_windows
        self.small: Final = Lane(0, limit_seconds)
        self.large: Final = Lane(0, limit_seconds)
        self.small_bytes = 0

    def fit(self, window_bytes: int) -> None:
        """Make room for a model, given the size of its window as JSON, the largest encoding.

        A model smaller than an earlier one changes nothing.
        """
        self.small_bytes = max(self.small_bytes, FEW_WINDOWS * window_bytes)
        for lane in (self.small, self.large):
            lane.room = max(lane.room, self._room_windows * window_bytes)

    def expected(self, size: int) -> Coming:
        """Return a context to enter while a body of this size arrives in parts; 0: unknown.

        Raises:
            Overloaded: at entry, the line is too long for it.
        """
        return Coming(self.small if 0 < size <= self.small_bytes else self.large, size)


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in a line.

    Attributes:
        size: Its size in bytes.
        arrived: Seconds of the line's clock.
        seconds: Maximum wait.
        before: Bytes that had left the line when it arrived.
    """

    size: int
    arrived: float
    seconds: float
    before: int
    turn: asyncio.Future[None]


class Lane:
    """Requests of similar size: in work, waiting in line, and bodies being received.

    Attributes:
        room: Requests wait while this many bytes are in work.
        in_work: Bytes in work now; a request that ends lowers it, and calls `advance` if others wait.
        line: Waiting requests, in order of arrival.
    """

    def __init__(self, room: int, limit_seconds: float, clock: Callable[[], float] = perf_counter) -> None:
        self.room = room
        self.in_work = 0
        self.line: Final[deque[Ticket]] = deque()
        self.bytes_per_second = math.inf
        self.limit_seconds: Final = limit_seconds
        self.clock: Final = clock
        self.coming: Final[deque[Coming]] = deque()
        self.coming_bytes = self._waiting = self._moved = 0
        self._retry_seconds, self._since = RETRY_SECONDS[0], clock()
        self._begun = self._refused = 0

    def check(self, bytes_before: int, seconds: float) -> None:
        """Refuse a request that would wait longer than this behind this many bytes.

        Raises:
            Overloaded: the line is too long.
        """
        if bytes_before > min(ROOMS_WAITING * self.room, self.bytes_per_second * seconds):
            raise self._overloaded()

    async def wait(self, size: int, limit_seconds: float | None) -> None:
        """Wait until the request is in work.

        Raises:
            Overloaded: the line is, or has become, too long for its time limit.
        """
        seconds = WAIT_SHARE * (self.limit_seconds if limit_seconds is None else limit_seconds)
        self.check(self._waiting, seconds)
        turn = asyncio.get_running_loop().create_future()
        ticket = Ticket(size, self.clock(), seconds, self._moved, turn)
        self.line.append(ticket)
        self._waiting += size
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:
                self.in_work -= size  # admitted at the same moment
            elif ticket in self.line:
                self.line.remove(ticket)
                self._waiting -= size
            self.advance()
            raise

    @property
    def expected_bytes(self) -> int:
        """Bytes that wait or are being received."""
        return self._waiting + self.coming_bytes

    def advance(self) -> None:
        """Admit requests while there is room; refuse those that have waited or would wait too long."""
        line, now = self.line, self.clock()
        while line and self.in_work < self.room:
            ticket = line.popleft()
            self._waiting -= ticket.size
            waited = now - ticket.arrived
            if ticket.turn.done():  # its caller has just disconnected
                continue
            if waited > ticket.seconds:
                self._refuse(ticket)
                continue
            self._begun += 1
            self._moved += ticket.size
            self.in_work += ticket.size
            self._measure(self._moved - ticket.before, waited)
            ticket.turn.set_result(None)
        while line and self._waiting > self.bytes_per_second * (line[-1].seconds + line[-1].arrived - now):
            ticket = line.pop()
            self._waiting -= ticket.size
            self._refuse(ticket)

    def _measure(self, moved: int, seconds: float) -> None:
        known, speed = self.bytes_per_second, moved / seconds if seconds > 0 else math.inf
        if speed < known and moved < self.room:
            return  # a batch releases many places at once: a short line only shows the lowest possible speed
        if math.isinf(known) or math.isinf(speed):
            self.bytes_per_second = min(known, speed)
        else:
            self.bytes_per_second = known + (speed - known) * SMOOTHING

    def _refuse(self, ticket: Ticket) -> None:
        if not ticket.turn.done():
            ticket.turn.set_exception(self._overloaded())

    def _overloaded(self) -> Overloaded:
        """Make a refusal; the more refusals, the longer its `Retry-After`."""
        now, (least, most) = self.clock(), RETRY_SECONDS
        if now - self._since > self._retry_seconds:
            ratio = self._refused / max(1, self._begun)
            change = 2 if ratio > REFUSALS[1] else 0.5 if ratio < REFUSALS[0] else 1
            self._retry_seconds = min(most, max(least, change * self._retry_seconds))
            self._since, self._refused, self._begun = now, 0, 0
        self._refused += 1
        waiting = len(self.line)
        error = Overloaded(f"{waiting} requests wait, too many to be answered in time; send fewer at once")
        error.retry_after_seconds = self._retry_seconds
        return error


class Coming:
    """A body that arrives in parts; entered meanwhile, and counted as long as its sender is quick."""

    __slots__ = ("_lane", "_since", "_size")

    def __init__(self, lane: Lane, size: int) -> None:
        self._lane: Final = lane
        self._size = min(size, lane.room)  # the announced bytes may never come
        self._since = lane.clock()

    def __enter__(self) -> None:
        lane, since = self._lane, self._since
        while lane.coming and (not lane.coming[0]._size or since - lane.coming[0]._since > RECEIVING_SECONDS):  # noqa: SLF001
            lane.coming.popleft()._leave()  # noqa: SLF001
        lane.check(lane.expected_bytes, WAIT_SHARE * lane.limit_seconds)
        lane.coming.append(self)
        lane.coming_bytes += self._size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._lane.coming_bytes -= self._size
        self._size = 0
