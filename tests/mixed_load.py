"""Callers of every kind, by HTTP and by gRPC, that count their requests and the answers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import httpx

from service.proto import rul_v1_pb2, rul_v1_pb2_grpc
from tests.asking import Asked, Stream
from tests.oip import json_request

PACE_SECONDS: Final = 0.05
STREAM_READINGS: Final = 5
BEFORE_ITS_OUTCOME: Final = 30
"""Units between a prediction and its outcome; another worker may have to write the prediction first."""
Key = tuple[str, str, str]


@dataclass
class Tally:
    """Counts of callers.

    Attributes:
        requests: Requests by protocol, route and code; a stream and each of its readings count.
        windows: Windows with a prediction.
        kept: Windows among these with known unit and cycle, each counted once.
        outcomes: Accepted outcomes, by kind.
        judged: Predictions judged by these outcomes.
        failed: Judged predictions of units that failed.
    """

    requests: Counter[Key] = field(default_factory=Counter)
    windows: int = 0
    kept: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    judged: int = 0
    failed: int = 0

    def add(self, other: Tally) -> None:
        """Add the counts of another caller."""
        self.requests += other.requests
        self.outcomes += other.outcomes
        self.windows += other.windows
        self.kept += other.kept
        self.judged += other.judged
        self.failed += other.failed


class Load:
    """Callers that send requests until they are stopped, each with its own tally."""

    def __init__(self) -> None:
        self._stop: Final = threading.Event()
        self._asking: Final[list[Future[Tally]]] = []
        self._seen: Tally | None = None
        self._turns: Final[Counter[int]] = Counter()

    @property
    def complete(self) -> bool:
        """Whether each caller has sent all its kinds of requests, or has failed."""
        turns = [self._turns[caller] for caller in range(len(self._asking))]
        return min(turns) > BEFORE_ITS_OUTCOME or any(caller.done() for caller in self._asking)

    def start(self, pool: ThreadPoolExecutor, ask: Callable[[int, Tally], None]) -> None:
        """Start another caller, which gets the number of its turn each time."""
        self._asking.append(pool.submit(self._again, ask, len(self._asking)))

    def stop(self) -> Tally:
        """Let all callers finish their requests; return the counts of all.

        Raises:
            AssertionError: a caller got a wrong answer.
        """
        self._stop.set()
        if self._seen is None:
            seen = Tally()
            for caller in self._asking:
                seen.add(caller.result())
            self._seen = seen
        return self._seen

    def _again(self, ask: Callable[[int, Tally], None], caller: int) -> Tally:
        seen = Tally()
        while not self._stop.wait(PACE_SECONDS):
            ask(self._turns[caller], seen)
            self._turns[caller] += 1
        return seen


@contextmanager
def asked(*, http: str, grpc_target: str, windows: Sequence[Asked], queue_windows: int) -> Iterator[Load]:
    """Run callers until the block ends; some of their requests are refused."""
    good = [window for window in windows if len(window.readings) > 1]
    # Each request has its own connection, which the kernel assigns to a worker. `verify` only
    # because an unused TLS context costs more than the question.
    limits = httpx.Limits(max_keepalive_connections=0)
    options = [("grpc.use_local_subchannel_pool", 1)]
    load = Load()
    with (
        httpx.Client(base_url=http, timeout=60, trust_env=False, verify=False, limits=limits) as client,
        grpc.insecure_channel(grpc_target, options=options) as one,
        grpc.insecure_channel(grpc_target, options=options) as another,
        ThreadPoolExecutor(5) as pool,
    ):
        for name in ("north", "south"):
            load.start(pool, HttpCaller(client, name, good, queue_windows))
        for channel in (one, another):
            load.start(pool, GrpcCaller(channel, good))
        load.start(pool, StreamCaller(another, good))
        try:
            yield load
        finally:
            load.stop()


class HttpCaller:
    """Predicts its own units, reports their outcomes, and makes mistakes."""

    def __init__(self, client: httpx.Client, name: str, windows: Sequence[Asked], queue_windows: int) -> None:
        self._client: Final = client
        self._name: Final = name
        self._good: Final = {**windows[0].json(), "last_cycle": len(windows[0].readings)}
        self._tensors: Final = json_request({"readings": windows[0].readings[None]})
        self._too_many: Final = {"windows": [self._good] * (queue_windows + 1)}

    def __call__(self, turn: int, seen: Tally) -> None:
        """One question of each kind."""
        window = {**self._good, "unit": f"{self._name}-{turn}"}
        self._post(seen, "/v1/predict", {"windows": [window]}, 200)
        self._post(seen, "/v2/models/{name}/infer", self._tensors, 200, path="/v2/models/tiny/infer")
        seen.windows += 2
        seen.kept += 1
        self._post(seen, "/v1/predict", {"windows": [{"readings": [[1.0]]}]}, 422)
        self._post(seen, "/v1/predict", self._too_many, 429)
        self._get(seen, "/v1/units", 200)
        self._get(seen, "other", 404, path="/no/such/page")
        if turn >= BEFORE_ITS_OUTCOME:
            self._report(turn - BEFORE_ITS_OUTCOME, seen)

    def _report(self, turn: int, seen: Tally) -> None:
        path = f"/v1/units/{self._name}-{turn}/outcomes"
        outcome = {
            "kind": "removed" if turn % 3 == 0 else "failed",
            "cycle": self._good["last_cycle"] + turn % 40,
        }
        self._post(seen, "/v1/units/{unit}/outcomes", outcome, 200, path=path)
        seen.outcomes[outcome["kind"]] += 1
        seen.judged += 1
        seen.failed += outcome["kind"] == "failed"
        if turn % 10 == 0:
            other = {**outcome, "cycle": outcome["cycle"] + 1}
            self._post(seen, "/v1/units/{unit}/outcomes", other, 409, path=path)

    def _post(self, seen: Tally, route: str, body: Any, code: int, *, path: str = "") -> None:
        answer = self._client.post(path or route, json=body)
        assert answer.status_code == code, answer.text
        seen.requests["http", route, str(code)] += 1

    def _get(self, seen: Tally, route: str, code: int, *, path: str = "") -> None:
        answer = self._client.get(path or route, params={"limit": 5})
        assert answer.status_code == code, answer.text
        seen.requests["http", route, str(code)] += 1


class GrpcCaller:
    """Predicts two windows, and requests a model that does not exist."""

    def __init__(self, channel: grpc.Channel, windows: Sequence[Asked]) -> None:
        self._stub: Final = rul_v1_pb2_grpc.RulServiceStub(channel)
        nameless = [Asked(window.readings, window.last_cycle).message() for window in windows[:2]]
        self._good: Final = rul_v1_pb2.PredictRequest(windows=nameless)
        self._wrong: Final = rul_v1_pb2.PredictRequest(model="none", windows=nameless[:1])

    def __call__(self, turn: int, seen: Tally) -> None:
        """One question of each kind."""
        route = "rul.v1.RulService/Predict"
        assert len(self._stub.Predict(self._good, timeout=60).predictions) == 2
        seen.requests["grpc", route, "OK"] += 1
        seen.windows += 2
        try:
            self._stub.Predict(self._wrong, timeout=60)
        except grpc.RpcError as error:
            seen.requests["grpc", route, error.code().name] += 1


class StreamCaller:
    """Opens a stream, sends a few readings, and ends it in order."""

    def __init__(self, channel: grpc.Channel, windows: Sequence[Asked]) -> None:
        self._stub: Final = rul_v1_pb2_grpc.RulServiceStub(channel)
        self._readings: Final = [row.tolist() for row in windows[0].readings[:STREAM_READINGS]]

    def __call__(self, turn: int, seen: Tally) -> None:
        """Run one stream."""
        route = "rul.v1.RulService/PredictStream"
        stream = Stream(self._stub)
        for values in self._readings:
            assert stream.ask(values).HasField("prediction")
            seen.requests["grpc", f"{route}/reading", "OK"] += 1
            seen.windows += 1
        stream.close()
        seen.requests["grpc", route, "OK"] += 1
