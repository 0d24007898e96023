"""Measurements of `capacity`, their simulation beside them, and plans for fleets, as tables of Markdown."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import typer
from msgspec.structs import replace

from tests.benchmarks.fleet_simulation import Fleet, Outcome, Trouble, failure, rollout, simulate
from tests.benchmarks.loop_simulation import Client, closed_loop, open_loop
from tests.benchmarks.service_times import Batch, ServiceTimes
from tests.benchmarks.tables import table

MOST_KEPT: Final = 60
"""Consecutive batches of each size that a round keeps for plans."""
SLICE: Final = 8
"""Maximum simulated replicas; larger fleets are scaled down to this number, with their units."""
SECONDS: Final = 2
"""Simulated seconds of a fleet. A queue settles within milliseconds."""
PERCENTS: Final = (20, 40, 60, 80, 90)
FLEETS: Final = (10_000, 100_000, 1_000_000)
HOURS_A_MONTH: Final = 730
SEED: Final = 1
STARTS: Final = 3
"""Simulations of each load: one depends on the moments at which pauses meet requests."""
LAST_SEED: Final = 1000
"""Above the seeds of all rounds."""


class Load(msgspec.Struct, frozen=True):
    """A load: a number of callers in a closed loop, or a rate of random requests per second."""

    callers: int = 0
    per_second: float = 0.0


class Loaded(msgspec.Struct, frozen=True):
    """Figures of a load: answers per second, and latency in seconds."""

    load: Load
    per_second: float
    p50: float
    p99: float

    @classmethod
    def of(cls, load: Load, latencies: Sequence[float], seconds: float) -> Loaded:
        """Compute the figures from the latencies of a load of this duration."""
        p50, p99 = np.quantile(latencies, (0.5, 0.99))
        return cls(load, len(latencies) / seconds, float(p50), float(p99))


class Round(msgspec.Struct, frozen=True):
    """A round of the measurement.

    Attributes:
        seed: Seed of the arrival times of the open loop, also in the simulation.
        seconds: Time of each load.
        micros: By windows, microseconds to the first and last answer of each batch, in order.
        cpu_seconds: By windows of a batch, the worker's CPU time per window.
        read_seconds: Time until the next request is decoded too, of those that a worker finds at once.
        arrival_seconds: Extra time of a request that arrives during a batch.
        backlog: By requests that are held, how many times longer a full batch takes.
        client: Time of the measuring program.
        loads: Figures of the loads.
        simulated: Figures of the simulated loads.
        others: Share of all cores that other programs used.
    """

    seed: int
    seconds: float
    micros: dict[int, list[tuple[int, int]]]
    cpu_seconds: dict[int, float]
    read_seconds: float
    arrival_seconds: float
    backlog: dict[int, float]
    client: Client
    loads: list[Loaded]
    simulated: list[Loaded]
    others: float


class Measurement(msgspec.Struct, frozen=True):
    """One worker on one core.

    Attributes:
        door: Form of the requests.
        request_bytes: Length of a request.
        failed: Requests with another status than 200.
        memory_mib: The worker's RSS after all loads.
        graph_seconds: By windows of a batch, the time of the bare graph.
    """

    bundle: str
    door: str
    request_bytes: int
    failed: int
    memory_mib: float
    graph_seconds: dict[int, float]
    rounds: list[Round]

    def times(self, rounds: Iterable[Round]) -> ServiceTimes:
        """Join the batches of rounds.

        CPU time of a batch beyond its last answer is work after the batch. Reading, arrivals and backlog are
        medians of all rounds, because one round measures them coarsely.
        """
        kept = list(rounds)
        batches = {
            size: [Batch(first / 1e6, last / 1e6) for each in kept for first, last in each.micros[size]]
            for size in kept[0].micros
        }
        cpu = {size: size * statistics.mean(each.cpu_seconds[size] for each in kept) for size in batches}
        return ServiceTimes(
            batches,
            read_seconds=statistics.median(each.read_seconds for each in self.rounds),
            arrival_seconds=statistics.median(each.arrival_seconds for each in self.rounds),
            after={
                size: max(0.0, cpu[size] - statistics.mean(batch.last for batch in found))
                for size, found in batches.items()
            },
            backlog={
                held: statistics.median(each.backlog[held] for each in self.rounds)
                for held in self.rounds[0].backlog
            },
        )


def measurements(file: Path) -> list[Measurement]:
    """Read the measurements of a file.

    Raises:
        typer.BadParameter: the file cannot be read, or has other content.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Measurement])
    except (OSError, msgspec.DecodeError) as error:
        message = f"{file}: expected measurements, got: {error}; write them with --measure"
        raise typer.BadParameter(message, param_hint="--data") from None


