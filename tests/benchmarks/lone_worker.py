"""Service times, latency and throughput of one worker on one core, measured from another core.

`Crew` holds the connections. Its thread polls without sleep, so no wake-up adds to a latency. A batch of
n windows is measured by stopping the worker (SIGSTOP), sending n requests and continuing the worker: it finds
all requests at once, as after a batch under load.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.benchmarks.front_ends import serving
from tests.benchmarks.loads import ID, HttpCall, Load
from tests.benchmarks.loop_simulation import Client
from tests.benchmarks.payloads import calls_of
from tests.benchmarks.service_times import Batch

CONNECTIONS: Final = 256
STAGE: Final = "rul_stage_duration_seconds"
QUEUE: Final = {"stage": "queue"}
RECEIVED_BYTES: Final = 1 << 18
END_OF_HEAD: Final = b"\r\n\r\n"
LENGTH: Final = b"content-length:"


class Crew:
    """Connections to one worker, each with one request at a time.

    Attributes:
        request_bytes: Length of a request.
        failed: Answers with another status than 200.
    """

    def __init__(self, http: str, calls: Sequence[HttpCall], count: int = CONNECTIONS) -> None:
        self._http: Final = http
        self._calls: Final = [call.raw(http).split(ID.encode()) for call in calls]
        self.request_bytes: Final = len(calls[0].raw(http))
        self._poll: Final = select.epoll()
        self._ends: Final[dict[int, socket.socket]] = {}
        self._partial: Final[dict[int, bytes]] = {}
        self._asked = self._sends = self._receives = self.failed = 0
        self._sending = self._receiving = self._arrived = 0.0
        port = int(http.rpartition(":")[2])
        for _ in range(count):
            end = socket.create_connection(("127.0.0.1", port))
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends[end.fileno()] = end
            self._poll.register(end.fileno(), select.EPOLLIN)

    def close(self) -> None:
        """Close every connection."""
        for end in self._ends.values():
            end.close()
        self._poll.close()

    def client(self) -> Client:
        """Return the mean time of this program to send and to receive."""
        return Client(self._sending / self._sends, self._receiving / self._receives)

    def queued(self) -> tuple[float, float]:
        """Return the seconds that requests have waited for their batch, and the number of these requests."""
        text = httpx.get(f"{self._http}/metrics", trust_env=False).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        waited, count = (
            sum(each.value for each in samples if each.name == f"{STAGE}_{of}" and each.labels == QUEUE)
            for of in ("sum", "count")
        )
        return waited, count

    def alone(self) -> Batch:
        """Send one request to an idle worker."""
        self._send(next(iter(self._ends)))
        return self._answers(perf_counter(), 1)

    def burst(self, windows: int, worker: int) -> Batch:
        """Send a number of requests that a worker finds at once."""
        os.kill(worker, signal.SIGSTOP)
        for end in list(self._ends)[:windows]:
            self._send(end)
        start = perf_counter()
        os.kill(worker, signal.SIGCONT)
        return self._answers(start, windows)

    def interrupted(self, windows: int, more: int, seconds: float, worker: int) -> float:
        """Send requests that a worker finds at once, then more in `seconds`; return seconds until all end."""
        os.kill(worker, signal.SIGSTOP)
        ends = list(self._ends)
        for end in ends[:windows]:
            self._send(end)
        start = perf_counter()
        os.kill(worker, signal.SIGCONT)
        for number, end in enumerate(ends[windows : windows + more], 1):
            while perf_counter() < start + seconds * number / more:
                pass
            self._send(end)
        return self._answers(start, windows + more).last

    def _answers(self, start: float, missing: int) -> Batch:
        """Wait for a number of answers; their times end at arrival, before they are read."""
        first = 0.0
        while missing:
            for _ in self._receive():
                missing -= 1
                first = first or self._arrived - start
        return Batch(first, self._arrived - start)

    def closed_loop(self, callers: int, seconds: float) -> list[float]:
        """Send requests by callers that wait for each answer; return the latencies in seconds."""
        start, latencies = perf_counter(), list[float]()
        asked = dict.fromkeys(list(self._ends)[:callers], start)
        for end in asked:
            self._send(end)
        while asked:
            for end in self._receive():
                now = perf_counter()
                latencies.append(now - asked.pop(end))
                if now < start + seconds:
                    asked[end] = now
                    self._send(end)
        return latencies

    def open_loop(self, rate: float, seconds: float, rng: Random) -> list[float]:
        """Send requests at random moments, `rate` per second; return seconds from due time to answer."""
        free, asked, latencies = deque(self._ends), dict[int, float](), list[float]()
        start = perf_counter()
        due = start + rng.expovariate(rate)
        while asked or due < start + seconds:
            while free and due < min(perf_counter(), start + seconds):
                asked[free[0]] = due
                self._send(free.popleft())
                due += rng.expovariate(rate)
            for end in self._receive():
                latencies.append(perf_counter() - asked.pop(end))
                free.append(end)
        return latencies

    def _send(self, end: int) -> None:
        start = perf_counter()
        self._asked += 1
        raw = (b"%032x" % self._asked).join(self._calls[self._asked % len(self._calls)])
        if self._ends[end].send(raw) < len(raw):
            raise RuntimeError(f"a request of {len(raw)} bytes does not fit into the socket's buffer")
        self._sending += perf_counter() - start
        self._sends += 1

    def _receive(self) -> Iterator[int]:
        """Read from all connections; yield each connection with a whole answer."""
        ready = self._poll.poll(0)
        self._arrived = perf_counter()
        for end, _ in ready:
            start = perf_counter()
            data = self._partial.pop(end, b"") + self._ends[end].recv(RECEIVED_BYTES)
            head, found, body = data.partition(END_OF_HEAD)
            is_whole = bool(found) and len(body) >= _length(head)
            self._receiving += perf_counter() - start
            if is_whole:
                self.failed += b" 200 " not in head[:16]
                self._receives += 1
                yield end
            else:
                self._partial[end] = data


def _length(head: bytes) -> int:
    return int(head[head.lower().index(LENGTH) + len(LENGTH) :].split(b"\r", 1)[0])


@contextmanager
def lone_worker(bundle: str, door: str, folder: Path) -> Iterator[tuple[Crew, int]]:
    """Start one worker on the first core and a crew on the second; yield crew and process."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("the measurement needs two cores: one serves, one asks")
    calls = calls_of(bundle, Load(door, CONNECTIONS, realistic=True))
    try:
        os.sched_setaffinity(0, cores[:1])
        with serving("one", bundle, folder) as served:
            os.sched_setaffinity(0, cores[1:2])
            with closing(Crew(served.http, calls)) as crew:
                yield crew, served.workers()[0]
    finally:
        os.sched_setaffinity(0, cores)
