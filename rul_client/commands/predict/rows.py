"""From units to rows: cuts windows, keeps a few requests in flight, joins answers to cycles."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any, Final, NamedTuple

from export.bundle import Manifest
from model.domain import Trajectory
from rul_client.answers import Answer, Answerer, Explain, Grounds, NoAnswer, Window


class Row(NamedTuple):
    """One line of the output; cycles are the unit's own numbers. None: no answer, or one cycle's entropy.

    `grounds` are further columns, of models that explain readings.
    """

    unit: str
    last_cycle: int
    rul: float | None = None
    rul_state: str | None = None
    rul_lower: float | None = None
    rul_upper: float | None = None
    health_state: str | None = None
    entropy_ratio: float | None = None
    top_cycle: int | None = None
    grounds: Grounds | None = None


COLUMNS: Final = Row._fields[:-1]


def columns_of(manifest: Manifest) -> tuple[str, ...]:
    """Name the columns of this model's rows."""
    if not manifest.explains_readings:
        return COLUMNS
    failure = (f"failure_within_{horizon}" for horizon in manifest.horizons)
    return (*COLUMNS, *Grounds._fields[:-1], *failure)


def record_of(row: Row, columns: Sequence[str]) -> dict[str, Any]:
    """Return the values of a row by these columns, `columns_of` its model."""
    grounds = () if row.grounds is None else (*row.grounds[:-1], *row.grounds.failure)
    return dict(zip_longest(columns, (*row[:-1], *grounds)))


class _Place(NamedTuple):
    """A window: cycles `start` to `stop` - 1 of a unit."""

    trajectory: Trajectory
    start: int
    stop: int

    @property
    def last_cycle(self) -> int:
        return int(self.trajectory.cycles[self.stop - 1])

    def window(self) -> Window:
        readings = self.trajectory.readings[self.start : self.stop]
        return Window(self.trajectory.unit, float(self.last_cycle), readings)

    def row(self, answer: Answer | NoAnswer) -> Row:
        if isinstance(answer, NoAnswer):
            return Row(self.trajectory.unit, self.last_cycle)
        top_cycle = int(self.trajectory.cycles[self.start + answer.top])
        return Row(self.trajectory.unit, self.last_cycle, *answer[:-2], top_cycle, answer.grounds)


def window_count(trajectories: Sequence[Trajectory], *, last_only: bool) -> int:
    """Count the windows that `rows` asks about."""
    return len(trajectories) if last_only else sum(map(len, trajectories))


async def rows(
    trajectories: Sequence[Trajectory], answerer: Answerer, *, last_only: bool, unanswered: list[str]
) -> AsyncIterator[list[Row]]:
    """Yield rows in the order of units and cycles, some at a time; memory holds only the requests in flight.

    Each window covers the last `context` cycles up to its own. The row of a window without an answer is
    empty, and the reason is appended to `unanswered`. Trust costs a window for each cycle, so only one row a
    unit has it.
    """
    explain: Explain = "attention"
    if answerer.manifest.explains_readings:
        explain = "full" if last_only else "sensors"
    places = _places(trajectories, answerer.manifest.context, last_only=last_only)
    waiting: deque[tuple[list[_Place], asyncio.Task[list[Answer | NoAnswer]]]] = deque()
    try:
        while True:
            while len(waiting) < answerer.max_in_flight:
                if not (asked := list(islice(places, answerer.windows_per_request))):
                    break
                task = asyncio.ensure_future(answerer.answer([place.window() for place in asked], explain))
                waiting.append((asked, task))
            if not waiting:
                return
            asked, task = waiting.popleft()
            pairs = list(zip(asked, await task, strict=True))
            unanswered += [
                f"unit {place.trajectory.unit}, cycle {place.last_cycle}: {answer.detail}"
                for place, answer in pairs
                if isinstance(answer, NoAnswer)
            ]
            yield [place.row(answer) for place, answer in pairs]
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)


def _places(trajectories: Sequence[Trajectory], context: int, *, last_only: bool) -> Iterator[_Place]:
    for trajectory in trajectories:
        for stop in range(len(trajectory) if last_only else 1, len(trajectory) + 1):
            yield _Place(trajectory, max(0, stop - context), stop)
