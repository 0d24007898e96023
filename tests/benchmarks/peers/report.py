"""What the peers came to: one Markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.benchmarks.front_ends import Figures
from tests.benchmarks.tables import table

EACH: Final = ("of the ceiling", "p50 ms", "p99 ms", "failed", "CPU s per 1000")
HEADINGS: Final = ("", *EACH, *EACH, "first answer", "memory")
CELLS: Final = {"over ceiling": 2, "p50 ms": 0, "p99 ms": 0, "failed": 0, "cpu s per 1000": 2}
LOADS: Final = ("1 a call, 64 callers", "64 a call, 8 callers")


@dataclass
class Result:
    """One server's figures over all rounds, or why it has none."""

    title: str
    protocols: tuple[str, ...]
    figures: Figures = field(default_factory=dict)
    failure: str = ""


def median(result: Result, name: str) -> float | None:
    """Over the rounds."""
    values = result.figures.get(name)
    return statistics.median(values) if values else None


def markdown(results: Mapping[str, Result]) -> str:
    """One row a server and protocol; a server without figures says why."""
    rows = (_row(result, protocol) for result in results.values() for protocol in result.protocols)
    ceiling = [median(result, "ceiling windows/s") for result in results.values()]
    known = [value for value in ceiling if value is not None]
    spread = f"{min(known):,.0f} to {max(known):,.0f}" if known else "unknown"
    head = "Columns 2 to 6: one window a call, 64 callers. Columns 7 to 11: 64 windows a call, 8 callers.\n"
    head += f"The ceiling was {spread} windows/s.\n\n"
    return head + table(HEADINGS, rows)


def _row(result: Result, protocol: str) -> list[str]:
    title = f"{result.title}: {protocol}"
    if result.failure and not result.figures:
        return [title, f"not measured: {result.failure}", *[""] * (len(HEADINGS) - 2)]
    cells = [title]
    for load in LOADS:
        for name, digits in CELLS.items():
            value = median(result, f"{protocol}, {load}: {name}")
            cells.append("-" if value is None else f"{value:.{digits}f}")
    ready, memory = median(result, "ready s"), median(result, "memory MiB")
    cells.append("-" if ready is None else f"{ready:.1f} s")
    cells.append("-" if memory is None else f"{memory / 1024:.2f} GiB")
    return cells
