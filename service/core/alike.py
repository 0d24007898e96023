"""Windows of one request that are alike, checked together in a few array operations.

Most requests of many windows hold windows of one size with every reading there. What such a window
is asked is asked of all of them at once; where anything is unusual all are left to `Window.checked`,
which can say what is wrong and where. This module must not know problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from model.domain import FloatArray
from service.core.packed import packed_together
from service.core.rules import WindowRules
from service.core.window import CYCLE_UNKNOWN, LARGEST_CYCLE, Window, WindowInput


def checked_alike(given: Sequence[WindowInput], rules: WindowRules) -> list[Window] | None:
    """What `Window.checked` would make of each of these windows; None: they are to be looked at one by one.

    A decoder must have seen to it that every value is a number or None.
    """
    readings = packed_together(
        [window.readings for window in given],
        [window.columns for window in given],
        names=rules.names,
        known=rules.known,
        most_cycles=min(rules.context, rules.max_cycles),
    )
    last_cycle = _last_cycle(given)
    if readings is None or not _right(last_cycle, cycles=readings.shape[1]):
        return None
    rows = zip(given, readings, last_cycle.tolist(), strict=True)
    return [_window(window.unit, read, last) for window, read, last in rows]


def _last_cycle(given: Sequence[WindowInput]) -> FloatArray:
    """Float64 [B], NaN where it is not known."""
    numbers = [math.nan if window.last_cycle is None else window.last_cycle for window in given]
    return np.array(numbers, dtype=np.float64)


def _right(last_cycle: FloatArray, *, cycles: int) -> bool:
    whole = (last_cycle <= LARGEST_CYCLE) & (last_cycle == np.trunc(last_cycle)) & (last_cycle >= cycles - 1)
    return bool((whole | np.isnan(last_cycle)).all())


def _window(unit: str | None, read: FloatArray, last_cycle: float) -> Window:
    if math.isnan(last_cycle):
        return Window(unit, read, last_cycle, 1, 0.0, (CYCLE_UNKNOWN,))
    return Window(unit, read, last_cycle, int(last_cycle) - len(read) + 1, 0.0, ())
