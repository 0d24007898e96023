"""Event simulation of a fleet that calls replicas: measured service times in, latency and losses out.

    callers or units -> balancer (least connections) -> replica -> one of its workers (a core each)

A worker follows the rule of `service.core.batcher` with batches on the event loop: when its core is free, all
waiting windows become one batch. Each request has one window. Times are in seconds. The simulation
must not know how service times are measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

import simpy

from service.edge.admission import WAIT_SHARE
from service.settings import Settings
from tests.benchmarks.service_times import MOST_WINDOWS, ServiceTimes

LONGEST_WAIT: Final[float] = WAIT_SHARE * Settings.model_fields["request_timeout_seconds"].default
"""Maximum wait in seconds; a request that has waited longer is refused (docs/adr/0014)."""
Process = Generator[simpy.Event, Any, None]


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
        self._start: Final = rng.random() * times.pace.length
        self._lone: Final = deque(times.measured[min(times.measured)])
        self._lone.rotate(rng.randrange(len(self._lone)))
        self._answer: Final = answer
        self._refuse: Final = refuse
        self._most: Final = most_windows
        self.held: Final[deque[tuple[float, float]]] = deque()  # due, arrival; the batch first
        self._computes = False
        self._interrupted_seconds = self._answered_at = 0.0
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
        times, size = self._times, 0
        lone = len(held) == 1 and held[0][1] >= self._answered_at
        self._computes = True
        while size < min(len(held), self._most):  # requests that arrive while others are read join them
            size += 1
            if times.read_seconds:
                yield self._work(times.read_seconds)
        longer = times.longer(len(held))
        if lone and size == 1:  # such batches have pauses of their own: threads and a core wake up
            first, last = self._lone[0]
            self._lone.rotate(-1)
            yield self._env.timeout(max(0.0, first - times.read_seconds))
        else:
            first, last = (longer * seconds for seconds in times.typical(size))
            yield self._work(max(0.0, first - size * times.read_seconds))
        self._computes, interrupted, self._interrupted_seconds = False, self._interrupted_seconds, 0.0
        yield self._work(interrupted)
        self._answer(held.popleft()[0])
        for _ in range(size - 1):
            yield self._work((last - first) / (size - 1))
            self._answer(held.popleft()[0])
        self._answered_at = self._env.now
        yield self._work(longer * times.after(size))

    def _work(self, seconds: float) -> simpy.Timeout:
        """Work at the worker's pace."""
        return self._env.timeout(self._times.pace.seconds(self._start + self._env.now, seconds))


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
