"""From units to rows: which windows are asked about, and what of each answer goes into the table.

Who answers, this process or a server, is an `Answerer`; to this module they are the same. It must
not know files, transports or formats.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np

from export.bundle import Manifest
from model.domain import Trajectory
from service.core.queries import ModelName, WindowError
from service.core.window import WindowInput


class Answer(msgspec.Struct, frozen=True):
    """What the table needs of an answer; `top` is the place of the largest weight in the window."""

    rul: float
    rul_state: str
    lower: float
    upper: float
    health_state: str
    entropy_ratio: float | None
    top: int


class NoAnswer(msgspec.Struct, frozen=True):
    """Why a window has none."""

    detail: str


class Answerer(Protocol):
    """Who answers windows, here or elsewhere."""

    @property
    def manifest(self) -> Manifest:
        """What the model says of itself."""
        ...

    @property
    def name(self) -> ModelName:
        """Exactly which weights answer."""
        ...

    @property
    def at_once(self) -> int:
        """Most windows a request."""
        ...

    @property
    def in_flight(self) -> int:
        """Most requests that should wait for an answer at a time."""
        ...

    async def answer(self, windows: Sequence[WindowInput]) -> list[Answer | NoAnswer]:
        """One answer a window, in order."""
        ...


class Row(msgspec.Struct, frozen=True):
    """One line of the table. Cycles are the unit's own numbers; None where there is no answer.

    `entropy_ratio` is None for a window of one cycle, too: it leaves attention no choice.
    """

    unit: str
    last_cycle: int
    rul: float | None
    rul_state: str | None
    rul_lower: float | None
    rul_upper: float | None
    health_state: str | None
    entropy_ratio: float | None
    top_cycle: int | None


COLUMNS: Final = Row.__struct_fields__


class Unanswered(NamedTuple):
    """A window without an answer, and why."""

    unit: str
    last_cycle: int
    detail: str


class _Place(NamedTuple):
    """A window: the cycles of a unit from `start` up to, and not with, `stop`."""

    trajectory: Trajectory
    start: int
    stop: int

    def window(self) -> WindowInput:
        """The window as a client sends it; readings stay an array until a transport needs more."""
        readings: object = self.trajectory.readings[self.start : self.stop]
        last_cycle = float(self.trajectory.cycles[self.stop - 1])
        return WindowInput(self.trajectory.unit, last_cycle, None, readings)  # pyright: ignore[reportArgumentType]

    def row(self, answer: Answer | NoAnswer) -> Row:
        """The line of the table."""
        unit, last_cycle = self.trajectory.unit, int(self.trajectory.cycles[self.stop - 1])
        if isinstance(answer, NoAnswer):
            return Row(unit, last_cycle, None, None, None, None, None, None, None)
        return Row(
            unit,
            last_cycle,
            answer.rul,
            answer.rul_state,
            answer.lower,
            answer.upper,
            answer.health_state,
            answer.entropy_ratio,
            int(self.trajectory.cycles[self.start + answer.top]),
        )


def window_count(trajectories: Sequence[Trajectory], *, last_only: bool) -> int:
    """How many windows `rows` asks about."""
    return len(trajectories) if last_only else sum(map(len, trajectories))


async def rows(
    trajectories: Sequence[Trajectory], answerer: Answerer, *, last_only: bool, unanswered: list[Unanswered]
) -> AsyncIterator[list[Row]]:
    """Rows in the order of the units and their cycles, some at a time.

    Each window covers the last `context` cycles up to its own. Only the requests in flight are
    held, however many windows there are.

    Args:
        trajectories: Whom to ask about.
        answerer: Whom to ask.
        last_only: One row a unit, for its last cycle, in place of one a cycle.
        unanswered: What has no answer is added here; its row is there, and empty.
    """
    places = _places(trajectories, answerer.manifest.context, last_only=last_only)
    waiting: deque[tuple[list[_Place], asyncio.Task[list[Answer | NoAnswer]]]] = deque()
    try:
        while True:
            while len(waiting) < answerer.in_flight and (asked := list(islice(places, answerer.at_once))):
                task = asyncio.ensure_future(answerer.answer([place.window() for place in asked]))
                waiting.append((asked, task))
            if not waiting:
                return
            asked, task = waiting.popleft()
            answers = await task
            made = [place.row(answer) for place, answer in zip(asked, answers, strict=True)]
            unanswered += [
                Unanswered(row.unit, row.last_cycle, answer.detail)
                for row, answer in zip(made, answers, strict=True)
                if isinstance(answer, NoAnswer)
            ]
            yield made
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)


def _places(trajectories: Sequence[Trajectory], context: int, *, last_only: bool) -> Iterator[_Place]:
    for trajectory in trajectories:
        for stop in range(len(trajectory) if last_only else 1, len(trajectory) + 1):
            yield _Place(trajectory, max(0, stop - context), stop)


def top_of(weights: Sequence[float]) -> int:
    """The place of the largest weight, the first where several are.

    >>> top_of([0.2, 0.6, 0.2])
    1
    """
    return int(np.argmax(weights)) if isinstance(weights, np.ndarray) else weights.index(max(weights))


def reason(error: WindowError) -> str:
    """Why a window was refused, without the pointer that says where it stood in the request."""
    return error.errors[0].detail if error.errors else error.detail
