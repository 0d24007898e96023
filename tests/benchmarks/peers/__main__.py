"""Other servers of the same graph beside ours, under the same loads: `make bench-peers`.

Each peer has its own environment under .venv/peers, made at its first use. In each round each server
is measured right after the ceiling, on the same cores and with the same tools as `make bench`. The
answers of a peer are compared with the graph before the load. If a peer cannot be installed, does not
start or answers wrongly, the table gives the reason.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
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
from tests.benchmarks.front_ends import Figures, Served, measure_all, measure_ceiling, section, serving
from tests.benchmarks.loads import LAST_CYCLE, CallsFor, Load, require_generators
from tests.benchmarks.payloads import calls_of, identical
from tests.benchmarks.peers.environment import PeerFailed, place_for, serving_peer
from tests.benchmarks.peers.peer import PEERS, TENSORS, loads_of
from tests.benchmarks.tables import keep

OURS = "rulserve"
UNDER_LOAD = (OSError, psutil.Error, httpx.HTTPError, grpc.RpcError, subprocess.SubprocessError, RuntimeError)


@dataclass
class Result:
    """One server's figures over all rounds, or the reason why it has none."""

    title: str
    loads: tuple[Load, ...]
    figures: Figures = field(default_factory=dict)
    failure: str = ""

    def markdown(self) -> str:
        """A section of the report."""
        if self.failure or not self.figures:
            return f"### {self.title}\n\nNot measured: {self.failure}"
        return section(self.title, self.figures, self.loads)


def main(
    peers: Annotated[str, typer.Option(help="Whom to measure beside ours.")] = ",".join(PEERS),
    seconds: Annotated[int, typer.Option(min=1, help="Of each load, in each round.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Each measures everybody once, after the ceiling.")] = 3,
    output: Path = Path("bench-results"),
) -> None:
    """Measure, and write peers.md and peers.json to OUTPUT."""
    require_generators()
    chosen = peers.split(",")
    unknown = [name for name in chosen if name not in PEERS]
    if unknown:
        raise typer.BadParameter(f"expected peers out of {', '.join(PEERS)}, got {unknown[0]}")
    results = {OURS: Result(OURS, loads_of(*TENSORS))}
    results |= {name: Result(PEERS[name].title, PEERS[name].loads) for name in chosen}
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        bundle = str(make_comparable_bundle(Path(folder)))
        task = progress.add_task("", total=rounds * len(results))
        for _ in range(rounds):
            for name, result in results.items():
                progress.update(task, description=name)
                if not result.failure:
                    _round(name, result, bundle, Path(folder), seconds)
                progress.advance(task)
    text = "\n\n".join(result.markdown() for result in results.values())
    keep(output, "peers", text, {name: asdict(result) for name, result in results.items()})


def _round(name: str, result: Result, bundle: str, folder: Path, seconds: float) -> None:
    """Measure one server once, right after the ceiling."""
    try:
        measure_ceiling(bundle, seconds, result.figures)
        with _server(name, bundle, folder) as (calls_for, served):
            measure_all(calls_for, result.loads, served, seconds, result.figures)
    except PeerFailed as error:
        result.failure, result.figures = str(error), {}
    except UNDER_LOAD as error:
        result.failure, result.figures = f"failed under load: {type(error).__name__}: {error}"[:200], {}


@contextmanager
def _server(name: str, bundle: str, folder: Path) -> Iterator[tuple[CallsFor, Served]]:
    if name == OURS:
        with serving("envoy", bundle, folder) as served:
            yield partial(calls_of, bundle), served
        return
    peer = PEERS[name]
    place = place_for(name, peer, folder, Path(bundle) / "model.onnx")
    with serving_peer(peer, place, bundle, _rul(bundle, LAST_CYCLE if peer.ages else np.nan)) as served:
        yield lambda load: [peer.call(bundle, load)], served


def _rul(bundle: str, last_cycle: float) -> float:
    """Return the graph's answer to the window of all calls."""
    readings = identical(bundle, 1).readings
    ages = np.array([last_cycle], dtype=np.float32)
    outputs = OnnxRuntime.load(find_bundle(bundle)).run(readings, np.array([readings.shape[1]]), ages)
    return float(outputs.rul[0])


if __name__ == "__main__":
    typer.run(main)
