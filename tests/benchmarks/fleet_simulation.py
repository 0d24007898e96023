"""Event simulation of a fleet that calls replicas: measured service times in, latency and losses out.

    callers or units -> balancer (least connections) -> replica -> one of its workers (a core each)

A worker follows the rule of `service.core.batcher` with batches on the event loop: when its core is free, all
waiting windows become one batch. Each request has one window. Times are in seconds. The simulation
must not know how service times are measured: `lone_worker` measures them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
import simpy

from service.edge.admission import WAIT_SHARE
from service.settings import Settings

MOST_WINDOWS: Final[int] = Settings.model_fields["max_batch_windows"].default
LONGEST_WAIT: Final[float] = WAIT_SHARE * Settings.model_fields["request_timeout_seconds"].default
"""Maximum wait in seconds; a request that has waited longer is refused (docs/adr/0014)."""
Process = Generator[simpy.Event, Any, None]


class Batch(NamedTuple):
    """Seconds from the start of a batch to its first and to its last answer."""

    first: float
    last: float


class ServiceTimes:
    """Measured batches by number of windows, in the order of measurement.

    Attributes:
        read_seconds: Part of a batch's time in which one request is received and decoded. Requests that
            arrive meanwhile join the batch.
        arrival_seconds: Extra time of a request that arrives during a batch: it wakes threads, which are
            already awake while answers are sent.
        backlog: By requests that are held, how many times longer a full batch takes: their data leave the
            caches.
    """

    def __init__(
        self,
        measured: Mapping[int, Sequence[Batch]],
        *,
        read_seconds: float = 0.0,
        arrival_seconds: float = 0.0,
        after: Mapping[int, float] | None = None,
        backlog: Mapping[int, float] | None = None,
    ) -> None:
        """Take batches by number of windows, and the seconds of work after each one's last answer."""
        self.read_seconds: Final = read_seconds
        self.arrival_seconds: Final = arrival_seconds
        self.measured: Final = measured
        self._sizes: Final = sorted(measured)
        self._means: Final = [sum(each.last for each in measured[n]) / len(measured[n]) for n in self._sizes]
        self._after: Final = [after[n] if after else 0.0 for n in self._sizes]
        self.backlog: Final = dict(backlog or {})

    def mean_seconds(self, windows: int) -> float:
        """Interpolate the mean time of a batch, to its last answer."""
        return float(np.interp(windows, self._sizes, self._means))

    def after(self, windows: int) -> float:
        """Interpolate the time after a batch's last answer in which the core is still busy."""
        return float(np.interp(windows, self._sizes, self._after))

    def longer(self, held: int) -> float:
        """Interpolate how many times longer a batch takes while so many requests are held."""
        known = {MOST_WINDOWS: 1.0} | self.backlog
        return float(np.interp(held, list(known), list(known.values())))

    def most_per_second(self) -> float:
        """Return the throughput of a worker with a backlog, in windows per second."""
        return MOST_WINDOWS / (self.mean_seconds(MOST_WINDOWS) + self.after(MOST_WINDOWS))

    def nearest(self, windows: int) -> int:
        """Return the nearest measured size."""
        return min(self._sizes, key=lambda size: abs(size - windows))


class Replay:
    """Measured batches of each size in order, from a random start, so that slow moments stay together."""

    def __init__(self, times: ServiceTimes, rng: Random) -> None:
        self._times: Final = times
        self._next: Final = {size: rng.randrange(len(found)) for size, found in times.measured.items()}

    def batch(self, windows: int) -> Batch:
        """Return the next batch of the nearest size, scaled to this one."""
        times, size = self._times, self._times.nearest(windows)
        found = times.measured[size]
        first, last = found[self._next[size] % len(found)]
        self._next[size] += 1
        scale = times.mean_seconds(windows) / times.mean_seconds(size)
        return Batch(scale * first, scale * last)


@dataclass
class Outcome:
    """Outcome of every request.

    Attributes:
        latencies: Seconds from the due time to the answer of each answered request.
        refused: Requests that waited too long.
        seconds: Length of the simulation, until the last answer.
        lost: Requests in flight at a replica when it died, or without any replica.
    """

    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    lost: int = 0
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        """Number of finished requests."""
        return len(self.latencies) + self.refused + self.lost


