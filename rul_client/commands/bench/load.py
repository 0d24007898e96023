"""One process of `rul bench`: some callers in a closed loop, and what came of it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rul_client.commands.bench.callers import GOOD, Caller, Target, caller_for
from rul_client.commands.bench.requests import Calls

Clock = Callable[[], float]


@dataclass(slots=True)
class Tally:
    """What one process saw.

    Attributes:
        latencies: Seconds of every call that was answered.
        codes: How many calls ended with each code.
        elapsed: Seconds from the first call to the end of the last.
        cpu: Seconds of this process's CPU within them.
    """

    latencies: list[float] = field(default_factory=list[float])
    codes: Counter[str] = field(default_factory=Counter[str])
    elapsed: float = 0.0
    cpu: float = 0.0


def load(calls: Calls, target: Target, callers: int, seconds: float) -> Tally:
    """Ask for so long with so many callers, in an event loop of its own."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_load(calls, target, callers, seconds))


async def _load(calls: Calls, target: Target, callers: int, seconds: float) -> Tally:
    crew = [caller_for(calls, target) for _ in range(callers)]
    try:
        return await closed_loop(crew, calls.bodies, seconds)
    finally:
        await asyncio.gather(*(caller.close() for caller in crew))


async def closed_loop(
    crew: Sequence[Caller], bodies: Sequence[bytes], seconds: float, *, clock: Clock = time.perf_counter
) -> Tally:
    """Each caller asks, waits for its answer and asks again, until the time is over.

    Before that each has asked once, to connect. Calls that have begun are waited for and counted,
    and so is the time they take: the latest answers are those that must not be lost.
    """
    await asyncio.gather(*(caller.call(bodies[i % len(bodies)]) for i, caller in enumerate(crew)))
    tally = Tally()
    cpu, start = time.process_time(), clock()
    stop = start + seconds

    async def ask_on(caller: Caller, turn: int) -> None:
        begun = clock()
        while begun < stop:
            code = await caller.call(bodies[turn % len(bodies)])
            ended = clock()
            tally.codes[code] += 1
            if code in GOOD:
                tally.latencies.append(ended - begun)
            turn, begun = turn + 1, ended

    await asyncio.gather(*(ask_on(caller, i) for i, caller in enumerate(crew)))
    tally.elapsed = clock() - start
    tally.cpu = time.process_time() - cpu
    return tally


@dataclass(frozen=True, slots=True)
class Figures:
    """What a scenario came to, over all processes.

    Attributes:
        p50_ms: Of calls that were answered; none where no call was.
        errors: How many calls ended with each code that is no answer.
        client_cpu: Cores that asking took, on average.
        client_limited: Whether asking kept its processes so busy that more could find more.
    """

    windows_per_second: float
    calls: int
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    errors: dict[str, int]
    client_cpu: float
    client_limited: bool


LIMITED: float = 0.8
"""A process that is busier than this share of a core has hardly time to see an answer when it comes."""


def summed(tallies: Sequence[Tally], windows: int) -> Figures:
    """The figures of several processes, each of whose calls had so many windows."""
    latencies = [latency for tally in tallies for latency in tally.latencies]
    codes = sum((tally.codes for tally in tallies), Counter[str]())
    busy = [tally.cpu / tally.elapsed for tally in tallies]
    p50, p99, p999 = (
        # The smallest latency that so many calls do not exceed: one that was measured.
        [1000 * float(np.quantile(latencies, q, method="higher")) for q in (0.5, 0.99, 0.999)]
        if latencies
        else (None, None, None)
    )
    return Figures(
        windows_per_second=sum(len(tally.latencies) * windows / tally.elapsed for tally in tallies),
        calls=codes.total(),
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
        errors={code: count for code, count in sorted(codes.items()) if code not in GOOD},
        client_cpu=sum(busy),
        client_limited=max(busy) > LIMITED,
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 there is none for Windows

    return uvloop.new_event_loop
