"""The figures of `versions` as a table in Markdown."""

from __future__ import annotations

import statistics
from typing import Final

from tests.benchmarks.front_ends import CORES, Figures
from tests.benchmarks.tables import table

OLD: Final = "old"
NEW: Final = "new"
FLOOR: Final = "floor"
COLUMNS: Final = (
    ("windows/s", "windows/s", 0, (OLD, NEW)),
    ("over ceiling", "of the ceiling", 2, (OLD, NEW, FLOOR)),
    ("p50 ms", "p50 ms", 2, (OLD, NEW)),
    ("p99 ms", "p99 ms", 2, (OLD, NEW)),
    ("cpu s per 1000", "CPU s per 1000", 3, (OLD, NEW, FLOOR)),
)
"""Figures by name: heading, digits and servers to show."""
HEADINGS: Final = (
    "cell", "new / old", "rounds", "CPU new / old",
    *(f"{heading}: {', '.join(sides)}" for _, heading, _, sides in COLUMNS), "failed",
)  # fmt: skip


def middle(figures: Figures, name: str) -> float:
    """Return the median of a figure; NaN if it was not measured."""
    return statistics.median(figures.get(name) or [float("nan")])


def ratios(kept: dict[str, Figures], name: str) -> list[float]:
    """Return the ratios of a figure, new version over old, one per round."""
    return [new / old for old, new in zip(kept[OLD][name], kept[NEW][name], strict=True)]


def rows(kept: dict[str, Figures], cells: list[str]) -> list[list[str]]:
    """Return one row per cell, with the columns of `HEADINGS`."""
    lines: list[list[str]] = []
    for cell in cells:
        found = ratios(kept, f"{cell}: windows/s")
        used = statistics.median(ratios(kept, f"{cell}: cpu s per 1000"))
        spread = f"{min(found):.2f} to {max(found):.2f}"
        line = [cell, f"{statistics.median(found):.2f}", spread, f"{used:.2f}"]
        for name, _, digits, sides in COLUMNS:
            values = (middle(kept[side], f"{cell}: {name}") for side in sides if side in kept)
            line.append(" / ".join(f"{value:,.{digits}f}" for value in values))
        line.append(f"{sum(sum(figures[f'{cell}: failed']) for figures in kept.values()):.0f}")
        lines.append(line)
    return lines


def markdown(kept: dict[str, Figures], cells: list[str]) -> str:
    """Write the summary, then the table of cells."""
    return f"{summary(kept)}\n\n{table(HEADINGS, rows(kept, cells))}"


def summary(kept: dict[str, Figures]) -> str:
    """Write ceiling, cold start and memory, one line each."""
    ceiling, alone = middle(kept[OLD], "ceiling windows/s"), middle(kept[OLD], "alone ms")
    starts = ", ".join(f"{name} {middle(kept[name], 'ready s'):.2f} s" for name in (OLD, NEW))
    found = [
        f"Ceiling: {ceiling:,.0f} windows/s on {CORES} cores. One window alone: {alone:.2f} ms.",
        f"Cold start of four bundles: {starts}.",
    ]
    for payload in ("realistic", "identical"):
        held = [
            f"{name} "
            + " / ".join(f"{middle(kept[name], f'{payload}: {kind} MiB'):.0f}" for kind in ("RSS", "PSS"))
            for name in kept
        ]
        found.append(f"Largest worker after the {payload} load, RSS / PSS: {', '.join(held)} MiB.")
    return "\n".join(found)
