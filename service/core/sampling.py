"""A share of events, evenly spaced: what is logged, compared by a shadow, or answered by a canary."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, pairwise, starmap
from operator import ne
from typing import Final

ROUNDING: Final = 1e-9
"""Ten tenths are a little less than one."""


def evenly(share: float) -> Iterator[bool]:
    """Tell of one event after another whether it is in the share, 0..1, without end.

    >>> every_third = evenly(1 / 3)
    >>> [next(every_third) for _ in range(6)]
    [False, False, True, False, False, True]
    """
    so_far = map(int, count(share + ROUNDING, share))
    return starmap(ne, pairwise(chain((0,), so_far)))
