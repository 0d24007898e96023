"""Unfinished bodies of a worker: their byte budget and their deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Self

from service.core.turns import LARGE_BYTES
from service.edge.asgi import inflated
from service.errors import IntakeFull, TooLarge

Expected = Callable[[int], AbstractContextManager[object]]


class Intake:
    """The byte budget and the deadline of all bodies and messages that arrive in parts.

    Attributes:
        expected: Entered while a body of a given size arrives in parts; may refuse it.
        seconds: Maximum time from the head of a request to the end of its body.
        held: Current bytes of unfinished bodies.
    """

    def __init__(self, *, most_bytes: int, seconds: float, expected: Expected) -> None:
        self.expected: Final = expected
        self.seconds: Final = seconds
        self.most_bytes: Final = most_bytes
        self.held = 0

    async def inflate(self, data: bytes, encoding: str, limit: int) -> bytes:
        """Inflate a body in a thread, so that the event loop continues.

        Above `LARGE_BYTES` it takes up to four times its size from the budget meanwhile. A stream does not
        announce its inflated size, so it is inflated again with larger limits.

        Raises:
            UnsupportedMedia, MalformedBody, TooLarge: as `inflated`.
            IntakeFull: all unfinished bodies together are above the budget.
        """
        most = min(limit, LARGE_BYTES)
        with Share(self) as share:
            while True:
                try:
                    return await asyncio.to_thread(inflated, data, encoding, most)
                except TooLarge:
                    if most == limit:
                        raise
                most = min(limit, 4 * most)
                share.hold(min(most, self.most_bytes))


class Share:
    """Counts the bytes of one unfinished body while it is read."""

    __slots__ = ("_held", "_intake")

    def __init__(self, intake: Intake) -> None:
        self._intake: Final = intake
        self._held = 0

    def hold(self, size: int) -> None:
        """Replace the counted bytes by this number.

        Raises:
            IntakeFull: all unfinished bodies together are above the budget.
        """
        intake = self._intake
        intake.held += size - self._held
        self._held = size
        if intake.held > intake.most_bytes:
            raise IntakeFull(
                f"unfinished bodies hold {intake.most_bytes} bytes, the maximum (RUL_MAX_READING_BYTES)"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._intake.held -= self._held
        self._held = 0
