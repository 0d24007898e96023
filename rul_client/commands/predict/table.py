"""The table of `rul predict` for people: aligned, coloured by health, "≥ cap" for capped answers.

Rows are printed as they come, so column widths are fixed first.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from model.cells import counted
from model.domain import HEALTH_LABELS, RulState, Trajectory, printable
from rul_client.answers import DOUBTFUL, Answerer
from rul_client.commands.output import HEALTH_STYLES
from rul_client.commands.predict.rows import Row
from rul_client.commands.predict.writers import RowWriter

DRAWING: Final = (13, 25)
MAX_UNIT: Final = 24
URGENT: Final = 5
MAX_SENSOR: Final = 16
UNSUPPORTED: Final = "unsupported"
EXPENDABLE: Final = (
    "drawing", "top cycle", "entropy", "trust", "state", "sensors", "evidence", "failure", "cost ratio",
    "interval", "health",
)  # fmt: skip
"""Columns to drop on a narrow terminal, in this order."""
LEFT: Final = ("unit", "drawing", "health", "sensors", "trust", "state")
COUNTED: Final = {"unknown": "unknown: readings unlike the training data"}
ASCII: Final = str.maketrans({"≥": ">=", "\N{EN DASH}": "-", "─": "-", "●": "o", "·": "-"})


class PeopleTable(RowWriter):
    """Writes rows of these units for people, and a summary below them."""

    def __init__(
        self, console: Console, answerer: Answerer, units: Sequence[Trajectory], *, last_only: bool
    ) -> None:
        self._console: Final = console
        self._signs: Final = {} if console.encoding.lower() == "utf-8" else ASCII
        self._cap: Final = answerer.manifest.cap
        self._manifest: Final = answerer.manifest
        self._model: Final = answerer.name
        self._rows: Final = "units" if last_only else f"windows of {counted(len(units), 'unit')}"
        self._at_least: Final = f"≥ {self._cap:g}".translate(self._signs)
        self._number: Final = max(5, len(self._at_least))
        self._headings: Final = {
            "interval": f"{answerer.manifest.nominal_coverage:.0%} interval",
            "evidence": "evident",
            "sensors": "top sensors, cycles",
            "failure": "fails in " + "/".join(map(str, answerer.manifest.horizons)),
        }
        self._failure: Final = [f"failure_within_{horizon}" for horizon in answerer.manifest.horizons]
        self._last_only: Final = last_only
        self._decides: Final = answerer.costs is not None
        self._widths: Final = self._fit(units)
        self._counts: Final = Counter[str]()
        self._estimated: Final[list[tuple[float, str]]] = []

    def write(self, rows: Sequence[Row]) -> None:  # noqa: D102 inherited
        box, gap = (None, 2) if self._signs else (SIMPLE_HEAD, 1)
        table = Table(box=box, padding=(0, gap, 0, 0), show_edge=False, pad_edge=False)
        table.show_header = not self._counts
        table.width = self._width(self._widths)  # a narrower terminal wraps lines, so no digit is cut off
        axis = f"0{f'{self._cap:g}':>{self._widths.get('drawing', 1) - 1}}"
        for name, width in self._widths.items():
            heading = self._headings.get(name, axis if name == "drawing" else name)
            side = "left" if name in LEFT else "right"
            table.add_column(heading, width=width, justify=side, no_wrap=True, overflow="crop")
        for row in rows:
            self._counts[row["health_state"] or ""] += 1
            if self._last_only and row["rul_state"] == RulState.ESTIMATED:
                self._estimated.append((row["rul"], row["unit"]))
            cells = self._cells(row)
            table.add_row(*(cells.get(name, Text()) for name in self._widths))
        self._console.print(table, crop=False)

    def close(self) -> None:  # noqa: D102 inherited
        counts = [
            (COUNTED.get(state, state), HEALTH_STYLES[state], self._counts[state])
            for state in reversed(HEALTH_LABELS)
        ]
        counts.append(("without an answer", "magenta", self._counts[""]))
        parts = [Text(f"{self._counts.total():,} {self._rows}")]
        parts += [Text(f"{count:,} {name}", style) for name, style, count in counts if count]
        parts.append(Text(printable(f"model {self._model.name} {self._model.version}"), "dim"))
        self._console.print()
        self._console.print(self._text(" · ").join(parts), soft_wrap=True)
        if len(self._estimated) > 1:
            fewest = heapq.nsmallest(URGENT, self._estimated, key=lambda entry: entry[0])
            named = ", ".join(f"{printable(unit, MAX_UNIT)} ({rul:.1f})" for rul, unit in fewest)
            self._console.print(f"fewest cycles left: {named}", soft_wrap=True)

    def _fit(self, units: Sequence[Trajectory]) -> dict[str, int]:
        """Choose columns and their widths for this console."""
        cycle = max(len(str(t.cycles[-1])) for t in units)
        widths = {
            "unit": min(MAX_UNIT, max(4, *(len(t.unit) for t in units))),
            "last cycle": max(10, cycle),
            "RUL": self._number,
            "interval": max(2 * self._number + 3, len(self._headings["interval"])),
            "drawing": DRAWING[1],
            "health": max(map(len, HEALTH_LABELS)) + 2,
            "entropy": 7,
            **self._grounds_widths(cycle),
            **({"stop at": max(7, cycle + 1), "cost ratio": 10} if self._decides else {}),
            "failure": max(5 * len(self._manifest.horizons) - 1, len(self._headings["failure"])),
            "state": max(map(len, RulState)),
        }

        def excess() -> int:
            return max(0, self._width(widths) - self._console.width)

        widths["drawing"] -= min(excess(), DRAWING[1] - DRAWING[0])
        for name in EXPENDABLE:
            if excess():
                widths.pop(name, None)
        return widths

    @staticmethod
    def _width(widths: Mapping[str, int]) -> int:
        return sum(widths.values()) + 2 * (len(widths) - 1)

    def _grounds_widths(self, cycle: int) -> dict[str, int]:
        """Choose the columns of the explanation; the longest cycle number has so many digits."""
        if not self._manifest.explains_readings:
            return {"top cycle": max(9, cycle)}
        names = [self._manifest.columns[place].name for place in self._manifest.contributing]
        sensor = min(MAX_SENSOR, max(map(len, names), default=0)) + len(f" {-self._cap:.1f}")
        sensors = max(2 * sensor + 2, len(self._headings["sensors"]))
        widths = {"evidence": max(len(self._headings["evidence"]), cycle), "sensors": sensors}
        return widths | ({"trust": len(UNSUPPORTED)} if self._last_only else {})

    def _cells(self, row: Row) -> dict[str, Text]:
        cells = {"unit": Text(printable(row["unit"], MAX_UNIT)), "last cycle": Text(str(row["last_cycle"]))}
        if row["rul"] is None:
            return cells | {"RUL": Text("none", "magenta")}
        health, state, entropy = row["health_state"], row["rul_state"], row["entropy_ratio"]
        doubtful = state in DOUBTFUL
        style = "dim" if doubtful else HEALTH_STYLES.get(health, "")
        ends = row["rul_lower"], row["rul_upper"]
        low, high = (self._cycles(end).rjust(self._number) for end in ends)
        sensors = (_weight(row, name) for name in ("top_sensor", "second_sensor"))
        trust = row.get("trust") or ""
        stop = "never" if row.get("act_at_cycle") is None else str(row["act_at_cycle"])
        ratio = row.get("cost_ratio")
        return cells | {
            "RUL": Text(self._cycles(row["rul"]), style),
            "interval": self._text(f"{low} \N{EN DASH} {high}"),
            "drawing": self._text(self._drawing(row["rul"], *ends), style),
            "health": self._text(f"● {health}", style),
            "entropy": Text("" if entropy is None else f"{entropy:.2f}"),
            "top cycle": Text(str(row["top_cycle"])),
            "evidence": Text(str(row["top_cycle"])),
            "sensors": Text(", ".join(filter(None, sensors))),
            "trust": Text(trust, "magenta" if trust == UNSUPPORTED else "dim"),
            "stop at": Text("" if ratio is None else stop),
            "cost ratio": Text("" if ratio is None else f"{ratio:.2f}"),
            "failure": Text(" ".join(f"{row[name]:.2f}" for name in self._failure if name in row)),
            "state": Text(state.replace("_", " "), "magenta" if doubtful else "dim"),
        }

    def _cycles(self, cycles: float) -> str:
        return self._at_least if cycles >= self._cap else f"{cycles:.1f}"

    def _drawing(self, rul: float, lower: float, upper: float) -> str:
        """Draw the interval as a line from 0 to the cap, and the RUL as a mark on it."""
        width = self._widths.get("drawing", 1)
        first, at, last = (min(width - 1, int(x / self._cap * width)) for x in (lower, rul, upper))
        return "".join("●" if i == at else "─" if first <= i <= last else " " for i in range(width))

    def _text(self, words: str, style: str = "") -> Text:
        return Text(words.translate(self._signs), style)


def _weight(row: Row, sensor: str) -> str:
    name = row.get(sensor)
    return "" if name is None else f"{printable(name, MAX_SENSOR)} {row[f'{sensor}_cycles']:+.1f}"
