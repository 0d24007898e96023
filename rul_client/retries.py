"""Retries of temporary failures: which, how often, and after which pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from rul_client.errors import RemoteFailed, Retryable

ATTEMPTS: Final = 6
MAX_PAUSE_SECONDS: Final = 30.0

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[None]]


class Retries(NamedTuple):
    """Retry policy.

    Attributes:
        attempts: Maximum calls, including the first.
        sleep: Waits for the given seconds.
    """

    attempts: int
    sleep: Sleep

    async def call(self, call: Callable[[], Awaitable[Result]], *, repeatable: bool = True) -> Result:
        """Call until success or a permanent failure; a call that is not repeatable must not run twice."""
        attempt = 1
        while True:
            try:
                return await call()
            except Retryable as failure:
                if attempt >= self.attempts or (failure.may_be_done and not repeatable):
                    tried = f"; tried {attempt} times" if attempt > 1 else ""
                    raise RemoteFailed(f"{failure}{tried}") from failure
                pause = failure.after_seconds
                await self.sleep(min(MAX_PAUSE_SECONDS, 2.0 ** (attempt - 2) if pause is None else pause))
            attempt += 1
