"""Fleets with different kinds of wear, by the commands of a user: network against gradient boosting.

    python -m tests.benchmarks.fleets FOLDER [--fleet ratio] [--units 8]

Each fleet is written as CSV, described by `rul fleet init` and trained by `rul train` without options. Runs
in FOLDER are reused. The table has the figures of `rul train`: five folds of held-out units, 95 %
intervals over units, the difference with units in pairs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray
from pyarrow import csv

from tests.benchmarks.tables import table

LONG_UNITS: Final = 15
"""Maximum units of `long`."""
SEED: Final = 7

Rng = np.random.Generator
Columns = dict[str, NDArray[np.float64]]


def variance(rng: Rng) -> Columns:
    """Wear increases only the spread of two columns."""
    left = _cycles_left(rng)
    spread = 1 + 3 * np.exp(-left / rng.uniform(20, 35))
    return {
        "vib_x": rng.normal(0, spread),
        "vib_y": rng.normal(0, 0.5 * spread + 0.5),
        "temp": rng.normal(40, 1, len(left)),
        "press": rng.normal(5, 0.1, len(left)),
    }


def wiener(rng: Rng) -> Columns:
    """Wear is a random walk with a drift of each unit; the unit fails at a bound."""
    drift, wear = np.exp(rng.normal(np.log(0.005), 0.3)), [0.0]
    while wear[-1] < 1:
        wear.append(wear[-1] + rng.normal(drift, 0.02))
    n = len(wear) - 1
    return {"wear": np.array(wear[1:]), "temp": rng.normal(60, 2, n), "flow": rng.normal(3, 0.1, n)}


def usage(rng: Rng) -> Columns:
    """A unit fails when the sum of its load reaches its limit; no column shows the sum."""
    limit, damage, load = rng.normal(100, 3), 0.0, list[float]()
    level = rng.uniform(0.3, 1.2)
    while damage < limit:
        if rng.random() < 0.02:
            level = rng.uniform(0.3, 1.2)
        load.append(max(0.05, level + rng.normal(0, 0.05)))
        damage += load[-1]
    loads = np.array(load)
    temp = 20 + 30 * loads + rng.normal(0, 2, len(load))
    return {"load": loads, "temp": temp, "hum": rng.normal(50, 5, len(load))}


def ratio(rng: Rng) -> Columns:
    """Wear changes the ratio of two columns, under a random load at each cycle."""
    left = _cycles_left(rng)
    efficiency = 0.9 - 0.25 * np.exp(-left / rng.uniform(30, 60))
    power, n = rng.uniform(50, 150, len(left)), len(left)
    return {
        "power_in": power + rng.normal(0, 0.5, n),
        "power_out": power * efficiency + rng.normal(0, 1, n),
        "temp": rng.normal(30, 3, n),
    }


def modes(rng: Rng) -> Columns:
    """Two failure modes, each with its own column, and two columns that show both."""
    left, first = _cycles_left(rng), rng.random() < 0.5
    wear, n = np.exp(-left / rng.uniform(15, 50)), len(left)
    return {
        "p1": rng.normal(0, 0.1, n) + wear * first,
        "p2": rng.normal(0, 0.15, n) + 0.8 * wear * first,
        "t1": rng.normal(0, 0.1, n) - wear * (not first),
        "t2": rng.normal(0, 0.2, n) + wear,
        "noise": rng.normal(0, 1, n),
    }


def counts(rng: Rng) -> Columns:
    """Rare errors become frequent."""
    left = _cycles_left(rng)
    rate = 0.03 + 1.5 * np.exp(-left / rng.uniform(15, 35))
    errors = rng.poisson(rate).astype(float)
    warnings = rng.poisson(0.2 + rate * 0.5).astype(float)
    return {"errors": errors, "warnings": warnings, "temp": rng.normal(50, 1, len(left))}


def short(rng: Rng) -> Columns:
    """Lives of 12 to 39 cycles."""
    n = int(rng.integers(12, 40))
    wear = np.exp(-np.arange(n - 1, -1, -1) / rng.uniform(5, 10))
    noise = rng.normal(size=(3, n))
    return {"a": 0.1 * noise[0] + wear, "b": 1 - 0.7 * wear + 0.2 * noise[1], "c": noise[2]}


def long(rng: Rng) -> Columns:
    """Few units of thousands of cycles."""
    n = int(rng.integers(1500, 4000))
    t = np.arange(n) / n
    power, offset = rng.uniform(1.5, 3), rng.normal(0, 0.05)
    return {
        "rms": offset + 0.5 + t**power + rng.normal(0, 0.05, n),
        "kurt": 3 + 2 * t**6 + rng.normal(0, 0.3, n),
        "temp": 40 + 10 * t**2 + rng.normal(0, 1, n),
    }


def conditions(rng: Rng) -> Columns:
    """Speed and force of a unit, one of three pairs, set its rate of wear and its sensor levels."""
    hard = rng.integers(3)
    n = int(np.clip(rng.lognormal(np.log([260, 170, 110][hard]), 0.15), 40, 500))
    wear = (np.arange(1, n + 1) / n) ** rng.uniform(2, 3)
    return {
        "speed": np.full(n, [1200.0, 1500.0, 1800.0][hard]),
        "force": np.full(n, [5.0, 4.4, 4.0][hard]),
        "vib": (1 + hard / 2) * (1 + 0.6 * wear) + rng.normal(0, 0.25, n),
        "temp": 50 + 10 * hard + 6 * wear + rng.normal(0, 2, n),
        "kurt": 3 + 1.5 * wear**2 + rng.normal(0, 0.5, n),
    }


FLEETS: Final[dict[str, Callable[[Rng], Columns]]] = {
    each.__name__: each for each in (variance, wiener, usage, ratio, modes, counts, short, long, conditions)
}


def _cycles_left(rng: Rng) -> NDArray[np.int64]:
    """Draw a life of 120 to 279 cycles and return the RUL at each."""
    return np.arange(rng.integers(120, 280) - 1, -1, -1)


def write_fleet(folder: Path, name: str, *, units: int) -> tuple[Path, Path]:
    """Write a fleet's units, and its fleet file by `rul fleet init`."""
    data, described = folder / f"{name}.csv", folder / f"{name}.toml"
    rng = np.random.default_rng([SEED, list(FLEETS).index(name)])
    parts: list[pa.Table] = []
    for n in range(min(units, LONG_UNITS) if name == "long" else units):
        columns = {column: values.round(5) for column, values in FLEETS[name](rng).items()}
        cycles = len(next(iter(columns.values())))
        parts.append(pa.table({"machine": [f"m{n:03}"] * cycles, "cycle": range(1, cycles + 1)} | columns))
    csv.write_csv(pa.concat_tables(parts), data)
    _rul("fleet", "init", data, "--output", described, "--overwrite")
    if name == "wiener":
        rule = 'column = "wear"\nat_least = 1.0'
        text = described.read_text(encoding="utf-8").replace("run_to_failure = true", rule, 1)
        described.write_text(text, encoding="utf-8")
    return data, described