class Plan(NamedTuple):
    """Workers per replica, target p99 of every unit, price of a core per hour."""

    workers: int
    p99_seconds: float
    core_hour: float


def report(found: Measurement, plan: Plan) -> str:
    """Show the cost of a window, the simulation beside the measurement, and plans for fleets."""
    others = max(
        0.0, statistics.median(each.others for each in found.rounds)
    )  # below 0 by rounding of clocks
    times = found.times(found.rounds)
    return "\n".join(
        (
            f"### Requests as {found.door}\n",
            (
                f"Model {found.bundle}, {found.request_bytes:,} bytes a request, {len(found.rounds)} rounds; "
                f"{found.failed} requests failed; a worker holds {found.memory_mib:.0f} MiB. To receive and "
                f"decode a request takes {1000 * times.read_seconds:.3f} ms; one that arrives while a batch "
                f"is computed costs {1000 * times.arrival_seconds:.3f} ms more. {_backlog(times)}Other "
                f"programs used {others:.1%} of the cores.\n"
            ),
            costs(found),
            compared(found),
            under_load(times, plan),
            planned(found, times, plan),
        )
    ).rstrip()


def _backlog(times: ServiceTimes) -> str:
    if not times.backlog:
        return ""
    longer = ", ".join(f"{factor:.2f}" for factor in times.backlog.values())
    held = ", ".join(map(str, times.backlog))
    return f"A full batch takes {longer} times as long while {held} requests wait. "


def costs(found: Measurement) -> str:
    """Show the cost of a window by the size of its batch."""
    rows: list[list[object]] = []
    for size in sorted(found.graph_seconds):
        spent = statistics.median(last for each in found.rounds for _, last in each.micros[size]) / 1e6
        cpu = statistics.median(each.cpu_seconds[size] for each in found.rounds)
        graph = found.graph_seconds[size]
        rows.append([size, *(f"{1000 * each:.3f}" for each in (spent, spent / size, cpu, graph / size))])
    heads = ["windows in a batch", "ms a batch", "ms a window", "CPU ms a window", "graph alone, ms a window"]
    return table(heads, rows, texts=0) + "\n"


def compared(found: Measurement) -> str:
    """Show measured and simulated figures of each load: medians over the rounds."""
    rows: list[list[object]] = []
    for place, first in enumerate(found.rounds[0].loads):
        pairs = [(each.loads[place], each.simulated[place]) for each in found.rounds]
        row: list[object] = [_named(first.load, pairs)]
        for figure, scale in (("per_second", 1), ("p50", 1000), ("p99", 1000)):
            real, made = (
                statistics.median(scale * getattr(pair[side], figure) for pair in pairs) for side in (0, 1)
            )
            row += [_short(real), _short(made), f"{made / real:.2f}"]
        rows.append(row)
    heads = ["load"]
    for figure in ("answers/s", "p50 ms", "p99 ms"):
        heads += [figure, "simulated", "ratio"]
    return table(heads, rows, texts=0) + "\n"


def _named(load: Load, pairs: Sequence[tuple[Loaded, Loaded]]) -> str:
    if load.callers:
        return f"{load.callers} caller{'s' * (load.callers > 1)}"
    return f"{statistics.median(real.load.per_second for real, _ in pairs):,.0f} a second at random"


def with_simulation(found: Measurement) -> Measurement:
    """Simulate the loads of each round with its own service times; then keep `MOST_KEPT` of each size."""
    return replace(
        found,
        rounds=[
            replace(
                each,
                simulated=[simulated(found.times([each]), each, load.load) for load in each.loads],
                micros={size: batches[:MOST_KEPT] for size, batches in each.micros.items()},
            )
            for each in found.rounds
        ],
    )


