"""Picture of `rul explain`: one answer, the readings that it rests on, and the sentence that says so."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from export.pictures import BLACK, BLUE, GREEN, GREY, LEGEND, ORANGE, SKY, VERMILLION, new_picture, quiet
from model.domain import FloatArray, IntArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRACES: Final = 4
"""Sensors whose readings are drawn."""
HEAT_ROWS: Final = 20
"""Maximum sensors in the heatmap."""
LETTERS: Final = 140
"""Maximum letters in a line of text."""
COLOURS: Final = "PuOr"
"""Orange takes cycles off, purple adds; safe for colour-blind readers."""


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """An answer with its full explanation; T cycles of its window, S sensors, N answers up to it."""

    title: str  # Model, unit, cycle and answer
    sentence: str
    trust: str  # Verdict and its figures, in words
    cap: float
    life: FloatArray  # [N, 4] cycle, RUL, lower and upper bound of the interval
    coverage: float  # Of the interval
    cycles: IntArray  # [T]
    names: Sequence[str]  # [S]
    units: Sequence[str]  # [S]
    readings: FloatArray  # [T, S]
    lower: FloatArray  # [T, S] healthy range
    upper: FloatArray  # [T, S]
    contributions: FloatArray  # [T, S] cycles of RUL
    ranking: FloatArray  # [T] evidence, or attention without it
    ranked_by: str  # `evidence` or `attention`
    since: Mapping[str, int]  # First cycle of each departure that the sentence names, in its order


def leading(explained: Explained) -> list[int]:
    """Return the sensors in order: those of the sentence, then by the sum of absolute contributions."""
    weight = np.abs(explained.contributions).sum(axis=0)
    said = [explained.names.index(name) for name in explained.since]
    return [*said, *(s for s in np.argsort(-weight, kind="stable").tolist() if s not in said)]


def explanation_picture(explained: Explained) -> Figure:
    """Draw the answer over the unit's life, leading sensors, contributions and evidence, and a heatmap."""
    order = leading(explained)
    traces, rows = order[:TRACES], order[:HEAT_ROWS]
    words = "\n".join(
        line for text in (explained.sentence, explained.trust) for line in textwrap.wrap(text, LETTERS)
    )
    heights = [0.24 * words.count("\n") + 0.3, 1.7, *[1.0] * len(traces), 1.3, 0.5 + 0.19 * len(rows)]
    figure = new_picture(width=11, height=sum(heights) + 1.2, title=explained.title)
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    note = figure.add_subplot(grid[0])
    note.set_axis_off()
    note.text(0.0, 1.0, words, va="top", fontsize=10, linespacing=1.4, transform=note.transAxes)
    _draw_life(figure.add_subplot(grid[1]), explained)
    first = figure.add_subplot(grid[2])
    window = [first, *(figure.add_subplot(grid[n], sharex=first) for n in range(3, len(heights)))]
    for axes, sensor in zip(window, traces, strict=False):
        _draw_trace(axes, explained, sensor)
    first.set_title("green: healthy range; vermilion: outside", fontsize=8, loc="right", pad=3, color=GREY)
    _draw_contributions(window[-2], explained)
    _draw_heatmap(figure, window[-1], explained, rows)
    for axes in window[:-1]:
        axes.tick_params(labelbottom=False)
    first.set_xlim(explained.cycles[0] - 0.5, explained.cycles[-1] + 0.5)
    window[-1].set_xlabel("cycle")
    return figure


def _draw_life(axes: Axes, explained: Explained) -> None:
    cycle, rul, lower, upper = explained.life.T
    first, last = explained.cycles[0] - 0.5, explained.cycles[-1] + 0.5
    quiet(axes).axvspan(first, last, color=GREY, alpha=0.1, linewidth=0, label="window of this answer")
    band: dict[str, Any] = {"color": SKY, "alpha": 0.4, "linewidth": 0}
    axes.fill_between(cycle, lower, upper, label=f"{explained.coverage:.0%} interval", **band)
    axes.plot(cycle, rul, color=BLUE, linewidth=1.6, label="estimate at each cycle")
    axes.plot(cycle[-1], rul[-1], "o", color=BLUE, ms=6)
    axes.annotate(
        f"{rul[-1]:.0f}", (cycle[-1], rul[-1]), (6, 4), textcoords="offset points", color=BLUE, weight="bold"
    )
    begin = min(cycle[0], first)
    axes.set(ylim=(0, 1.06 * explained.cap), xlim=(begin, last + 0.03 * (last - begin)))
    axes.set(xlabel="cycle", ylabel="RUL, cycles")
    axes.legend(loc="lower left", fontsize=8, ncols=3, **LEGEND)


