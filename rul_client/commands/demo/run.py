"""Runs `rul demo`: units that age, fail and are replaced, and a screen with the service's predictions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from heapq import nsmallest
from itertools import count
from math import inf
from typing import Final

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from export.bundle import Manifest
from model.simulation import simulate
from rul_client.answers import Prediction
from rul_client.api import AsyncClient
from rul_client.commands.output import HEALTH_STYLES
from rul_client.readings import Window

MAX_IN_FLIGHT: Final = 8
REMOVED: Final = 0.2
"""Share of units that are removed before they fail."""
DECIMALS: Final = 4
SHOWN: Final = 8
PAST_CYCLES: Final = 5
"""Cycles between predictions of a unit's life before the demo begins."""


class Machine:
    """A simulated unit, its age in cycles, and how it ends.

    Attributes:
        age: Cycles whose readings are stored.
        end: Cycle of the outcome.
        kind: `failed`, or `removed` before that.
        latest: The service's last prediction.
    """

    def __init__(self, name: str, manifest: Manifest, rng: np.random.Generator, *, is_new: bool) -> None:
        self.name: Final = name
        self.model: Final = manifest.name
        self._context: Final = manifest.context
        self._columns: Final = manifest.schema_of_columns.names
        (life,) = simulate(manifest, manifest.schema_of_columns, units=1, seed=int(rng.integers(2**32)))
        self._readings: Final = life.readings.astype(np.float64).round(DECIMALS)
        is_removed = bool(rng.random() < REMOVED)
        self.kind: Final = "removed" if is_removed else "failed"
        self.end: Final = max(1, round(len(life) * rng.uniform(0.6, 0.95))) if is_removed else len(life)
        self.age = 0
        self.first: Final = 1 if is_new else int(rng.integers(1, self.end + 1))
        self.latest: Prediction | None = None

    def readings(self, until: int) -> tuple[list[int], dict[str, list[float]]]:
        """Return the cycles after `age`, up to this one, and their values by column."""
        columns = dict(zip(self._columns, self._readings[self.age : until].T.tolist(), strict=True))
        return list(range(self.age + 1, until + 1)), columns

    def past(self) -> list[Window]:
        """Return windows of the cycles before `first`, for predictions of the unit's past."""
        ends = range((self.first - 1) % PAST_CYCLES, self.first, PAST_CYCLES)
        return [
            Window(self.name, end, self._readings[max(0, end - self._context) : end], self._columns)
            for end in ends
            if end
        ]


class Demo:
    """A fleet of a service, and counts of its events."""

    def __init__(self, client: AsyncClient, manifests: Sequence[Manifest], *, units: int, seed: int) -> None:
        self._client: Final = client
        self._manifests: Final = manifests
        self._seed: Final = seed
        self._numbers: Final = count(1)
        self._free: Final = asyncio.Semaphore(MAX_IN_FLIGHT)
        self.counts: Final = Counter[str]()
        self.machines: Final = [self._machine(is_new=False) for _ in range(units)]

    def _machine(self, *, is_new: bool) -> Machine:
        number = next(self._numbers)
        manifest = self._manifests[number % len(self._manifests)]
        rng = np.random.default_rng([self._seed, number])
        return Machine(f"{self._seed:04}-{number:03}", manifest, rng, is_new=is_new)

    async def step(self) -> None:
        """Run one cycle of every unit, or its whole life so far if the service does not know it.

        The successor of a unit that ends runs its first cycle in the same step.
        """
        await asyncio.gather(*map(self._run, range(len(self.machines))))

    async def _run(self, place: int) -> None:
        while not await self._runs_on(machine := self.machines[place]):
            self.counts[machine.kind] += 1
            self.machines[place] = self._machine(is_new=True)

    async def _runs_on(self, machine: Machine) -> bool:
        """Send the next cycle of a unit, or its last one and the outcome; return whether it runs on."""
        until = max(machine.age + 1, machine.first)
        cycles, columns = machine.readings(until)
        async with self._free:
            if machine.age == 0 and (past := machine.past()):
                await self._client.predict(past, model=machine.model, explain="none", partial=True)
            known = await self._client.append(machine.name, columns, cycle=cycles, model=machine.model)
            machine.age, machine.latest = until, known.prediction
            self.counts["readings"] += len(cycles)
            if machine.age < machine.end:
                return True
            ended = await self._client.outcome(machine.name, machine.kind, machine.end, model=machine.model)
            self.counts["judged"] += sum(score.with_error for score in ended.scores)
            return False

    def line(self) -> str:
        """Summarise the events in one line."""
        counts = self.counts
        return (
            f"{len(self.machines)} units, {counts['readings']:,} readings, {counts['failed']} failed, "
            f"{counts['removed']} removed; {counts['judged']:,} predictions have a truth"
        )

    def screen(self, url: str) -> Group:
        """Draw the units with the fewest cycles left."""
        table = Table(box=None, header_style="bold", pad_edge=False)
        for heading in ("unit", "model", "cycle", "RUL", "interval", "health"):
            table.add_column(heading, justify="left" if heading in {"unit", "model", "health"} else "right")
        answered = [
            (each.latest.interval.lower, i, each.latest)
            for i, each in enumerate(self.machines)
            if each.latest
        ]
        for _, i, latest in nsmallest(SHOWN, answered):
            machine, health = self.machines[i], latest.health_state.label
            interval = f"{latest.interval.lower:.1f} to {latest.interval.upper:.1f}"
            cells = (machine.name, machine.model, str(machine.age), latest.cycles_left, interval)
            table.add_row(*cells, Text(health, HEALTH_STYLES.get(health, "")))
        return Group(Text(f"{url}  page; Ctrl+C ends", "bold"), Text(self.line()), table)


async def run(
    client: AsyncClient,
    *,
    units: int,
    speed: float,
    seconds: float | None,
    model: str | None,
    seed: int | None,
) -> None:
    """Run a fleet until the time is over, or until cancelled."""
    console = Console(highlight=False, markup=False)
    async with client:
        models = await client.models() if model is None else [await client.choose(model)]
        manifests = [await client.manifest(each.name) for each in models]
        chosen = int(np.random.default_rng().integers(1, 10_000)) if seed is None else seed
        demo = Demo(client, manifests, units=units, seed=chosen)
        with Live(console=console, get_renderable=lambda: demo.screen(client.url)):
            await _keep_time(demo, 1.0 / speed, inf if seconds is None else seconds)
        if not console.is_terminal:
            console.line()  # `Live` ends its last line on a terminal only


async def _keep_time(demo: Demo, step_seconds: float, seconds: float) -> None:
    """Step at a pace until the time is over; a late step moves those after it."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    end = due + seconds
    while due < end:
        await demo.step()
        due = max(due + step_seconds, loop.time())
        await asyncio.sleep(min(due, end) - loop.time())
