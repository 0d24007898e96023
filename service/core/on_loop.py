"""Which batches run on the event loop itself, and what they wait for: no thread, and no timer.

To wake a thread and be woken by it takes longer than the network with one or two windows. And where a
worker has one core, a thread has no other core to run on: it takes turns with the loop, in caches that
the other has filled, and leaves with the windows that happened to be there. This module must not know
what a window is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep
from typing import Final

FEW_WINDOWS: Final = 2
"""What may run on the loop of a worker with several cores, where the network is quick."""
IN_VAIN: Final = 3
"""How often in a row others get the core without a window coming of it, before a batch leaves; once where
it is one window and the last batch was, too: a caller alone has nobody to wait for."""
LOOP_SECONDS: Final = 0.002
"""What takes less may run on the loop: callers who come meanwhile wait no longer than that."""
ONE_CORE_LOOP_SECONDS: Final = 0.01
"""The same where a worker has one core, for which a thread would have to fight with the loop."""
STRANGER_SECONDS: Final = 0.001
"""Who takes the core for longer and brings nothing works for somebody else."""
DISTRUSTED_BATCHES: Final = 64
"""So many batches leave at once after that: a stranger would take the core for its whole turn each time."""
_GIVE_WAY: Final[Callable[[], None]] = getattr(os, "sched_yield", partial(sleep, 0))  # not on every platform


class OnLoop:
    """The batches that run on one event loop.

    Where whole batches do, the loop gives way before one leaves: whoever else wants the core gets it, and
    the windows they bring come along. Under load that is the front end, with requests it has already read:
    it would do this work in any case, and a window costs least in a large batch.

    Args:
        most_windows: A batch of more never runs here.
        most_seconds: Nor one that should take longer: who comes meanwhile waits as long.
        meet_windows: Batches of fewer wait for more to come; 0: none does.
        give_way: Lets others have the core.
        clock: Seconds.
    """

    def __init__(
        self,
        *,
        most_windows: int = FEW_WINDOWS,
        most_seconds: float = 0.0,
        meet_windows: int = 0,
        give_way: Callable[[], None] = _GIVE_WAY,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._most_windows: Final = most_windows
        self._most_seconds: Final = most_seconds
        self._meet_windows: Final = meet_windows
        self._give_way: Final = give_way
        self._clock: Final = clock
        self._window_seconds = math.inf
        self._seen = 0
        self._in_vain = 0
        self._began = 0.0
        self._took = 0.0
        self._left = 0
        self._distrust = 0

    @classmethod
    def of_worker(cls, *, cores: int, on_cpu: bool, max_batch_windows: int) -> OnLoop:
        """What runs on the loop of a worker with so many cores, whose network runs on them or elsewhere."""
        if cores > 1 or not on_cpu:  # while others compute, the loop can read
            return cls(most_seconds=LOOP_SECONDS)
        full = max_batch_windows
        return cls(most_windows=full, most_seconds=ONE_CORE_LOOP_SECONDS, meet_windows=full)

    @property
    def takes_whole_batches(self) -> bool:
        """Whether full batches run here too."""
        return self._meet_windows > 0

    def ran(self, windows: int, seconds: float) -> None:
        """Learn how quick the network is, from a batch that ran anywhere."""
        if windows <= self._most_windows:
            known, new = self._window_seconds, seconds / windows
            self._window_seconds = new if math.isinf(known) else known + (new - known) / 8

    def fits(self, windows: int) -> bool:
        """Whether so many windows may run here; nothing does until it is known how quick the network is."""
        if not windows:
            self._seen = 0  # who waited has gone
        return 0 < windows <= self._most_windows and windows * self._window_seconds < self._most_seconds

    def waits(self, windows: int) -> bool:
        """Whether so many windows wait for more; if so, others have just had the core.

        To be asked again when the loop has gone round, until it says no: when the batch is full, when nothing
        came of giving way several times in a row, when it has waited as long as a full batch takes, and while
        a stranger shares the core.
        """
        if windows < self._meet_windows and self._is_worth_waiting(windows):
            self._seen = windows
            before = self._clock()
            self._give_way()
            self._took = self._clock() - before
            return True
        self._seen, self._left = 0, windows
        self._distrust = max(0, self._distrust - 1)
        return False

    def _is_worth_waiting(self, windows: int) -> bool:
        if not self._seen:
            self._began, self._in_vain = self._clock(), 0
        elif windows != self._seen:
            self._in_vain = 0
        else:
            self._in_vain += 1
            if self._took > STRANGER_SECONDS:
                self._distrust = DISTRUSTED_BATCHES
        most = IN_VAIN if max(windows, self._left) > 1 else 1
        waited = self._clock() - self._began
        return (
            self._in_vain < most
            and not self._distrust
            and waited <= self._window_seconds * self._meet_windows
        )
