"""What each model answers, as a table of `rul top`: a column each, the figures by their importance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from model.domain import RulState
from rul_client.commands.top.figures import Quality
from rul_client.commands.top.layout import TABLE_HEAD
from rul_client.commands.top.words import NONE, number, percent, shown

STATES: Final = {
    RulState.ESTIMATED: "estimated",
    RulState.AT_LEAST_CAP: "at least cap",
    RulState.INSUFFICIENT_HISTORY: "short history",
    RulState.OUT_OF_DISTRIBUTION: "unfamiliar",
}
STATE_PLACES: Final = {
    RulState.ESTIMATED: 11,
    RulState.AT_LEAST_CAP: 9,
    RulState.INSUFFICIENT_HISTORY: 10,
    RulState.OUT_OF_DISTRIBUTION: 4,
}
DRIFT: Final = 0.25  # from here on a population stability index is usually called a shift
NOVEL: Final = 1.0  # the 99.5 % quantile of training: no mean should lie there
LABEL_WIDTH: Final = 14
MODEL_WIDTH: Final = 15


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the table.

    Attributes:
        place: Among those that a short terminal shows first, from 0.
    """

    label: str
    cell: Callable[[Quality], Text]
    place: int


class Models:
    """What each model answers, a column each; the busiest ones, where there is no room for all.

    Args:
        qualities: What each answers.
        most: How many figures to show, the most important ones; None: all.
    """

    def __init__(self, qualities: Sequence[Quality], most: int | None = None) -> None:
        self._qualities: Final = sorted(qualities, key=lambda q: -q.windows_per_second)
        self._most: Final = most

    def figures(self, width: int) -> int:
        """How many there are to show."""
        return len(_figures(self._chosen(width)))

    def around(self, width: int) -> int:
        """Lines that are none of the figures."""
        return 1 + TABLE_HEAD + (len(self._qualities) > len(self._chosen(width)))

    def _chosen(self, width: int) -> list[Quality]:
        room = max(1, (width - LABEL_WIDTH) // (MODEL_WIDTH + 1))
        return sorted(self._qualities[:room], key=lambda q: q.model.name)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        chosen = self._chosen(options.max_width)
        shown_table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        shown_table.add_column("model", width=LABEL_WIDTH, no_wrap=True)
        for one in chosen:
            name = shown(one.model.name, MODEL_WIDTH)
            shown_table.add_column(
                name, width=MODEL_WIDTH, justify="right", no_wrap=True, overflow="ellipsis"
            )
        figures = _figures(chosen)
        last = sorted(figure.place for figure in figures)[: self._most][-1]
        for figure in figures:
            if figure.place <= last:
                # What was not answered just now stands back: it is of all time.
                cells = [(figure.cell(one), "dim" if one.since_start else "") for one in chosen]
                shown_table.add_row(
                    figure.label, *(Text(text.plain, text.style or style) for text, style in cells)
                )
        yield Text()
        yield shown_table
        left = len(self._qualities) - len(chosen)
        if left:
            yield Text(f"and {left} more: there is room for the busiest", "dim")


def _figures(chosen: Sequence[Quality]) -> list[Figure]:
    """From top to bottom."""
    figures = [
        Figure("windows/s", lambda q: Text(number(q.windows_per_second)), 0),
        Figure("mean RUL", lambda q: Text(number(q.rul)), 1),
        Figure("interval width", lambda q: Text(number(q.width)), 8),
        *(Figure(name, _state(state), STATE_PLACES[state]) for state, name in STATES.items()),
        Figure("entropy", _entropy, 2),
        Figure("  its band", _band, 13),
        Figure("novelty", lambda q: Text(number(q.novelty), "yellow" if q.novelty >= NOVEL else ""), 5),
    ]
    most = max((len(q.drifting) for q in chosen), default=0)
    figures += [
        Figure("" if place else "drift (PSI)", _drift(place), 13 + place if place else 3)
        for place in range(most)
    ]
    if any(q.outcomes for q in chosen):
        figures += [
            Figure("outcomes", _outcomes, 6),
            Figure("  in interval", _coverage, 7),
            Figure("  mean error", _error, 12),
        ]
    return figures


def _state(state: RulState) -> Callable[[Quality], Text]:
    def share(q: Quality) -> Text:
        return Text(percent(q.states.get(state.value, math.nan)))

    return share


def _entropy(q: Quality) -> Text:
    if q.collapsed or q.uniform:
        return Text(f"{'collapsed' if q.collapsed else 'uniform'} {number(q.entropy)}", "bold red")
    return Text(number(q.entropy))


def _band(q: Quality) -> Text:
    band = q.model.band
    return Text(NONE if band is None else f"{band.low:.2f} to {band.high:.2f}")


def _drift(place: int) -> Callable[[Quality], Text]:
    def column(q: Quality) -> Text:
        if place >= len(q.drifting):
            return Text(NONE if place == 0 else "")
        name, psi = list(q.drifting.items())[place]
        figure = number(psi)
        return Text(
            f"{shown(name, MODEL_WIDTH - len(figure) - 1)} {figure}", "bold red" if psi >= DRIFT else ""
        )

    return column


def _outcomes(q: Quality) -> Text:
    return Text(f"{q.outcomes:.0f}" if q.outcomes else NONE)


def _error(q: Quality) -> Text:
    return Text(number(q.error_cycles))


def _coverage(q: Quality) -> Text:
    if math.isnan(q.coverage):
        return Text(NONE)
    nominal = q.model.manifest.nominal_coverage
    return Text(percent(q.coverage) + ("" if nominal is None else f", want {100 * nominal:.0f}"))
