"""The table of `rul predict` for people: aligned, coloured by health, honest about capped answers.

Lines leave as answers come, so widths are known beforehand. A narrow terminal loses the drawing
first, then what says least about the unit.
"""

from __future__ import annotations

import heapq
import shutil
from collections import Counter
from collections.abc import Sequence
from typing import IO, Final

from rich.console import Console
from rich.text import Text

from export.bundle import Manifest
from model.domain import HEALTH_STATES, RulState, Trajectory
from rul_client.commands.predict.asking import Row
from service.core.queries import ModelName

STYLES: Final = {"healthy": "green", "degrading": "yellow", "critical": "bold red"}
DRAWING: Final = range(13, 26)
"""How wide the drawing may be."""
WIDEST_UNIT: Final = 24
URGENT: Final = 5
WITHOUT_TERMINAL: Final = 200
# What leaves a line that is too long, the first first.
EXPENDABLE: Final = ("drawing", "top cycle", "entropy", "state", "interval")
DOUBTFUL: Final = (RulState.INSUFFICIENT_HISTORY, RulState.OUT_OF_DISTRIBUTION)


class PeopleTable:
    """Writes rows for people, and what they amount to below them.

    Args:
        console: Where to.
        manifest: The model's: cap and coverage.
        model: Its name.
        trajectories: Whose rows will come, for the widths.
        last_only: Whether each unit has one row.
    """

    def __init__(
        self,
        console: Console,
        manifest: Manifest,
        model: ModelName,
        trajectories: Sequence[Trajectory],
        *,
        last_only: bool,
    ) -> None:
        self._console = console
        self._plain = console.encoding.lower() != "utf-8"
        self._cap = manifest.cap
        self._model = model
        self._last_only = last_only
        self._counts: Counter[str] = Counter()
        self._units = 0
        self._previous: str | None = None
        self._urgent: list[tuple[float, int, str]] = []
        unit = max(4, *(len(t.unit) for t in trajectories))
        cycle = max(10, *(len(str(t.cycles[-1])) for t in trajectories))
        number = max(5, len(self._at_least()))
        self._widths = {
            "unit": min(unit, WIDEST_UNIT),
            "last cycle": cycle,
            "RUL": number,
            "interval": max(2 * number + 3, len(f"{manifest.nominal_coverage:.0%} interval")),
            "drawing": DRAWING[-1],
            "health": max(map(len, HEALTH_STATES)) + 2,
            "entropy": 7,
            "top cycle": 9,
            "state": max(map(len, RulState)),
        }
        over = self._width() - console.width
        self._widths["drawing"] -= min(max(over, 0), len(DRAWING) - 1)
        for name in EXPENDABLE:
            if self._width() > console.width:
                del self._widths[name]
        heads = {name: name for name in self._widths}
        heads |= {"interval": f"{manifest.nominal_coverage:.0%} interval", "drawing": self._axis()}
        self._line({name: Text(heads[name], "bold") for name in self._widths})
        rule = "-" if self._plain else "─"
        self._line({name: Text(rule * width, "dim") for name, width in self._widths.items()})

    def write(self, rows: Sequence[Row]) -> None:
        """Write some rows."""
        for order, row in enumerate(rows):
            self._count(row, order)
            self._line(self._cells(row))

    def close(self) -> None:
        """Write what the rows amount to."""
        count = sum(self._counts.values())
        rows = "units" if self._last_only else f"windows of {self._units} units"
        parts = [Text(f"{count:,} {rows}")]
        parts += [
            Text(f"{self._counts[state]:,} {state}", STYLES[state])
            for state in reversed(HEALTH_STATES)
            if self._counts[state]
        ]
        if self._counts[""]:
            parts.append(Text(f"{self._counts['']:,} without an answer", "magenta"))
        parts.append(Text(f"model {self._model.name} {self._model.version}", "dim"))
        dot = " - " if self._plain else " · "
        self._console.print()
        self._console.print(Text(dot).join(parts), soft_wrap=True)
        if self._last_only and len(self._urgent) > 1:
            named = ", ".join(f"{unit} ({-rul:.1f})" for rul, _, unit in sorted(self._urgent, reverse=True))
            self._console.print(Text(f"fewest cycles left: {named}"), soft_wrap=True)

    def _count(self, row: Row, order: int) -> None:
        if row.unit != self._previous:
            self._previous, self._units = row.unit, self._units + 1
        self._counts[row.health_state or ""] += 1
        if self._last_only and row.rul is not None and row.rul_state == RulState.ESTIMATED:
            entry = (-row.rul, -self._units - order, row.unit)
            (heapq.heappush if len(self._urgent) < URGENT else heapq.heappushpop)(self._urgent, entry)

    def _cells(self, row: Row) -> dict[str, Text]:
        cells = {"unit": Text(_cut(row.unit)), "last cycle": Text(str(row.last_cycle))}
        if row.rul is None or row.rul_lower is None or row.rul_upper is None:
            return cells | {"RUL": Text("none", "magenta")}
        doubtful = row.rul_state in DOUBTFUL
        style = "dim" if doubtful else STYLES.get(row.health_state or "", "")
        health = row.health_state or ""
        mark = "" if self._plain else "● "
        ratio = "" if row.entropy_ratio is None else f"{row.entropy_ratio:.2f}"
        return cells | {
            "RUL": Text(self._rul(row), style),
            "interval": Text(self._interval(row.rul_lower, row.rul_upper)),
            "health": Text(f"{mark}{health}", style),
            "state": Text((row.rul_state or "").replace("_", " "), "magenta" if doubtful else "dim"),
            "entropy": Text(ratio),
            "top cycle": Text(str(row.top_cycle)),
            "drawing": self._drawn(row.rul, row.rul_lower, row.rul_upper, style),
        }

    def _at_least(self) -> str:
        return f">= {self._cap:g}" if self._plain else f"≥ {self._cap:g}"

    def _rul(self, row: Row) -> str:
        capped = row.rul_state == RulState.AT_LEAST_CAP or (row.rul or 0) >= self._cap
        return self._at_least() if capped else f"{row.rul:.1f}"

    def _interval(self, lower: float, upper: float) -> str:
        between = " - " if self._plain else " \N{EN DASH} "
        ends = [self._at_least() if end >= self._cap else f"{end:.1f}" for end in (lower, upper)]
        width = max(5, len(self._at_least()))
        return between.join(end.rjust(width) for end in ends)

    def _width(self) -> int:
        return sum(self._widths.values()) + 2 * (len(self._widths) - 1)

    def _axis(self) -> str:
        return "0" + f"{self._cap:g}".rjust(self._widths.get("drawing", 0) - 1)

    def _drawn(self, rul: float, lower: float, upper: float, style: str) -> Text:
        """The interval as a line from 0 to the cap, the estimate as a mark on it."""
        width = self._widths.get("drawing", 0)
        if not width:
            return Text()
        line, mark = ("-", "o") if self._plain else ("─", "●")
        first, at, last = (min(width - 1, int(x / self._cap * width)) for x in (lower, rul, upper))
        marks = [line if first <= i <= last else " " for i in range(width)]
        marks[at] = mark
        return Text("".join(marks), style)

    def _line(self, cells: dict[str, Text]) -> None:
        line = Text(no_wrap=True)
        for name, width in self._widths.items():
            cell = cells.get(name, Text())
            cell = cell.copy()
            if name in {"unit", "health", "state", "drawing"}:
                cell.align("left", width)
            else:
                cell.align("right", width)
            line.append_text(cell)
            line.append("  ")
        line.rstrip()
        self._console.print(line, soft_wrap=True)


def people_console(file: IO[str], *, width: int | None = None) -> Console:
    """Where the table goes: as wide as the terminal, or as it takes where there is none."""
    width = width or shutil.get_terminal_size(fallback=(WITHOUT_TERMINAL, 50)).columns
    return Console(file=file, width=width, highlight=False, markup=False)


def _cut(unit: str) -> str:
    return unit if len(unit) <= WIDEST_UNIT else f"{unit[: WIDEST_UNIT - 3]}..."
