"""`rul top`: one frame of a running service, from two scrapes of it.

A pure function of the two: what is read when, and for how long a frame is shown, is `run`'s.
Every name that a client chose is shown without what a terminal would obey.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from model.domain import HEALTH_STATES, RulState
from service.top.figures import Between, Quality, quality, stage_times, traffic
from service.top.scrape import Scrape, Unit

NONE: Final = "-"
HEALTH: Final[dict[str, str]] = dict(zip(HEALTH_STATES, ("green", "yellow", "bold red"), strict=True))
STATES: Final = {
    RulState.ESTIMATED: "estimated",
    RulState.AT_LEAST_CAP: "at least cap",
    RulState.INSUFFICIENT_HISTORY: "short history",
    RulState.OUT_OF_DISTRIBUTION: "unfamiliar",
}
DRIFT: Final = 0.25  # from here on a population stability index is usually called a shift
NOVEL: Final = 1.0  # the 99.5 % quantile of training: no mean should lie there
LABEL_WIDTH: Final = 14
MODEL_WIDTH: Final = 15
WIDEST_NAME: Final = 24


def frame(before: Scrape, now: Scrape, *, trouble: str = "") -> RenderableType:
    """A service as it was between two scrapes.

    Args:
        before: The first.
        now: The second.
        trouble: Why there is none that is newer.
    """
    between = Between.of(before, now)
    parts: list[RenderableType] = [_head(now, trouble), _saturation(between), _requests(between)]
    if now.models:
        parts.append(Models([quality(between, model) for model in now.models]))
    if now.units is not None:
        parts.append(_units(now.units))
    return Group(*parts)


def _head(now: Scrape, trouble: str) -> Text:
    ready = now.ready == "ready"
    parts = [
        Text(now.url, "bold"),
        Text(shown(now.ready, 60), "green" if ready else "bold red"),
    ]
    workers = int(now.samples.total("rul_workers"))
    if "rul_workers" in now.samples:
        parts.append(Text(f"{workers} worker" + "s" * (workers != 1), "" if workers else "bold red"))
    if trouble:
        parts.append(Text(trouble, "bold red"))
    return Text("   ").join(parts)


def _saturation(between: Between) -> Text:
    """What waits, and what was turned away."""
    now = between.now
    batches = between.histogram("rul_batch_windows")
    parts = [
        f"in flight {now.total('rul_inflight_requests'):.0f}",
        f"queue {now.total('rul_pending_windows'):.0f} windows",
        f"streams {now.total('rul_open_streams'):.0f}",
        f"batch {number(batches.mean)} windows",
    ]
    told, wrong = Text("   ".join(parts)), list[Text]()
    refused = between.increases("rul_rejected_total", "reason")
    turned = [f"{number(between.per_second(n))}/s {why}" for (why,), n in refused.items() if n]
    if turned:
        wrong.append(Text("refused " + ", ".join(turned), "yellow"))
    lost = between.increase("rul_store_dropped_total")
    if lost:
        wrong.append(Text(f"store drops {number(between.per_second(lost))}/s", "yellow"))
    if "rul_store_up" in now and not now.total("rul_store_up"):
        wrong.append(Text("store is down", "bold red"))
    return Text("\n").join([told, Text("   ").join(wrong)] if wrong else [told])


def _requests(between: Between) -> Table:
    """Traffic and, beside it, where its time went."""
    asked = _table("protocol", "req/s", "err/s", "p50 ms", "p99 ms")
    for protocol in between.now.values("rul_requests_total", "protocol"):
        row = traffic(between, protocol)
        errors = Text(number(row.errors_per_second), "red" if row.errors_per_second else "")
        asked.add_row(
            protocol, number(row.requests_per_second), errors, milliseconds(row.p50), milliseconds(row.p99)
        )
    stages = _table("stage", "mean ms", "p99 ms")
    for stage in stage_times(between):
        stages.add_row(stage.stage, milliseconds(stage.mean), milliseconds(stage.p99))
    beside = Table.grid(padding=(0, 2))
    beside.add_row(asked, stages)
    return beside


class Models:
    """What each model answers, a column each; the busiest ones, where there is no room for all."""

    def __init__(self, qualities: Sequence[Quality]) -> None:
        self._qualities: Final = sorted(qualities, key=lambda q: -q.windows_per_second)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(1, (options.max_width - LABEL_WIDTH) // (MODEL_WIDTH + 1))
        chosen = sorted(self._qualities[:room], key=lambda q: q.model.name)
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        table.add_column("model", width=LABEL_WIDTH, no_wrap=True)
        for one in chosen:
            name = shown(one.model.name, MODEL_WIDTH)
            table.add_column(name, width=MODEL_WIDTH, justify="right", no_wrap=True, overflow="ellipsis")
        for label, cell in _rows(chosen):
            # What was not answered just now stands back: it is of all time.
            cells = [(cell(one), "dim" if one.since_start else "") for one in chosen]
            table.add_row(label, *(Text(text.plain, text.style or style) for text, style in cells))
        yield Text()
        yield table
        left = len(self._qualities) - len(chosen)
        if left:
            yield Text(f"and {left} more: there is room for the busiest", "dim")


def _rows(chosen: Sequence[Quality]) -> list[tuple[str, Callable[[Quality], Text]]]:
    rows: list[tuple[str, Callable[[Quality], Text]]] = [
        ("windows/s", lambda q: Text(number(q.windows_per_second))),
        ("mean RUL", lambda q: Text(number(q.rul))),
        ("interval width", lambda q: Text(number(q.width))),
        *((name, _state(state)) for state, name in STATES.items()),
        ("entropy", _entropy),
        ("  its band", _band),
        ("novelty", lambda q: Text(number(q.novelty), "yellow" if q.novelty >= NOVEL else "")),
    ]
    most = max((len(q.drifting) for q in chosen), default=0)
    rows += [("drift (PSI)" if i == 0 else "", _drift(i)) for i in range(most)]
    if any(q.outcomes for q in chosen):
        rows += [("outcomes", _outcomes), ("  in interval", _coverage), ("  mean error", _error)]
    return rows


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


def _units(units: Sequence[Unit]) -> RenderableType:
    """The most urgent ones; the worst first, as they came."""
    if not units:
        return Text("\nno unit has been asked about yet", "dim")
    table = _table(
        "unit", "model", "cycle", "RUL", "interval", "health", "", left=("unit", "model", "health", "")
    )
    for one in units:
        bounds = one.interval
        state = RulState(one.rul_state) if one.rul_state in set(RulState) else None
        capped = ">= " if state is RulState.AT_LEAST_CAP else ""
        table.add_row(
            Text(shown(one.unit, WIDEST_NAME)),
            Text(shown(one.model, MODEL_WIDTH)),
            NONE if one.last_cycle is None else f"{one.last_cycle:.0f}",
            NONE if one.rul is None else capped + number(one.rul),
            NONE if bounds is None else f"{number(bounds.lower)} to {number(bounds.upper)}",
            Text(shown(one.health, MODEL_WIDTH), HEALTH.get(one.health, "")),
            "" if state is None or state is RulState.ESTIMATED else STATES[state],
        )
    return Group(Text(), table)


def _table(*headings: str, left: Sequence[str] = ()) -> Table:
    """Numbers to the right; the first column, and those named, to the left."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for i, heading in enumerate(headings):
        named = i == 0 or heading in left
        table.add_column(heading, justify="left" if named else "right", no_wrap=True, overflow="ellipsis")
    return table


def number(value: float) -> str:
    """A figure with three digits that count, or as many as stand before the point.

    >>> number(1234.5), number(98.76), number(0.8125), number(0.0), number(math.nan)
    ('1,234', '98.8', '0.81', '0', '-')
    """
    if math.isnan(value):
        return NONE
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def milliseconds(seconds: float) -> str:
    """A duration.

    >>> milliseconds(0.00123), milliseconds(2.5)
    ('1.23', '2,500')
    """
    return number(1000 * seconds)


def percent(share: float) -> str:
    """A share.

    >>> percent(0.071), percent(1.0), percent(math.nan)
    ('7.1 %', '100 %', '-')
    """
    if math.isnan(share):
        return NONE
    return f"{100 * share:.0f} %" if share in {0.0, 1.0} or share >= 0.1 else f"{100 * share:.1f} %"


def shown(name: str, width: int) -> str:
    r"""A name as a terminal may have it: on one line, no control characters, not too long.

    >>> shown("pump\x1b[2J-17", 24)
    'pump?[2J-17'
    """
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return plain if len(plain) <= width else plain[: width - 2] + ".."
