"""Ingestion: answers equal those of whole windows, no reading is lost, predictions keep their latency.

    python -m tests.benchmarks.ingest replay --data FOLDER_OF_CMAPSS [--units N]
    python -m tests.benchmarks.ingest load [--seconds 120] [--a-request 10] [--predictions 100]

`replay` sends test_FD001..4 reading by reading, shuffled within five cycles, some readings twice. It ends the
service by SIGKILL in the middle of each file and continues after the restart. `load` compares the latency of
predictions at a fixed rate with and without ingestion; latency counts from the due time of a request.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Final

import aiohttp
import httpx
import numpy as np
import typer

from export.bundle import find_bundle
from export.session import open_bundle
from model.domain import Trajectory
from model.fleet import fleet_named
from model.readers import read_trajectories
from model.simulation import simulate
from tests.ingesting import Devices, by_http, stored, whole
from tests.integration.conftest import Server, running
from tests.waiting import wait_until

SUBSETS: Final = ("fd001", "fd002", "fd003", "fd004")
CALLERS: Final = 16
TOLERANCE: Final = 1e-4
MOST_SECONDS: Final = 3600
app = typer.Typer(pretty_exceptions_enable=False)


def _names(model: str) -> list[str]:
    return [column.name for column in open_bundle(find_bundle(model))[1].columns]


def _test_units(data: Path, model: str, most: int) -> tuple[list[Trajectory], list[str]]:
    fleet, names = fleet_named("cmapss"), _names(model)
    places = [fleet.schema.names.index(name) for name in names]
    units = read_trajectories(data / f"test_{model.upper()}.txt", fleet, run_to_failure=False)[:most]
    return [Trajectory(u.unit, u.cycles, u.readings[:, places], failed=False) for u in units], names


@app.command()
def replay(
    data: Annotated[Path, typer.Option(help="Folder of the C-MAPSS text files.")],
    units: Annotated[int, typer.Option(help="Most units of each file.")] = 10_000,
) -> None:
    """Send whole test files reading by reading, with repeats, disorder and SIGKILL; compare every unit."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"store_url": f"sqlite:///{folder}/rul.db", "workers": "2"}
        for model in SUBSETS:
            _replay(model, Devices(*_test_units(data, model, units), seed=15), folder, settings)


