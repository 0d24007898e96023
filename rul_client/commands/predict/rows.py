"""From units to rows: cuts windows, keeps a few requests in flight, joins answers to cycles."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from export.bundle import Manifest
from model.domain import Trajectory
from rul_client.answers import Answerer, Explain, Prediction, Refused
from rul_client.readings import Window


class Grounds(NamedTuple):
    """The two sensors that weigh most, in signed cycles of RUL; `trust` is None if it was not asked for."""

    top_sensor: str | None
    top_sensor_cycles: float | None
    second_sensor: str | None
    second_sensor_cycles: float | None
    trust: str | None


class Stop(NamedTuple):
    """The stop with the lowest expected cost; `act_at_cycle` is None where running to failure costs least.

    `cost_ratio`: its cost per cycle over that of running to failure.
    """

    act_at_cycle: int | None
    cost_ratio: float


class Row(NamedTuple):
    """One line of the output; cycles are the unit's own numbers. None: no answer, or one cycle's entropy.

    `failure` has the probability at each horizon; `grounds` are columns of models that explain readings,
    `stop` those of rows with costs.
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
    failure: tuple[float, ...] = ()
    grounds: Grounds | None = None
    stop: Stop | None = None


COLUMNS: Final = Row._fields[:-3]


def columns_of(manifest: Manifest, *, decides: bool = False) -> tuple[str, ...]:
    """Name the columns of this model's rows; with costs each `decides`."""
    grounds = Grounds._fields if manifest.explains_readings else ()
    stop = Stop._fields if decides else ()
    return (*COLUMNS, *grounds, *stop, *(f"failure_within_{horizon}" for horizon in manifest.horizons))


def record_of(row: Row, columns: Sequence[str]) -> dict[str, Any]:
    """Return the values of a row by these columns, `columns_of` its model."""
    values = row._asdict()
    for part in (row.grounds, row.stop):
        values |= {} if part is None else part._asdict()
    return {name: values.get(name) for name in columns} | dict(
        zip(columns[-len(row.failure) :], row.failure, strict=False)  # none without an answer
    )


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

    def row(self, answer: Prediction | Refused) -> Row:
        if isinstance(answer, Refused):
            return Row(self.trajectory.unit, self.last_cycle)
        attention = answer.attention
        if attention is None:
            raise AssertionError("attention was asked for and is missing")
        weights = attention.evidence or attention.weights
        top = weights.index(max(weights))
        return Row(
            self.trajectory.unit, self.last_cycle, answer.rul, answer.rul_state, answer.interval.lower,
            answer.interval.upper, answer.health_state.label, attention.entropy_ratio,
            int(self.trajectory.cycles[self.start + top]),
            tuple(answer.failure_probability[name] for name in sorted(answer.failure_probability, key=float)),
            grounds_of(answer), stop_of(answer),
        )  # fmt: skip


def grounds_of(answer: Prediction) -> Grounds | None:
    """Choose the sensors that weigh most; None where the answer has no sensors."""
    sensors = answer.sensor_contributions
    if not sensors:
        return None
    most = heapq.nlargest(2, sensors.items(), key=lambda sensor: abs(sensor[1]))
    (first, first_cycles), (second, second_cycles) = (*most, (None, None))[:2]
    return Grounds(first, first_cycles, second, second_cycles, answer.trust)


def stop_of(answer: Prediction) -> Stop | None:
    """Return the stop that an answer advises; None where it is no ground for a decision."""
    made = answer.decision
    if made is None:
        return None
    return Stop(made.act_at_cycle, made.cost_per_cycle / made.run_to_failure_cost_per_cycle)


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
    waiting: deque[tuple[list[_Place], asyncio.Task[list[Prediction | Refused]]]] = deque()
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
                if isinstance(answer, Refused)
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
