"""Callers by every protocol; each answer is right, a documented error, or a finding."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import grpc
import httpx
import msgspec
import numpy as np

from export.bundle import find_bundle
from export.seal import read_bundle
from rul_client.answers import Prediction
from rul_client.commands.predict.offline import open_offline
from rul_client.readings import Window
from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.asking import Asked, Stream
from tests.oip import arrays_of, json_request

BUNDLE: Final = "fd001"
CLOSE: Final = 1e-3
"""Maximum difference from the offline answer, in cycles; batches of other sizes round differently."""
DEADLINE_SECONDS: Final = 10.0
"""Seconds after which a call is stuck: the service's deadline is 5 s, the limit of a hung worker 2 s."""
DOCUMENTED: Final = {408, 429, 503, 504}
DOCUMENTED_CODES: Final = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
UNKNOWN: Final = 404
STREAM_READINGS: Final = 5
PACE_SECONDS: Final = 0.01
PAUSE_SECONDS: Final = 0.1
"""Pause after a failed call, as the documents advise: else callers take the cores that a restart needs."""


@dataclass(frozen=True, eq=False)
class Case:
    """A window, and its RUL, computed offline from the same bundle."""

    window: Asked
    rul: float


def cases() -> list[Case]:
    """Cut golden windows to many lengths, and answer them without a server."""
    golden = read_bundle(find_bundle(BUNDLE)).golden
    windows = [
        Asked(rows[:end], float(end))
        for rows, length in zip(golden.readings, golden.lengths, strict=True)
        for end in sorted({*range(1, STREAM_READINGS + 1), int(length) // 2, int(length)})
        if end <= length
    ]
    given = [Window(None, window.last_cycle, window.readings) for window in windows]

    async def answered() -> list[float]:
        async with open_offline(BUNDLE) as offline:
            answers = await offline.answer(given, "attention")
        return [answer.rul for answer in answers if isinstance(answer, Prediction)]

    return [Case(*pair) for pair in zip(windows, asyncio.run(answered()), strict=True)]


@dataclass
class Ledger:
    """Observations of all callers.

    Attributes:
        ends: Ends of calls, by protocol and status.
        findings: Events that must not happen.
        losses: Times of lost connections; allowed only near a fault.
        seconds: Duration of each right answer, in order.
        predictions: Stored predictions that an answer listed, with their RUL.
        outcomes: Acknowledged outcomes.
        answered: Answered predictions with unit and cycle; the store may lose the last half second.
    """

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    predictions: dict[tuple[str, int], float] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    answered: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def call(self, protocol: str) -> Iterator[None]:
        """Time one call and judge its end."""
        start, status = time.monotonic(), "right"
        try:
            yield
        except httpx.TimeoutException:
            status = "stuck"
        except httpx.TransportError:
            status = "connection lost"
        except grpc.RpcError as error:
            code = error.code()
            status = code.name if code in DOCUMENTED_CODES else f"undocumented {code.name}: {error}"
        except _Documented as error:
            status = str(error)
        except AssertionError as error:
            status = f"wrong: {error}"
        self._record(protocol, status, start, time.monotonic())
        if status != "right":
            time.sleep(PAUSE_SECONDS)

    def _record(self, protocol: str, status: str, start: float, end: float) -> None:
        with self.lock:
            self.ends[protocol, status.partition(":")[0]] += 1
            if status == "right":
                self.seconds.append(end - start)
            if status == "connection lost":
                self.losses.append((start, end))
            if end - start > DEADLINE_SECONDS or status == "stuck":
                self.findings.append(f"{protocol}: stuck for {end - start:.1f} s")
            elif status.startswith(("wrong", "undocumented")):
                self.findings.append(f"{protocol}: {status}"[:300])


class _Documented(Exception):
    """The service answered with a documented error."""


def _checked(answer: httpx.Response, *expected: int) -> httpx.Response:
    if answer.status_code in DOCUMENTED:
        raise _Documented(str(answer.status_code))
    assert answer.status_code in expected, f"{answer.status_code} {answer.text[:200]}"
    return answer


def _same(got: float, case: Case) -> None:
    assert abs(got - case.rul) < CLOSE, f"RUL {got}, offline {case.rul}"


class HttpCaller:
    """Predicts its own units, reads their history and reports their outcomes."""

    def __init__(self, client: httpx.Client, name: str, ledger: Ledger, given: Sequence[Case]) -> None:
        self._client, self._name, self._ledger, self._cases = client, name, ledger, given

    def __call__(self, turn: int) -> None:
        """Ask once."""
        case, unit = self._cases[turn % len(self._cases)], f"{self._name}-{turn}"
        cycle = int(case.window.last_cycle or 0)
        with self._ledger.call("HTTP predict"):
            body = {"windows": [case.window.json() | {"unit": unit}]}
            answer = _checked(self._client.post("/v1/predict", json=body), 200)
            _same(answer.json()["predictions"][0]["rul"], case)
            self._ledger.answered += 1
        if turn % 5 == 0:
            self._read(unit, cycle, case)
        if turn % 5 == 1:
            self._report(unit, cycle)

    def _read(self, unit: str, cycle: int, case: Case) -> None:
        with self._ledger.call("HTTP units"):
            answer = _checked(self._client.get(f"/v1/units/{unit}"), 200, UNKNOWN)
            if answer.status_code != UNKNOWN:
                (stored,) = answer.json()["predictions"]
                _same(stored["rul"], case)
                self._ledger.predictions[unit, cycle] = stored["rul"]

    def _report(self, unit: str, cycle: int) -> None:
        with self._ledger.call("HTTP outcomes"):
            outcome = {"kind": "failed", "cycle": cycle + 3}
            answer = _checked(
                self._client.post(f"/v1/units/{unit}/outcomes", json=outcome), 200, 201, UNKNOWN
            )
            if answer.status_code != UNKNOWN:
                self._ledger.outcomes[unit] = cycle + 3


def ask_oip(client: httpx.Client, ledger: Ledger, given: Sequence[Case], turn: int) -> None:
    """Send a request by the Open Inference Protocol."""
    case = given[turn % len(given)]
    arrays = {
        "readings": case.window.readings[None].astype("<f4"),
        "last_cycle": np.array([case.window.last_cycle], "<f4"),
    }
    with ledger.call("OIP infer"):
        answer = _checked(client.post(f"/v2/models/{BUNDLE}/infer", json=json_request(arrays)), 200)
        _same(float(arrays_of(answer.content, None)["rul"].ravel()[0]), case)


def ask_grpc(stub: rul_v1_pb2_grpc.RulServiceStub, ledger: Ledger, given: Sequence[Case], turn: int) -> None:
    """Predict two windows; every tenth time, first send the same call and cancel it at once."""
    pair = [given[(turn + i) % len(given)] for i in range(2)]
    request = pb.PredictRequest(model=BUNDLE, windows=[case.window.message() for case in pair])
    if turn % 10 == 0:
        stub.Predict.future(request, timeout=DEADLINE_SECONDS).cancel()
    with ledger.call("gRPC predict"):
        reply = stub.Predict(request, timeout=DEADLINE_SECONDS)
        for prediction, case in zip(reply.predictions, pair, strict=True):
            _same(prediction.rul, case)


def ask_stream(
    stub: rul_v1_pb2_grpc.RulServiceStub, ledger: Ledger, given: Sequence[Case], turn: int
) -> None:
    """Open a stream, send readings of one unit, and close it; cancel every tenth stream in the middle."""
    lives = [case for case in given if len(case.window.readings) <= STREAM_READINGS]
    start = STREAM_READINGS * (turn % (len(lives) // STREAM_READINGS))
    life = lives[start : start + STREAM_READINGS]
    with (
        ledger.call("gRPC stream"),
        Stream(stub, timeout=DEADLINE_SECONDS, model=BUNDLE, first_cycle=1) as stream,
    ):
        for case in life if turn % 10 else life[:2]:
            reply = stream.ask(case.window.readings[-1].tolist())
            assert reply.HasField("prediction"), str(reply)
            _same(reply.prediction.rul, case)
        if turn % 10 == 0:
            stream.call.cancel()


def leave(url: str, body: bytes, sent: int, *, reset: bool) -> None:
    """Send a part of a request by HTTP and disconnect, with or without a reset."""
    address = urlsplit(url)
    head = (
        f"POST /v1/predict HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    try:
        with socket.create_connection((address.hostname, address.port), timeout=2) as connection:
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall((head + body)[:sent])
    except OSError:  # near a fault no worker may listen
        pass


def leave_within(url: str, given: Sequence[Case], turn: int) -> None:
    """Send half of a request, or all of it, and do not wait."""
    body = msgspec.json.encode({"windows": [given[turn % len(given)].window.json()]})
    leave(url, body, len(body) // 2 if turn % 2 else len(body) + 4096, reset=turn % 3 == 0)


@contextmanager
def asking(
    url: str, target: str, ledger: Ledger, given: Sequence[Case], *, pace: float = PACE_SECONDS
) -> Iterator[None]:
    """Run callers of every kind until the block ends; each pauses `pace` seconds between its calls."""
    stop = threading.Event()

    def again(ask: Callable[[int], None]) -> None:
        turn = 0
        while not stop.wait(pace):
            ask(turn)
            turn += 1

    limits = httpx.Limits(max_keepalive_connections=0)  # separate connections reach every worker
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500)]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                httpx.Client(
                    base_url=url, timeout=DEADLINE_SECONDS, trust_env=False, verify=False, limits=kept
                )
            )
            for kept in (limits, httpx.Limits())
        ]
        channels = [stack.enter_context(grpc.insecure_channel(target, options=options)) for _ in range(3)]
        stubs = [*map(rul_v1_pb2_grpc.RulServiceStub, channels)]
        callers: list[Callable[[int], None]] = [
            HttpCaller(clients[0], "north", ledger, given),
            HttpCaller(clients[1], "south", ledger, given),
            partial(ask_oip, clients[0], ledger, given),
            partial(ask_grpc, stubs[0], ledger, given),
            partial(ask_grpc, stubs[1], ledger, given),
            partial(ask_stream, stubs[2], ledger, given),
            partial(leave_within, url, given),
        ]
        pool = stack.enter_context(ThreadPoolExecutor(len(callers)))
        running = [pool.submit(again, caller) for caller in callers]
        try:
            yield
        finally:
            stop.set()
            for caller in running:
                caller.result()
