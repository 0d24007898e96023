"""Ask a candidate beside the model that serves, and measure how far it is off; nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Final

import msgspec
import numpy as np

from model.domain import FloatArray
from service.core.answers import Piece
from service.core.ports import Batcher, BatchReport
from service.core.predictor import LoadedModel
from service.core.sampling import evenly
from service.core.window import Windows
from service.errors import ServiceError

RUL, LOWER, UPPER, NOVELTY = range(4)
MOST_WAITING: Final = 4
"""Requests that wait for the candidate; while more would, it is not asked."""


class Uncounted:
    """Takes the reports of a candidate's batches: they are no predictions of the service."""

    def ran(self, _report: BatchReport, /) -> None:
        """Forget the report."""

    def cancelled(self, windows: int) -> None:
        """Forget the windows."""


@dataclass(eq=False)
class Shadow:
    """A batcher that answers as `serving` does, and asks `candidate` after a share of the requests.

    `compared` takes the candidate's and the served answers, [W, 4] each: RUL, lower, upper, novelty. `failed`
    is called after a request that the candidate did not answer.
    """

    serving: Batcher
    candidate: Batcher
    _: KW_ONLY
    share: InitVar[float]
    compared: Callable[[FloatArray, FloatArray], None]
    failed: Callable[[], None]

    def __post_init__(self, share: float) -> None:
        self._is_compared = evenly(share)
        self._waiting: set[asyncio.Task[None]] = set()

    async def submit(self, windows: Windows) -> list[Piece]:
        """Answer windows by the model that serves."""
        pieces = await self.serving.submit(windows)
        if not windows.is_probe and next(self._is_compared) and len(self._waiting) < MOST_WAITING:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._compare(windows, pieces), context=Context())  # no trace, no id
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        return pieces

    async def _compare(self, windows: Windows, pieces: Sequence[Piece]) -> None:
        try:
            probe = msgspec.structs.replace(windows, is_probe=True)  # no prediction of the service
            shadow = _rows(await self.candidate.submit(probe), len(windows.lengths))
        except ServiceError:
            self.failed()
            return
        self.compared(shadow, _rows(pieces, len(windows.lengths)))


def _rows(pieces: Sequence[Piece], windows: int) -> FloatArray:
    """RUL, lower, upper and novelty of each window of a request, [W, 4]."""
    rows = np.empty((windows, 4))
    for answers, first, places in pieces:
        for row, i in enumerate(places, first):
            rows[i] = (answers.rul[row], *answers.interval[row], answers.outputs.novelty[row])
    return rows


def without_candidate(model: LoadedModel) -> LoadedModel:
    """Return the model as it was before a candidate stood beside it."""
    batcher = model.batcher
    plain = batcher.serving if isinstance(batcher, Shadow) else batcher
    return replace(model, batcher=plain, candidate=None, canary=None)