def _replay(model: str, devices: Devices, folder: str, settings: dict[str, str]) -> None:
    total, start = sum(map(len, devices.left.values())), perf_counter()
    with _served(folder, settings) as (server, http), ThreadPoolExecutor(CALLERS) as threads:
        devices.report(threads, repeat(by_http(http, model=model)))
        wait_until(lambda: devices.sent >= total // 2, MOST_SECONDS, what="half of the readings")
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait(30)
    with _served(folder, settings) as (_, http):
        lost = devices.lost(http, model)
        with ThreadPoolExecutor(CALLERS) as threads:
            devices.report(threads, repeat(by_http(http, model=model)))
        seconds, worst = perf_counter() - start, devices.worst(http, model=model)
    print(
        f"{model}: {len(devices.units)} units, {total} readings in {seconds:.0f} s, one SIGKILL; "
        f"{lost} lost; largest difference to the answers of whole windows {worst:.1e}"
    )
    assert lost == sum(map(len, devices.left.values())) == 0
    assert worst <= TOLERANCE


@contextmanager
def _served(folder: str, settings: dict[str, str]) -> Iterator[tuple[Server, httpx.Client]]:
    with (
        running(Path(folder), ",".join(SUBSETS), **settings) as server,
        httpx.Client(base_url=server.http, trust_env=False, timeout=60) as http,
    ):
        yield server, http


async def _at_rate(
    ask: Callable[[int], Awaitable[int]], *, rate: float, seconds: float
) -> tuple[list[float], int]:
    """Send requests at a fixed rate; return the latency of each from its due time, and count failures."""
    latencies: list[float] = []
    failed = 0

    async def one(number: int, due: float) -> None:
        nonlocal failed
        status = await ask(number)
        latencies.append(perf_counter() - due)
        failed += status != 200

    start, tasks = perf_counter(), []
    for number in range(int(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - perf_counter()))
        tasks.append(asyncio.ensure_future(one(number, due)))
    await asyncio.gather(*tasks)
    return latencies, failed


class Ingestion:
    """Endless readings of simulated units, `a_request` readings of one unit at a time."""

    def __init__(self, *, units: int, a_request: int) -> None:
        manifest = open_bundle(find_bundle("fd001"))[1]
        self._lives: Final = simulate(manifest, manifest.schema_of_columns, units=units, seed=8)
        self._names: Final = [column.name for column in manifest.columns]
        self._a_request: Final = a_request
        self.sent: Final[dict[str, set[int]]] = {life.unit: set() for life in self._lives}

    def request(self, number: int) -> tuple[str, dict[str, Any]]:
        """Return the next readings of a unit; after its end a life repeats under later cycle numbers."""
        turn, place = divmod(number, len(self._lives))
        life = self._lives[place]
        cycles = [*range(1 + turn * self._a_request, 1 + (turn + 1) * self._a_request)]
        rows = [life.readings[(cycle - 1) % len(life)].tolist() for cycle in cycles]
        columns = dict(zip(self._names, map(list, zip(*rows, strict=True)), strict=True))
        self.sent[life.unit] |= {*cycles}
        return f"/v1/units/{life.unit}/cycles", {"cycles": cycles, "columns": columns}

    def prediction(self) -> tuple[str, dict[str, Any]]:
        """Return path and body of /v1/predict for one window, always the same."""
        life = self._lives[0]
        window = whole(Trajectory("asked", life.cycles[:60], life.readings[:60], failed=True), self._names)
        return "/v1/predict", {"windows": [window]}


def _shown(name: str, latencies: Sequence[float], failed: int) -> float:
    p50, p99, worst = 1000 * np.percentile(latencies, (50, 99, 100))
    print(
        f"{name}: {len(latencies)} answers, {failed} failed, p50 {p50:.2f} p99 {p99:.2f} max {worst:.1f} ms"
    )
    return float(p99)


@app.command()
def load(  # noqa: PLR0917 options
    seconds: Annotated[
        float, typer.Option(help="Time of ingestion; the quiet time before it is half.")
    ] = 120,
    readings: Annotated[int, typer.Option(help="Readings a second.")] = 1000,
    a_request: Annotated[int, typer.Option(help="Readings in a request, all of one unit.")] = 10,
    predictions: Annotated[int, typer.Option(help="Predictions a second.")] = 100,
    units: Annotated[int, typer.Option(help="Units that report.")] = 100,
    workers: Annotated[int, typer.Option(help="Workers of the service.")] = 2,
    url: Annotated[str, typer.Option(help="Address of the store; by default SQLite in a new folder.")] = "",
) -> None:
    """Ingest at a fixed rate beside predictions; compare their p99 with that of a quiet service."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"store_url": url or f"sqlite:///{folder}/rul.db", "workers": str(workers)}
        field = Ingestion(units=units, a_request=a_request)
        with (
            running(Path(folder), "fd001", **settings) as server,
            httpx.Client(base_url=server.http, trust_env=False, timeout=60) as http,
        ):
            quiet, busy, failed = asyncio.run(
                _measured(server, field, seconds=seconds, requests=readings / a_request, asks=predictions)
            )
            lost = sum(
                len(cycles - stored(http, unit, "fd001")) for unit, cycles in field.sent.items() if cycles
            )
            total = sum(map(len, field.sent.values()))
        print(f"{total} readings sent, {lost} lost; p99 of predictions {busy / quiet:.2f} times that without")
        assert failed == lost == 0


async def _measured(
    server: Server, field: Ingestion, *, seconds: float, requests: float, asks: float
) -> tuple[float, float, int]:
    """Measure quiet, busy, quiet: p99 of predictions in ms without and with ingestion, and failures."""
    prediction = field.prediction()
    # httpx spends more CPU on a request than the service does.
    async with aiohttp.ClientSession(server.http, connector=aiohttp.TCPConnector(limit=128)) as session:

        async def post(path: str, body: dict[str, Any]) -> int:
            async with session.post(path, json=body) as answer:
                await answer.read()
                return answer.status

        async def predictions(duration: float) -> tuple[list[float], int]:
            return await _at_rate(lambda _: post(*prediction), rate=asks, seconds=duration)

        async def readings(rate: float, duration: float) -> tuple[list[float], int]:
            return await _at_rate(lambda number: post(*field.request(number)), rate=rate, seconds=duration)

        await predictions(3)
        await readings(1, 3)  # the store is open
        before, failed_before = await predictions(seconds / 2)
        (during, failed_during), (sent, failed_sent) = await asyncio.gather(
            predictions(seconds),
            readings(requests, seconds),
        )
        after, failed_after = await predictions(seconds / 2)
    quiet = _shown("predictions, quiet", before + after, failed_before + failed_after)
    _shown("requests with readings", sent, failed_sent)
    busy = _shown("predictions beside them", during, failed_during)
    return quiet, busy, failed_before + failed_during + failed_after + failed_sent


if __name__ == "__main__":
    app()
