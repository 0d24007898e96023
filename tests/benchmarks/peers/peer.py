"""The peers: requirements, start command, calls and answers of each.

All run the same graph and answer the same window with the same outputs, in the JSON format of the
peer, or in rulserve's if the peer allows any.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import onnxruntime

from tests.benchmarks.comparable import NAME
from tests.benchmarks.loads import LAST_CYCLE, GrpcCall, HttpCall, Load
from tests.benchmarks.payloads import Windows, identical, oip_binary, oip_grpc, oip_json, own_json
from tests.benchmarks.peers.triton import start_triton

SERVERS: Final = Path(__file__).parent / "servers"
RUNTIME: Final = f"onnxruntime=={onnxruntime.__version__}"
CORES: Final = len(os.sched_getaffinity(0))
SHAPES: Final = ((64, 1), (8, 64))
"""Callers, and windows per call."""


@dataclass(frozen=True)
class Place:
    """Place of a running peer: programs of its environment, folder of its files, ports, ONNX file."""

    programs: Path
    folder: Path
    port: int
    grpc_port: int
    graph: Path


Calls = Mapping[str, Callable[[Windows], Any]]
"""Functions that make a call, by protocol."""


def bare(given: Windows) -> HttpCall:
    """Body for BentoML: the name of the one argument, and its value."""
    readings = [[given.numbers(row) for row in rows] for rows in given.readings]
    return HttpCall(
        "/predict", {"content-type": "application/json"}, json.dumps({"readings": readings}).encode()
    )


OWN: Final[Calls] = {"json": own_json}
"""Body of rulserve, for peers that allow any."""
TENSORS: Final[Calls] = {"json": oip_json, "binary": oip_binary, "grpc": oip_grpc}
"""Body of the Open Inference Protocol; the ages of units are a column."""


@dataclass(frozen=True)
class Peer:
    """Another server of the same graph.

    Attributes:
        requirements: Requirements for pip.
        command: Returns the command that starts it at a place.
        rul: Returns the first window's RUL in an answer.
        calls: Functions that make its calls, by protocol.
        ages: Whether a call has the ages of its units.
        environment: Variables in addition to those of every peer.
    """

    title: str
    requirements: tuple[str, ...]
    command: Callable[[Place], list[str]]
    rul: Callable[[Any], float] = lambda answer: answer["predictions"][0]["rul"]
    calls: Calls = field(default_factory=lambda: OWN)
    ages: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def loads(self) -> tuple[Load, ...]:
        """Return all loads for this peer."""
        return loads_of(*self.calls)

    def call(self, bundle: str, load: Load) -> HttpCall | GrpcCall:
        """Make a call of a load."""
        tensors = self.calls["json"] is oip_json
        given = identical(bundle, load.windows, last_cycle=[LAST_CYCLE] if tensors else LAST_CYCLE)
        return self.calls[load.protocol](given)


def loads_of(*protocols: str) -> tuple[Load, ...]:
    """Return the loads of these protocols."""
    return tuple(Load(protocol, *shape) for protocol in protocols for shape in SHAPES)


def rul_of_tensors(answer: Any) -> float:
    """Read the RUL from an answer of the Open Inference Protocol."""
    return next(output["data"][0] for output in answer["outputs"] if output["name"] == "rul")


def script(name: str) -> Callable[[Place], list[str]]:
    """Return a function that returns the command of a peer's own Python file."""
    return lambda place: [str(place.programs / "python"), str(SERVERS / name)]


def start_fastapi(place: Place) -> list[str]:
    """Return the command that starts one process per core."""
    program = [str(place.programs / "uvicorn"), "fastapi_server:app", "--app-dir", str(SERVERS)]
    address = ["--host", "127.0.0.1", "--port", str(place.port)]
    return [*program, *address, "--workers", str(CORES), "--no-access-log", "--log-level", "error"]


def start_bentoml(place: Place) -> list[str]:
    """Return the command that starts one process per core, as the service's settings say."""
    service = ["bentoml_server:Peer", "--working-dir", str(SERVERS)]
    address = ["--host", "127.0.0.1", "--port", str(place.port)]
    return [str(place.programs / "bentoml"), "serve", *service, *address]


def start_mlserver(place: Place) -> list[str]:
    """Write settings; return the command that starts one process per core beside the serving one."""
    settings = {
        "host": "127.0.0.1", "http_port": place.port, "grpc_port": place.grpc_port,
        "metrics_endpoint": None, "parallel_workers": CORES, "debug": False,
    }  # fmt: skip
    model = {
        "name": NAME, "implementation": "mlserver_runtime.Peer", "max_batch_size": 32,
        "max_batch_time": 0.002, "parameters": {"uri": str(place.graph)},
    }  # fmt: skip
    (place.folder / "settings.json").write_text(json.dumps(settings))
    (place.folder / "model-settings.json").write_text(json.dumps(model))
    return [str(place.programs / "mlserver"), "start", str(place.folder)]


PEERS: Final = {
    "fastapi": Peer(
        "FastAPI + ONNX Runtime", ("fastapi", "uvicorn[standard]", RUNTIME), start_fastapi
    ),
    "litserve": Peer("LitServe, batching", ("litserve", RUNTIME), script("litserve_server.py")),
    "bentoml": Peer(
        "BentoML, batchable", ("bentoml>=1.4.39,<1.5", RUNTIME), start_bentoml,
        lambda answer: answer[0]["rul"], {"json": bare}, ages=False,
        environment={"BENTOML_DO_NOT_TRACK": "true"},
    ),
    "mlserver": Peer(
        "MLServer, adaptive batching", ("mlserver==1.7.1", "uvloop<0.22", RUNTIME),
        start_mlserver, rul_of_tensors, {"json": oip_json, "grpc": oip_grpc},
    ),
    "triton": Peer(
        "Triton, Python back end", ("nvidia-pytriton==0.7.0", RUNTIME),
        lambda place: start_triton(place.programs, place.folder, (place.port, place.grpc_port)),
        rul_of_tensors, TENSORS,
    ),
    # Ray gives its workers a low priority, so on shared cores they would wait for all other processes.
    "ray": Peer(
        "Ray Serve, batching", ("ray[serve]==2.60.0", RUNTIME), script("ray_server.py"),
        environment={"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"},
    ),
}  # fmt: skip
