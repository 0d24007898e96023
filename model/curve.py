"""The learning curve as a table that opens anywhere, and as a picture."""

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
    """Training loss and validation RMSE over updates, with the weights that were kept marked."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    error = figure.subplots()
    steps = [check.step for check in curve]
    error.plot(steps, [check.validation_rmse for check in curve], color="tab:blue")
    error.set_xlabel("updates")
    error.set_ylabel("validation RMSE, cycles", color="tab:blue")
    best = min(curve, key=lambda check: check.validation_rmse)
    error.plot([best.step], [best.validation_rmse], "o", color="tab:blue")
    error.annotate(
        f"{best.validation_rmse:.2f}",
        (best.step, best.validation_rmse),
        xytext=(6, 6),
        textcoords="offset points",
    )
    loss = error.twinx()
    loss.plot(steps, [check.loss for check in curve], color="tab:orange", alpha=0.7)
    loss.set_ylabel("training loss", color="tab:orange")
    return figure


def read_curve(folder: Path) -> list[Check]:
    """What `write_curve` wrote.

    Raises:
        InvalidCheckpoint: there is no `curve.csv`, or it is damaged.
    """
    path = folder / "curve.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        curve = [
            Check(
                step=int(row["step"]),
                loss=float(row["loss"]),
                validation_rmse=float(row["validation_rmse"]),
                learning_rate=float(row["learning_rate"]),
                best=row["best"] == "True",
            )
            for row in rows
        ]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InvalidCheckpoint(f"{path}: cannot be read: {error}") from error
    if not curve:
        raise InvalidCheckpoint(f"{path}: no check was made yet")
    return curve
