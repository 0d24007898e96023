"""Runs `rul bench`: finds the models, measures each scenario, prints a table. Processes of their own send."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from rul_client.answers import RemoteModel
from rul_client.client import choose
from rul_client.commands.bench.load import GOOD, Tally, Target, load
from rul_client.commands.bench.payloads import calls_of, simulated_pool
from rul_client.commands.output import NothingAnswered, open_output, wide_console
from rul_client.http import HttpTransport, http_client, request

BUSY: Final = 0.8
"""A process that uses more of a core than this may read its answers late."""
NOTES: Final = """Latencies are of answered calls; p99.9 of fewer than 1,000 calls is the slowest.
* The callers may have been the limit: raise --processes."""

HEADINGS: Final = (
    "protocol", "callers", "windows a call", "windows/s", "p50 ms", "p99 ms", "p99.9 ms", "errors",
    "client CPU",
)  # fmt: skip
Measured = dict[str, Any]
"""A scenario and its figures, as --json writes them."""


def run_bench(
    target: Target,
    scenarios: Sequence[tuple[str, int, int]],
    *,
    model: str | None,
    identical: bool,
    seconds: float,
    processes: int,
    json_file: Path | None,
) -> None:
    """Measure every scenario (protocol, callers, windows a call), print the table, write the file."""
    models = asyncio.run(ready_models(target, model))
    pools = [simulated_pool(each.manifest) for each in models]
    measured: list[Measured] = []
    status = Console(stderr=True).status("")
    # Forked processes would share what gRPC has begun in this one.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as executor, status:
        for protocol, callers, windows in scenarios:
            status.update(f"{protocol}, {callers} callers, {windows} windows a call")
            calls = calls_of(protocol, pools, windows, identical=identical)
            used = min(callers, processes)
            shares = [callers // used + (i < callers % used) for i in range(used)]
            tallies = list(executor.map(partial(load, calls, target, seconds=seconds), shares))
            scenario = {"protocol": protocol, "callers": callers, "windows": windows}
            measured.append(scenario | summarise(tallies, windows))
    title = f"{', '.join(f'{name.name} {name.version}' for name, _ in models)} at {target.url}"
    wide_console(sys.stdout).print(table_of(title, measured))
    if json_file is not None:
        document = {
            "url": target.url, "models": [name._asdict() for name, _ in models], "seconds": seconds,
            "processes": processes, "identical": identical, "scenarios": measured,
        }  # fmt: skip
        with open_output(json_file) as file:
            file.write(json.dumps(document, indent=1).encode() + b"\n")
    if not any(each["windows_per_second"] for each in measured):
        raise NothingAnswered(f"{target.url}: no call was answered; {_errors(measured[0])}")


async def ready_models(
    target: Target, model: str | None, *, transport: httpx.AsyncBaseTransport | None = None
) -> list[RemoteModel]:
    """Find the named model, or all, of a service that is ready."""
    async with http_client(target.url, target.api_key, transport=transport) as client:
        await request(client, "GET", "/readyz")
        models = await HttpTransport(client, target.url).models()
    return models if model is None else [choose(models, model, target.url)]


def summarise(tallies: Sequence[Tally], windows: int) -> Measured:
    """Join the tallies of several processes."""
    latencies = [latency for tally in tallies for latency in tally.latencies]
    codes = sum((tally.codes for tally in tallies), Counter[str]())
    busy = [tally.cpu / tally.elapsed for tally in tallies]
    figures: Measured = {
        "windows_per_second": sum(len(tally.latencies) * windows / tally.elapsed for tally in tallies),
        "calls": codes.total(),
    }
    for name, q in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999)):  # measured values, none between
        figures[name] = 1000 * float(np.quantile(latencies, q, method="higher")) if latencies else None
    errors = {code: count for code, count in sorted(codes.items()) if code not in GOOD}
    return figures | {"errors": errors, "client_cpu": sum(busy), "client_limited": max(busy) > BUSY}


def table_of(title: str, measured: Sequence[Measured]) -> Table:
    """Make the table for people."""
    table = Table(title=title, caption=NOTES, box=SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        side = "left" if heading in {"protocol", "errors"} else "right"
        table.add_column(heading, justify=side, min_width=max(map(len, heading.split())))
    for each in measured:
        latencies = (each["p50_ms"], each["p99_ms"], each["p999_ms"])
        table.add_row(
            *(str(each[name]) for name in ("protocol", "callers", "windows")),
            f"{each['windows_per_second']:,.0f}",
            *("-" if ms is None else f"{ms:.2f}" for ms in latencies),
            _errors(each),
            f"{each['client_cpu']:.2f}{'*' if each['client_limited'] else ''}",
        )
    return table


def _errors(measured: Measured) -> str:
    return ", ".join(f"{code}: {count:,}" for code, count in measured["errors"].items()) or "none"
