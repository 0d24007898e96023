"""Whether a core is idle, from the batches that all workers run now."""

from __future__ import annotations

from typing import Final

import numpy as np

from model.domain import FloatArray
from service.core.ports import Slots


class Cores:
    """Says whether one more batch would have a core to itself.

    A worker's second thread is for one large request while the others have nothing to do. Where they
    have, it takes from them what it gains: two batches on a core cost more than one after the other,
    because each throws the other's numbers out of the caches.

    Attributes:
        running: float64 [1], the batches that this worker runs now; the batcher counts them on the loop.
    """

    def __init__(self, running: Slots | None, cores: int) -> None:
        """Count in the one place that the workers share; None: this worker is the only one."""
        self._cores: Final = cores
        self._running: Final = running
        self.running: Final[FloatArray] = np.zeros(1) if running is None else running.own
        self.running[0] = 0.0  # whatever ran in the worker whose place this one takes has ended

    @property
    def spare(self) -> bool:
        """Return whether a core is idle."""
        total = self.running if self._running is None else self._running.total()
        return float(total[0]) < self._cores