def simulated(times: ServiceTimes, each: Round, load: Load) -> Loaded:
    """Simulate a load of a round: medians over starts of the worker at different moments of its pace."""
    made = [_simulated_once(times, each, load, start) for start in range(STARTS)]
    figures = (statistics.median(getattr(one, name) for one in made) for name in ("per_second", "p50", "p99"))
    return Loaded(load, *figures)


def _simulated_once(times: ServiceTimes, each: Round, load: Load, start: int) -> Loaded:
    seed = each.seed + start * LAST_SEED
    run = partial(open_loop, rate=load.per_second)
    if load.callers:
        run = partial(closed_loop, callers=load.callers)
    outcome = run(times, seconds=each.seconds, client=each.client, seed=seed)
    return Loaded.of(load, outcome.latencies, outcome.seconds)


def under_load(times: ServiceTimes, plan: Plan) -> str:
    """Show latency by the load of a core, with all eight replicas and with seven."""
    rows = list[list[object]]()
    for percent in PERCENTS:
        fleet = _slice(times, percent, plan.workers)
        row: list[object] = [f"{percent} %", f"{fleet.units / SLICE / plan.workers:,.0f}"]
        for trouble in (None, _gone()):
            row += [_short(1000 * each) for each in _quantiles(_simulated(fleet, times, trouble))]
        rows.append(row)
    heads = ["load", "units a core", "p50 ms", "p99 ms", "p50 ms, one of eight gone", "p99 ms"]
    return table(heads, rows, texts=0) + "\n"


def planned(found: Measurement, times: ServiceTimes, plan: Plan) -> str:
    """Show the replicas that a fleet needs, their cost, and the effect of a failure and a rollout."""
    loads, limit = range(5, 100, 5), f"{1000 * plan.p99_seconds:g} ms"
    held = bisect.bisect(loads, False, key=lambda load: not _holds(times, load, plan))
    if not held:
        return f"No load keeps p99 below {limit}: a fleet cannot be planned.\n"
    best = loads[held - 1]
    per_replica, rows = _slice(times, best, plan.workers).units / SLICE, list[list[object]]()
    for units in FLEETS:
        needed = math.ceil(units / per_replica)
        replicas = needed + math.ceil(needed / (SLICE - 1))  # one of eight may be gone
        share = min(1.0, SLICE / replicas)
        fleet = Fleet(round(units * share), round(replicas * share), plan.workers)
        cores = replicas * plan.workers
        row: list[object] = [f"{units:,}", replicas, cores]
        for trouble in (None, _gone(), rollout(at=0.1, lame_duck=0.1, seconds=0.1)):
            outcome = _simulated(fleet, times, trouble)
            row += [_short(1000 * _quantiles(outcome)[1]), outcome.lost + outcome.refused]
        memory, network = cores * found.memory_mib / 1024, 8e-9 * units * found.request_bytes
        price = cores * plan.core_hour * HOURS_A_MONTH
        rows.append([*row, f"{memory:,.0f}", _short(network), f"{price:,.0f}"])
    heads = ["units", "replicas", "cores", "p99 ms", "failed", "p99 ms, one killed", "failed"]
    heads += ["p99 ms, rollout", "failed", "GiB", "Gbit/s in", "a month"]
    return (
        f"p99 stays below {limit} up to {best} % of a core's throughput in full batches; a core costs "
        f"{plan.core_hour:g} an hour.\n\n{table(heads, rows, texts=0)}\n"
    )


def _holds(times: ServiceTimes, percent: int, plan: Plan) -> bool:
    fleet = _slice(times, percent, plan.workers)
    return _quantiles(_simulated(fleet, times, None))[1] <= plan.p99_seconds


def _slice(times: ServiceTimes, percent: int, workers: int) -> Fleet:
    """Make eight replicas, with units for this share of their throughput in full batches."""
    return Fleet(round(percent / 100 * times.most_per_second() * workers * SLICE), SLICE, workers)


def _gone() -> Trouble:
    return failure(at=0.5, seconds=SECONDS)


def _simulated(fleet: Fleet, times: ServiceTimes, trouble: Trouble | None) -> Outcome:
    return simulate(fleet, times, seconds=SECONDS, seed=SEED, trouble=trouble)


def _quantiles(outcome: Outcome) -> tuple[float, float]:
    p50, p99 = np.quantile(outcome.latencies, (0.5, 0.99))
    return float(p50), float(p99)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
