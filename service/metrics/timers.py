"""What measures a part of a request: on success, on failure, and where a caller leaves.

A plain class and not a generator under `@contextmanager`, which costs more than much of what it would
measure. This module must not know how anything is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from service.labels import Stage
from service.tracing.hooks import StageCounter


class StageTimer:
    """Measures from its beginning to its end, also where that is an error.

    One for all requests: inside it nothing is waited for.
    """

    __slots__ = ("_stage", "_stages", "_start")

    def __init__(self, stages: Mapping[Stage, StageCounter], stage: Stage) -> None:
        self._stages = stages  # where tracing may yet put other counters
        self._stage: Stage = stage
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *_error: object) -> None:
        self._stages[self._stage].observe(perf_counter() - self._start)
