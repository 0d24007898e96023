"""Temporary failures: what is asked again, how often, and after which pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from rul_client.errors import RemoteFailed, Retryable

ATTEMPTS: Final = 6
MAX_PAUSE_SECONDS: Final = 30.0

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[None]]


class Retries(NamedTuple):
    """Patience with a server.

    Attributes:
        attempts: Most calls, the first included.
        sleep: Waits so many seconds.
    """

    attempts: int
    sleep: Sleep

    async def call(self, call: Callable[[], Awaitable[Result]], *, repeatable: bool = True) -> Result:
        """Call until it succeeds or fails for good; what is not repeatable must not be done twice."""
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
