"""Runs `rul bench`: callers in a closed loop, in separate processes, and a table of figures."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple
from uuid import uuid4

import aiohttp
import grpc
import grpc.aio
import httpx
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from export.bundle import Manifest
from model.domain import printable
from rul_client.address import Tls
from rul_client.answers import Model
from rul_client.api import AsyncClient
from rul_client.commands.bench.payloads import Call, calls_of, simulated_pool
from rul_client.commands.output import NothingAnswered, open_output, wide_console
from rul_client.commands.processes import process_pool
from rul_client.grpc import grpc_channel
from rul_client.http import verification

BUSY: Final = 0.8  # of a core: a busier process may read its answers late
NOTES: Final = """Latencies are of answered calls; p99.9 of fewer than 1,000 calls is the slowest.
* The callers may have been the limit: raise --processes."""
HEADS: Final = (
    "protocol", "callers", "windows/call", "windows/s", "p50 ms", "p99 ms", "p99.9 ms", "errors",
    "client CPU",
)  # fmt: skip
Measured = dict[str, Any]  # a scenario and its figures, as --json writes them
GOOD: Final = frozenset({"200", "OK"})  # codes of an answer; every other code is an error
TIMEOUT_SECONDS: Final = 30.0
RECONNECT_SECONDS: Final = 0.05
Send = Callable[[Call], Awaitable[str]]  # returns the code of the answer; a failed connection is one too


class Target(NamedTuple):
    """The service: http:// or https:// URLs of HTTP and of gRPC, its API key and certificates."""

    url: str
    grpc_url: str
    api_key: str | None = None
    tls: Tls = Tls()

    def prepare(self, call: Call) -> tuple[dict[str, str], bytes]:
        """Make headers or metadata, and the body, with a new request id."""
        request_id = uuid4().hex
        key = {} if self.api_key is None else {"x-api-key": self.api_key}
        named = {"x-request-id": request_id} if call.has_id else {}
        return call.headers | key | named, request_id.encode().join(call.parts)


async def _http(target: Target, stack: AsyncExitStack, _path: str) -> Send:
    timeout = aiohttp.ClientTimeout(TIMEOUT_SECONDS)
    connector = aiohttp.TCPConnector(ssl=verification(target.tls))
    session = await stack.enter_async_context(
        aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
    )

    async def send(call: Call) -> str:
        headers, body = target.prepare(call)
        try:
            url = target.url.rstrip("/") + call.path
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                await answer.read()
                return str(answer.status)
        except TimeoutError:
            return "timeout"
        except aiohttp.ClientError:
            await asyncio.sleep(RECONNECT_SECONDS)
            return "connection"

    return send


