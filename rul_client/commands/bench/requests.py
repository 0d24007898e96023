"""What `rul bench` sends: simulated windows as the bodies of one protocol.

Bodies are made before anything is measured. This module must not know connections or clocks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from export.bundle import Manifest
from model.domain import FloatArray, pad_windows
from model.simulation import simulate
from service.grpc.oip import INFERENCE_SERVICE
from service.oip.tensors import FP32, INT64, LAST_CYCLE, LENGTHS, READINGS
from service.proto import open_inference_pb2 as oip
from service.proto import rul_v1_pb2 as pb

UNITS: Final = 16
POOL_WINDOWS: Final = 64
"""Different windows; larger calls repeat them."""
BODIES: Final = 8
"""Most different bodies that the callers send in turn."""
BODY_WINDOWS: Final = 512
"""Of all bodies together, so that large calls do not fill the memory."""
SEED: Final = 1
HEADER: Final = "inference-header-content-length"


@dataclass(frozen=True, slots=True)
class Calls:
    """What the callers of one scenario send.

    Attributes:
        path: Of HTTP, or of a gRPC method.
        headers: Beside those that every request has.
        bodies: To send in turn.
        windows: In each body.
        grpc: By gRPC, in place of HTTP.
    """

    path: str
    headers: dict[str, str]
    bodies: list[bytes]
    windows: int
    grpc: bool


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Windows to choose from: readings [B, T, F], lengths [B], last_cycle [B]."""

    readings: FloatArray
    lengths: NDArray[np.int64]
    last_cycle: FloatArray

    def part(self, first: int, count: int) -> Pool:
        """So many windows from the `first` on; after the last comes the first again."""
        chosen = np.arange(first, first + count) % len(self.readings)
        return Pool(self.readings[chosen], self.lengths[chosen], self.last_cycle[chosen])


def simulated_pool(manifest: Manifest) -> Pool:
    """Windows as long as the context wherever a simulated unit lived so long, at any age."""
    units = simulate(manifest, manifest.schema_of_columns, units=UNITS, seed=SEED)
    rng = np.random.default_rng(SEED)
    windows: list[FloatArray] = []
    last_cycle: list[int] = []
    for i in range(POOL_WINDOWS):
        unit = units[i % UNITS]
        end = int(rng.integers(min(manifest.context, len(unit)), len(unit) + 1))
        windows.append(unit.readings[max(0, end - manifest.context) : end])
        last_cycle.append(int(unit.cycles[end - 1]))
    return Pool(
        pad_windows(windows, length=manifest.context),
        np.array([len(window) for window in windows], dtype=np.int64),
        np.array(last_cycle, dtype=np.float32),
    )


def calls_of(protocol: str, model: str, pool: Pool, windows: int) -> Calls:
    """The bodies of a protocol, so many windows each."""
    count = max(1, min(BODIES, BODY_WINDOWS // windows))
    parts = [pool.part(i * windows, windows) for i in range(count)]
    if protocol == "json":
        bodies = [_json(model, part) for part in parts]
        return Calls("/v1/predict", {"content-type": "application/json"}, bodies, windows, grpc=False)
    if protocol == "binary":
        head = _binary_head(parts[0])  # only shapes stand in it, and those are the same
        bodies = [b"".join([head, *(array.tobytes() for array in _tensors(part).values())]) for part in parts]
        headers = {"content-type": "application/octet-stream", HEADER: str(len(head))}
        return Calls(f"/v2/models/{model}/infer", headers, bodies, windows, grpc=False)
    if protocol == "grpc":
        bodies = [_message(model, part) for part in parts]
        return Calls("/rul.v1.RulService/Predict", {}, bodies, windows, grpc=True)
    bodies = [_infer_message(model, part) for part in parts]
    return Calls(f"/{INFERENCE_SERVICE}/ModelInfer", {}, bodies, windows, grpc=True)


def _json(model: str, part: Pool) -> bytes:
    windows = [
        {
            "unit": str(i + 1),
            "last_cycle": int(last),
            # A float32 with as many digits as it takes, and no more.
            "readings": [[float(str(x)) for x in row] for row in readings[:length]],
        }
        for i, (readings, length, last) in enumerate(
            zip(part.readings, part.lengths, part.last_cycle, strict=True)
        )
    ]
    return json.dumps({"model": model, "windows": windows}, separators=(",", ":")).encode()


def _tensors(part: Pool) -> dict[str, NDArray[Any]]:
    return {READINGS: part.readings, LENGTHS: part.lengths, LAST_CYCLE: part.last_cycle}


def _binary_head(part: Pool) -> bytes:
    inputs = [
        {
            "name": name,
            "datatype": _datatype(array),
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in _tensors(part).items()
    ]
    return json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()


def _message(model: str, part: Pool) -> bytes:
    windows = [
        pb.Window(
            unit=str(i + 1),
            last_cycle=float(last),
            readings=pb.Readings(values=readings[:length].ravel().tolist()),
        )
        for i, (readings, length, last) in enumerate(
            zip(part.readings, part.lengths, part.last_cycle, strict=True)
        )
    ]
    return pb.PredictRequest(model=model, windows=windows).SerializeToString()


def _infer_message(model: str, part: Pool) -> bytes:
    tensors = _tensors(part)
    inputs = [
        oip.ModelInferRequest.InferInputTensor(name=name, datatype=_datatype(array), shape=array.shape)
        for name, array in tensors.items()
    ]
    raw = [array.tobytes() for array in tensors.values()]
    request = oip.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw)
    return request.SerializeToString()


def _datatype(array: NDArray[Any]) -> str:
    return INT64 if array.dtype == np.int64 else FP32
