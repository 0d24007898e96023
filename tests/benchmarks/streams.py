"""Many open streams of readings: memory, readings per second, latency of answers.

    python -m tests.benchmarks.streams --streams 10000 --connections 16

The streams open with a full window as their history. Then they send readings at a constant total rate,
whether or not the answers keep up; the callers share the server's cores.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import typer

from service.proto import rul_v1_pb2 as pb
from tests.benchmarks.front_ends import CORES, SERVERS, Served, cpu_seconds, serving
from tests.benchmarks.loads import window_of
from tests.benchmarks.stream_load import Connection, connect
from tests.benchmarks.tables import keep, table
from tests.http2 import DATA, frame
from tests.in_process import framed

TICK_SECONDS: Final = 0.01
Row = dict[str, float]


def main(
    *,
    bundle: str = "fd001",
    servers: str = "envoy,uvicorn",
    streams: int = 10_000,
    connections: int = 16,
    rates: str = "500,1000,2000,3000,4000",
    seconds: float = 10.0,
    output: Path = Path("bench-results"),
) -> None:
    """Open the streams, apply each rate in turn, and write streams.md and streams.json to OUTPUT."""
    kept: dict[str, list[Row]] = {}
    plan = Plan(bundle, streams, connections, [float(rate) for rate in rates.split(",")], seconds)
    for server in servers.split(","):
        with tempfile.TemporaryDirectory() as folder, serving(server, bundle, Path(folder)) as served:
            kept[server] = asyncio.run(measure(plan, served))
    keep(output, "streams", "\n\n".join(section(server, plan, rows) for server, rows in kept.items()), kept)


@dataclass(frozen=True)
class Plan:
    """Plan of the measurement: rates in readings per second over all streams, and seconds of each."""

    bundle: str
    streams: int
    connections: int
    rates: list[float]
    seconds: float


async def measure(plan: Plan, served: Served) -> list[Row]:
    """Return one row for idle streams and one per rate."""
    host, port = served.target.split(":")
    window = window_of(plan.bundle)
    history = pb.Readings(values=window.ravel().tolist())
    opening = pb.StreamOpen(unit="1", first_cycle=1, explain=pb.EXPLAIN_NONE, readings=history)
    first = framed(pb.StreamRequest(open=opening).SerializeToString())
    one = pb.Reading(values=window[-1].tolist())
    reading = framed(pb.StreamRequest(reading=one).SerializeToString())
    before = served.memory_mib()
    made = await connect(host, int(port), plan.connections)
    began = time.perf_counter()
    for i in range(plan.streams):
        made[i % plan.connections].open(first)
        if i % 100 == 99:
            await until_answered(made, i + 1 - 100)
    await until_answered(made, plan.streams)
    took = time.perf_counter() - began
    rows: list[Row] = [
        {
            "open": plan.streams - failures(made),
            "opened/s": plan.streams / took,
            "RSS MiB": served.memory_mib(),
            "kB a stream": (served.memory_mib() - before) * 1024 / plan.streams,
        }
    ]
    data = [(one, stream, frame(DATA, 0, stream, reading)) for one in made for stream in one.streams]
    for rate in plan.rates:
        row = await under_load(made, data, served.pids, rate, plan.seconds)
        rows.append(row | {"RSS MiB": served.memory_mib()})
    for one in made:
        one.close()
    return rows


async def under_load(
    made: list[Connection],
    data: list[tuple[Connection, int, bytes]],
    pids: list[int],
    rate: float,
    seconds: float,
) -> Row:
    """Send readings at a constant rate over all streams."""
    for one in made:
        one.latencies.clear()
    answered, busy, began, sent = sum(one.answers for one in made), cpu_seconds(pids), time.perf_counter(), 0
    while (now := time.perf_counter() - began) < seconds:
        due = int(now * rate)
        batches: dict[Connection, list[tuple[int, bytes]]] = {}
        for i in range(sent, due):
            one, stream, bytes_ = data[i % len(data)]
            batches.setdefault(one, []).append((stream, bytes_))
        for one, readings in batches.items():
            one.send(readings)
        sent = due
        await asyncio.sleep(TICK_SECONDS)
    served = sum(one.answers for one in made) - answered
    used = cpu_seconds(pids) - busy
    latencies = 1000 * np.array([latency for one in made for latency in one.latencies] or [np.nan])
    took = time.perf_counter() - began
    await until_answered(made, answered + sent)
    return {
        "readings/s sent": sent / took,
        "answered/s": served / took,
        "p50 ms": float(np.quantile(latencies, 0.5)),
        "p99 ms": float(np.quantile(latencies, 0.99)),
        "cpu s per 1000": 1000 * used / max(1, served),
        "ended streams": failures(made),
    }


async def until_answered(made: list[Connection], answers: int) -> None:
    """Wait for a number of messages; ended streams send no more."""
    while sum(one.answers for one in made) < answers and not failures(made):  # noqa: ASYNC110 no event
        await asyncio.sleep(TICK_SECONDS)


def failures(made: list[Connection]) -> int:
    """Count the streams that the server has ended."""
    return sum(one.failed for one in made)


def section(server: str, plan: Plan, rows: list[Row]) -> str:
    """Write the section of a server."""
    idle, *loads = rows
    lines = ([f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in row.values()] for row in loads)
    return (
        f"{idle['open']:.0f} streams of {plan.bundle} without explanations, {SERVERS[server]}, "
        f"{CORES} cores; idle: {idle['RSS MiB']:.0f} MiB, {idle['kB a stream']:.1f} kB a stream; "
        f"{idle['opened/s']:.0f} opened a second\n\n{table([*loads[0]], lines, texts=0)}"
    )


if __name__ == "__main__":
    typer.run(main)
