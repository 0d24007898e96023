"""`rul score` beside the ceiling: the same graph in ONNX Runtime, one process per core, no other work.

    python -m tests.benchmarks.score --windows 1000000 --kills 3 --rul .venv/serve/bin/rul

`--rul` is the command in the environment that users have: pyarrow imports pandas wherever it is installed,
as it is for the tests.

Ceiling and command alternate on the same cores, over simulated units and all of their windows. The ceiling
has batches of 32, as in docs/performance.md, and also those of `rul score`. Rates are of the whole command,
including its start. "CPU" is the ceiling's CPU time per window over the command's, valid on a busy machine
too. Memory is the peak of the summed resident memory of all processes.
`--kills` kills one more run this many times, lets it end, and compares all files with those of the first.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Annotated

import psutil
import typer

from export.bundle import find_bundle
from export.session import open_bundle
from model.domain import Trajectory
from model.simulation import simulate
from model.writers import write_parquet
from rul_client.commands.score.scorer import BATCH_WINDOWS
from tests.benchmarks.front_ends import CEILING_BATCH, CORES, ROOT, Figures, measure_ceiling
from tests.benchmarks.tables import table
from tests.scoring import tree

RUL = Path(sys.executable).with_name("rul")
UNITS_PER_FILE = 1000
DIFFERENT_UNITS = 200
"""Number of simulated units; further units repeat them under other names."""
SAMPLE_SECONDS = 0.2
MIB = 2**20
HEADS = ("round", "windows/s", "over the ceiling, batch 32", "CPU", "its own batch", "CPU", "peak MiB")


def main(
    *,
    windows: Annotated[int, typer.Option(min=1)] = 1_000_000,
    bundle: str = "fd001",
    seconds: Annotated[int, typer.Option(min=1, help="Of each ceiling.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Each runs both ceilings and the command once.")] = 3,
    kills: Annotated[int, typer.Option(min=0)] = 0,
    rul: Annotated[Path, typer.Option(help="The command; it may be of another environment.")] = RUL,
) -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        fleet = Path(folder) / "fleet"
        made = write_fleet(fleet, bundle, windows)
        size = sum(file.stat().st_size for file in fleet.iterdir()) / MIB
        print(f"{made:,} windows of simulated units, {size:,.0f} MiB of Parquet, {CORES} cores")
        rows: list[list[object]] = []
        shares: list[float] = []
        for number in range(1, rounds + 1):
            bare: Figures = {}
            add_ceilings(bundle, seconds, bare)
            took, busy, peak = scored(rul, fleet, Path(folder) / f"out-{number}", bundle)
            add_ceilings(bundle, seconds, bare)
            rate, cells = made / took, list[str]()
            for batch in range(2):
                over = rate / statistics.mean(bare["ceiling windows/s"][batch::2])
                cpu = statistics.mean(bare["ceiling cpu s per 1000"][batch::2]) * made / 1000 / busy
                cells += [f"{over:.3f}", f"{cpu:.3f}"]
                shares += [] if batch else [over]
            rows.append([number, f"{rate:,.0f}", *cells, f"{peak / MIB:,.0f}"])
        print(table(HEADS, rows, texts=0))
        print(f"median over the ceiling: {statistics.median(shares):.3f}")
        if kills:
            killed = Path(folder) / "killed"
            for _ in range(kills):
                scored(rul, fleet, killed, bundle, kill_after=took / (kills + 1))
            scored(rul, fleet, killed, bundle)
            same = tree(killed) == tree(Path(folder) / "out-1")
            print(f"killed {kills} times and continued: files {'identical' if same else 'DIFFERENT'}")
            raise typer.Exit(not same)


def write_fleet(folder: Path, bundle: str, windows: int) -> int:
    """Write units until they have enough cycles; return the number of cycles."""
    _, manifest = open_bundle(find_bundle(bundle))
    schema = manifest.schema_of_columns
    different = simulate(manifest, schema, units=DIFFERENT_UNITS, seed=7)
    folder.mkdir()
    units: list[Trajectory] = []
    made, number = 0, 0
    for i, unit in enumerate(cycle(different)):
        units.append(Trajectory(f"unit-{i:06d}", unit.cycles, unit.readings, failed=True))
        made += len(unit)
        if made >= windows or len(units) == UNITS_PER_FILE:
            write_parquet(folder / f"{number:04d}.parquet", units, schema)
            units, number = [], number + 1
        if made >= windows:
            return made
    raise AssertionError("endless")


def add_ceilings(bundle: str, seconds: int, figures: Figures) -> None:
    """Measure the bare graph in batches of 32, then in those of `rul score`."""
    for batch in (CEILING_BATCH, BATCH_WINDOWS):
        measure_ceiling(bundle, seconds, figures, batch=batch)


def scored(
    rul: Path, fleet: Path, output: Path, bundle: str, *, kill_after: float = 0
) -> tuple[float, float, int]:
    """Run the command, or kill it after a time; return seconds, CPU seconds and peak bytes."""
    command = [rul.absolute(), "score", "--bundle", bundle, "--input", fleet, "--output", output]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen(
        [*command, "--windows", "all"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            peak = max(peak, sum(each.memory_info().rss for each in [root, *root.children(recursive=True)]))
        if kill_after and time.perf_counter() - start > kill_after:
            process.kill()
        time.sleep(SAMPLE_SECONDS)
    if not kill_after and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    took, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime, peak


if __name__ == "__main__":
    typer.run(main)
