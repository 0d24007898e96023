"""Other ways to serve the same graph, beside ours, under the same loads: `make bench-peers`.

Each peer has an environment of its own under .venv/peers, made when it is first needed. In each
round each server is measured just after the ceiling, on the same cores and with the same tools as
`make bench`; what a peer answers is compared with the graph before it is put under load. A peer
that cannot be installed, does not start or answers something else is in the table with the reason.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import grpc
import httpx
import numpy as np
import psutil
import typer
from rich.progress import Progress

from export.bundle import find_bundle
from service.core.runtime import OnnxRuntime
from tests.benchmarks.comparable import make_comparable_bundle
from tests.benchmarks.front_ends import Asker, measure, measure_ceiling, serving
from tests.benchmarks.loads import LAST_CYCLE, GrpcCall, HttpCall, Load, Measured, by_grpc, by_http, window_of
from tests.benchmarks.payloads import INFER, ROWS, Payloads
from tests.benchmarks.peers.environment import PeerFailed, place_for, serving_peer
from tests.benchmarks.peers.peer import BINARY, GRPC, JSON, PEERS, Peer, tensor_message
from tests.benchmarks.peers.report import Result, markdown

OURS = "rulserve"
OUR_LOADS = (*JSON, *BINARY, *GRPC)


class PeerAsker:
    """Asks a peer in its own words."""

    def __init__(self, bundle: str, folder: Path, peer: Peer) -> None:
        self._window = window_of(bundle)
        self._folder = folder
        self._peer = peer
        folder.mkdir(parents=True, exist_ok=True)

    def measure(self, load: Load, http: str, target: str, seconds: float) -> Measured:
        """Load the peer for so long."""
        if load.protocol == "grpc":
            call = GrpcCall(INFER, tensor_message(self._window, load).SerializeToString())
            return by_grpc([call], load, target, seconds, self._folder)
        return by_http([HttpCall(*self._peer.body(self._window, load))], load, http, seconds, self._folder)


def main(
    peers: Annotated[str, typer.Option(help="Whom to measure beside ours.")] = ",".join(PEERS),
    seconds: Annotated[int, typer.Option(min=1, help="Of each load, in each round.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Each measures everybody once, after the ceiling.")] = 3,
    output: Path = Path("bench-results"),
) -> None:
    """Measure, and leave peers.md and peers.json in OUTPUT."""
    missing = [tool for tool in ("wrk", "h2load") if shutil.which(tool) is None]
    if missing:
        raise typer.BadParameter(f"{' and '.join(missing)} missing (Debian: wrk, nghttp2-client)")
    chosen = peers.split(",")
    unknown = [name for name in chosen if name not in PEERS]
    if unknown:
        raise typer.BadParameter(f"expected peers out of {', '.join(PEERS)}, got {unknown[0]}")
    results = {OURS: Result(OURS, _protocols(OUR_LOADS))}
    results |= {name: Result(PEERS[name].title, _protocols(PEERS[name].loads)) for name in chosen}
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        bundle = str(make_comparable_bundle(Path(folder)))
        task = progress.add_task("", total=rounds * len(results))
        for _ in range(rounds):
            for name, result in results.items():
                progress.update(task, description=name)
                if not result.failure:
                    _round(name, result, bundle, Path(folder), seconds)
                progress.advance(task)
    output.mkdir(parents=True, exist_ok=True)
    (output / "peers.json").write_text(json.dumps({name: asdict(r) for name, r in results.items()}, indent=1))
    (output / "peers.md").write_text(markdown(results), encoding="utf-8")
    print(markdown(results))


def _protocols(loads: tuple[Load, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(load.protocol for load in loads))


def _round(name: str, result: Result, bundle: str, folder: Path, seconds: float) -> None:
    """Measure one server once, just after the ceiling."""
    try:
        measure_ceiling(bundle, seconds, result.figures)
        with _server(name, bundle, folder) as (asker, loads, server, ready):
            result.figures.setdefault("ready s", []).append(ready)
            for load in loads:
                measure(asker, load, server, seconds, result.figures)
            memory = sum(psutil.Process(pid).memory_info().rss for pid in server[2]) / 2**20
            result.figures.setdefault("memory MiB", []).append(memory)
    except PeerFailed as error:
        result.failure, result.figures = str(error), {}
    except (
        OSError,
        psutil.Error,
        httpx.HTTPError,
        grpc.RpcError,
        subprocess.SubprocessError,
        RuntimeError,
    ) as error:
        result.failure, result.figures = f"failed under load: {type(error).__name__}: {error}"[:200], {}


@contextmanager
def _server(
    name: str, bundle: str, folder: Path
) -> Iterator[tuple[Asker, tuple[Load, ...], tuple[str, str, list[int]], float]]:
    bodies = folder / f"bodies-{name}"
    if name == OURS:
        with serving("envoy", bundle, folder) as (http, target, pids, ready):
            yield Payloads(bundle, bodies, ROWS), OUR_LOADS, (http, target, pids), ready
        return
    peer = PEERS[name]
    place = place_for(name, peer, folder, Path(bundle) / "model.onnx")
    rul = _rul(bundle, LAST_CYCLE if peer.ages else np.nan)
    with serving_peer(peer, place, window_of(bundle), rul) as (http, pids, ready):
        yield PeerAsker(bundle, bodies, peer), peer.loads, (http, f"127.0.0.1:{place.grpc_port}", pids), ready


def _rul(bundle: str, last_cycle: float) -> float:
    """What the graph answers to the window that everybody is asked about."""
    window = window_of(bundle)
    ages = np.array([last_cycle], dtype=np.float32)
    outputs = OnnxRuntime.load(find_bundle(bundle)).run(window[None], np.array([len(window)]), ages)
    return float(outputs.rul[0])


if __name__ == "__main__":
    typer.run(main)