def measured(folder: Path, names: list[str], *, units: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Train on each fleet without a run in the folder, and read the metrics of each run."""
    for name in names:
        run = folder / "runs" / name
        if not (run / "run.json").exists():
            data, described = write_fleet(folder, name, units=units)
            _rul("train", "--fleet", described, "--data", data, "--name", name, "--output", run)
        yield name, json.loads((run / "run.json").read_text(encoding="utf-8"))["facts"]["metrics"]


def _rul(*arguments: str | Path) -> None:
    command = [str(Path(sys.executable).with_name("rul")), *map(str, arguments)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def row(name: str, found: dict[str, float]) -> list[str]:
    """Return the figures of a fleet."""
    thirds = " ".join(f"{found[f'third_{n}_coverage']:.2f}" for n in (1, 2, 3))
    cells = (
        f"{found[figure]:.2f} [{found[f'{figure}_low']:.2f}, {found[f'{figure}_high']:.2f}]"
        for figure in ("crossvalidation_rmse", "boosting_rmse", "boosting_difference")
    )
    return [f"`{name}`: {(FLEETS[name].__doc__ or '').rstrip('.')}", *cells, thirds]


def main(
    folder: Path,
    fleet: Annotated[str, typer.Option(help="With commas.")] = ",".join(FLEETS),
    units: int = 80,
) -> None:
    """Print one row per fleet."""
    folder.mkdir(parents=True, exist_ok=True)
    heads = ("fleet", "RMSE", "of gradient boosting", "difference", "coverage by thirds")
    print(table(heads, (row(*each) for each in measured(folder, fleet.split(","), units=units)), texts=5))


if __name__ == "__main__":
    typer.run(main)
