"""Learning curve as CSV and as a picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from matplotlib.figure import Figure

from model.checkpoint import InvalidCheckpoint
from model.training import Check


def write_curve(curve: Sequence[Check], folder: Path) -> None:
    """Write `curve.csv` and `curve.png`."""
    with (folder / "curve.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [column.name for column in fields(Check)])
        writer.writeheader()
        writer.writerows(asdict(check) for check in curve)
    picture(curve).savefig(folder / "curve.png", dpi=120)


def picture(curve: Sequence[Check]) -> Figure:
    """Draw training loss and held-out RMSE over updates."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    error = figure.subplots()
    steps = [check.step for check in curve]
    error.plot(steps, [check.held_out_rmse for check in curve], color="tab:blue")
    error.set_xlabel("updates")
    error.set_ylabel("RMSE on held-out units, cycles", color="tab:blue")
    last = curve[-1]
    place = (last.step, last.held_out_rmse)
    error.plot(*place, "o", color="tab:blue")
    error.annotate(f"{last.held_out_rmse:.2f}", place, (-6, 8), textcoords="offset points", ha="right")
    loss = error.twinx()
    loss.plot(steps, [check.loss for check in curve], color="tab:orange", alpha=0.7)
    loss.set_ylabel("training loss", color="tab:orange")
    return figure


def read_curve(folder: Path) -> list[Check]:
    """Read the learning curve of a run."""
    path = folder / "curve.csv"
    names = [column.name for column in fields(Check)]
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [[row[name] for name in names] for row in csv.DictReader(file)]
        curve = [Check(int(step), *map(float, values)) for step, *values in rows]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InvalidCheckpoint(f"{path}: cannot be read: {error}") from error
    if not curve:
        raise InvalidCheckpoint(f"{path}: the learning curve is empty")
    return curve
