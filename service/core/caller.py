"""One request on its way through the batcher, and who is told of the work on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter

from service.core.answers import WindowOutputs
from service.core.ports import Submission
from service.core.window import Window


class Caller:
    """Whoever waits for the answers to some windows.

    Attributes:
        windows: What was asked.
        order: In which order batches take them.
        next: How many they have taken.
        outputs: What has come back, in the order of the windows; `missing` is how much has not.
        arrived, taken_at, done_at: Seconds of `perf_counter`: when it came, when a batch first took a
            window, when the last answer was there; 0 where it has not come to that.
        trace: Who is told how it went, where the request is recorded.
    """

    __slots__ = (
        "arrived", "done_at", "future", "missing", "next", "order", "outputs", "taken_at", "trace", "windows",
    )  # fmt: skip

    def __init__(
        self, windows: Sequence[Window], order: Sequence[int], future: asyncio.Future[list[WindowOutputs]]
    ) -> None:
        self.windows = windows
        self.order = order
        self.future = future
        self.outputs: list[WindowOutputs | None] = [None] * len(windows)
        self.missing = len(windows)
        self.next = 0
        self.arrived = perf_counter()
        self.taken_at = 0.0
        self.done_at = 0.0
        self.trace: Submission | None = None

    @property
    def waiting(self) -> int:
        """How many windows no batch has taken yet."""
        return len(self.windows) - self.next
