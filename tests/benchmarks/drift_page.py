"""Results of `tests.benchmarks.drift`, as tables and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from export.pictures import require_matplotlib
from model.screen import save_picture
from tests.benchmarks.tables import table

if TYPE_CHECKING:
    from tests.benchmarks.drift import Curve, Found, Healthy


def healthy_table(rows: Sequence[Healthy]) -> str:
    """Tabulate false alarms, one line per fleet."""
    heads = (
        "model",
        "healthy fleet",
        "windows",
        "looks",
        "alarms",
        "nearest column",
        "predictions",
        "entropy",
    )
    lines = (
        [
            *(row.model, row.fleet, row.windows, row.looks),
            ", ".join(f"{name}: {times}" for name, times in row.alarms.items()) or "0",
            *(f"{nearest:.0%}" for nearest in (row.column, row.prediction, row.entropy)),
        ]
        for row in rows
    )
    return table(heads, lines, texts=2)


def faults_table(rows: Sequence[Found]) -> str:
    """Tabulate windows to the first alarm by kind of fault and model; then missed faults."""
    models = list(dict.fromkeys(row.model for row in rows))
    kinds = dict.fromkeys(row.kind for row in rows)
    lines = (
        [kind, *(_cell([row for row in rows if (row.kind, row.model) == (kind, name)]) for name in models)]
        for kind in kinds
    )
    missed = "; ".join(f"{row.model} {row.kind}: {row.where}" for row in rows if row.windows is None)
    elsewhere = [row for row in rows if row.windows and not row.named]
    other = "; ".join(f"{row.model} {row.kind} of {row.where}: {', '.join(row.alarms)}" for row in elsewhere)
    return (
        "Windows from a fault to the first alarm: median (largest) over columns, in how many cases.\n\n"
        f"{table(['fault of all units', *models], lines)}\n\n"
        f"Missed: {missed or 'none'}.\n\nFirst alarm for another column or thing: {other or 'none'}."
    )


def _cell(rows: Sequence[Found]) -> str:
    found = [row.windows for row in rows if row.windows is not None]
    if not rows:
        return ""
    if not found:
        return f"none of {len(rows)}"
    return f"{median(found):.0f} ({max(found)}), {len(found)} of {len(rows)}"


def picture(curves: Mapping[str, Curve], path: Path, *, since: int, every: int) -> None:
    """Draw the index over windows, healthy and faulty, one panel per model."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    for axes, (name, curve) in zip(figure.subplots(2, 2, sharex=True).ravel(), curves.items(), strict=True):
        windows = (np.arange(len(curve.healthy)) + 1) * every - since
        axes.plot(windows, curve.faulty, color="#c23b22", label="sensor_11 two standard deviations high")
        axes.plot(windows, curve.healthy, color="#2a6f97", label="as it is")
        axes.plot(windows, curve.limit, color="#888888", linestyle="--", linewidth=1, label="limit")
        axes.axvline(0, color="#cccccc", linewidth=1)
        axes.set_title(name, fontsize=9)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
    figure.supxlabel("windows since the fault", fontsize=9)
    figure.supylabel("population stability index", fontsize=9)
    figure.axes[0].legend(fontsize=7, frameon=False, loc="upper left")
    save_picture(figure, path)
