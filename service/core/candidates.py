"""Candidates beside a serving model: a shadow's answers are only compared, a canary's are returned.

A shadow runs after the serving model, and no request waits for it. A canary answers first, and the serving
model runs after each of its answers; their differences are added up over all workers, and beyond a bound the
canary stops answering. Single-unit requests are routed by the unit's name, so a unit always gets the same
model, in every worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Final
from zlib import crc32

import msgspec
import numpy as np

from export.bundle import Manifest
from model.domain import NOVELTY_LIMIT, FloatArray
from service.core.answers import Piece
from service.core.changes import Bounds
from service.core.ports import Batcher, BatchReport, Slots
from service.core.predictor import LoadedModel
from service.core.sampling import evenly
from service.core.window import Windows
from service.errors import ServiceError

RUL, LOWER, UPPER, NOVELTY = range(4)
MOST_WAITING: Final = 4
"""Maximum requests that wait for a comparison; beyond it requests are not compared."""
SUMS: Final = 4
"""Failed requests, compared windows, their absolute differences, windows novel to the canary only."""


class Uncounted:
    """Ignores reports of a candidate's batches: their predictions are not the service's."""

    def ran(self, _report: BatchReport, /) -> None:
        """Forget the report."""


@dataclass(eq=False)
class Shadow:
    """A batcher that answers with `serving`, then runs `candidate` on a share of the requests.

    `compared` gets the candidate's and the served answers, [W, 4] each: RUL, lower, upper, novelty. `failed`
    is called after each request that the candidate did not answer.
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
        """Answer windows with the serving model."""
        pieces = await self.serving.submit(windows)
        if not windows.is_probe and next(self._is_compared) and len(self._waiting) < MOST_WAITING:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._compare(windows, pieces), context=Context())  # no trace, no id
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        return pieces

    async def _compare(self, windows: Windows, pieces: Sequence[Piece]) -> None:
        try:
            probe = msgspec.structs.replace(windows, is_probe=True)  # not a prediction of the service
            shadow = _rows(await self.candidate.submit(probe), len(windows.lengths))
        except ServiceError:
            self.failed()
            return
        self.compared(shadow, _rows(pieces, len(windows.lengths)))


@dataclass(eq=False)
class Canary:
    """A candidate beside `serving`.

    Attributes:
        model: The candidate; the serving model runs after each of its answers.
        sums: Shared by the workers.
        count_asked, count_failed: Called for each request that it gets, and for each that it fails.
        count_compared: Gets its answers and those of the serving model, [W, 4] each.
        give_back: Ends the canary in all workers.
    """

    model: LoadedModel
    serving: InitVar[Batcher]
    _: KW_ONLY
    share: float
    bounds: Bounds
    sums: Slots
    count_asked: Callable[[], None]
    count_failed: Callable[[], None]
    count_compared: Callable[[FloatArray, FloatArray], None]
    give_back: Callable[[str], None]

    def __post_init__(self, serving: Batcher) -> None:
        candidate = self.model.batcher
        beside = Shadow(candidate, serving, share=1.0, compared=self.compared, failed=lambda: None)
        self.model = replace(self.model, batcher=beside)
        self._before = self.sums.total()
        self._is_over = False
        self._in_turn = evenly(self.share)

    def takes(self, unit: str | None) -> bool:
        """Whether the candidate answers a request: by its first unit, or in turn if that has no name."""
        if self._is_over:
            return False
        if unit is None:
            is_taken = next(self._in_turn)
        else:
            is_taken = crc32(unit.encode(errors="replace")) < self.share * 2**32
        if is_taken:
            self.count_asked()
        return is_taken

    def failed(self) -> None:
        """Count a request that the candidate did not answer."""
        self.count_failed()
        self._add(1, 0, 0, 0)

    def compared(self, other: FloatArray, answered: FloatArray) -> None:
        """Compare the candidate's answers with those of the serving model, if it answers."""
        self.count_compared(answered, other)
        difference = np.abs(answered[:, RUL] - other[:, RUL]).sum()
        is_novel = answered[:, NOVELTY] > NOVELTY_LIMIT
        is_novel &= other[:, NOVELTY] <= NOVELTY_LIMIT
        self._add(0, len(answered), difference, int(np.count_nonzero(is_novel)))

    def _add(self, *sums: float) -> None:
        own = self.sums.own
        own += sums
        reason = _beyond(self.sums.total() - self._before, self.bounds)
        if reason and not self._is_over:
            self._is_over = True
            self.give_back(reason)


def without_candidate(model: LoadedModel) -> LoadedModel:
    """Return the model without its candidate."""
    batcher = model.batcher
    plain = batcher.serving if isinstance(batcher, Shadow) else batcher
    return replace(model, batcher=plain, candidate=None, canary=None)


def _rows(pieces: Sequence[Piece], windows: int) -> FloatArray:
    """RUL, lower, upper and novelty of each window of a request, [W, 4]."""
    rows = np.empty((windows, 4))
    for answers, first, places in pieces:
        for row, i in enumerate(places, first):
            rows[i] = (answers.rul[row], *answers.interval[row], answers.outputs.novelty[row])
    return rows


def _beyond(sums: FloatArray, bounds: Bounds) -> str:
    """Name the bound that is passed; empty: none."""
    failed, windows, difference, novel = sums.tolist()
    if failed > bounds.failed:
        return f"{failed:g} requests failed, bound {bounds.failed}"
    if windows < bounds.windows:
        return ""
    if difference > bounds.difference * windows:
        return f"the RUL differs by {difference / windows:.3g} cycles on average, bound {bounds.difference:g}"
    if novel > bounds.novel * windows:
        return f"{novel / windows:.3g} of the windows are novel to it alone, bound {bounds.novel:g}"
    return ""


def difference(candidate: Manifest, serving: Manifest, *, canary: bool) -> str:
    """Name a property of the serving model that the candidate must have and lacks; empty: none."""
    read, served = ([column.name for column in manifest.columns] for manifest in (candidate, serving))
    lacks = [name for name in served if name not in read]
    adds = [name for name in read if name not in served]
    if lacks or adds:
        said = [f"{verb} {', '.join(names)}" for verb, names in (("lacks", lacks), ("adds", adds)) if names]
        return f"the same columns, but {' and '.join(said)}"
    wanted = {
        "the same order of columns": read != served,
        f"context {serving.context}, got {candidate.context}": candidate.context != serving.context,
        f"horizons {serving.horizons}, got {candidate.horizons}": candidate.horizons != serving.horizons
        and canary,
        "the same outputs": canary
        and (candidate.explains_readings, candidate.heads) != (serving.explains_readings, serving.heads),
    }
    return next((need for need, differs in wanted.items() if differs), "")
