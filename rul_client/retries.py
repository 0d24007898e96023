"""Retries of temporary failures: which, how often, and after which pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rul_client.errors import RemoteFailed, Retryable, Unreachable

ATTEMPTS: Final = 6
MAX_PAUSE_SECONDS: Final = 30.0

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[None]]


class Retries:
    """Retry policy of one server.

    Args:
        attempts: Maximum calls, including the first.
        sleep: Waits for the given seconds.
    """

    def __init__(self, attempts: int, sleep: Sleep) -> None:
        self._attempts: Final = attempts
        self._sleep: Final = sleep
        self._was_reached = False  # a server that is gone since may restart; another may have a wrong address

    async def call(self, call: Callable[[], Awaitable[Result]], *, repeatable: bool = True) -> Result:
        """Call until success, a permanent failure or the last attempt; return the result.

        A call that is not repeatable is tried again only if the service cannot have done it.

        Raises:
            RemoteFailed: the call failed.
        """
        attempt = 1
        while True:
            try:
                result = await call()
            except Retryable as failure:
                self._was_reached |= not isinstance(failure, Unreachable)
                is_unsure = failure.may_be_done and not repeatable
                if attempt >= self._attempts or is_unsure or not self._was_reached:
                    tried = f"; tried {attempt} times" if attempt > 1 else ""
                    unsure = "; the service may have done it" if is_unsure else ""
                    raise RemoteFailed(f"{failure}{unsure}{tried}") from failure
                pause = failure.after_seconds
                await self._sleep(min(MAX_PAUSE_SECONDS, 2.0 ** (attempt - 2) if pause is None else pause))
            else:
                self._was_reached = True
                return result
            attempt += 1
