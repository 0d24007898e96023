"""An event loop in a thread, for code without one. This module must not know services."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines of any thread on one loop, until it is closed."""

    def __init__(self, owner: str, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the thread; `owner` is named in errors, `end` runs last on the loop."""
        self._owner: Final = owner
        self._end: Final = end
        self._is_open = True
        self._beginning: Final = threading.Lock()
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of `work`; an interrupt cancels it.

        Raises:
            RuntimeError: the loop is closed, or of another process.
        """
        if future := self._begin(work):
            with suppress(CancelledError):  # another thread closes the loop
                try:
                    return future.result()
                finally:
                    future.cancel()
        work.close()
        why = "of another process" if self._is_open else "closed"
        raise RuntimeError(f"{self._owner} is {why}: open another one")

    def close(self) -> None:
        """End the thread; calls of other threads end with an error."""
        if self._thread.is_alive():
            with self._beginning:
                if self._is_open:
                    self._is_open = False
                    self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _begin(self, work: Coroutine[Any, Any, Result]) -> Future[Result] | None:
        if self._thread.is_alive():  # threads do not survive a fork
            with self._beginning:  # a loop that ends would never answer
                if self._is_open:
                    return asyncio.run_coroutine_threadsafe(work, self._loop)
        return None

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # its exit ends all that still runs
            runner.get_loop().run_forever()
            runner.run(self._end())
