"""Learning curve as CSV, as a picture, and as a table of heads from the first to the last check."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from model.cells import counted
from model.checkpoint import InvalidCheckpoint
from model.domain import MEAN_HEAD, printable
from model.outputs import whole_file
from model.screen import number_table, save_picture
from model.training import ENTROPY, FIRST, LAST, Check

COLUMNS: Final = [column.name for column in fields(Check) if column.name != "figures"]
PANELS: Final = {
    "gradient_norm": "gradient norm before clipping",
    ENTROPY: "entropy ratio: 0 one cycle, 1 even",
    FIRST: "weight of the first cycle",
    LAST: "weight of the last cycle",
}
EVEN: Final = 0.98
"""A head with a larger entropy ratio distinguishes no cycles."""
COLLAPSED: Final = 0.1
"""A head with a smaller entropy ratio attends to about one cycle."""


def write_curve(curve: Sequence[Check], folder: Path) -> None:
    """Write `curve.csv` and `curve.png`."""
    path = folder / "curve.csv"
    with whole_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *curve[0].figures])
        writer.writerows(
            [*(getattr(check, name) for name in COLUMNS), *check.figures.values()] for check in curve
        )
    save_picture(picture(curve, folder.resolve().name), folder / "curve.png")


def picture(curve: Sequence[Check], name: str) -> Figure:
    """Draw loss and held-out RMSE over updates, then gradient norm, entropy and sinks of each head."""
    panels = [kind for kind in PANELS if any(name.startswith(kind) for name in curve[0].figures)]
    figure = Figure(figsize=(7, 4.3 + 2 * len(panels)), layout="constrained")
    made = f"{counted(len(curve), 'check')} in {counted(curve[-1].step, 'update')}"
    figure.suptitle(f"{printable(name)}: learning curve, {made}", fontsize=12)
    error, *others = figure.subplots(
        1 + len(panels), 1, sharex=True, squeeze=False, height_ratios=[2] + [1] * len(panels)
    ).ravel()
    _draw_error(error, curve)
    for kind, axes in zip(panels, others, strict=True):
        _draw_heads(axes, curve, kind)
    (others or [error])[-1].set_xlabel("updates")
    error.xaxis.set_major_locator(MaxNLocator(integer=True))  # shared with the others
    return figure


def read_curve(folder: Path) -> list[Check]:
    """Read the learning curve of a run.

    Raises:
        InvalidCheckpoint: the file is missing, damaged or empty.
    """
    path = folder / "curve.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            curve = [_check(row) for row in csv.DictReader(file)]
    except (OSError, csv.Error, KeyError, ValueError, TypeError) as error:
        raise InvalidCheckpoint(f"{path}: cannot be read: {error}") from error
    if not curve:
        raise InvalidCheckpoint(f"{path}: the learning curve is empty")
    return curve


def _check(row: dict[str, str]) -> Check:
    step, *values = (row.pop(name) for name in COLUMNS)
    return Check(int(step), *map(float, values), figures={name: float(text) for name, text in row.items()})


def _draw_error(error: Axes, curve: Sequence[Check]) -> None:
    steps = [check.step for check in curve]
    errors = [check.held_out_rmse for check in curve]
    lines = error.plot(steps, errors, color="tab:blue", marker=".", label="RMSE on held-out units (left)")
    error.set_ylabel("RMSE on held-out units, cycles", color="tab:blue")
    last = curve[-1]
    place = (last.step, last.held_out_rmse)
    error.plot(*place, "o", color="tab:blue")
    error.annotate(f"{last.held_out_rmse:.2f}", place, (-6, 8), textcoords="offset points", ha="right")
    loss = error.twinx()
    losses = [check.loss for check in curve]
    lines += loss.plot(steps, losses, color="tab:orange", marker=".", label="training loss (right)")
    loss.set_ylabel("training loss", color="tab:orange")
    error.legend(handles=lines, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)


def _draw_heads(axes: Axes, curve: Sequence[Check], kind: str) -> None:
    """Draw one line per head; the attention of the answer is black."""
    steps = [check.step for check in curve]
    names = [name for name in curve[0].figures if name.startswith(kind)]
    for name in names:
        head = name.removeprefix(f"{kind}_")
        color, width = ("black", 2.0) if head in (MEAN_HEAD, kind) else (None, 1.2)
        values = [check.figures[name] for check in curve]
        axes.plot(steps, values, label=head, color=color, linewidth=width, marker=".")
    axes.set_ylim(bottom=0)
    axes.set_title(PANELS[kind], fontsize="medium", loc="left")
    if kind == ENTROPY and len(names) > 1:  # the other panels have the same colours
        axes.legend(title="head", fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))


def curve_table(curve: Sequence[Check]) -> Table | None:
    """Tabulate each head at the first and the last check; None if the curve has no heads."""
    first, last = curve[0].figures, curve[-1].figures
    heads = [name.removeprefix(f"{ENTROPY}_") for name in last if name.startswith(f"{ENTROPY}_")]
    if not heads:
        return None
    title = "training: attention on held-out units, first check .. last check"
    table = number_table(title, "head", "entropy ratio", "weight of first cycle", "weight of last cycle")
    table.add_column("")
    for head in heads:
        names = [f"{kind}_{head}" for kind in (ENTROPY, FIRST, LAST)]
        cells = (f"{first[name]:.2f} .. {last[name]:.2f}" for name in names)
        table.add_row(head, *cells, verdict(last[names[0]]))
    norms = (check.figures["gradient_norm"] for check in (curve[0], curve[-1]))
    table.caption = "gradient norm before clipping, first check .. last check: {:.2g} .. {:.2g}".format(
        *norms
    )
    return table


def verdict(entropy_ratio: float) -> str:
    """Name degenerate attention."""
    if entropy_ratio > EVEN:
        return "even"
    return "collapsed" if entropy_ratio < COLLAPSED else ""