class Worker:
    """One core. `answer` and `refuse` get the due time of the request."""

    def __init__(
        self,
        env: simpy.Environment,
        times: ServiceTimes,
        rng: Random,
        *,
        answer: Callable[[float], None],
        refuse: Callable[[float], None],
        most_windows: int = MOST_WINDOWS,
    ) -> None:
        self._env: Final = env
        self._times: Final = times
        self._replay: Final = Replay(times, rng)
        self._answer: Final = answer
        self._refuse: Final = refuse
        self._most: Final = most_windows
        self.held: Final[deque[tuple[float, float]]] = deque()  # due, arrival; the batch first
        self._computes = False
        self._interrupted_seconds = 0.0
        self.start()

    def start(self) -> None:
        """Start serving."""
        self._arrival = self._env.event()
        self._process = self._env.process(self._serve())

    def submit(self, due: float) -> None:
        """Take a request."""
        self.held.append((due, self._env.now))
        if self._computes:
            self._interrupted_seconds += self._times.arrival_seconds
        if not self._arrival.triggered:
            self._arrival.succeed()

    def kill(self) -> int:
        """Stop at once; return the number of lost requests."""
        lost = len(self.held)
        self.held.clear()
        self._process.interrupt()
        return lost

    def _serve(self) -> Process:
        try:
            while True:
                while self.held:
                    yield from self._run_batch()
                self._arrival = self._env.event()
                yield self._arrival
        except simpy.Interrupt:
            return

    def _run_batch(self) -> Process:
        held, now = self.held, self._env.now
        while held and now - held[0][1] > LONGEST_WAIT:
            self._refuse(held.popleft()[0])
        if not held:
            return
        size, reading = 0, self._times.read_seconds
        self._computes = True
        while size < min(len(held), self._most):  # requests that arrive while others are read join them
            size += 1
            if reading:
                yield self._env.timeout(reading)
        longer = self._times.longer(len(held))
        first, last = (longer * seconds for seconds in self._replay.batch(size))
        yield self._env.timeout(max(0.0, first - size * reading))
        self._computes, interrupted, self._interrupted_seconds = False, self._interrupted_seconds, 0.0
        yield self._env.timeout(interrupted)
        self._answer(held.popleft()[0])
        for _ in range(size - 1):
            yield self._env.timeout((last - first) / (size - 1))
            self._answer(held.popleft()[0])
        yield self._env.timeout(longer * self._times.after(size))


class Replica:
    """Workers on one port; the kernel assigns connections at random."""

    def __init__(self, workers: Sequence[Worker], rng: Random) -> None:
        self.workers: Final = workers
        self._rng: Final = rng

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return sum(len(worker.held) for worker in self.workers)

    def submit(self, due: float) -> None:
        """Pass a request to a worker."""
        self._rng.choice(self.workers).submit(due)

    def start(self) -> None:
        """Start every worker."""
        for worker in self.workers:
            worker.start()

    def kill(self) -> int:
        """Kill every worker; return the number of lost requests."""
        return sum(worker.kill() for worker in self.workers)


class Balancer:
    """Sends each request to the ready replica with the fewest in flight, in turn if several are equal."""

    def __init__(self, replicas: Iterable[Replica], outcome: Outcome) -> None:
        self.ready: Final = deque(replicas)
        self._outcome: Final = outcome

    def submit(self, due: float) -> None:
        """Pass a request on."""
        if not self.ready:
            self._outcome.lost += 1
            return
        self.ready.rotate()
        min(self.ready, key=lambda replica: replica.in_flight).submit(due)


class Fleet(NamedTuple):
    """Units that report once a second, and replicas with this number of workers each."""

    units: int
    replicas: int
    workers: int


@dataclass(frozen=True)
class Site:
    """The simulated fleet to which a fault is applied."""

    env: simpy.Environment
    balancer: Balancer
    replicas: Sequence[Replica]
    outcome: Outcome


Trouble = Callable[[Site], Process]


def failure(*, at: float, seconds: float, lame_duck: float = 0.0, replicas: int | None = 1) -> Trouble:
    """Kill one replica, or all in turn; each restarts after `seconds`.

    The balancer notices at once. Before the kill, a replica answers for `lame_duck` seconds without new
    requests.
    """

    def run(site: Site) -> Process:
        yield site.env.timeout(at)
        for replica in site.replicas[:replicas]:
            site.balancer.ready.remove(replica)
            yield site.env.timeout(lame_duck)
            site.outcome.lost += replica.kill()
            yield site.env.timeout(seconds)
            replica.start()
            site.balancer.ready.append(replica)

    return run


rollout: Final = partial(failure, replicas=None)


def simulate(
    fleet: Fleet, times: ServiceTimes, *, seconds: int, seed: int, trouble: Trouble | None = None
) -> Outcome:
    """Let every unit report once a second, each at its own offset."""
    env, rng, outcome = simpy.Environment(), Random(seed), Outcome()

    def answer(due: float) -> None:
        outcome.latencies.append(env.now - due)

    def refuse(due: float) -> None:
        outcome.refused += 1

    replicas = [
        Replica(
            [Worker(env, times, rng, answer=answer, refuse=refuse) for _ in range(fleet.workers)], rng
        )
        for _ in range(fleet.replicas)
    ]  # fmt: skip
    balancer = Balancer(replicas, outcome)

    def reports() -> Process:
        moments = sorted(rng.random() for _ in range(fleet.units))
        for second in range(seconds):
            for moment in moments:
                due = second + moment
                yield env.timeout(max(0.0, due - env.now))
                balancer.submit(due)

    env.process(reports())
    if trouble is not None:
        env.process(trouble(Site(env, balancer, replicas, outcome)))
    env.run()
    outcome.seconds = env.now
    return outcome
