"""Event simulation of the measurement of `lone_worker`: one worker and the measuring program."""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

import simpy

from tests.benchmarks.fleet_simulation import Outcome, Process, Worker
from tests.benchmarks.service_times import ServiceTimes


class Client(NamedTuple):
    """CPU seconds of the measuring program to send a request, and to receive an answer."""

    send: float = 0.0
    receive: float = 0.0


class LoneWorker:
    """One worker and the measuring program, each on its own core.

    Callers send the next request after each answer, until an end time.
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
        """Send a request when the client's core is free."""
        self._free_at = max(self._free_at, self.env.now) + self._client.send
        sent = self.env.timeout(self._free_at - self.env.now)
        sent.callbacks.append(lambda _: self._worker.submit(due))

    def receive(self, due: float) -> None:
        """Receive an answer when the client's core is free."""
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
    """Simulate callers that wait for each answer before the next request."""
    loop = LoneWorker(times, client, seed, until=seconds)
    for _ in range(callers):
        loop.send(0.0)
    return loop.run()


def open_loop(times: ServiceTimes, *, rate: float, seconds: float, client: Client, seed: int) -> Outcome:
    """Simulate an open loop of random requests, `rate` per second."""
    lone, rng = LoneWorker(times, client, seed), Random(seed)

    def requests() -> Process:
        due = rng.expovariate(rate)
        while due < seconds:
            yield lone.env.timeout(due - lone.env.now)
            lone.send(due)
            due += rng.expovariate(rate)

    lone.env.process(requests())
    return lone.run()
