"""What `rul bench` does: look whether the service is ready, ask it under each load, and tell.

Asking happens in processes of its own, so that the progress bar costs the callers nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import httpx
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from model.domain import RulError
from rul_client.commands.bench.callers import Target
from rul_client.commands.bench.load import Figures, Tally, load, summed
from rul_client.commands.bench.requests import calls_of, simulated_pool
from rul_client.commands.predict.people_table import people_console
from rul_client.http_client import exchanged, http_models
from rul_client.remote import TIMEOUT_SECONDS, ComeBack, RemoteModel, chosen, is_loopback

TICK_SECONDS: Final = 0.2
HEADINGS: Final = (
    "protocol", "callers", "windows a call", "windows/s", "p50 ms", "p99 ms", "p99.9 ms", "errors",
    "client CPU",
)  # fmt: skip


class NotReady(RulError):
    """The service does not answer yet, or no longer."""


class NothingAnswered(RulError):
    """Under no load was there one answer."""


class CannotWrite(RulError):
    """A file that cannot be written."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load: by which protocol, how many callers, how many windows a call."""

    protocol: str
    callers: int
    windows: int

    def __str__(self) -> str:
        return f"{self.protocol}, {self.callers} callers, {self.windows} a call"


def run_bench(
    url: str,
    scenarios: Sequence[Scenario],
    *,
    seconds: float,
    model: str | None,
    grpc_target: str | None,
    processes: int,
    json_file: Path | None,
    api_key: str | None,
) -> None:
    """Measure every scenario, print a table, and write what was asked for.

    Raises:
        RulError: the service cannot be reached, is not ready or has no such model; nothing was
            answered; or the file cannot be written.
    """
    found = asyncio.run(ready_model(url, model=model, api_key=api_key))
    target = Target(url, grpc_target, api_key)
    # Forked, they would share what gRPC has already begun in this process.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        measured = _measured(pool, found, target, scenarios, seconds=seconds, processes=processes)
    people_console(sys.stdout).print(table_of(found, url, measured))
    if json_file is not None:
        _write(json_file, document(found, url, measured, seconds=seconds, processes=processes))
    if not any(figures.windows_per_second for _, figures in measured):
        raise NothingAnswered(f"{url}: not one call was answered; {_errors(measured[0][1])}")


async def ready_model(
    url: str,
    *,
    model: str | None,
    api_key: str | None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> RemoteModel:
    """The model to ask, of a service that says that it is ready.

    Raises:
        NotReady: it says that it is not.
        RemoteFailed: it cannot be reached, refused, or has no such model.
    """
    direct = is_loopback(httpx.URL(url).host)
    headers = {"x-api-key": api_key} if api_key else {}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=not direct, transport=transport
    ) as client:
        try:
            await exchanged(client, url, "GET", "/readyz")
        except ComeBack as come_back:
            raise NotReady(f"not ready: {come_back.failure}") from come_back
        return chosen(await http_models(client, url, sleep=asyncio.sleep), model, url)


def _measured(
    pool: Executor,
    found: RemoteModel,
    target: Target,
    scenarios: Sequence[Scenario],
    *,
    seconds: float,
    processes: int,
) -> list[tuple[Scenario, Figures]]:
    windows = simulated_pool(found.manifest)
    measured: list[tuple[Scenario, Figures]] = []
    with _progress(len(scenarios) * seconds) as progress:
        task = progress.task_ids[0]
        for done, scenario in enumerate(scenarios):
            calls = calls_of(scenario.protocol, found.name.name, windows, scenario.windows)
            shares = shared(scenario.callers, processes)
            progress.update(task, completed=done * seconds, description=str(scenario))
            running = [pool.submit(load, calls, target, share, seconds) for share in shares]
            tallies = _awaited(running, seconds, lambda spent: progress.advance(task, spent))
            measured.append((scenario, summed(tallies, scenario.windows)))
    return measured


def shared(callers: int, processes: int) -> list[int]:
    """How many callers each process has; none has none.

    >>> shared(5, 2), shared(1, 4)
    ([3, 2], [1])
    """
    used = min(callers, processes)
    return [callers // used + (i < callers % used) for i in range(used)]


def _awaited(
    running: Sequence[Future[Tally]], seconds: float, advance: Callable[[float], None]
) -> list[Tally]:
    left = seconds
    while wait(running, timeout=TICK_SECONDS).not_done:
        advance(min(TICK_SECONDS, left))
        left = max(0.0, left - TICK_SECONDS)
    return [each.result() for each in running]


def _progress(total: float) -> Progress:
    errors = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    progress.add_task("", total=total)
    return progress


def table_of(found: RemoteModel, url: str, measured: Sequence[tuple[Scenario, Figures]]) -> Table:
    """The figures for people."""
    notes = ["Latencies are of answered calls; p99.9 of fewer than 1,000 calls is the slowest."]
    if any(figures.client_limited for _, figures in measured):
        notes.append("* The callers' own processes may have been the limit: raise --processes.")
    name = found.name
    table = Table(
        title=f"{name.name} {name.version} at {url}",
        caption="\n".join(notes),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for heading in HEADINGS:  # broken between words, never within one
        words = "left" if heading in {"protocol", "errors"} else "right"
        table.add_column(heading, justify=words, min_width=max(map(len, heading.split())))
    for scenario, figures in measured:
        table.add_row(
            scenario.protocol,
            str(scenario.callers),
            str(scenario.windows),
            f"{figures.windows_per_second:,.0f}",
            *(_milliseconds(value) for value in (figures.p50_ms, figures.p99_ms, figures.p999_ms)),
            _errors(figures),
            f"{figures.client_cpu:.2f}{'*' if figures.client_limited else ''}",
        )
    return table


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _errors(figures: Figures) -> str:
    """How many of which code.

    >>> _errors(Figures(1, 9, 1, 1, 1, {"429": 3}, 0.1, False))
    '429: 3'
    """
    return ", ".join(f"{code}: {count:,}" for code, count in figures.errors.items()) or "none"


def document(
    found: RemoteModel,
    url: str,
    measured: Sequence[tuple[Scenario, Figures]],
    *,
    seconds: float,
    processes: int,
) -> dict[str, Any]:
    """The figures for programs."""
    name = found.name
    return {
        "url": url,
        "model": {"name": name.name, "version": name.version, "sha256": name.sha256},
        "seconds": seconds,
        "processes": processes,
        "scenarios": [asdict(scenario) | asdict(figures) for scenario, figures in measured],
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise CannotWrite(f"{path}: cannot be written: {error.strerror}") from error
