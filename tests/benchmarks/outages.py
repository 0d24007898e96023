"""Effect of outages on held-out units: RMSE, coverage and width with missing cycles, as a table.

    python -m tests.benchmarks.outages --data train_FD001.txt [--folds 2] [--steps 1000]

Networks of the first folds answer truncated windows of held-out units with at least `SHORTEST` cycles; their
intervals are calibrated on these windows without outages, as in `rul train`. Windows with a RUL below 60 are
also shown separately, because late answers do most harm there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from model.calibration import at_cap, interval_bounds, interval_ends, normalised_error, read_windows
from model.crossfit import Fold, held_out_fold, joined, scaled_by_rul
from model.domain import FloatArray, WindowSet, capped_rul
from model.evaluation import root_mean_square_error
from model.fleet import fleet_named
from model.networks import network_class
from model.readers import read_trajectories
from model.run import Plan
from model.training import TrainConfig, unwatched
from tests.benchmarks.tables import table

SHORTEST: Final = 45
SOON: Final = 60.0
HALF: Final = 0.5


def _part(first: int, last: int) -> Callable[[int], slice]:
    return lambda cycles: slice(cycles - first, cycles - last)


OUTAGES: Final[dict[str, Callable[[int], slice]]] = {
    "none": _part(0, 0),
    "20 in the middle": lambda cycles: slice(cycles // 2 - 10, cycles // 2 + 10),
    "10, then 5 readings": _part(15, 5),
    "5, then 1 reading": _part(6, 1),
    "10, then 1 reading": _part(11, 1),
    "the last 5": _part(5, 0),
    "the last 20": _part(20, 0),
}
"""Functions from the length of a window to its missing cycles."""


def main(
    *,
    data: Annotated[Path, typer.Option(help="File of C-MAPSS.")],
    folds: Annotated[int, typer.Option(min=2, max=5, help="First folds to train, of five.")] = 2,
    steps: Annotated[int, typer.Option(help="Updates.")] = 1000,
) -> None:
    """Print the table."""
    fleet = fleet_named("cmapss")
    config = TrainConfig(**{**network_class("flagship").recipe, "seed": 0, "steps": steps})
    plan = Plan(read_trajectories([data], fleet), fleet, "flagship", config, folds=5)
    trained: list[Fold] = []
    for fold in range(folds):
        split, trainer, reference = plan.stage(fold)
        trained.append(held_out_fold(trainer.learn(unwatched), split, reference))
    trained, _ = scaled_by_rul(trained)
    read, windows = joined(trained)
    error = normalised_error(read, windows, cap=fleet.cap)
    group = at_cap(read.unclipped, cap=fleet.cap)
    bounds = interval_bounds(error, group, windows.unit, windows.weight, coverage=fleet.nominal_coverage)
    rows = [(name, *_row(trained, lost, bounds, cap=fleet.cap)) for name, lost in OUTAGES.items()]
    rows.append(("half at random", *_row(trained, None, bounds, cap=fleet.cap)))
    heads = ("RMSE", "coverage", "width")
    print(table(("missing", *heads, *(f"RUL < 60: {head}" for head in heads)), rows))


def _row(
    folds: list[Fold], lost: Callable[[int], slice] | None, bounds: FloatArray, *, cap: float
) -> list[str]:
    parts: list[FloatArray] = []
    for fold in folds:
        windows = _with_outage(fold.windows.take(np.flatnonzero(fold.windows.lengths >= SHORTEST)), lost)
        read = read_windows(fold.net, windows)
        rul, truth = np.clip(read.unclipped, 0.0, cap), capped_rul(windows.rul, cap=cap)
        ends = interval_ends(read, bounds[at_cap(read.unclipped, cap=cap)], cap=cap)
        parts.append(np.stack((rul, truth, *ends, windows.rul)))
    rul, truth, lower, upper, left = np.concatenate(parts, axis=1)
    cells: list[str] = []
    for rows in (left >= 0, left < SOON):
        covered = (lower[rows] <= truth[rows]) & (truth[rows] <= upper[rows])
        width = (upper - lower)[rows].mean()
        rmse = root_mean_square_error((rul - truth)[rows])
        cells += [f"{rmse:.1f}", f"{covered.mean():.2f}", f"{width:.1f}"]
    return cells


def _with_outage(windows: WindowSet, lost: Callable[[int], slice] | None) -> WindowSet:
    readings, rng = windows.readings.copy(), np.random.default_rng(0)
    for window, cycles in zip(readings, windows.lengths.tolist(), strict=True):
        rows = np.flatnonzero(rng.random(cycles) < HALF) if lost is None else lost(cycles)
        window[rows] = np.nan
    return replace(windows, readings=readings)


if __name__ == "__main__":
    typer.run(main)