async def _grpc(target: Target, stack: AsyncExitStack, path: str) -> Send:
    # Without a pool of its own, a channel shares its connection with the other callers.
    channel = grpc_channel(target.grpc_url, ("grpc.use_local_subchannel_pool", 1), tls=target.tls)
    method: Any = (await stack.enter_async_context(channel)).unary_unary(path)

    async def send(call: Call) -> str:
        metadata, body = target.prepare(call)
        try:
            await method(body, metadata=list(metadata.items()), timeout=TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await asyncio.sleep(RECONNECT_SECONDS)
            return error.code().name
        return "OK"

    return send


class Tally(NamedTuple):
    """Figures of one process: seconds of each answered call, calls by code, seconds, CPU seconds."""

    latencies: list[float]
    codes: Counter[str]
    elapsed: float
    cpu: float


def load(calls: Sequence[Call], target: Target, callers: int, seconds: float) -> Tally:
    """Run callers for some seconds, in a new event loop."""

    async def run() -> Tally:
        async with AsyncExitStack() as stack:
            connect = _http if calls[0].headers else _grpc
            crew = [await connect(target, stack, calls[0].path) for _ in range(callers)]
            return await closed_loop(crew, calls, seconds)

    runner: Any = asyncio if sys.platform == "win32" else import_module("uvloop")
    return runner.run(run())


async def closed_loop(
    callers: Sequence[Send], calls: Sequence[Call], seconds: float, clock: Callable[[], float] = perf_counter
) -> Tally:
    """Let each caller send, wait for its answer and send again, until the time is over.

    The first call of each, which connects, is not measured. Calls that have begun in time all count.
    """
    await asyncio.gather(*(send(calls[i % len(calls)]) for i, send in enumerate(callers)))
    latencies, codes = list[float](), Counter[str]()
    cpu, start = process_time(), clock()

    async def repeat(send: Send, turn: int) -> None:
        begun = clock()
        while begun < start + seconds:
            code = await send(calls[turn % len(calls)])
            ended = clock()
            codes[code] += 1
            if code in GOOD:
                latencies.append(ended - begun)
            turn, begun = turn + 1, ended

    await asyncio.gather(*(repeat(send, i) for i, send in enumerate(callers)))
    return Tally(latencies, codes, clock() - start, process_time() - cpu)


def run_bench(
    target: Target,
    scenarios: Sequence[tuple[str, int, int]],
    *,
    model: str | None,
    identical: bool,
    store: bool,
    seconds: float,
    processes: int,
    json_file: Path | None,
) -> None:
    """Measure every scenario (protocol, callers, windows per call), print the table, write the file."""
    measured: list[Measured] = []
    status = Console(stderr=True).status("")
    opened = nullcontext() if json_file is None else open_output(json_file)
    with opened as file, process_pool(processes) as pool, status:
        models = asyncio.run(ready_models(target, model))
        pools = [simulated_pool(manifest) for _, manifest in models]
        for protocol, callers, windows in scenarios:
            status.update(f"{protocol}, {callers} callers, {windows} windows a call")
            calls = calls_of(protocol, pools, windows, identical=identical, store=store)
            used = min(callers, processes)
            shares = [callers // used + (i < callers % used) for i in range(used)]
            tallies = list(pool.map(partial(load, calls, target, seconds=seconds), shares))
            scenario = {"protocol": protocol, "callers": callers, "windows": windows}
            measured.append(scenario | summarise(tallies, windows))
        if file is not None:
            names = [{"name": of.name, "version": of.version, "sha256": of.sha256} for of, _ in models]
            document: dict[str, Any] = {"url": target.url, "models": names, "scenarios": measured}
            document |= {"seconds": seconds, "processes": processes, "identical": identical}
            file.write(json.dumps(document, indent=1).encode() + b"\n")
    title = f"{', '.join(f'{name.name} {name.version}' for name, _ in models)} at {target.url}"
    wide_console(sys.stdout).print(table_of(printable(title), measured))
    if not any(each["windows_per_second"] for each in measured):
        raise NothingAnswered(f"{target.url}: no call was answered; {_errors(measured[0])}")


async def ready_models(
    target: Target, model: str | None, *, transport: httpx.AsyncBaseTransport | None = None
) -> list[tuple[Model, Manifest]]:
    """Find the named model, or all models, of a ready service."""
    async with AsyncClient(
        target.url, api_key=target.api_key, tls=target.tls, attempts=1, transport=transport
    ) as client:
        await client.request("GET", "/readyz", dict[str, object])
        models = await client.models() if model is None else [await client.choose(model)]
        return [(each, await client.manifest(each.name)) for each in models]


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
    for heading in HEADS:
        side = "left" if heading in {"protocol", "errors"} else "right"
        table.add_column(heading, justify=side, min_width=max(map(len, heading.split())))
    for each in measured:
        table.add_row(
            *(str(each[name]) for name in ("protocol", "callers", "windows")),
            f"{each['windows_per_second']:,.0f}",
            *("-" if each[q] is None else f"{each[q]:.2f}" for q in ("p50_ms", "p99_ms", "p999_ms")),
            _errors(each),
            f"{each['client_cpu']:.2f}{'*' if each['client_limited'] else ''}",
        )
    return table


def _errors(measured: Measured) -> str:
    return ", ".join(f"{code}: {count:,}" for code, count in measured["errors"].items()) or "none"
