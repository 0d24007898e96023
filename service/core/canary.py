"""A canary: a candidate that answers a share of the requests, and loses them where it answers badly.

A unit that is asked for alone stays with one model: its name decides, in every worker and whatever the order
of requests. After each answer of the candidate the model that serves is asked too, and their differences are
added up over all workers. Beyond a bound the candidate answers nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Final, Protocol
from zlib import crc32

import numpy as np

from model.domain import NOVELTY_LIMIT, FloatArray
from service.core.changes import Bounds
from service.core.ports import Batcher, Slots
from service.core.predictor import LoadedModel
from service.core.sampling import evenly
from service.core.shadow import NOVELTY, RUL, Shadow

SUMS: Final = 4
"""Failed requests, compared windows, their absolute differences, windows that it alone finds novel."""


class CanaryObserver(Protocol):
    """Counts requests of a canary, on the event loop; `service.metrics.models.ModelMetrics` is one."""

    def compared(self, candidate: FloatArray, served: FloatArray, /) -> None:
        """Count differences of answers, [W, 4]: RUL, lower, upper, novelty."""

    def canary_asked(self) -> None:
        """Count a request that the candidate takes."""

    def canary_failed(self) -> None:
        """Count a request that the candidate did not answer."""


@dataclass(eq=False)
class Canary:
    """A candidate beside `serving`.

    Attributes:
        model: The candidate; the serving model is asked after each of its answers.
        sums: Shared by the workers.
        give_back: Ends it in all of them.
    """

    model: LoadedModel
    serving: InitVar[Batcher]
    _: KW_ONLY
    share: float
    bounds: Bounds
    sums: Slots
    observer: CanaryObserver
    give_back: Callable[[str], None]

    def __post_init__(self, serving: Batcher) -> None:
        candidate = self.model.batcher
        beside = Shadow(candidate, serving, share=1.0, compared=self.compared, failed=lambda: None)
        self.model = replace(self.model, batcher=beside)
        self._before = self.sums.total()
        self._is_over = False
        self._in_turn = evenly(self.share)

    def takes(self, unit: str | None) -> bool:
        """Whether the candidate answers a request: by its first unit, or in turn where that has no name."""
        if self._is_over:
            return False
        if unit is None:
            is_taken = next(self._in_turn)
        else:
            is_taken = crc32(unit.encode(errors="replace")) < self.share * 2**32
        if is_taken:
            self.observer.canary_asked()
        return is_taken

    def failed(self) -> None:
        """Count a request that the candidate did not answer."""
        self.observer.canary_failed()
        self._add(1, 0, 0, 0)

    def compared(self, other: FloatArray, answered: FloatArray) -> None:
        """Add what the serving model says of windows that the candidate has answered, if it says anything."""
        self.observer.compared(answered, other)
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


def _beyond(sums: FloatArray, bounds: Bounds) -> str:
    """Say which bound is passed; empty: none."""
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
