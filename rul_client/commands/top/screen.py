"""Draws `rul top`: one frame from two scrapes, again and again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from model.domain import RulState, printable
from rul_client.address import Credentials
from rul_client.commands.output import HEALTH_STYLES
from rul_client.commands.top.scrape import Samples, Scrape, Scraper
from rul_client.errors import RemoteFailed
from rul_client.http import http_client

TIMEOUT_SECONDS: Final = 5.0
STATES: Final = {
    RulState.AT_LEAST_CAP: "at cap",
    RulState.INSUFFICIENT_HISTORY: "short",
    RulState.OUT_OF_DISTRIBUTION: "OOD",
}
NO_ERRORS: Final = {"200", "OK", "499", "CANCELLED"}  # with the last two the caller is gone
NOVEL: Final = 1.0  # the 99.5 % quantile of training
OUTSIDE: Final = 0.1  # a larger share of windows outside one side of the entropy band is marked


async def watch(url: str, credentials: Credentials, *, once: bool, interval_seconds: float) -> None:
    """Show a service until cancelled, or once."""
    console = Console(highlight=False, markup=False)
    api_key, tls = credentials
    async with http_client(url, api_key, tls=tls, timeout_seconds=TIMEOUT_SECONDS) as client:
        pictures = frames(Scraper(client, url), interval_seconds=interval_seconds)
        if once:
            console.print(await anext(pictures))
        elif console.is_terminal:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                async for picture in pictures:
                    live.update(picture, refresh=True)
        else:
            async for picture in pictures:
                console.print(picture, "")


async def frames(scraper: Scraper, *, interval_seconds: float) -> AsyncGenerator[RenderableType]:
    """Yield a frame each interval; if the service is gone, the last figures and the reason."""
    before = now = await scraper.scrape()
    while True:
        await asyncio.sleep(interval_seconds)
        try:
            before, now, trouble = now, await scraper.scrape(), ""
        except RemoteFailed as failed:
            trouble = str(failed)
        yield frame(before, now, trouble=trouble)


def frame(before: Scrape, now: Scrape, *, trouble: str = "") -> Group:
    """Draw a service as it was between two scrapes; a short terminal cuts off the end."""
    grown, seconds = now.samples.since(before.samples), max(now.at - before.at, 1e-9)
    parts: list[RenderableType] = [*_head(now, grown, seconds, trouble), _traffic(grown, seconds)]
    if now.models:
        parts.append(_models(now, grown, seconds))
    if now.units:
        parts.append(_units(now.units))
    elif now.units is not None:
        parts.append(Text("no unit has been asked about yet", "dim"))
    return Group(*parts)


def _head(now: Scrape, grown: Samples, seconds: float, trouble: str) -> list[Text]:
    """Readiness, load, and what is wrong."""
    samples = now.samples
    workers = int(samples.total("rul_workers"))
    first = [
        Text(now.url, "bold"),
        Text(printable(now.ready, 60), "green" if now.ready == "ready" else "bold red"),
        Text(f"{workers} worker{'s' * (workers != 1)}", "" if workers else "bold red"),
    ]
    load = [
        Text(f"in flight {samples.total('rul_inflight_requests'):.0f}"),
        Text(f"queue {samples.total('rul_pending_windows'):.0f} windows"),
        Text(f"streams {samples.total('rul_open_streams'):.0f}"),
        Text(f"batch {number(grown.mean('rul_batch_windows'))} windows"),
    ]
    wrong = [
        Text(f"refused {number(count / seconds)}/s {reason}", "yellow")
        for reason, count in grown.by("reason", "rul_rejected_total").items()
        if count
    ]
    if lost := grown.total("rul_store_dropped_total"):
        wrong.append(Text(f"store drops {number(lost / seconds)}/s", "yellow"))
    if 0 in samples.by("", "rul_store_up").values():
        wrong.append(Text("store is down", "bold red"))
    if trouble:
        wrong.append(Text(printable(trouble), "bold red"))
    return [Text("   ").join(line) for line in (first, load, wrong) if line]


def _traffic(grown: Samples, seconds: float) -> Table:
    """Requests of each protocol: rates, and quantiles of their durations."""
    table = _table("protocol", "req/s", "err/s", "p50 ms", "p99 ms")
    for protocol, asked in sorted(grown.by("protocol", "rul_requests_total").items()):
        codes = grown.by("code", "rul_requests_total", protocol=protocol)
        errors = sum(count for code, count in codes.items() if code not in NO_ERRORS)
        p50, p99 = (
            number(1000 * grown.quantile(q, "rul_request_duration_seconds", protocol=protocol))
            for q in (0.5, 0.99)
        )
        error_rate = Text(number(errors / seconds), "red" if errors else "")
        table.add_row(protocol, number(asked / seconds), error_rate, p50, p99)
    return table


def _models(now: Scrape, grown: Samples, seconds: float) -> Table:
    """Show each model's answers between scrapes or, dim, since start."""
    table = _table("model", "windows/s", "RUL", "width", *STATES.values(), "entropy", "novelty", "drift")
    for model in sorted(now.models, key=lambda model: model["name"]):
        name = model["name"]
        recent = grown.total("rul_prediction_cycles_count", model=name)
        seen = grown if recent else now.samples
        states = seen.by("state", "rul_state_total", model=name)
        asked = sum(states.values())
        novelty = seen.mean("rul_novelty_ratio", model=name)
        table.add_row(
            printable(name, 15),
            number(recent / seconds),
            number(seen.mean("rul_prediction_cycles", model=name)),
            number(seen.mean("rul_interval_width_cycles", model=name)),
            *(f"{100 * states.get(state, 0.0) / asked:.0f} %" if asked else "-" for state in STATES),
            _entropy(seen, model, asked),
            Text(number(novelty), "yellow" if novelty >= NOVEL else ""),
            _drift(now.samples, name),
            style="" if recent else "dim",
        )
    return table


