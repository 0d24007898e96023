"""Capacity of a fleet of replicas: measure one worker, compare its simulation, plan fleets.

    python -m tests.benchmarks.capacity --measure --doc docs/scaling.md    # two quiet cores, some 14 minutes
    python -m tests.benchmarks.capacity --p99-ms 20 --core-hour 0.05       # plans from service_times.json

The measurement runs in rounds: service times of batches first, then loads, so that a machine whose speed
drifts shows both at the same speed. Each round is simulated with its own service times.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Final, TypeVar

import msgspec
import numpy as np
import psutil
import typer
from rich.progress import track

from export.bundle import find_bundle
from service.core.runtime import OnnxRuntime
from tests.benchmarks.capacity_report import (
    Load,
    Loaded,
    Measurement,
    Plan,
    Round,
    measurements,
    report,
    with_simulation,
)
from tests.benchmarks.front_ends import CORES, cpu_seconds
from tests.benchmarks.loads import batch_of, window_of
from tests.benchmarks.lone_worker import Crew, lone_worker
from tests.benchmarks.memory import of as memory_of
from tests.benchmarks.service_times import MOST_WINDOWS, Batch
from tests.benchmarks.tables import publish
from tests.waiting import wait_until

SIZES: Final = (1, 2, 4, 8, 16, 24, 32)
HELD: Final = (64, 128, 256)
"""Requests that a worker finds at once, more than one batch."""
CALLERS: Final = (1, 8, 64, 256)
RATED: Final = 64
SHARES: Final = (0.3, 0.6, 0.8)
"""Rates of the open loop, as shares of the throughput of `RATED` callers in the same round."""
INTERRUPTED: Final = (32, 16)
"""Windows of a batch, and the number of requests that arrive during it."""
INTERRUPTED_SHARE: Final = 0.8
"""Part of the batch in which these requests arrive."""
COUNTED_SECONDS: Final = 5
"""Maximum time until the service has counted its requests."""
SHARE_OF_BATCHES: Final = 0.5
"""Time for each batch size, over the time of a load."""
GRAPH_RUNS: Final = 200
HTTP_DOORS: Final = ("json", "oip json", "binary")
RESULT: Final = Path(__file__).with_name("service_times.json")
T = TypeVar("T")


def main(
    *,
    measure: Annotated[bool, typer.Option("--measure", help="Measure first, and write DATA.")] = False,
    data: Annotated[Path, typer.Option(help="Measurements, a JSON file.")] = RESULT,
    doc: Annotated[Path | None, typer.Option(help="Page whose generated part is replaced.")] = None,
    bundle: Annotated[str, typer.Option(help="Model that is measured.")] = "fd001",
    doors: Annotated[str, typer.Option(help="Forms of requests, with commas.")] = "json,binary",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the measurement.")] = 12,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time of each load in a round.")] = 2.0,
    workers: Annotated[int, typer.Option(min=1, help="Workers of a replica, a core each.")] = 2,
    p99_ms: Annotated[float, typer.Option(min=0.1, help="Latency that a plan keeps.")] = 50,
    core_hour: Annotated[float, typer.Option(min=0, help="Price of a core for an hour.")] = 0.04,
) -> None:
    """Print the cost of a window, simulation beside measurement, and plans for fleets."""
    if unknown := [door for door in doors.split(",") if door not in HTTP_DOORS]:
        message = f"{unknown[0]!r} is not one of {', '.join(HTTP_DOORS)}"
        raise typer.BadParameter(message, param_hint="--doors")
    if measure:
        made = [measured(bundle, door, rounds, seconds) for door in doors.split(",")]
        data.write_bytes(msgspec.json.encode(made) + b"\n")
    found = measurements(data)
    plan = Plan(workers, p99_ms / 1000, core_hour)
    publish("\n\n".join(report(each, plan) for each in found), "tests.benchmarks.capacity", doc)


def measured(bundle: str, door: str, rounds: int, seconds: float) -> Measurement:
    """Measure one worker on a core of its own."""
    with tempfile.TemporaryDirectory() as folder, lone_worker(bundle, door, Path(folder)) as (crew, worker):
        crew.closed_loop(CALLERS[-1], 3 * seconds)  # caches and the store fill
        runtime, window = OnnxRuntime.load(find_bundle(bundle)), window_of(bundle)
        graph = {size: graph_seconds(runtime, window, size) for size in SIZES}
        made = [one_round(crew, worker, seconds, seed) for seed in track(range(rounds), door)]
        memory_mib = memory_of(worker)[0]
    found = Measurement(bundle, door, crew.request_bytes, crew.failed, memory_mib, graph, made)
    return with_simulation(found)


def one_round(crew: Crew, worker: int, seconds: float, seed: int) -> Round:
    """Measure batches of each size, then every load."""
    start, others = time.perf_counter(), _others_seconds(worker)
    cpu, batches = dict[int, float](), dict[int, list[Batch]]()
    for size in SIZES:
        busy = cpu_seconds([worker])
        measure = partial(crew.burst, size, worker) if size > 1 else crew.alone
        batches[size] = list(_repeated(measure, seconds))
        cpu[size] = (cpu_seconds([worker]) - busy) / size / len(batches[size])
    waking = max(0.0, _typical(_repeated(partial(crew.burst, 1, worker), seconds)) - _typical(batches[1]))
    micros = {
        size: [_micros(each, waking if size > 1 else 0.0) for each in found]
        for size, found in batches.items()
    }
    full = _typical(batches[MOST_WINDOWS]) - waking
    backlog = {held: _longer(crew, held, worker, seconds, full, waking) for held in HELD}
    read, arrival = _read_seconds(crew, worker, seconds), _arrival_seconds(crew, worker, seconds, full)
    loads = [loaded(crew, Load(callers=callers), seconds, seed) for callers in CALLERS]
    rate = loads[CALLERS.index(RATED)].per_second
    loads += [loaded(crew, Load(per_second=share * rate), seconds, seed) for share in SHARES]
    share = (_others_seconds(worker) - others) / (time.perf_counter() - start) / CORES
    return Round(seed, seconds, micros, cpu, read, arrival, backlog, crew.client(), loads, [], share)


def _longer(  # noqa: PLR0917 what the round has measured
    crew: Crew, held: int, worker: int, seconds: float, full: float, waking: float
) -> float:
    """Measure how many times longer a full batch takes while so many requests are held."""
    spent = _typical(_repeated(partial(crew.burst, held, worker), seconds)) - waking
    return max(1.0, spent / (held / MOST_WINDOWS) / full)


def _read_seconds(crew: Crew, worker: int, seconds: float) -> float:
    """Measure how long a request of a full batch waits for the next one, from the service's own metric.

    The k-th of n requests waits for the n - k that are decoded after it: (n - 1) / 2 on average.
    """
    waited, count = crew.queued()
    asked = MOST_WINDOWS * len(list(_repeated(partial(crew.burst, MOST_WINDOWS, worker), seconds)))
    wait_until(lambda: crew.queued()[1] >= count + asked, COUNTED_SECONDS, what="the count of the requests")
    return (crew.queued()[0] - waited) / asked / ((MOST_WINDOWS - 1) / 2)


def _arrival_seconds(crew: Crew, worker: int, seconds: float, full: float) -> float:
    """Measure the extra cost of a request that arrives during a batch, over one that waits before it."""
    within = INTERRUPTED_SHARE * full
    pairs = _repeated(
        lambda: [crew.interrupted(*INTERRUPTED, during, worker) for during in (within, 0.0)], 2 * seconds
    )
    return max(0.0, statistics.median(apart - together for apart, together in pairs)) / INTERRUPTED[1]


def _repeated(measure: Callable[[], T], seconds: float) -> Iterator[T]:
    end = time.perf_counter() + SHARE_OF_BATCHES * seconds
    while time.perf_counter() < end:
        yield measure()


def _typical(batches: Iterable[Batch]) -> float:
    return statistics.median(batch.last for batch in batches)


def _micros(batch: Batch, waking: float) -> tuple[int, int]:
    """Return a batch in microseconds, without the wake-up time of a stopped worker."""
    less = min(waking, batch.first)
    return round(1e6 * (batch.first - less)), round(1e6 * (batch.last - less))


def loaded(crew: Crew, load: Load, seconds: float, seed: int) -> Loaded:
    """Put the worker under a load."""
    start = time.perf_counter()
    if load.callers:
        latencies = crew.closed_loop(load.callers, seconds)
    else:
        latencies = crew.open_loop(load.per_second, seconds, Random(seed))
    return Loaded.of(load, latencies, time.perf_counter() - start)


def graph_seconds(runtime: OnnxRuntime, window: np.ndarray, size: int) -> float:
    """Measure the graph alone, on the core of this program."""
    asked, spent = batch_of(window, size), list[float]()
    for _ in range(GRAPH_RUNS):
        start = time.perf_counter()
        runtime.run(*asked)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def _others_seconds(worker: int) -> float:
    """Return CPU seconds of other programs on all cores, up to a constant."""
    busy = psutil.cpu_times()
    return busy.user + busy.nice + busy.system - cpu_seconds([worker, os.getpid()])


if __name__ == "__main__":
    typer.run(main)
