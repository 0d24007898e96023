"""Pictures of `rul attention --output`: attended cycles of one unit's predictions, or a map of one window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from export.attention import CycleMap, heads_of
from export.bundle import Manifest
from export.evaluation_windows import life_windows
from export.pictures import BLACK, BLUE, GREY, LEGEND, SKY, VERMILLION, new_picture, quiet
from export.session import Session
from model.cells import counted
from model.domain import (
    MEAN_HEAD,
    FloatArray,
    IntArray,
    Trajectory,
    WindowSet,
    attention_entropy_ratio,
    capped_rul,
)

COLOURS: Final = "cividis"
"""Uniform in lightness, and safe for colour-blind readers."""
SCALE: Final = (0.1, 10.0)
"""Weight over equal weights at the first and last colour; the same in every picture."""
NOTHING: Final = 1e-9
"""Stands for 0, which has no logarithm."""
TICKS: Final = (0.1, 0.3, 1.0, 3.0, 10.0)
BEFORE_LAST: Final = "attended cycle: cycles before the last of the window"
HEADS_IN_A_ROW: Final = 4
MAP: Final[dict[str, Any]] = {"aspect": "auto", "interpolation": "nearest", "cmap": COLOURS}


def attention_picture(session: Session, manifest: Manifest, trajectory: Trajectory) -> Figure:
    """Draw one unit's life: attended cycles, RUL and entropy of each prediction.

    If the network has heads, a panel above shows each head at the last prediction.
    """
    windows = life_windows(trajectory, manifest)
    answers = session.answer_all(windows)
    heads = heads_of(answers)
    many = len(heads) > 1
    shown = counted(len(windows), "prediction")
    figure = new_picture(
        width=12,
        height=6.4 + (1.2 + 0.28 * len(heads)) * many,
        title=f"{manifest.name}: attention over unit {trajectory.unit}, {shown}",
    )
    ratios = ([0.9 + 0.28 * len(heads)] if many else []) + [5.6]
    grid = figure.add_gridspec(len(ratios), 3, width_ratios=(4, 1.3, 1.1), height_ratios=ratios)
    life = figure.add_subplot(grid[-1, 0])
    _draw_life(figure, life, answers["attention"], windows)
    rul = figure.add_subplot(grid[-1, 1], sharey=life)
    _draw_rul(rul, answers, windows, manifest)
    entropy = figure.add_subplot(grid[-1, 2], sharey=life)
    _draw_entropy(entropy, answers["attention"], windows, manifest)
    for axes in (rul, entropy):
        axes.tick_params(labelleft=False)
    if many:
        _draw_heads(figure.add_subplot(grid[0, :]), heads, windows)
    return figure


def life_map(attention: FloatArray, lengths: IntArray) -> FloatArray:
    """Align weights over equal weights by the last cycle of each window, [W, T] -> [W, longest].

    The last column is the last cycle; NaN before the window.
    """
    shown = np.full(attention.shape, np.nan)
    for weights, row, length in zip(attention, shown, lengths, strict=True):
        row[len(row) - length :] = weights[:length] * length
    return shown[:, -int(lengths.max()) :]


def _draw_life(figure: Figure, axes: Axes, attention: FloatArray, windows: WindowSet) -> None:
    shown = np.maximum(life_map(attention, windows.lengths), NOTHING)
    first = windows.last_cycle.astype(np.float64) - 0.5
    edges = np.union1d(first, first + 1)  # where cycles have no reading, a row without colour is between
    rows = np.full((len(edges) - 1, shown.shape[1]), np.nan)
    rows[np.searchsorted(edges, first)] = shown
    before = np.arange(shown.shape[1], -1, -1) - 0.5
    image = axes.pcolormesh(before, edges, rows, norm=LogNorm(*SCALE), cmap=COLOURS, rasterized=True)
    axes.set(facecolor="#f2f2f2", xlabel=BEFORE_LAST, ylabel="cycle of the prediction", xlim=before[[0, -1]])
    axes.set_title("attention (blank: before the window, or no reading)", fontsize=10)
    bar = figure.colorbar(image, ax=axes, location="bottom", extend="both", shrink=0.7, aspect=40)
    bar.set_ticks(TICKS, labels=[f"{tick:g}" for tick in TICKS])
    bar.ax.minorticks_off()
    bar.set_label("weight over equal weights (1: no preference)")


def _draw_rul(axes: Axes, answers: Mapping[str, FloatArray], windows: WindowSet, manifest: Manifest) -> None:
    cycle, (lower, upper) = windows.last_cycle, answers["rul_interval"].T
    named = f"{manifest.nominal_coverage:.0%} interval"
    quiet(axes, "answer", "RUL, cycles")
    axes.fill_betweenx(cycle, lower, upper, color=SKY, alpha=0.35, linewidth=0, label=named)
    axes.plot(answers["rul"], cycle, color=BLUE, label="answer")
    if not np.isnan(windows.rul).all():
        truth = capped_rul(windows.rul, cap=manifest.cap)
        axes.plot(truth, cycle, color=BLACK, linestyle="--", linewidth=1.2, label="truth")
    axes.set_xlim(0, 1.04 * manifest.cap)
    axes.xaxis.set_major_locator(MaxNLocator(4, prune="upper"))  # no tick reaches the next panel
    axes.legend(loc="lower left", fontsize=8, **LEGEND)


def _draw_entropy(axes: Axes, attention: FloatArray, windows: WindowSet, manifest: Manifest) -> None:
    low, high = (limit[windows.lengths] for limit in manifest.entropy[0].limits(manifest.context))
    cycle = windows.last_cycle
    quiet(axes, "entropy", "entropy ratio\n(0: one cycle, 1: uniform)")
    band = axes.fill_betweenx(cycle, low, high, step="mid", label="99 % of calibration")
    band.set(color=GREY, alpha=0.18, linewidth=0)
    ratio = attention_entropy_ratio(attention, windows.lengths)
    axes.plot(ratio, cycle, color=BLUE, linewidth=1.3)
    outside = (ratio < low) | (ratio > high)
    if outside.any():
        axes.plot(ratio[outside], cycle[outside], "o", ms=3, color=VERMILLION, label="outside")
    axes.set_xlim(0, 1.02)
    axes.set_xticks((0, 0.5, 1), labels=("0", "0.5", "1"))
    axes.legend(loc="lower left", fontsize=8, **LEGEND)


def _draw_heads(axes: Axes, heads: Mapping[str, FloatArray], windows: WindowSet) -> None:
    length = int(windows.lengths[-1])
    shown = np.maximum(np.stack([weights[-1, :length] for weights in heads.values()]) * length, NOTHING)
    axes.imshow(shown, extent=(length - 0.5, -0.5, len(heads) - 0.5, -0.5), norm=LogNorm(*SCALE), **MAP)
    axes.set_yticks(range(len(heads)), list(heads))
    axes.set(ylabel="head", xlabel=BEFORE_LAST)
    axes.axhline(0.5, color="white", linewidth=3)
    axes.set_title(f"each head, prediction at cycle {windows.last_cycle[-1]:g}", fontsize=10)


def map_picture(manifest: Manifest, found: CycleMap, cycle: int) -> Figure:
    """Draw the mean of the heads as a map, where the picked cycle looks as bars, and each head's map."""
    looks = found.looks(cycle)[MEAN_HEAD]
    rows = -(-len(found.weights) // HEADS_IN_A_ROW)
    title = f"{manifest.name}: where the cycles of unit {found.unit} look"
    figure = new_picture(width=11, height=5 + 2.7 * rows, title=title)
    grid = figure.add_gridspec(1 + rows, HEADS_IN_A_ROW, height_ratios=(5, *[2.7] * rows))
    half = HEADS_IN_A_ROW // 2
    every, one = figure.add_subplot(grid[0, :half]), figure.add_subplot(grid[0, half:])
    image = _draw_map(every, found, found.weights.mean(axis=0), cycle)
    figure.colorbar(image, ax=every, label="weight")
    every.set(xlabel="cycle that is looked at", ylabel="cycle that looks", title="mean of heads")
    quiet(one, f"cycle {cycle}", "cycle that is looked at", "weight").bar(found.cycles, looks, color=BLUE)
    one.axhline(1 / len(looks), color=VERMILLION, linewidth=1.2, linestyle="--", label="equal weights")
    one.legend(fontsize=8, frameon=False)
    for head, weights in enumerate(found.weights):
        axes = figure.add_subplot(grid[1 + head // HEADS_IN_A_ROW, head % HEADS_IN_A_ROW])
        _draw_map(axes, found, weights, cycle)
        axes.set_title(f"head {head}", fontsize=10)
    return figure


def _draw_map(axes: Axes, found: CycleMap, weights: FloatArray, cycle: int) -> AxesImage:
    """Draw a map [n, n] in the colours of all maps, with a line at the picked cycle."""
    first, last = found.cycles[0] - 0.5, found.cycles[-1] + 0.5
    axes.axhline(cycle, color=VERMILLION, linewidth=1.2)
    place, most = (first, last, last, first), float(found.weights.max())
    return axes.imshow(weights, extent=place, vmin=0.0, vmax=most, cmap=COLOURS, interpolation="nearest")
