"""Promised and actual figures of a run if units are censored at random.

Records of C-MAPSS units end at a random cycle, so units with a recorded failure have short lives. Other
units, recorded until they fail, judge the network. The first row omits the censored units, the second weights
failed units to represent them.

    python -m tests.benchmarks.censoring --data train_FD001.txt
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import numpy as np
import torch
import typer

from model.calibration import read_windows
from model.dataset import truncated_windows
from model.domain import Trajectory, WindowSet
from model.evaluation import Answered, figures
from model.fleet import Fleet, fleet_named
from model.network import RulNetwork
from model.networks import network_class
from model.readers import read_trajectories
from model.run import Plan, Source, train_run
from model.training import TrainConfig, unwatched
from tests.benchmarks.tables import table

TRAINING: Final = 0.6
"""Share of training units."""
SIGHT: Final = (0.3, 1.5)
"""Minimum and maximum length of a record, in median lives."""
SHOWN: Final = ("rmse", "bias", "coverage", "coverage_below_cap", "width")


def main(
    data: Annotated[Path, typer.Option(help="Training file of a C-MAPSS subset.")],
    steps: Annotated[int, typer.Option(help="Updates of each network.")] = 125,
    seed: Annotated[int, typer.Option(help="Seed of the units and of what is seen of them.")] = 0,
) -> None:
    """Print the promised and the actual figures of both rows."""
    torch.set_num_threads(1)
    fleet = fleet_named("cmapss")
    units = read_trajectories([data], fleet)
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(len(units))
    training, judging = np.split(drawn, [round(TRAINING * len(units))])
    median = float(np.median([len(unit) for unit in units]))
    seen = [_seen_of(units[i], int(rng.uniform(*SIGHT) * median)) for i in training]
    failed = [unit for unit in seen if unit.failed]
    windows = truncated_windows(
        [units[i] for i in judging], length=fleet.context, per_unit=20, rng=rng, shortest=fleet.shortest
    )
    print(f"{len(failed)} of {len(seen)} units fail within sight; {len(judging)} judge")
    rows: list[Sequence[str]] = []
    for name, trained in (("failed units alone", failed), ("counted for the censored", seen)):
        net, promised = _trained(trained, fleet, steps)
        kept = figures(_answered(net, windows), cap=fleet.cap)
        rows.append((name, "promised", *(f"{promised[f'crossvalidation_{each}']:.2f}" for each in SHOWN)))
        rows.append((name, "kept", *(f"{kept[each].value:.2f}" for each in SHOWN)))
    print(table(("", "", *SHOWN), rows))


def _seen_of(unit: Trajectory, cycles: int) -> Trajectory:
    if cycles >= len(unit):
        return unit
    return replace(unit, cycles=unit.cycles[:cycles], readings=unit.readings[:cycles], failed=False)


def _trained(units: list[Trajectory], fleet: Fleet, steps: int) -> tuple[RulNetwork, dict[str, Any]]:
    config = replace(TrainConfig(seed=0, **network_class("flagship").recipe), steps=steps)
    plan = Plan(units, fleet, "flagship", config, folds=5)
    with TemporaryDirectory() as folder:
        made, _ = train_run(
            plan, name="censored", source=Source("data", "0" * 64), folder=Path(folder), watch=unwatched
        )
    return made.network(), made.facts["metrics"]


def _answered(net: RulNetwork, windows: WindowSet) -> Answered:
    read, cap = read_windows(net, windows), net.config.cap
    rul = np.clip(read.unclipped, 0.0, cap)
    with torch.no_grad():
        interval = net.distribution(torch.from_numpy(rul)[:, None], torch.from_numpy(read.scale)[:, None])[0]
    lower, upper = interval.numpy().T
    return Answered(windows.rul, rul, lower, upper, windows.unit, windows.group, windows.weight)


if __name__ == "__main__":
    typer.run(main)
