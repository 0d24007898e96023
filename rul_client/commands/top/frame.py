"""`rul top`: one frame of a running service, from two scrapes of it.

A pure function of the two: what is read when, and for how long a frame is shown, is `run`'s.
Every name that a client chose is shown without what a terminal would obey.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from model.domain import HEALTH_STATES, RulState
from rul_client.commands.top.answered import MODEL_WIDTH, STATES, Models
from rul_client.commands.top.figures import Between, quality, stage_times, traffic
from rul_client.commands.top.layout import Layout, Sizes, layout
from rul_client.commands.top.scrape import Scrape, Unit
from rul_client.commands.top.words import NONE, milliseconds, number, shown, table
from service.labels import Stage

HEALTH: Final[dict[str, str]] = dict(zip(HEALTH_STATES, ("green", "yellow", "bold red"), strict=True))
WIDEST_NAME: Final = 24
ALL: Final = Layout(stages=1000, figures=1000, units=1000)
STAGES: Final = (Stage.INFERENCE, Stage.QUEUE, Stage.DECODE, Stage.ENCODE, Stage.EXPLAIN)
"""Those that a short terminal shows first."""


def frame(before: Scrape, now: Scrape, *, trouble: str = "", fits: bool = False) -> Frame:
    """A service as it was between two scrapes.

    Args:
        before: The first.
        now: The second.
        trouble: Why there is none that is newer.
        fits: Whether it is to be as high as the terminal at most, which shows nothing else.
    """
    return Frame(Between.of(before, now), now, trouble, fits=fits)


class Frame:
    """All that there is to show or, where it is to fit its terminal, what matters most of it."""

    def __init__(self, between: Between, now: Scrape, trouble: str, *, fits: bool) -> None:
        self._between: Final = between
        self._fits: Final = fits
        self._now: Final = now
        self._trouble: Final = trouble
        self._qualities: Final = [quality(between, model) for model in now.models]
        self._protocols: Final = between.now.values("rul_requests_total", "protocol")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def lines(parts: Sequence[RenderableType]) -> int:
            return len(console.render_lines(Group(*parts), options.update(height=None)))

        everything = self._parts(ALL)
        if not self._fits or lines(everything) <= options.size.height:
            yield from everything
            return
        hint, models = f"{lines(everything)} lines show all", Models(self._qualities)
        sizes = Sizes(
            head=lines([self._head(hint), *self._without_units()]),
            protocols=len(self._protocols),
            stages=len(Stage),
            models=models.around(options.max_width),
            figures=models.figures(options.max_width) if self._qualities else 0,
            units=len(self._now.units or ()),
        )
        yield from self._parts(layout(options.size.height, sizes), hint)

    def _parts(self, lines: Layout, hint: str = "") -> list[RenderableType]:
        """From top to bottom."""
        parts = [self._head(hint), _requests(self._between, self._protocols, lines.stages)]
        if self._qualities and lines.figures:
            parts.append(Models(self._qualities, lines.figures))
        if self._now.units and lines.units:
            parts.append(_units(self._now.units[: lines.units]))
        return [*parts, *self._without_units()]

    def _head(self, hint: str) -> RenderableType:
        return Group(_service(self._now, self._trouble, hint), _saturation(self._between))

    def _without_units(self) -> list[RenderableType]:
        if self._now.units is None or self._now.units:
            return []
        return [Text("\nno unit has been asked about yet", "dim")]


def _service(now: Scrape, trouble: str, hint: str) -> Text:
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
    if hint:
        parts.append(Text(hint, "dim"))
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


def _requests(between: Between, protocols: Sequence[str], most_stages: int) -> Table:
    """Traffic and, beside it, where its time went."""
    asked = table("protocol", "req/s", "err/s", "p50 ms", "p99 ms")
    for protocol in protocols:
        row = traffic(between, protocol)
        errors = Text(number(row.errors_per_second), "red" if row.errors_per_second else "")
        asked.add_row(
            protocol, number(row.requests_per_second), errors, milliseconds(row.p50), milliseconds(row.p99)
        )
    stages = table("stage", "mean ms", "p99 ms")
    for stage in stage_times(between):
        if stage.stage in STAGES[:most_stages]:
            stages.add_row(stage.stage, milliseconds(stage.mean), milliseconds(stage.p99))
    beside = Table.grid(padding=(0, 2))
    beside.add_row(asked, stages)
    return beside


def _units(units: Sequence[Unit]) -> RenderableType:
    """The most urgent ones; the worst first, as they came."""
    listed = table(
        "unit", "model", "cycle", "RUL", "interval", "health", "", left=("unit", "model", "health", "")
    )
    for one in units:
        bounds = one.interval
        state = RulState(one.rul_state) if one.rul_state in set(RulState) else None
        capped = ">= " if state is RulState.AT_LEAST_CAP else ""
        listed.add_row(
            Text(shown(one.unit, WIDEST_NAME)),
            Text(shown(one.model, MODEL_WIDTH)),
            NONE if one.last_cycle is None else f"{one.last_cycle:.0f}",
            NONE if one.rul is None else capped + number(one.rul),
            NONE if bounds is None else f"{number(bounds.lower)} to {number(bounds.upper)}",
            Text(shown(one.health, MODEL_WIDTH), HEALTH.get(one.health, "")),
            "" if state is None or state is RulState.ESTIMATED else STATES[state],
        )
    return Group(Text(), listed)
