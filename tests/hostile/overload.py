"""Goodput under overload, as a table.

    python -m tests.hostile.overload [--seconds 60] [--checkout PATH]

For each protocol and call size, 1x is the largest number of callers without a refusal; then 1x, 2x, 4x and
8x take turns. Refused callers wait as long as `Retry-After` asks (a second by gRPC); with `--impatient` they
retry at once. Another process polls `/livez` on its own connections. Callers and server share the machine:
`*` marks cells in which the callers used most of a core.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import numpy as np
import typer
import uvloop

from tests.benchmarks.front_ends import ROOT, Served, cpu_seconds, serving
from tests.benchmarks.loads import Load
from tests.benchmarks.payloads import calls_of
from tests.benchmarks.tables import line
from tests.hostile.crowds import Ends, closed_loop

FACTORS: Final = (1, 2, 4, 8)
ANSWERED: Final = ("200", "OK")
REFUSED: Final = ("429", "RESOURCE_EXHAUSTED")
ROUND_SECONDS: Final = 15.0
PROBE_SECONDS: Final = 0.02
PROBES: Final = 4
MOST_CALLERS: Final = 128
"""Maximum callers at 1x: 8x are 1,024 connections, and more would test connections."""
BUSY: Final = 0.8
"""Share of a core above which the callers themselves may be the limit."""


@dataclass
class Cell:
    """Measurements at one number of callers."""

    callers: int
    codes: Counter[str] = field(default_factory=Counter[str])
    seconds: list[float] = field(default_factory=list[float])
    livez: list[float] = field(default_factory=list[float])
    elapsed: float = 0.0
    cpu: float = 0.0
    server_cpu: float = 0.0
    peak_mib: float = 0.0

    def add(self, ends: Ends, livez: list[float], peak_mib: float, server_cpu: float) -> None:
        """Add a round."""
        self.codes += ends.codes
        self.seconds += ends.seconds
        self.livez += livez
        self.elapsed += ends.elapsed
        self.cpu += ends.cpu_share * ends.elapsed
        self.server_cpu += server_cpu
        self.peak_mib = max(self.peak_mib, peak_mib)

    @property
    def goodput(self) -> float:
        """Answered calls per second."""
        return sum(self.codes[code] for code in ANSWERED) / self.elapsed

    @property
    def answers_per_cpu_second(self) -> float:
        """Answered calls per CPU second of the server; comparable on a busy machine too."""
        return sum(self.codes[code] for code in ANSWERED) / self.server_cpu

    @property
    def refused(self) -> int:
        """Number of calls refused because of overload."""
        return sum(self.codes[code] for code in REFUSED)

    @property
    def failed(self) -> Counter[str]:
        """Numbers of all other ends, by code."""
        return Counter({code: n for code, n in self.codes.items() if code not in (*ANSWERED, *REFUSED)})


def run_round(
    served: Served, cell: Cell, load: Load, seconds: float, *, settle: float, is_patient: bool
) -> None:
    """Run one round of a cell."""
    calls = calls_of("fd001", load)
    busy = cpu_seconds(served.pids)
    with watched(served) as (livez, peak):
        ends = uvloop.run(
            closed_loop(served.target, calls, cell.callers, seconds, settle=settle, is_patient=is_patient)
        )
    share = ends.elapsed / (ends.elapsed + settle)
    cell.add(ends, livez, max(peak), (cpu_seconds(served.pids) - busy) * share)


@contextmanager
def watched(served: Served) -> Generator[tuple[list[float], list[float]]]:
    """Poll `/livez` and read the memory until the block ends."""
    context = get_context("spawn")
    near, far = context.Pipe()
    probe = context.Process(target=_probe, args=(served.target, far), daemon=True)
    livez: list[float] = []
    peak = [served.memory_mib()]
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.25):
            peak.append(served.memory_mib())

    watcher = threading.Thread(target=look)
    probe.start()
    near.recv()
    watcher.start()
    try:
        yield livez, peak
    finally:
        stop.set()
        near.send(None)
        livez += near.recv()
        watcher.join()
        probe.join()


def _probe(address: str, pipe: Any) -> None:
    """Poll `/livez` on a few connections in turn, so that each worker has one."""
    waits: list[float] = []
    clients = [httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=30) for _ in range(PROBES)]
    for client in clients:
        client.get("/livez")
    pipe.send(None)
    turn = 0
    while not pipe.poll(PROBE_SECONDS):
        start = time.perf_counter()
        try:
            is_live = clients[turn % PROBES].get("/livez").status_code == 200
        except httpx.HTTPError:
            is_live = False
        waits.append(time.perf_counter() - start if is_live else np.inf)
        turn += 1
    pipe.send(waits)


def sustainable(served: Served, protocol: str, windows: int, seconds: float) -> int:
    """Find, by doubling, the largest number of callers without a refusal or failure."""
    callers = 1
    while callers < MOST_CALLERS:
        cell = Cell(2 * callers)
        load = Load(protocol, cell.callers, windows, realistic=True)
        run_round(served, cell, load, seconds, settle=seconds / 2, is_patient=True)
        if cell.refused or cell.failed:
            break
        callers *= 2
    return callers


def measured(served: Served, load: Load, seconds: float, *, callers: int, is_patient: bool) -> list[Cell]:
    """Measure all factors in turn, in rounds, so that a change of the machine's speed affects each."""
    rounds = max(1, round(seconds / ROUND_SECONDS))
    cells = [Cell(callers * factor) for factor in FACTORS]
    for _ in range(rounds):
        for cell in cells:
            each = seconds / rounds
            run_round(served, cell, load, each, settle=min(1.0, each / 2), is_patient=is_patient)
    return cells


