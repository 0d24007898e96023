"""The service under load, front ends side by side: `make bench`.

For each model and front end, each round measures the ceiling (bare ONNX Runtime, one process per
core, batch 32) and then every load, on the same cores. On a machine whose speed drifts within
minutes, only these ratios are comparable. Two models: a shipped bundle, and one with the layer sizes
that other servers were measured with (`comparable`, random weights).
Needs wrk and h2load (Debian: wrk, nghttp2-client).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import psutil
import typer
from rich.progress import Progress

from export.bundle import find_bundle
from service.core.runtime import OnnxRuntime
from tests.benchmarks.comparable import make_comparable_bundle
from tests.benchmarks.loads import LOADS, CallsFor, Load, batch_of, put_under, require_generators, window_of
from tests.benchmarks.payloads import calls_of
from tests.benchmarks.tables import keep, table
from tests.integration.conftest import running

CEILING_BATCH = 32
CORES = len(os.sched_getaffinity(0))
SERVERS = {
    "envoy": "Envoy, a worker a core",
    "one": "Envoy, one worker, a thread a core",
    "uvicorn": "uvicorn and grpc.aio, one process, a thread a core",
}
ROOT = Path(__file__).parents[2]
Figures = dict[str, list[float]]


class Served(NamedTuple):
    """A running server: HTTP URL, gRPC target, processes, seconds until every worker was ready."""

    http: str
    target: str
    pids: list[int]
    ready: float

    def memory_mib(self) -> float:
        """Resident memory of all its processes."""
        return sum(psutil.Process(pid).memory_info().rss for pid in self.pids) / 2**20

    def workers(self) -> list[int]:
        """The worker processes; with uvicorn, all processes."""
        return [pid for pid in self.pids if psutil.Process(pid).name() == "envoy"] or self.pids


def main(
    bundles: str = "comparable,fd001",
    servers: str = "envoy,one,uvicorn",
    seconds: Annotated[int, typer.Option(min=1, help="Of each load, in each round.")] = 5,
    rounds: Annotated[
        int, typer.Option(min=1, help="Each measures everything once, beside the ceiling.")
    ] = 3,
    output: Path = Path("bench-results"),
) -> None:
    """Measure, and write front_ends.md and front_ends.json to OUTPUT."""
    require_generators()
    kept: dict[str, dict[str, Figures]] = {}
    chosen = [(bundle, server) for bundle in bundles.split(",") for server in servers.split(",")]
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        steps = progress.add_task("loads", total=rounds * len(chosen))
        paths = {name: _bundle(name, Path(folder)) for name in bundles.split(",")}
        for _ in range(rounds):
            for bundle, server in chosen:
                progress.update(steps, description=f"{bundle}, {server}")
                figures = kept.setdefault(bundle, {}).setdefault(server, {})
                measure_ceiling(paths[bundle], seconds, figures)
                with serving(server, paths[bundle], Path(folder)) as served:
                    measure_all(partial(calls_of, paths[bundle]), LOADS, served, seconds, figures)
                progress.advance(steps)
    sections = (
        section(f"{bundle} behind {SERVERS[server]}", kept[bundle][server], LOADS)
        for bundle, server in chosen
    )
    keep(output, "front_ends", "\n\n".join(sections), kept)


def _bundle(name: str, folder: Path) -> str:
    return str(make_comparable_bundle(folder)) if name == "comparable" else name


def measure_all(
    calls_for: CallsFor, loads: Sequence[Load], served: Served, seconds: float, figures: Figures
) -> None:
    """Measure a server under each load; record its start time, and its memory after the last load."""
    figures.setdefault("ready s", []).append(served.ready)
    for load in loads:
        measure(load, calls_for(load), served, seconds, figures)
    figures.setdefault("memory MiB", []).append(served.memory_mib())


def measure(load: Load, calls: Sequence[Any], served: Served, seconds: float, figures: Figures) -> None:
    """Put a server under a load of these calls, and record the outcome."""
    busy, start = cpu_seconds(served.pids), time.perf_counter()
    got = put_under(load, calls, served.http, served.target, seconds)
    used, took = cpu_seconds(served.pids) - busy, min(time.perf_counter() - start, seconds)
    found = {
        "windows/s": got.windows / took,
        "over ceiling": got.windows / took / figures["ceiling windows/s"][-1],
        "p50 ms": got.p50,
        "p99 ms": got.p99,
        "p99.9 ms": got.p999,
        "failed": got.failed,
        "cpu s per 1000": 1000 * used / max(1, got.windows),
        "cores": used / took,
    }
    for name, value in found.items():
        figures.setdefault(f"{load}: {name}", []).append(value)


COLUMNS = (
    ("windows/s", 0), ("over ceiling", 2), ("p50 ms", 2), ("p99 ms", 2), ("p99.9 ms", 2), ("failed", 0),
    ("cpu s per 1000", 3), ("cores", 2),
)  # fmt: skip


def section(title: str, figures: Figures, loads: Sequence[Load]) -> str:
    """Write the section of a server under these loads: medians over the rounds."""
    value = {name: statistics.median(values) for name, values in figures.items()}
    return (
        f"### {title}\n\n"
        f"Ceiling {value['ceiling windows/s']:,.0f} windows/s on {CORES} cores, "
        f"{value['ceiling cpu s per 1000']:.3f} CPU s per 1000; one window alone "
        f"{value['alone ms']:.2f} ms; ready after {value['ready s']:.1f} s; "
        f"{value['memory MiB']:.0f} MiB.\n\n{load_table(figures, loads)}"
    )


def load_table(figures: Figures, loads: Sequence[Load]) -> str:
    """Write one line per load."""
    rows = (
        [load, *(f"{statistics.median(figures[f'{load}: {name}']):,.{digits}f}" for name, digits in COLUMNS)]
        for load in loads
    )
    return table(["load", *(name for name, _ in COLUMNS)], rows)


def measure_ceiling(bundle: str, seconds: float, figures: Figures, *, batch: int = CEILING_BATCH) -> None:
    """The ceiling: bare ONNX Runtime with one process per core, and one window alone."""
    with get_context("spawn").Pool(CORES) as pool:
        found = pool.starmap(_bare, [(bundle, seconds, batch)] * CORES)
    figures.setdefault("ceiling windows/s", []).append(sum(rate for rate, _, _ in found))
    figures.setdefault("ceiling cpu s per 1000", []).append(statistics.mean(cpu for _, cpu, _ in found))
    figures.setdefault("alone ms", []).append(statistics.median(alone for _, _, alone in found))


def _bare(bundle: str, seconds: float, batch: int) -> tuple[float, float, float]:
    """Windows per second and CPU seconds per thousand in batches; milliseconds of one window alone."""
    runtime = OnnxRuntime.load(find_bundle(bundle))
    window = window_of(bundle)
    one, many = batch_of(window, 1), batch_of(window, batch)
    alone: list[float] = []
    for _ in range(100):
        start = time.perf_counter()
        runtime.run(*one)
        alone.append(1000 * (time.perf_counter() - start))
    start, busy, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        runtime.run(*many)
        done += batch
    cpu = 1000 * (time.process_time() - busy) / done
    return done / (time.perf_counter() - start), cpu, statistics.median(alone)


@contextmanager
def serving(
    server: str, bundle: str, folder: Path, *, checkout: Path = ROOT, **settings: str
) -> Iterator[Served]:
    """Start a front end with the service behind it.

    Args:
        server: One of `SERVERS`.
        bundle: Bundles to load, separated by commas.
        folder: Folder of the server's store.
        checkout: Checkout of the served version; another checkout than this has its own environment.
        settings: Other settings of the service.
    """
    front_end, workers = "uvicorn" if server == "uvicorn" else "envoy", CORES if server == "envoy" else 1
    checkout = checkout.resolve()
    programs = Path(sys.executable).parent if checkout == ROOT else programs_of(checkout)
    paths = ",".join(str(Path(each).resolve()) if Path(each).is_dir() else each for each in bundle.split(","))
    command = ["env", f"PYTHONPATH={checkout}", str(programs / "rul"), "serve"]
    given = {"workers": str(workers), "log_level": "error", **settings}
    start = time.perf_counter()
    with running(folder, paths, front_end=front_end, command=command, **given) as started:
        ready = time.perf_counter() - start
        family = psutil.Process(started.process.pid)
        pids = [family.pid, *(child.pid for child in family.children(recursive=True))]
        yield Served(started.http, started.grpc, pids, ready)


def programs_of(checkout: Path) -> Path:
    """Return the folder of a checkout's programs."""
    return checkout / ".venv" / "dev" / "bin"


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU seconds of the server."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(t.user + t.system for t in times)


if __name__ == "__main__":
    typer.run(main)
