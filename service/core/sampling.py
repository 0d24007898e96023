"""Some of many events: an even share, for the log, a shadow or a canary; or at most so many a minute."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import chain, count, pairwise, starmap
from operator import ne
from time import monotonic
from typing import Final

ROUNDING: Final = 1e-9
"""For rounding: ten times 0.1 is a little less than 1."""


def evenly(share: float) -> Iterator[bool]:
    """Yield without end whether the next event is in the share, 0..1.

    >>> every_third = evenly(1 / 3)
    >>> [next(every_third) for _ in range(6)]
    [False, False, True, False, False, True]
    """
    so_far = map(int, count(share + ROUNDING, share))
    return starmap(ne, pairwise(chain((0,), so_far)))


class AtMost:
    """At most so many events of a kind each minute; the next one after them says how many were left out.

    >>> seconds = iter([0.0, 0.1, 0.2, 59.0, 60.0])
    >>> lines = AtMost(2, seconds.__next__)
    >>> [lines.left_out("refused") for _ in range(5)]
    [0, 0, None, None, 2]
    """

    def __init__(self, most: int, clock: Callable[[], float] = monotonic) -> None:
        self._most: Final = most
        self._clock: Final = clock
        self._counts: Final[dict[Hashable, tuple[int, int]]] = {}
        """By kind, the minute of its last event and how many there were in it."""

    def left_out(self, kind: Hashable) -> int | None:
        """Return how many events were left out before this one; None: this one is left out too."""
        now = int(self._clock() / 60)
        minute, before = self._counts.get(kind, (now, 0))
        so_far = before if minute == now else 0
        self._counts[kind] = (now, so_far + 1)
        if so_far >= self._most:
            return None
        return 0 if minute == now else max(0, before - self._most)
