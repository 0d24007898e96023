"""Front ends side by side: `make bench`.

Each round measures, one after the other on the same cores, the ceiling (bare ONNX Runtime, one
process a core, batch 32) and every front end under the same load, so that a machine whose speed
drifts within minutes still gives comparable ratios. Needs wrk and h2load (Debian: wrk,
nghttp2-client).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import httpx
import numpy as np
import psutil
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from export.bundle import find_bundle
from export.probes import simulated_windows
from service.proto import rul_v1_pb2 as pb
from service.runtime import OnnxRuntime
from tests.integration.conftest import free_port
from tests.waiting import wait_until

CEILING_BATCH = 32
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Load:
    """One window a call, by so many callers, over one protocol."""

    protocol: str
    callers: int

    def __str__(self) -> str:
        return f"{self.protocol} {self.callers}"


LOADS = (Load("json", 1), Load("json", 16), Load("json", 64), Load("grpc", 16), Load("grpc", 64))
SERVERS = {
    "envoy, 1 process, a thread a core": ("envoy", 1),
    "uvicorn + grpc.aio, 1 process, a thread a core": ("uvicorn", 1),
    "uvicorn + grpc.aio, a process a core, 1 thread": ("uvicorn", CORES),
}


def main(
    bundle: str = "fd001",
    seconds: float = 5.0,
    rounds: int = 3,
    output: Path = Path("bench-results/front_ends.json"),
) -> None:
    """Measure, print a table, and keep every figure."""
    missing = [tool for tool in ("wrk", "h2load") if shutil.which(tool) is None]
    if missing:
        raise typer.BadParameter(f"{' and '.join(missing)} missing (Debian: wrk, nghttp2-client)")
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in SERVERS}
    ceilings: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        bodies = write_bodies(bundle, Path(folder))
        steps = progress.add_task("front ends", total=rounds * len(SERVERS) * len(LOADS))
        for _ in range(rounds):
            for name, (front_end, processes) in SERVERS.items():
                ceiling = measure_ceiling(bundle, seconds)
                ceilings.append(ceiling)
                with serving(front_end, processes, bundle, Path(folder)) as (http, grpc, pids):
                    for load in LOADS:
                        progress.update(steps, description=f"{name}: {load}")
                        busy = cpu_seconds(pids)
                        rate = measure(load, http, grpc, bodies, seconds)
                        used = cpu_seconds(pids) - busy
                        row = figures[name]
                        row.setdefault(f"{load} over ceiling", []).append(rate / ceiling)
                        row.setdefault(f"{load} windows/s", []).append(rate)
                        row.setdefault(f"{load} cpu s per 1000", []).append(1000 * used / (rate * seconds))
                        progress.advance(steps)
                    memory = sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20
                    figures[name].setdefault("memory MiB", []).append(memory)
    show(figures, ceilings)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"ceiling windows/s": ceilings, "servers": figures}, indent=1))


def show(figures: dict[str, dict[str, list[float]]], ceilings: list[float]) -> None:
    """Medians over the rounds, as a table."""
    median = statistics.median(ceilings)
    table = Table(
        title=f"windows/s over the ceiling ({median:.0f} windows/s on {CORES} cores); median of rounds"
    )
    table.add_column("front end")
    for load in LOADS:
        table.add_column(str(load), justify="right")
    table.add_column("CPU s per 1000, json 64", justify="right")
    table.add_column("CPU s per 1000, grpc 64", justify="right")
    table.add_column("memory MiB", justify="right")
    for name, row in figures.items():
        values = {key: statistics.median(values) for key, values in row.items()}
        table.add_row(
            name,
            *(f"{values[f'{load} over ceiling']:.2f}" for load in LOADS),
            f"{values['json 64 cpu s per 1000']:.2f}",
            f"{values['grpc 64 cpu s per 1000']:.2f}",
            f"{values['memory MiB']:.0f}",
        )
    Console(width=160).print(table)


def window_of(bundle: str) -> np.ndarray:
    """A plausible window as long as the context, [T, F]."""
    manifest = OnnxRuntime.load(find_bundle(bundle)).manifest
    windows = simulated_windows(manifest, count=64, seed=1)
    return windows.readings[int(windows.lengths.argmax())]


def write_bodies(bundle: str, folder: Path) -> dict[str, Path]:
    """The same window as a JSON body (in a wrk script) and as a length-prefixed message."""
    window = window_of(bundle)
    body = json.dumps({"windows": [{"unit": "1", "last_cycle": 200, "readings": window.tolist()}]})
    script = folder / "post.lua"
    script.write_text(
        'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n'
        f"wrk.body = [==[{body}]==]\n"
        "done = function(summary) local e = summary.errors\n"
        'io.write("failed ", e.status + e.connect + e.read + e.write + e.timeout, "\\n") end\n'
    )
    message = pb.PredictRequest(
        windows=[pb.Window(unit="1", last_cycle=200, readings=pb.Readings(values=window.ravel().tolist()))]
    ).SerializeToString()
    framed = folder / "request.bin"
    framed.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    return {"json": script, "grpc": framed}


def measure(load: Load, http: str, grpc: str, bodies: dict[str, Path], seconds: float) -> float:
    """Windows answered a second."""
    threads = min(2, load.callers)
    if load.protocol == "json":
        command = ["wrk", f"-t{threads}", f"-c{load.callers}", f"-d{seconds:.0f}s", "-s", str(bodies["json"])]
        text = subprocess.run(
            [*command, f"{http}/v1/predict"], check=True, capture_output=True, text=True
        ).stdout
        failed, rate = re.search(r"failed (\d+)", text), re.search(r"Requests/sec:\s+([\d.]+)", text)
    else:
        command = [
            "h2load",
            f"-t{threads}",
            f"-c{load.callers}",
            "-m1",
            f"-D{seconds:.0f}",
            "-d",
            str(bodies["grpc"]),
        ]
        headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        url = f"http://{grpc}/rul.v1.RulService/Predict"
        text = subprocess.run([*command, *headers, url], check=True, capture_output=True, text=True).stdout
        failed, rate = re.search(r"(\d+) failed", text), re.search(r"([\d.]+) req/s", text)
    if failed is None or rate is None or failed[1] != "0":
        raise RuntimeError(f"{load}: answers failed or the tool's report has changed:\n{text}")
    return float(rate[1])


def measure_ceiling(bundle: str, seconds: float) -> float:
    """Windows a second of bare ONNX Runtime, one process a core."""
    with get_context("spawn").Pool(CORES) as pool:
        return sum(pool.starmap(_bare, [(bundle, seconds)] * CORES))


def _bare(bundle: str, seconds: float) -> float:
    runtime = OnnxRuntime.load(find_bundle(bundle))
    window = window_of(bundle)
    readings = np.repeat(window[None], CEILING_BATCH, axis=0)
    lengths = np.full(CEILING_BATCH, len(window), dtype=np.int64)
    last = np.full(CEILING_BATCH, 200, dtype=np.float32)
    for _ in range(10):
        runtime.run(readings, lengths, last)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        runtime.run(readings, lengths, last)
        done += CEILING_BATCH
    return done / (time.perf_counter() - start)


@contextmanager
def serving(
    front_end: str, processes: int, bundle: str, folder: Path
) -> Iterator[tuple[str, str, list[int]]]:
    """A front end with the service behind it: HTTP URL, gRPC target, its processes."""
    port, grpc_port = free_port(), free_port()
    threads = CORES // processes
    environment = os.environ | {
        "RUL_BUNDLES": bundle, "RUL_HOST": "127.0.0.1", "RUL_PORT": str(port),
        "RUL_GRPC_PORT": str(grpc_port),
        "RUL_FRONT_END": front_end, "RUL_INFERENCE_THREADS": str(threads), "RUL_LOG_LEVEL": "error",
        "BENTOML_HOME": str(folder / "bentoml"), "BENTOML_DO_NOT_TRACK": "true",
    }  # fmt: skip
    command = [str(Path(sys.executable).with_name("rul")), "serve"]
    if processes > 1:
        workers = ["--workers", str(processes), "--loop", "uvloop", "--http", "httptools", "--no-access-log"]
        workers += ["--timeout-worker-healthcheck", "60"]  # a busy worker is not a dead one
        address = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
        command = [sys.executable, "-m", "uvicorn", "service.app:application", *address, *workers]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    http = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _ready(http), 60, what="readiness")
        children = psutil.Process(process.pid).children(recursive=True)
        yield (
            http,
            f"127.0.0.1:{port if front_end == 'envoy' else grpc_port}",
            [process.pid, *(c.pid for c in children)],
        )
    finally:
        stop(process)


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


def cpu_seconds(pids: list[int]) -> float:
    """Seconds of CPU that the server has used."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(t.user + t.system for t in times)


if __name__ == "__main__":
    typer.run(main)
