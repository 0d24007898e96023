"""A share of events, evenly spaced: what is logged, compared by a shadow, or answered by a canary."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, pairwise, starmap
from operator import ne
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
