"""A time limit around awaited work: `asyncio.timeout` at half its price.

Asked for on every request, where the limit passes on next to none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final


class Deadline:
    """Cancels what is awaited inside when the time is over, and then raises TimeoutError.

    Args:
        seconds: How long it may take; None: as long as it needs.
    """

    __slots__ = ("_cancelling", "_expired", "_task", "_timer", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds: Final = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._expired = False

    def __enter__(self) -> None:
        if self.seconds is not None:
            self._begin(self.seconds, self._expire)

    def _begin(self, seconds: float, look: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._task = task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a deadline needs a task to cancel")
        self._cancelling = task.cancelling()
        self._timer = loop.call_later(max(0.0, seconds), look)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._timer is None or self._task is None:
            return
        self._timer.cancel()
        # Somebody else's cancellation, even at the same moment, stays one: as in asyncio.timeout.
        ours_alone = self._expired and self._task.uncancel() <= self._cancelling
        if ours_alone and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        self._expired = True
        if self._task is not None:
            self._task.cancel()
