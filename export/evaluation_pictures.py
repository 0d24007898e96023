"""Pictures of `rul evaluate --plot`: trajectories, residuals, reliability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from export.bundle import Manifest
from export.pictures import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LEGEND,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    new_picture,
    quiet,
)
from model.cells import counted
from model.domain import FloatArray, capped_rul
from model.prognostics import ALPHA, Band, Life, reliability

SHOWN_UNITS: Final = 6
RUL_BINS: Final = 25
FEWEST_CYCLES: Final = 10
"""Marks of fewer cycles would be noise."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
COLOURS: Final = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)


def trajectory_picture(lives: Sequence[Life], manifest: Manifest) -> Figure:
    """Draw RUL, interval and truth at every cycle, for units of short to long lives."""
    ordered = sorted(lives, key=lambda life: len(life.truth))
    places = np.unique(np.linspace(0, len(ordered) - 1, min(SHOWN_UNITS, len(ordered))).round().astype(int))
    chosen = [ordered[place] for place in places]
    rows = -(-len(chosen) // 3)
    figure = new_picture(
        width=11,
        height=1.2 + 2.9 * rows,
        title=f"{manifest.name}: RUL at every cycle, with its {manifest.nominal_coverage:.0%} interval",
    )
    axes = figure.subplots(rows, min(3, len(chosen)), squeeze=False, sharey=True)
    for each in axes.flat[len(chosen) :]:
        each.set_visible(False)
    for each, life in zip(axes.flat, chosen, strict=False):
        _draw_life(each, life, manifest)
    for each in axes[:, 0]:
        each.set_ylabel("RUL, cycles")
    for column in range(axes.shape[1]):
        lowest = max(row for row in range(rows) if row * 3 + column < len(chosen))
        axes[lowest, column].set_xlabel("cycle of the unit")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _draw_life(axes: Axes, life: Life, manifest: Manifest) -> None:
    quiet(axes, f"unit {life.unit}, failed at cycle {life.end:g}")
    truth = capped_rul(life.truth, cap=manifest.cap)
    predicted = life.truth <= manifest.cap
    band = axes.fill_between(life.cycle, life.lower, life.upper, color=SKY, alpha=0.35, linewidth=0)
    band.set_label("interval")
    edges = np.outer(life.truth[predicted], (1 - ALPHA, 1 + ALPHA))
    cone = axes.plot(life.cycle[predicted], edges, color=GREY, linewidth=0.9, linestyle=":")
    cone[0].set_label(f"truth ± {ALPHA:.0%}")
    label = f"truth, at most {manifest.cap:g}"
    axes.plot(life.cycle, truth, color=BLACK, linewidth=1.4, linestyle="--", label=label)
    axes.plot(life.cycle, life.rul, color=BLUE, linewidth=1.6, label="answer")
    axes.set(ylim=(0, 1.06 * manifest.cap), xlim=(0, None))


def residual_picture(lives: Sequence[Life], manifest: Manifest) -> Figure:
    """Draw errors over the true RUL below the cap, with their 90 % band and their histogram."""
    truth = np.concatenate([life.truth for life in lives])
    error = np.concatenate([life.rul - capped_rul(life.truth, cap=manifest.cap) for life in lives])
    below = truth < manifest.cap
    truth, error, shown = truth[below], error[below], counted(len(lives), "unit")
    figure = new_picture(
        width=10,
        height=5,
        title=f"{manifest.name}: error at every cycle with a true RUL below {manifest.cap:g}, {shown}",
    )
    main, side = figure.subplots(1, 2, width_ratios=(4, 1), sharey=True)
    y = "answer - truth, cycles (above 0: failure comes earlier than predicted)"
    quiet(main, x="true RUL, cycles (failure at the right)", y=y)
    main.scatter(truth, error, s=6, color=SKY, alpha=0.35, linewidths=0, rasterized=True, label="a cycle")
    middle, median, ends = _running(truth, error, cap=manifest.cap)
    main.plot(middle, median, color=BLUE, linewidth=2, label="median")
    outer = main.plot(middle, ends, color=VERMILLION, linewidth=1.4, linestyle="--")
    outer[0].set_label("5 % and 95 %")
    main.axhline(0, color=BLACK, linewidth=0.9)
    main.set_xlim(manifest.cap, 0)
    main.legend(loc="upper right", frameon=False, markerscale=2)
    quiet(side, x="cycles of units").hist(error, bins=40, orientation="horizontal", color=BLUE)
    side.axhline(0, color=BLACK, linewidth=0.9)
    side.axhline(float(error.mean()), color=ORANGE, linewidth=2, label=f"mean {error.mean():+.1f}")
    side.legend(loc="upper right", frameon=False)
    return figure


def reliability_picture(lives: Sequence[Life], bands: Sequence[Band], manifest: Manifest) -> Figure:
    """Draw the calibration of probabilities and the coverage and width of intervals."""
    figure = new_picture(
        width=13,
        height=4.6,
        title=f"{manifest.name}: reliability at every cycle of {counted(len(lives), 'unit')}",
    )
    diagram, coverage, width = figure.subplots(1, 3)
    _draw_reliability(diagram, lives, manifest)
    x = f"true RUL, cycles (cap {manifest.cap:g})"
    _bars(quiet(coverage, "coverage", x, "share of cycles with the truth in the interval"), bands, "coverage")
    nominal = manifest.nominal_coverage
    coverage.axhline(nominal, color=VERMILLION, linestyle="--", label=f"nominal {nominal:.0%}")
    coverage.set_ylim(0, 1.05)
    coverage.legend(loc="lower right", **LEGEND)
    title = "width (lines: 95 % by bootstrap)"
    _bars(quiet(width, title, x, "width of the interval, cycles"), bands, "width")
    return figure


def _draw_reliability(axes: Axes, lives: Sequence[Life], manifest: Manifest) -> None:
    truth = np.concatenate([life.truth for life in lives])
    probability = np.concatenate([life.failure_probability for life in lives])
    title = f"failure probability ({FEWEST_CYCLES} cycles or more per mark)"
    quiet(axes, title, "predicted probability of failure", "observed share of failures")
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    for k, horizon in enumerate(manifest.horizons):
        colour, marker = COLOURS[k % len(COLOURS)], MARKERS[(k + k // len(COLOURS)) % len(MARKERS)]
        found = reliability(probability[:, k], truth, horizon=horizon)
        enough = found.windows >= FEWEST_CYCLES
        stated, observed = found.stated[enough], found.observed[enough]
        axes.plot(stated, observed, color=colour, marker=marker, label=f"within {horizon} cycles")
    axes.set_aspect("equal")
    axes.legend(loc="lower right", **LEGEND)


def _bars(axes: Axes, bands: Sequence[Band], name: str) -> None:
    found = [band.figures[name] for band in bands]
    value = np.array([figure.value for figure in found])
    reach = np.abs(np.array([[figure.low, figure.high] for figure in found]).T - value)
    axes.bar(range(len(bands)), value, color=SKY, yerr=reach, ecolor=BLACK, capsize=3)
    names = [
        f"{band.low:g}\N{EN DASH}{band.high:g}" if np.isfinite(band.high) else f"≥ {band.low:g}"
        for band in bands
    ]
    axes.set_xticks(range(len(bands)), names, rotation=25, ha="right")
    axes.grid(visible=False, axis="x")


def _running(
    truth: FloatArray, error: FloatArray, *, cap: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return each RUL bin's middle [K], median error [K], and 5 and 95 % quantiles [K, 2]."""
    which = np.minimum((truth / cap * RUL_BINS).astype(int), RUL_BINS - 1)
    there = np.unique(which)
    quantiles = np.array([np.quantile(error[which == b], (0.5, 0.05, 0.95)) for b in there])
    quantiles = quantiles.reshape(len(there), 3)
    return (there + 0.5) * cap / RUL_BINS, quantiles[:, 0], quantiles[:, 1:]
