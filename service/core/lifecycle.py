"""The phase of the service, and its requests in flight.

    starting ── ready ── lame_duck ── draining

`lame_duck`: not ready, so that load balancers stop sending requests; those that come are answered.
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
        in_flight: Requests and streams that a drain waits for. Code that lowers it must call `ended` while
            the service drains.
    """

    def __init__(self, healthy: Callable[[], bool]) -> None:
        self.phase = Phase.STARTING
        self._reason = "it has just been started"
        self._healthy: Final = healthy
        self._failed = False
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
        """Register a callback for the start of the drain, to end what would not end by itself."""
        self._when_draining.append(begin)

    def fail(self) -> None:
        """Note that a part has failed that only a restart repairs."""
        self._failed = True

    def check_alive(self) -> None:
        """Check that the process works.

        Raises:
            RuntimeFailed: only a restart helps.
        """
        if self._failed or not self._healthy():
            raise RuntimeFailed("the batch scheduler or another background task stopped; restart the process")

    def check_ready(self) -> None:
        """Check that the process works and is ready.

        Raises:
            RuntimeFailed: only a restart helps.
            NotReady: the service is not ready; the message has the reason.
        """
        self.check_alive()
        self._check_phase(Phase.READY)

    def check_answers(self) -> None:
        """Check that the service answers requests.

        Raises:
            NotReady: it starts or drains; the message has the reason.
        """
        self._check_phase(Phase.READY, Phase.LAME_DUCK)

    def _check_phase(self, *phases: Phase) -> None:
        if self.phase not in phases:
            raise NotReady(f"the service is {self.phase}: {self._reason}")

    def ended(self) -> None:
        """Note that a request or stream has ended, if a drain waits for it."""
        if not self.in_flight:
            self._idle.set()

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and wait for those in flight; return False if that took longer.

        A second call waits only for the rest of the first call's time.
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
