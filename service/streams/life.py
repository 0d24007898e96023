"""Open streams: the inbox of each stream, and when it must end.

One task fills a stream's inbox from its transport, so that the answering task waits on one queue for a
message, the end, a disconnect, a long silence or a drain. Reading from a transport is never cancelled: the
transport releases it when the call ends. This module must not know messages or models.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from service.core.lifecycle import Lifecycle
from service.errors import Disconnected, NotReady, Overloaded, StreamIdle, Unauthenticated

LEAVING_SECONDS: Final = 0.02  # grpc.aio ends the messages at a disconnect, then cancels the call


class Inbox:
    """Received messages of one stream: at most one ahead of the answering task, more stay in the transport.

    The answering task must create it, because that task is cancelled at a disconnect.

    Attributes:
        gone: Whether the caller has disconnected.
        expired: Whether the caller's deadline has passed.
    """

    def __init__(
        self, messages: AsyncIterator[bytes], *, idle_seconds: float, remaining_seconds: float | None
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._answering: Final = asyncio.current_task()
        self._idle_seconds: Final = idle_seconds
        # Messages, then None after the last one or the error that ends the stream.
        self._heard: Final[asyncio.Queue[bytes | Exception | None]] = asyncio.Queue()
        self._over: Exception | None = None  # ends the stream at once, even if messages wait
        self._closed = False
        self._waits_since: float | None = None
        self.gone = self.expired = False
        self._timer = self._loop.call_later(idle_seconds, self._look_whether_idle)
        self._deadline: asyncio.TimerHandle | None = None
        if remaining_seconds is not None:
            self._deadline = self._loop.call_later(remaining_seconds, self._expire)
        self._reading: Final = asyncio.ensure_future(self._read(messages))

    async def take(self) -> bytes | None:
        """Return the next message, or None after the last one.

        Raises:
            StreamIdle: no message came for too long.
            Exception: any other error that ends the stream.
        """
        if self._over is not None:
            raise self._over
        self._waits_since = monotonic()
        try:
            given = await self._heard.get()
        finally:
            self._waits_since = None
        self._heard.task_done()
        if isinstance(given, Exception):
            raise given
        return given

    def end(self, error: Exception) -> None:
        """End the stream with this error, after the current message is answered."""
        self._over = self._over or error
        self._heard.put_nowait(self._over)

    def close(self) -> None:
        """Stop the timer and release the inbox; the transport ends the reading task."""
        self._closed, self._over = True, None
        self._timer.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        while not self._heard.empty():
            self._heard.get_nowait()
            self._heard.task_done()

    async def _read(self, messages: AsyncIterator[bytes]) -> None:
        try:
            async for message in messages:
                if self._closed:
                    return
                self._heard.put_nowait(message)
                del message  # it may be large, and the next one late
                await self._heard.join()  # until it is taken
            await asyncio.sleep(LEAVING_SECONDS)
            self._heard.put_nowait(None)
        except Disconnected:
            if not self._closed and self._answering is not None:
                self.gone = True
                self._answering.cancel()
        except Exception as error:  # noqa: BLE001 the answering task raises it, whatever it is
            self._heard.put_nowait(error)

    def _expire(self) -> None:
        """End the stream at its deadline as a disconnect, which is not an error of the service."""
        self.expired = True
        self.end(Disconnected())

    def _look_whether_idle(self) -> None:
        """End a silent stream, or restart its one timer; a timer per message would cost more."""
        left = self._idle_seconds
        if self._waits_since is not None:
            left += self._waits_since - monotonic()
        if left <= 0:
            self.end(StreamIdle(f"no reading came for {self._idle_seconds:g} s"))
        else:
            self._timer = self._loop.call_later(left, self._look_whether_idle)


class Streams:
    """The open streams of a service; the lifecycle ends them when the service drains, and waits for them."""

    def __init__(self, lifecycle: Lifecycle, *, most: int, idle_seconds: float) -> None:
        self.idle_seconds: Final = idle_seconds
        self._lifecycle: Final = lifecycle
        self._most: Final = most
        self._open: Final[dict[Inbox, Callable[[], bool]]] = {}
        self._draining = False
        lifecycle.when_draining(self._drain)

    @contextmanager
    def admitted(self, inbox: Inbox, may_stay: Callable[[], bool]) -> Generator[None]:
        """Count a stream while it is open; `may_stay` returns whether its key is still valid.

        Raises:
            NotReady: the service is starting or draining.
            Overloaded: the maximum of open streams is reached.
        """
        self._lifecycle.check_answers()
        if len(self._open) >= self._most:
            raise Overloaded(f"{self._most} streams are open, the maximum (RUL_MAX_STREAMS)")
        self._open[inbox] = may_stay
        try:
            yield
        finally:
            del self._open[inbox]
            if self._draining and not self._open:
                self._lifecycle.in_flight -= 1
                self._lifecycle.ended()

    def end_revoked(self) -> None:
        """End the streams whose key is no longer valid."""
        for inbox, may_stay in self._open.items():
            if not may_stay():
                inbox.end(Unauthenticated("the API key of the stream was revoked or changed"))

    def _drain(self) -> None:
        if not self._open:
            return
        self._draining = True
        self._lifecycle.in_flight += 1
        for inbox in self._open:
            inbox.end(NotReady("the service is shutting down: open the stream again, with its history"))
