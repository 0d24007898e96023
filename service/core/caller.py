"""One request on its way through the batcher, and who is told of the work on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from model.domain import FloatArray
from service.core.answers import Answers, WindowOutputs
from service.core.ports import Submission
from service.core.window import Window


class BatchObserver(Protocol):
    """What the batcher tells of its work; `service.metrics.metrics.ModelMetrics` counts it."""

    def queued(self, seconds: Sequence[float]) -> None:
        """The first windows of so many requests have left the queue, each after this long."""
        ...

    def answered(self, seconds: Sequence[float]) -> None:
        """The last windows of so many requests have come back, each so long after its first left."""
        ...

    def ran(self, windows: int, seconds: float) -> None:
        """The graph has run once, on an inference thread or the event loop."""
        ...

    def answers(self, answers: Answers, imputed_fraction: FloatArray) -> None:
        """What it answered to the windows that were asked for; where it ran."""
        ...

    def windows(self, readings: FloatArray, answers: Answers, units: Sequence[str | None]) -> None:
        """The same windows, [B, T, F], and whose they are."""
        ...

    def cancelled(self, windows: int) -> None:
        """So many windows have nobody left who waits for their answers."""
        ...


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
