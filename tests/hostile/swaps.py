"""Swap two versions of a model under mixed load, and compare every answer with the version that it names.

    python -m tests.hostile.swaps --swaps 50 --workers 2

Callers predict by HTTP, gRPC and the Open Inference Protocol, and stream readings, while one version
repeatedly replaces the other. The exit status is 1 if a request failed, an answer was not that of the version
that it names, or memory or descriptors grew.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import grpc
import httpx
import numpy as np
import typer

from export.bundle import BundleFolder, find_bundle
from export.seal import read_bundle
from model.domain import FloatArray
from service.choices import ProviderChoice
from service.core.runtime import OnnxRuntime
from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.asking import Asked
from tests.benchmarks.tables import table
from tests.integration.conftest import Server, running, workers_of
from tests.key_files import key_file
from tests.oip import json_request
from tests.other_bundles import renamed
from tests.waiting import wait_until

KEY: Final = "an-admins-key"
MODEL: Final = "fd001"
WINDOWS: Final = 8
STREAM_READINGS: Final = 12
WARM_SWAPS: Final = 4
"""Swaps before the first measurement of memory, so that both versions have been loaded."""
ANSWERS_A_SWAP: Final = 3
"""Minimum answers of every caller between two swaps."""
TOLERANCE_CYCLES: Final = 1e-2
MOST_GROWTH: Final = 1.05
LIMIT_SECONDS: Final = 60


@dataclass
class Told:
    """Observations of one caller: answers by version, texts of failures and of wrong answers."""

    answers: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Expected:
    """Intervals of a version, by the readings of the window."""

    def __init__(self, folder: BundleFolder) -> None:
        self._runtime: Final = OnnxRuntime.load(folder, provider=ProviderChoice.CPU)
        self.version: Final = self._runtime.manifest.version

    def intervals(self, readings: FloatArray, last_cycle: float) -> FloatArray:
        """Return the intervals of a number of equal windows, [B, 2]."""
        b, t, _ = readings.shape
        lengths, cycles = np.full(b, t), np.full(b, last_cycle, np.float32)
        return self._runtime.run(readings, lengths, cycles).rul_interval


class Swaps:
    """A running service, its callers, and the versions that take turns."""

    def __init__(self, server: Server, folders: tuple[BundleFolder, BundleFolder]) -> None:
        self._server: Final = server
        self._folders: Final = folders
        versions = [Expected(folder) for folder in folders]
        golden = read_bundle(folders[0]).golden
        whole = golden.lengths == golden.readings.shape[1]
        self._readings: Final = golden.readings[whole][:WINDOWS]
        self._last_cycle: Final = float(self._readings.shape[1])
        self._expected: Final = {v.version: v.intervals(self._readings, self._last_cycle) for v in versions}
        life = self._readings[0]
        self._streamed: Final = {
            v.version: np.concatenate([v.intervals(life[None, :t], t) for t in range(1, STREAM_READINGS + 1)])
            for v in versions
        }
        for one, other in (self._expected.values(), self._streamed.values()):
            assert np.abs(one - other).max() > 1, "the two versions answer alike"
        self._stop: Final = threading.Event()
        self._callers: Final[list[tuple[Told, Future[None]]]] = []

    def compare(self, told: Told, version: str, got: FloatArray, expected: dict[str, FloatArray]) -> None:
        """Count an answer, and check that it is of the version that it names."""
        told.answers[version] += 1
        off = np.abs(np.asarray(got) - expected[version]).max() if version in expected else np.inf
        if not off <= TOLERANCE_CYCLES:
            told.wrong.append(f"version {version} is off by {off} cycles")

    def _again(self, told: Told, ask: Callable[[Told], None]) -> None:
        while not self._stop.is_set():
            try:
                ask(told)
            except Exception as error:  # noqa: BLE001 any error is a failed request
                told.failed.append(f"{type(error).__name__}: {str(error)[:300]}")

    def run(self, swaps: int) -> dict[str, Any]:
        """Swap a number of times under load; return the outcome."""
        with ExitStack() as opened, ThreadPoolExecutor(8) as pool:
            for ask in self._asking(opened):
                told = Told()
                self._callers.append((told, pool.submit(self._again, told, ask)))
            try:
                seconds, before = [], (0, 0)
                client = opened.enter_context(self._client())
                for i in range(swaps):
                    self._wait_for_answers()
                    if i == min(WARM_SWAPS, swaps // 2):
                        before = self._memory()
                    start = time.monotonic()
                    body = {"bundle": str(self._folders[(i + 1) % 2].path)}
                    answer = client.post(f"/v1/models/{MODEL}", json=body)
                    seconds.append(time.monotonic() - start)
                    assert answer.status_code == 200, answer.text
                self._wait_for_answers()
                after = self._memory()
            finally:
                self._stop.set()
        told = [told for told, _ in self._callers]
        return {
            "swaps": swaps,
            "answers": sum((t.answers for t in told), Counter()),
            "failed": [text for t in told for text in t.failed],
            "wrong": [text for t in told for text in t.wrong],
            "swap_seconds": (median(seconds), max(seconds)),
            "rss_mb": (before[0] / 1e6, after[0] / 1e6),
            "descriptors": (before[1], after[1]),
        }

    def _wait_for_answers(self) -> None:
        counts = [t.answers.total() for t, _ in self._callers]
        wait_until(
            lambda: all(
                t.answers.total() >= n + ANSWERS_A_SWAP or t.failed or t.wrong
                for (t, _), n in zip(self._callers, counts, strict=True)
            ),
            LIMIT_SECONDS,
            what="answers between two swaps",
        )

    def _memory(self) -> tuple[int, int]:
        """Return resident bytes and open descriptors of all workers."""
        workers = workers_of(self._server)
        return sum(w.memory_info().rss for w in workers), sum(w.num_fds() for w in workers)

    def _client(self) -> httpx.Client:
        return self._server.client(headers={"x-api-key": KEY}, timeout=LIMIT_SECONDS, verify=False)

    def _asking(self, opened: ExitStack) -> Iterator[Callable[[Told], None]]:
        """One caller of each kind on each of two connections, which the kernel assigns to workers."""
        for _ in range(2):
            client = opened.enter_context(self._client())
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = opened.enter_context(grpc.insecure_channel(self._server.grpc, options=options))
            yield self._http(client)
            yield self._oip(client)
            yield self._grpc(channel)
            yield self._stream(channel)

    def _http(self, client: httpx.Client) -> Callable[[Told], None]:
        windows = [Asked(readings, self._last_cycle).json() for readings in self._readings]

        def ask(told: Told) -> None:
            answer = client.post("/v1/predict", json={"windows": windows, "explain": "none"})
            answer.raise_for_status()
            body = answer.json()
            got = [(p["interval"]["lower"], p["interval"]["upper"]) for p in body["predictions"]]
            self.compare(told, body["model"]["version"], np.array(got), self._expected)

        return ask

    def _oip(self, client: httpx.Client) -> Callable[[Told], None]:
        cycles = np.full(len(self._readings), self._last_cycle, np.float32)
        body = json_request({"readings": self._readings, "last_cycle": cycles})
        body["outputs"] = [{"name": "rul_interval"}]

        def ask(told: Told) -> None:
            answer = client.post(f"/v2/models/{MODEL}/infer", json=body)
            answer.raise_for_status()
            found = answer.json()
            got = np.array(found["outputs"][0]["data"]).reshape(-1, 2)
            self.compare(told, found["model_version"], got, self._expected)

        return ask

    def _grpc(self, channel: grpc.Channel) -> Callable[[Told], None]:
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        windows = [Asked(readings, self._last_cycle).message() for readings in self._readings]
        request = pb.PredictRequest(windows=windows, explain=pb.EXPLAIN_NONE)

        def ask(told: Told) -> None:
            reply = stub.Predict(request, timeout=LIMIT_SECONDS, metadata=[("x-api-key", KEY)])
            got = np.array([(p.interval.lower, p.interval.upper) for p in reply.predictions])
            self.compare(told, reply.model.version, got, self._expected)

        return ask

    def _stream(self, channel: grpc.Channel) -> Callable[[Told], None]:
        """Open one stream at a time; each must end with the version of its begin."""
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        opening = pb.StreamRequest(open=pb.StreamOpen(first_cycle=1, explain=pb.EXPLAIN_NONE))
        readings = [
            pb.StreamRequest(reading=pb.Reading(values=row.tolist(), cycle=t))
            for t, row in enumerate(self._readings[0][:STREAM_READINGS], 1)
        ]

        def ask(told: Told) -> None:
            call = stub.PredictStream(
                iter([opening, *readings]), timeout=LIMIT_SECONDS, metadata=[("x-api-key", KEY)]
            )
            version = next(call).opened.model.version
            got = np.array([(r.prediction.interval.lower, r.prediction.interval.upper) for r in call])
            self.compare(told, version, got, self._streamed)

        return ask


def measured(folder: Path, *, swaps: int, workers: int) -> dict[str, Any]:
    """Start a service, swap under load, stop it."""
    folders = (find_bundle(MODEL), renamed(folder / "newer", "fd003", name=MODEL, version="2"))
    settings = {"workers": str(workers), "keys_file": str(key_file(folder, KEY)), "log_format": "json"}
    with running(folder, MODEL, **settings) as server:
        wait_until(lambda: _workers(server) == workers, LIMIT_SECONDS, what="all workers")
        return Swaps(server, folders).run(swaps)


def _workers(server: Server) -> float:
    text = server.ask("GET", "/metrics", key=KEY).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("rul_workers "))


def faults(found: dict[str, Any]) -> list[str]:
    """Return the violations."""
    (rss, rss_after), (files, files_after) = found["rss_mb"], found["descriptors"]
    grown = [f"memory grew from {rss:.0f} to {rss_after:.0f} MB"] * (rss_after > rss * MOST_GROWTH)
    leaked = [f"descriptors grew from {files} to {files_after}"] * (files_after > files + 8)
    silent = ["a version never answered"] * (len(found["answers"]) != 2)
    return [*found["failed"][:5], *found["wrong"][:5], *grown, *leaked, *silent]


def main(*, swaps: int = 6, workers: int = 2) -> None:
    """Print a table and the violations."""
    with tempfile.TemporaryDirectory(prefix="rul-swaps-") as folder:
        found = measured(Path(folder), swaps=swaps, workers=workers)
    row = {
        "workers": workers,
        "swaps": swaps,
        "answers": f"{found['answers'].total():,}",
        "failed": len(found["failed"]),
        "wrong": len(found["wrong"]),
        "seconds a swap, median / worst": "{:.2f} / {:.2f}".format(*found["swap_seconds"]),
        "RSS, MB": "{:.0f} to {:.0f}".format(*found["rss_mb"]),
        "files": "{} to {}".format(*found["descriptors"]),
    }
    print(table([*row], [[*row.values()]], texts=0))
    for text in (wrong := faults(found)):
        print(text, file=sys.stderr)
    raise typer.Exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)
