"""Where the service is in its life, and what is still in flight.

    starting ── ready ── draining
        └────── failed

`failed`: a bundle's golden windows do not agree on this machine, so no answer is trusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from time import monotonic
from typing import Final

from service.errors import NotReady, RuntimeFailed


class Phase(StrEnum):
    """What the service may be asked for."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Lifecycle:
    """The phase, and how many requests are being answered.

    Args:
        healthy: Whether the parts that cannot mend themselves still work.
    """

    def __init__(self, healthy: Callable[[], bool]) -> None:
        self.phase = Phase.STARTING
        self._reason = "golden windows are being replayed"
        self._healthy: Final = healthy
        self._in_flight = 0
        self._request: Final = InFlight(self)
        self._idle: Final = asyncio.Event()
        self._idle.set()
        self._drained_by: float | None = None
        self._when_draining: Final[list[Callable[[], None]]] = []

    def enter(self, phase: Phase, reason: str = "") -> None:
        """Change the phase; draining is never left."""
        if self.phase is not Phase.DRAINING:
            self.phase, self._reason = phase, reason
            if phase is Phase.DRAINING:
                for begin in self._when_draining:
                    begin()

    def when_draining(self, begin: Callable[[], None]) -> None:
        """Call this when draining begins, for what would not end by itself."""
        self._when_draining.append(begin)

    def check_alive(self) -> None:
        """Pass where a restart would not help.

        Raises:
            RuntimeFailed: it would.
        """
        if not self._healthy():
            raise RuntimeFailed("batches no longer leave")

    def check_ready(self) -> None:
        """Pass where the service answers.

        Raises:
            NotReady: it does not, with the reason.
        """
        if self.phase is not Phase.READY:
            raise NotReady(f"the service is {self.phase}: {self._reason}")

    def request(self) -> InFlight:
        """Count a request that needs a model, while it lasts; to be entered at once.

        Raises:
            NotReady: entering it: the service is not ready for it.
        """
        return self._request

    def hold(self) -> None:
        """Something that a drain waits for has begun, in whatever phase; `end` is its end."""
        if not self._in_flight:
            self._idle.clear()
        self._in_flight += 1

    def end(self) -> None:
        """A request that has begun has ended."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()

    async def drain(self, seconds: float) -> bool:
        """Refuse what is new and wait for what is in flight; False where that took longer.

        Asked again, it waits for what is left of the first time, not as long again.
        """
        self.enter(Phase.DRAINING, "it is shutting down")
        if self._idle.is_set():
            return True
        if self._drained_by is None:
            self._drained_by = monotonic() + seconds
        try:
            await asyncio.wait_for(self._idle.wait(), self._drained_by - monotonic())
        except TimeoutError:
            return False
        return True


class InFlight:
    """A request that needs a model, while it lasts. It keeps nothing of its own, so one is enough for all."""

    __slots__ = ("_lifecycle",)

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def __enter__(self) -> None:
        lifecycle = self._lifecycle
        if lifecycle.phase is not Phase.READY:
            lifecycle.check_ready()
        lifecycle.hold()

    def __exit__(self, *_error: object) -> None:
        self._lifecycle.end()
