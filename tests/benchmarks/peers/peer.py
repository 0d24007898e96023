"""The peers: what each is installed from, how it is started, what it is asked and how it answers.

All run the same graph and answer the same outputs with the same window, in the JSON that each
dictates: rulserve's own where it leaves the choice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from service.proto import open_inference_pb2 as pb
from tests.benchmarks.comparable import NAME
from tests.benchmarks.loads import LAST_CYCLE, Load
from tests.benchmarks.peers.triton import start_triton
from tests.oip import HEADER, binary_request

SERVERS: Final = Path(__file__).parent / "servers"
RUNTIME: Final = f"onnxruntime=={onnxruntime.__version__}"
CORES: Final = len(os.sched_getaffinity(0))
JSON_HEADERS: Final = {"content-type": "application/json"}

Body = tuple[str, dict[str, str], bytes]
"""A path, headers and a body."""

JSON: Final = (Load("json", 64), Load("json", 8, 64))
BINARY: Final = (Load("binary", 64), Load("binary", 8, 64))
GRPC: Final = (Load("grpc", 64), Load("grpc", 8, 64))


@dataclass(frozen=True)
class Place:
    """Where a peer runs: its environment's programs, a folder for its files, ports, and the ONNX file."""

    programs: Path
    folder: Path
    port: int
    grpc_port: int
    graph: Path


@dataclass(frozen=True)
class Peer:
    """Another way to serve the same graph.

    Attributes:
        requirements: What pip installs.
        command: Starts it at a place.
        body: A call with so many of a window, by so a protocol.
        rul: The first window's RUL in an answer.
        ages: Whether a call says how old its units are.
        environment: Variables beside those that every peer has.
    """

    title: str
    requirements: tuple[str, ...]
    command: Callable[[Place], list[str]]
    body: Callable[[np.ndarray, Load], Body]
    rul: Callable[[Any], float]
    loads: tuple[Load, ...] = JSON
    ages: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


def rounded(window: np.ndarray) -> list[list[float]]:
    """A window [T, F] with six digits a number, as rulserve is asked."""
    return [[float(f"{value:.6g}") for value in row] for row in window.tolist()]


def windows_body(window: np.ndarray, load: Load) -> Body:
    """Rulserve's own body, for whoever leaves the choice."""
    given = {"unit": "1", "last_cycle": LAST_CYCLE, "readings": rounded(window)}
    return "/v1/predict", JSON_HEADERS, json.dumps({"windows": [given] * load.windows}).encode()


def bare_body(window: np.ndarray, load: Load) -> Body:
    """BentoML's: the name of the one argument, and its value."""
    return "/predict", JSON_HEADERS, json.dumps({"readings": [rounded(window)] * load.windows}).encode()


def tensor_body(window: np.ndarray, load: Load) -> Body:
    """The Open Inference Protocol's, as JSON or binary."""
    path, count = f"/v2/models/{NAME}/infer", load.windows
    ages = np.full((count, 1), LAST_CYCLE, dtype=np.float32)
    if load.protocol == "binary":
        arrays = {"readings": np.repeat(window[None], count, axis=0), "last_cycle": ages}
        body, size = binary_request(arrays, parameters={"binary_data_output": True})
        return path, {"content-type": "application/octet-stream", HEADER: str(size)}, body
    flat = [value for row in rounded(window) for value in row] * count
    inputs = [
        {"name": "readings", "datatype": "FP32", "shape": [count, *window.shape], "data": flat},
        {"name": "last_cycle", "datatype": "FP32", "shape": [count, 1], "data": ages.ravel().tolist()},
    ]
    return path, JSON_HEADERS, json.dumps({"inputs": inputs}).encode()


def tensor_message(window: np.ndarray, load: Load) -> pb.ModelInferRequest:
    """The same by gRPC, with raw contents."""
    count = load.windows
    arrays = {
        "readings": np.repeat(window[None], count, axis=0),
        "last_cycle": np.full((count, 1), LAST_CYCLE, dtype=np.float32),
    }
    inputs = [
        pb.ModelInferRequest.InferInputTensor(name=name, datatype="FP32", shape=array.shape)
        for name, array in arrays.items()
    ]
    raw = [array.tobytes() for array in arrays.values()]
    return pb.ModelInferRequest(model_name=NAME, inputs=inputs, raw_input_contents=raw)


def rul_of_predictions(answer: Any) -> float:
    """From rulserve's shape."""
    return answer["predictions"][0]["rul"]


def rul_of_tensors(answer: Any) -> float:
    """From the Open Inference Protocol's."""
    return next(output["data"][0] for output in answer["outputs"] if output["name"] == "rul")


def script(name: str) -> Callable[[Place], list[str]]:
    """A peer that is started by its own Python file."""
    return lambda place: [str(place.programs / "python"), str(SERVERS / name)]


def start_fastapi(place: Place) -> list[str]:
    """A process a core."""
    program = [str(place.programs / "uvicorn"), "fastapi_server:app", "--app-dir", str(SERVERS)]
    address = ["--host", "127.0.0.1", "--port", str(place.port)]
    return [*program, *address, "--workers", str(CORES), "--no-access-log", "--log-level", "error"]


def start_bentoml(place: Place) -> list[str]:
    """A process a core, as the service itself says."""
    service = ["bentoml_server:Peer", "--working-dir", str(SERVERS)]
    address = ["--host", "127.0.0.1", "--port", str(place.port)]
    return [str(place.programs / "bentoml"), "serve", *service, *address]


def start_mlserver(place: Place) -> list[str]:
    """Write its two files of settings; a process a core beside the one that serves."""
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
        "FastAPI + ONNX Runtime", ("fastapi", "uvicorn[standard]", RUNTIME),
        start_fastapi, windows_body, rul_of_predictions,
    ),
    "litserve": Peer(
        "LitServe, batching", ("litserve", RUNTIME),
        script("litserve_server.py"), windows_body, rul_of_predictions,
    ),
    "bentoml": Peer(
        "BentoML, batchable", ("bentoml>=1.4.39,<1.5", RUNTIME), start_bentoml, bare_body,
        lambda answer: answer[0]["rul"], ages=False, environment={"BENTOML_DO_NOT_TRACK": "true"},
    ),
    "mlserver": Peer(
        "MLServer, adaptive batching", ("mlserver==1.7.1", "uvloop<0.22", RUNTIME),
        start_mlserver, tensor_body, rul_of_tensors, loads=(*JSON, *GRPC),
    ),
    "triton": Peer(
        "Triton, Python back end", ("nvidia-pytriton==0.7.0", RUNTIME),
        lambda place: start_triton(place.programs, place.folder, (place.port, place.grpc_port)),
        tensor_body, rul_of_tensors, loads=(*JSON, *BINARY, *GRPC),
    ),
    # Ray starts its workers with a low priority, so that on shared cores they would wait for everybody else.
    "ray": Peer(
        "Ray Serve, batching", ("ray[serve]==2.60.0", RUNTIME),
        script("ray_server.py"), windows_body, rul_of_predictions,
        environment={"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"},
    ),
}  # fmt: skip