def _entropy(seen: Samples, model: dict[str, Any], asked: float) -> Text:
    """Mean entropy of the attention, marked if it lies outside the band of training."""
    entropy = seen.mean("rul_attention_entropy_ratio", model=model["name"], head="mean")
    outside = seen.by("side", "rul_attention_out_of_band_total", model=model["name"])
    bands = {band["head"]: band for band in model["manifest"].get("entropy", ())}
    band = bands.get("mean", {"low": -math.inf, "high": math.inf})
    for word, side, beyond in (
        ("collapsed", "low", entropy < band["low"]),
        ("uniform", "high", entropy > band["high"]),
    ):
        if beyond or outside.get(side, 0.0) > OUTSIDE * asked:
            return Text(word, "bold red")
    return Text(number(entropy))


def _drift(samples: Samples, model: str) -> Text:
    """The column that is furthest from training, with its index; marked if a column is beyond its limit."""
    drifts = samples.by("column", "rul_column_drift_psi", model=model)
    psi, column = max(((psi, column) for column, psi in drifts.items()), default=(0.0, ""))
    is_drifting = samples.total("rul_column_drifting", model=model) > 0
    return Text(f"{printable(column, 15)} {number(psi)}" if psi else "-", "bold red" if is_drifting else "")


def _units(units: list[dict[str, Any]]) -> Table:
    """The units with the fewest cycles left, as the service orders them."""
    table = _table("unit", "model", "cycle", "RUL", "interval", "health", "state")
    for given in units:
        unit = {key: value for key, value in given.items() if value is not None}
        state = str(unit.get("rul_state", ""))
        health = str(unit.get("health_state", ""))
        rul: float = unit.get("rul", math.nan)
        interval: dict[str, float] = unit.get("interval", {})
        lower, upper = (interval.get(end, math.nan) for end in ("lower", "upper"))
        is_capped = state == RulState.AT_LEAST_CAP or rul >= upper > 0
        table.add_row(
            printable(str(unit.get("unit", "")), 24),
            printable(str(unit.get("model", "")), 15),
            str(unit.get("last_cycle", "-")),
            f"{'>= ' * is_capped}{number(rul)}",
            f"{number(lower)} to {number(upper)}",
            Text(printable(health, 15), HEALTH_STYLES.get(health, "")),
            printable(state.replace("_", " "), 20),
        )
    return table


def _table(*headings: str) -> Table:
    """A table below an empty line, words to the left and numbers to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, title=" ")
    for heading in headings:
        words = heading in {"protocol", "model", "unit", "health", "state"}
        table.add_column(heading, justify="left" if words else "right", no_wrap=True, overflow="ellipsis")
    return table


def number(value: float) -> str:
    """Format with three digits that count, or all before the point; NaN as a dash."""
    if math.isnan(value) or value == 0:
        return "-" if value else "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