HEADS: Final = (
    "load", "callers", "answers/s", "over peak", "per CPU s", "over peak", "p50 ms", "p99 ms", "refused",
    "5xx and others", "/livez p99 ms", "memory over fresh", "callers' CPU",
)  # fmt: skip


def rows(name: str, cells: list[Cell], fresh_mib: float) -> list[list[str]]:
    """Return the table's rows for one load."""
    peak = max(cell.goodput for cell in cells) or 1.0
    best = max(cell.answers_per_cpu_second for cell in cells) or 1.0
    found: list[list[str]] = []
    for factor, cell in zip(FACTORS, cells, strict=True):
        p50, p99 = (1000 * np.quantile(cell.seconds or [np.nan], q) for q in (0.5, 0.99))
        share, per_second = cell.cpu / cell.elapsed, cell.answers_per_cpu_second
        figures = [
            f"{name}, {factor}x",
            f"{cell.callers}",
            f"{cell.goodput:.0f}",
            f"{cell.goodput / peak:.2f}",
            f"{per_second:.0f}",
            f"{per_second / best:.2f}",
            f"{p50:.0f}",
            f"{p99:.0f}",
            f"{cell.refused}",
            ", ".join(f"{code}: {n}" for code, n in cell.failed.items()) or "0",
            f"{1000 * np.quantile(cell.livez, 0.99):.0f}",
            f"{cell.peak_mib / fresh_mib:.2f}",
            f"{share:.2f}{'*' if share > BUSY else ''}",
        ]
        found.append(figures)
    return found


def main(
    *,
    seconds: Annotated[float, typer.Option(min=1, help="Of each number of callers.")] = 5,
    protocols: str = "json,grpc",
    windows: str = "1,64",
    callers: Annotated[int, typer.Option(min=0, help="1x; 0: find it.")] = 0,
    impatient: Annotated[bool, typer.Option(help="Refused callers ask again at once.")] = False,
    checkout: Annotated[Path, typer.Option(help="The version that serves.")] = ROOT,
) -> None:
    """Measure, and print a table."""
    print(line(HEADS), line(["---"] * len(HEADS)), sep="\n", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving("envoy", "fd001", Path(folder), checkout=checkout) as served,
    ):
        fresh_mib = served.memory_mib()
        for protocol, size in product(protocols.split(","), map(int, windows.split(","))):
            one = callers or sustainable(served, protocol, size, min(3.0, seconds))
            load = Load(protocol, one * FACTORS[-1], size, realistic=True)
            cells = measured(served, load, seconds, callers=one, is_patient=not impatient)
            name = f"{protocol}, {size} window{'s' if size > 1 else ''}"
            print(*map(line, rows(name, cells, fresh_mib)), sep="\n", flush=True)


if __name__ == "__main__":
    typer.run(main)
