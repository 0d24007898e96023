"""One worker and the program that measures it, simulated: what `lone_worker` measures, event by event."""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

import simpy

from tests.benchmarks.fleet_simulation import Outcome, Process, ServiceTimes, Worker


class Client(NamedTuple):
    """Seconds of the measuring program's core: to send a request, and to receive an answer."""

    send: float = 0.0
    receive: float = 0.0


class LoneWorker:
    """One worker and the program that measures it, each on a core of its own.

    Callers ask again as soon as they are answered, until a time.
    """

    def __init__(self, times: ServiceTimes, client: Client, seed: int, *, until: float = 0.0) -> None:
        self.env: Final = simpy.Environment()
        self.outcome: Final = Outcome()
        self._client: Final = client
        self._until: Final = until
        self._free_at = 0.0
        worker = Worker(self.env, times, Random(seed), answer=self.receive, refuse=self._refuse)
        self._worker: Final = worker

    def _refuse(self, due: float) -> None:
        self.outcome.refused += 1

    def send(self, due: float) -> None:
        """Send a request as soon as the client's core is free."""
        self._free_at = max(self._free_at, self.env.now) + self._client.send
        sent = self.env.timeout(self._free_at - self.env.now)
        sent.callbacks.append(lambda _: self._worker.submit(due))

    def receive(self, due: float) -> None:
        """Receive an answer as soon as the client's core is free."""
        self._free_at = max(self._free_at, self.env.now) + self._client.receive
        self.outcome.latencies.append(self._free_at - due)
        if self._free_at < self._until:
            self.send(self._free_at)

    def run(self) -> Outcome:
        """Simulate until every request has its outcome."""
        self.env.run()
        self.outcome.seconds = self.env.now
        return self.outcome


def closed_loop(times: ServiceTimes, *, callers: int, seconds: float, client: Client, seed: int) -> Outcome:
    """Simulate callers who wait for their answer and ask again."""
    loop = LoneWorker(times, client, seed, until=seconds)
    for _ in range(callers):
        loop.send(0.0)
    return loop.run()


def open_loop(times: ServiceTimes, *, rate: float, seconds: float, client: Client, seed: int) -> Outcome:
    """Simulate requests that come at random, `rate` a second, whatever the worker does."""
    lone, rng = LoneWorker(times, client, seed), Random(seed)

    def requests() -> Process:
        due = rng.expovariate(rate)
        while due < seconds:
            yield lone.env.timeout(due - lone.env.now)
            lone.send(due)
            due += rng.expovariate(rate)

    lone.env.process(requests())
    return lone.run()
