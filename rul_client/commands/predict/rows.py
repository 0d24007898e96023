"""From windows to rows: keeps a few requests in flight, joins answers to cycles."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from export.bundle import Manifest
from rul_client.answers import Answerer, Decision, Explain, Prediction, Refused
from rul_client.readings import Window
from rul_client.unit_windows import UnitWindows

Row = dict[str, Any]
"""One line of the output, by `columns_of` its model; cycles are the unit's own numbers.

None: no answer, or the entropy of a single cycle. The two leading sensors have signed cycles of RUL; `trust`
is None if it was not requested. `act_at_cycle` has the lowest expected cost; None: running to failure costs
least. `cost_ratio` is its cost per cycle over that of running to failure.
"""
COLUMNS: Final = (
    "unit", "last_cycle", "rul", "rul_state", "rul_lower", "rul_upper", "health_state", "entropy_ratio",
    "top_cycle",
)  # fmt: skip
GROUNDS: Final = ("top_sensor", "top_sensor_cycles", "second_sensor", "second_sensor_cycles", "trust")
"""Of models that explain readings."""
STOP: Final = ("act_at_cycle", "cost_ratio")
"""Of rows with costs."""


def columns_of(manifest: Manifest, *, decides: bool = False) -> tuple[str, ...]:
    """Name the columns of this model's rows; `decides`: they have costs."""
    grounds = GROUNDS if manifest.explains_readings else ()
    failure = (f"failure_within_{horizon}" for horizon in manifest.horizons)
    return (*COLUMNS, *grounds, *(STOP if decides else ()), *failure)


def top_sensors(contributions: Mapping[str, float]) -> Row:
    """Choose the two sensors with the largest contributions."""
    most = heapq.nlargest(2, contributions.items(), key=lambda sensor: abs(sensor[1]))
    return dict(zip(GROUNDS, chain.from_iterable(most), strict=False))


def _stop(made: Decision | None) -> Row:
    if made is None:  # the answer allows no decision
        return {}
    ratio = made.cost_per_cycle / made.run_to_failure_cost_per_cycle
    return {"act_at_cycle": made.act_at_cycle, "cost_ratio": ratio}


async def rows(
    windows: UnitWindows, answerer: Answerer, *, last_only: bool, unanswered: list[str]
) -> AsyncIterator[list[Row]]:
    """Yield rows in the order of units and cycles, some at a time; memory holds only the requests in flight.

    The row of a window without an answer has only its unit and cycle, and the reason is appended to
    `unanswered`. Trust costs one window per cycle, so rows have it only with `last_only`.
    """
    explain: Explain = "attention"
    if answerer.manifest.explains_readings:
        explain = "full" if last_only else "sensors"
    columns = columns_of(answerer.manifest, decides=answerer.costs is not None)
    starts = iter(range(0, len(windows), answerer.windows_per_request))
    waiting: deque[tuple[list[Window], asyncio.Task[list[Prediction | Refused]]]] = deque()
    try:
        while True:
            for start in islice(starts, answerer.max_in_flight - len(waiting)):
                asked = windows.between(start, start + answerer.windows_per_request)
                waiting.append((asked, asyncio.ensure_future(answerer.answer(asked, explain))))
            if not waiting:
                return
            asked, task = waiting.popleft()
            pairs = list(zip(asked, await task, strict=True))
            unanswered += [
                f"unit {window.unit}, cycle {window.last_cycle:.0f}: {answer.detail}"
                for window, answer in pairs
                if isinstance(answer, Refused)
            ]
            yield [_row(window, answer, columns) for window, answer in pairs]
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)


def _row(window: Window, answer: Prediction | Refused, columns: Sequence[str]) -> Row:
    last_cycle = int(window.last_cycle or 0)
    found: Row = {}
    if isinstance(answer, Prediction):
        attention = answer.attention
        if attention is None:
            raise AssertionError("attention was asked for and is missing")
        weights = attention.evidence or attention.weights
        found = answer.row() | top_sensors(answer.sensor_contributions) | _stop(answer.decision)
        found["entropy_ratio"] = attention.entropy_ratio
        found["top_cycle"] = last_cycle - len(weights) + 1 + weights.index(max(weights))
    found |= {"unit": window.unit, "last_cycle": last_cycle}
    return {name: found.get(name) for name in columns}
