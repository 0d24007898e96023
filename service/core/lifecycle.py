"""The phase of the service, and its requests in flight.

    starting ── ready ── lame_duck ── draining

`lame_duck`: not ready, so that load balancers go elsewhere, but requests are still answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from time import monotonic
from typing import Final

from service.errors import NotReady, RuntimeFailed


class Phase(StrEnum):
    """The phases of the service."""

    STARTING = "starting"
    READY = "ready"
    LAME_DUCK = "lame_duck"
    DRAINING = "draining"


ORDER: Final = [*Phase]


class Lifecycle:
    """The phase, and the number of requests in flight.

    Args:
        healthy: Whether the parts that cannot recover still work.

    Attributes:
        in_flight: Requests and streams that a drain waits for; whoever lowers it calls `ended`, at least
            once the service drains.
    """

    def __init__(self, healthy: Callable[[], bool]) -> None:
        self.phase = Phase.STARTING
        self._reason = "it has just been started"
        self._healthy: Final = healthy
        self.in_flight = 0
        self._idle: Final = asyncio.Event()
        self._drained_by: float | None = None
        self._when_draining: Final[list[Callable[[], None]]] = []

    def enter(self, phase: Phase, reason: str = "") -> None:
        """Change the phase; none is left for an earlier one."""
        if ORDER.index(phase) > ORDER.index(self.phase):
            self.phase, self._reason = phase, reason
            if phase is Phase.DRAINING:
                for begin in self._when_draining:
                    begin()

    def when_draining(self, begin: Callable[[], None]) -> None:
        """Call this when draining begins, for what would not end by itself."""
        self._when_draining.append(begin)

    def check_alive(self) -> None:
        """Check that the process works.

        Raises:
            RuntimeFailed: only a restart helps.
        """
        if not self._healthy():
            raise RuntimeFailed("the batch scheduler stopped; restart the process")

    def check_ready(self) -> None:
        """Check that the service wants requests.

        Raises:
            NotReady: it does not; the message has the reason.
        """
        if self.phase is not Phase.READY:
            raise NotReady(f"the service is {self.phase}: {self._reason}")

    def check_answers(self) -> None:
        """Check that the service answers requests.

        Raises:
            NotReady: it does not; the message has the reason.
        """
        if self.phase is not Phase.LAME_DUCK:
            self.check_ready()

    def ended(self) -> None:
        """Something that a drain waits for has ended."""
        if not self.in_flight:
            self._idle.set()

    async def drain(self, seconds: float) -> bool:
        """Refuse what is new and wait for what is in flight; False where that took longer.

        Asked again, it waits for what is left of the first time, not as long again.
        """
        self.enter(Phase.DRAINING, "it is shutting down")
        if not self.in_flight:
            return True
        self._idle.clear()
        if self._drained_by is None:
            self._drained_by = monotonic() + seconds
        try:
            await asyncio.wait_for(self._idle.wait(), self._drained_by - monotonic())
        except TimeoutError:
            return False
        return True