def _draw_trace(axes: Axes, explained: Explained, sensor: int) -> None:
    """Draw readings with their healthy range; over several regimes, both relative to that range."""
    name, cycles, unit = explained.names[sensor], explained.cycles, explained.units[sensor]
    readings, lower, upper = (
        each[:, sensor] for each in (explained.readings, explained.lower, explained.upper)
    )
    if np.ptp(lower) > 0:
        middle, half = (lower + upper) / 2, (upper - lower) / 2
        readings, lower, upper = (readings - middle) / half, -np.ones_like(lower), np.ones_like(upper)
        unit = "distance from the middle of its regime's healthy range, over half its width"
    quiet(axes).fill_between(cycles, lower, upper, color=GREEN, alpha=0.16, linewidth=0, step="mid")
    axes.plot(cycles, readings, color=GREY, linewidth=0.7)
    outside = (readings > upper) | (readings < lower)
    axes.plot(cycles[~outside], readings[~outside], "o", ms=2.6, color=BLACK)
    axes.plot(cycles[outside], readings[outside], "o", ms=3.4, color=VERMILLION)
    if name in explained.since:
        since = explained.since[name]
        axes.axvline(since - 0.5, color=VERMILLION, linewidth=1.2, linestyle="--")
        axes.annotate(
            f"since {since}", (since - 0.5, 0.95), (3, 0), xycoords=("data", "axes fraction"),
            textcoords="offset points", color=VERMILLION, fontsize=8, va="top",
        )  # fmt: skip
    total = explained.contributions[:, sensor].sum()
    title = f"{name}: {total:+.1f} cycles in all" + (f" ({unit})" if unit else "")
    axes.set_title(title, fontsize=9, loc="left", pad=3)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.margins(y=0.15)
    axes.tick_params(labelsize=8)


def _draw_contributions(axes: Axes, explained: Explained) -> None:
    added = np.clip(explained.contributions, 0, None).sum(axis=1)
    taken = np.clip(explained.contributions, None, 0).sum(axis=1)
    quiet(axes).bar(explained.cycles, taken, width=0.9, color=ORANGE, label="cycles taken off")
    axes.bar(explained.cycles, added, width=0.9, color=SKY, label="cycles added")
    axes.axhline(0, color=BLACK, linewidth=0.7)
    axes.set_ylabel("cycles of RUL", fontsize=8)
    axes.tick_params(labelsize=8)
    other = axes.twinx()
    other.plot(explained.cycles, explained.ranking, color=BLACK, linewidth=1.2, label=explained.ranked_by)
    other.set_ylim(bottom=0)
    other.set_ylabel(explained.ranked_by, fontsize=8)
    other.tick_params(labelsize=8)
    other.spines["top"].set_visible(False)
    handles = [part for each in (axes, other) for part in each.get_legend_handles_labels()[0]]
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.0}
    other.legend(handles=handles, fontsize=8, ncols=3, frameon=False, **place)
    axes.set_title(f"contribution and {explained.ranked_by} of each cycle", fontsize=9, loc="left", pad=3)


def _draw_heatmap(figure: Figure, axes: Axes, explained: Explained, sensors: Sequence[int]) -> None:
    shown = explained.contributions[:, list(sensors)].T
    most = float(np.quantile(np.abs(shown), 0.995)) or 1.0
    place = (explained.cycles[0] - 0.5, explained.cycles[-1] + 0.5, len(sensors) - 0.5, -0.5)
    image = axes.imshow(
        shown, aspect="auto", interpolation="nearest", cmap=COLOURS, vmin=-most, vmax=most, extent=place
    )
    axes.set_yticks(range(len(sensors)), labels=[explained.names[s] for s in sensors], fontsize=8)
    axes.set_title("contribution of each reading", fontsize=9, loc="left", pad=3)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.4, aspect=40, pad=0.02, extend="both")
    bar.set_label("cycles of RUL: orange takes off, purple adds", fontsize=8)
    bar.ax.tick_params(labelsize=8)
