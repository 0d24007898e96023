"""The service under load, front ends side by side: `make bench`.

For each model and front end, each round measures the ceiling (bare ONNX Runtime, one process a
core, batch 32) and then every load, on the same cores: on a machine whose speed drifts within
minutes only such ratios compare. Two models: a shipped bundle, and one of the sizes that others
were measured with (`comparable`, random weights). Needs wrk and h2load (Debian: wrk, nghttp2-client).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Protocol

import httpx
import numpy as np
import psutil
import typer
from rich.progress import Progress

from export.bundle import find_bundle
from service.core.runtime import OnnxRuntime
from tests.benchmarks.comparable import make_comparable_bundle
from tests.benchmarks.loads import LAST_CYCLE, LOADS, Load, Measured, window_of
from tests.benchmarks.payloads import ROWS, Payloads
from tests.integration.conftest import free_port
from tests.waiting import wait_until

CEILING_BATCH = 32
CORES = len(os.sched_getaffinity(0))
SERVERS = {
    "envoy": "Envoy, a worker a core",
    "one": "Envoy, one worker, a thread a core",
    "uvicorn": "uvicorn and grpc.aio, one process, a thread a core",
}
ROOT = Path(__file__).parents[2]
Figures = dict[str, list[float]]


def main(
    bundles: str = "comparable,fd001",
    servers: str = "envoy,one,uvicorn",
    seconds: Annotated[int, typer.Option(min=1, help="Of each load, in each round.")] = 5,
    rounds: Annotated[
        int, typer.Option(min=1, help="Each measures everything once, beside the ceiling.")
    ] = 3,
    output: Path = Path("bench-results"),
) -> None:
    """Measure, and leave front_ends.md and front_ends.json in OUTPUT."""
    missing = [tool for tool in ("wrk", "h2load") if shutil.which(tool) is None]
    if missing:
        raise typer.BadParameter(f"{' and '.join(missing)} missing (Debian: wrk, nghttp2-client)")
    kept: dict[str, dict[str, Figures]] = {}
    chosen = [(bundle, server) for bundle in bundles.split(",") for server in servers.split(",")]
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        steps = progress.add_task("loads", total=rounds * len(chosen) * len(LOADS))
        paths = {name: _bundle(name, Path(folder)) for name in bundles.split(",")}
        for _ in range(rounds):
            for bundle, server in chosen:
                figures = kept.setdefault(bundle, {}).setdefault(server, {})
                measure_ceiling(paths[bundle], seconds, figures)
                with serving(server, paths[bundle], Path(folder)) as (http, target, pids, ready):
                    figures.setdefault("ready s", []).append(ready)
                    asker = Payloads(paths[bundle], Path(folder) / "calls", ROWS)
                    for load in LOADS:
                        progress.update(steps, description=f"{bundle}, {server}: {load}")
                        measure(asker, load, (http, target, pids), seconds, figures)
                        progress.advance(steps)
                    memory = sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20
                    figures.setdefault("memory MiB", []).append(memory)
    output.mkdir(parents=True, exist_ok=True)
    (output / "front_ends.json").write_text(json.dumps(kept, indent=1))
    text = "\n\n".join(markdown(bundle, server, kept[bundle][server]) for bundle, server in chosen)
    (output / "front_ends.md").write_text(text + "\n", encoding="utf-8")
    print(text)


def _bundle(name: str, folder: Path) -> str:
    return str(make_comparable_bundle(folder)) if name == "comparable" else name


class Asker(Protocol):
    """What puts a server under a load."""

    def measure(self, load: Load, http: str, target: str, seconds: float) -> Measured:
        """Load a server for so long."""
        ...


def measure(
    asker: Asker, load: Load, server: tuple[str, str, list[int]], seconds: float, figures: Figures
) -> None:
    """Put a server under a load, and add what came of it."""
    http, target, pids = server
    busy, start = cpu_seconds(pids), time.perf_counter()
    got = asker.measure(load, http, target, seconds)
    used, took = cpu_seconds(pids) - busy, min(time.perf_counter() - start, seconds)
    found = {
        "windows/s": got.windows / took,
        "over ceiling": got.windows / took / figures["ceiling windows/s"][-1],
        "p50 ms": got.p50,
        "p99 ms": got.p99,
        "p99.9 ms": got.p999,
        "failed": got.failed,
        "cpu s per 1000": 1000 * used / max(1, got.windows),
    }
    for name, value in found.items():
        figures.setdefault(f"{load}: {name}", []).append(value)


COLUMNS = (
    ("windows/s", 0), ("over ceiling", 2), ("p50 ms", 2), ("p99 ms", 2), ("p99.9 ms", 2), ("failed", 0),
    ("cpu s per 1000", 3),
)  # fmt: skip


def markdown(bundle: str, server: str, figures: Figures) -> str:
    """Medians over the rounds, as a table."""
    value = {name: statistics.median(values) for name, values in figures.items()}
    lines = [
        f"### {bundle} behind {SERVERS[server]}",
        "",
        (
            f"Ceiling {value['ceiling windows/s']:,.0f} windows/s on {CORES} cores, "
            f"{value['ceiling cpu s per 1000']:.3f} CPU s per 1000; one window alone "
            f"{value['alone ms']:.2f} ms; ready after {value['ready s']:.1f} s; "
            f"{value['memory MiB']:.0f} MiB."
        ),
        "",
        f"| load | goal | {' | '.join(name for name, _ in COLUMNS)} |",
        f"|---|{'---|' * (1 + len(COLUMNS))}",
    ]
    for load in LOADS:
        goal = "" if load.goal is None else f"{load.goal:.2f}"
        cells = [f"{value[f'{load}: {name}']:,.{digits}f}" for name, digits in COLUMNS]
        lines.append(f"| {load} | {goal} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measure_ceiling(bundle: str, seconds: float, figures: Figures, *, batch: int = CEILING_BATCH) -> None:
    """Bare ONNX Runtime, one process a core, and one window alone; where ours must come close to."""
    with get_context("spawn").Pool(CORES) as pool:
        found = pool.starmap(_bare, [(bundle, seconds, batch)] * CORES)
    figures.setdefault("ceiling windows/s", []).append(sum(rate for rate, _, _ in found))
    figures.setdefault("ceiling cpu s per 1000", []).append(statistics.mean(cpu for _, cpu, _ in found))
    figures.setdefault("alone ms", []).append(statistics.median(alone for _, _, alone in found))


def _bare(bundle: str, seconds: float, batch: int) -> tuple[float, float, float]:
    """Windows a second and CPU seconds for a thousand in batches; milliseconds of one window alone."""
    runtime = OnnxRuntime.load(find_bundle(bundle))
    window = window_of(bundle)
    readings = np.repeat(window[None], batch, axis=0)
    lengths = np.full(batch, len(window), dtype=np.int64)
    last = np.full(batch, LAST_CYCLE, dtype=np.float32)
    alone: list[float] = []
    for _ in range(100):
        start = time.perf_counter()
        runtime.run(readings[:1], lengths[:1], last[:1])
        alone.append(1000 * (time.perf_counter() - start))
    start, busy, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        runtime.run(readings, lengths, last)
        done += batch
    cpu = 1000 * (time.process_time() - busy) / done
    return done / (time.perf_counter() - start), cpu, statistics.median(alone)


@contextmanager
def serving(
    server: str, bundle: str, folder: Path, *, checkout: Path = ROOT
) -> Iterator[tuple[str, str, list[int], float]]:
    """A front end with the service behind it: HTTP URL, gRPC target, its processes, seconds until ready.

    Args:
        server: One of `SERVERS`.
        bundle: What is loaded, separated by commas.
        folder: Where the server keeps its store.
        checkout: The version that serves, with an environment of its own where it is not this one.
    """
    front_end, workers = "uvicorn" if server == "uvicorn" else "envoy", CORES if server == "envoy" else 1
    port, grpc_port = free_port(), free_port()
    environment = os.environ | {
        "RUL_BUNDLES": bundle, "RUL_HOST": "127.0.0.1", "RUL_PORT": str(port),
        "RUL_GRPC_PORT": str(grpc_port), "RUL_FRONT_END": front_end, "RUL_WORKERS": str(workers),
        "RUL_LOG_LEVEL": "error", "BENTOML_HOME": str(folder / "bentoml"), "BENTOML_DO_NOT_TRACK": "true",
        "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(checkout),
    }  # fmt: skip
    programs = Path(sys.executable).parent if checkout == ROOT else programs_of(checkout)
    start = time.perf_counter()
    process = subprocess.Popen(
        [str(programs / "rul"), "serve"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=checkout,
    )  # fmt: skip
    http = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _ready(http), 60, what="readiness", pause=0.01)
        ready = time.perf_counter() - start
        wait_until(lambda: _workers(http) == workers, 60, what="every worker")
        children = psutil.Process(process.pid).children(recursive=True)
        yield (
            http,
            f"127.0.0.1:{port if front_end == 'envoy' else grpc_port}",
            [process.pid, *(c.pid for c in children)],
            ready,
        )
    finally:
        stop(process)


def programs_of(checkout: Path) -> Path:
    """The folder of a checkout's own programs."""
    return checkout / ".venv" / "dev" / "bin"


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and whatever it started; one that does not end by itself is killed."""
    parent = psutil.Process(process.pid)
    family = [parent, *parent.children(recursive=True)]
    process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(family, 20)
    for member in alive:
        member.kill()
    process.wait()


def _ready(http: str) -> bool:
    try:
        return httpx.get(http + "/readyz", trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _workers(http: str) -> float:
    text = httpx.get(http + "/metrics", trust_env=False).text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith("rul_workers "))


def cpu_seconds(pids: list[int]) -> float:
    """Seconds of CPU that the server has used."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(t.user + t.system for t in times)


if __name__ == "__main__":
    typer.run(main)
