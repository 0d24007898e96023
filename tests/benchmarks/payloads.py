"""Calls of a load for each protocol of the service: realistic calls that vary, or one repeated call.

Realistic calls differ in their windows, units and cycle numbers; readings are by column, JSON numbers have 15
significant digits, and over HTTP every request has its own id. The repeated call has readings by row, six
digits and no id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from export.bundle import Manifest
from service.proto import open_inference_pb2 as oip
from service.proto import rul_v1_pb2 as rul
from tests.benchmarks.loads import ID, LAST_CYCLE, GrpcCall, HttpCall, Load, simulated
from tests.oip import HEADER, binary_request, described

PREDICT: Final = "rul.v1.RulService/Predict"
INFER: Final = "inference.GRPCInferenceService/ModelInfer"
HTTP_CALLS: Final = 256
MANY_CALLS: Final = 32
"""Number of different calls of many windows; both threads of wrk hold all, 700 kB each as JSON."""
GRPC_CALLS: Final = 8
"""Number of different calls over gRPC; each needs its own h2load."""


@dataclass(frozen=True)
class Windows:
    """Windows of one call.

    Attributes:
        manifest: Manifest of the model.
        readings: float32 [B, T, F].
        units: One name per window.
        last_cycle: One cycle number per window, or a list of one for servers that read columns.
        id: Id of the request; empty in the repeated call.
    """

    manifest: Manifest
    readings: np.ndarray
    units: list[str]
    last_cycle: list[Any]
    id: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model's columns."""
        return self.manifest.schema_of_columns.names

    def numbers(self, readings: np.ndarray) -> list[float]:
        """Readings as this kind of client writes them in JSON."""
        digits = 15 if self.id else 6
        return [float(f"{value:.{digits}g}") for value in readings.ravel().tolist()]

    def arrays(self) -> dict[str, np.ndarray]:
        """Tensors of the Open Inference Protocol."""
        return {"readings": self.readings, "last_cycle": np.array(self.last_cycle, dtype=np.float32)}

    def headers(self) -> dict[str, str]:
        """The request's id, if it has one."""
        return {"x-request-id": self.id} if self.id else {}


@cache
def calls_of(bundle: str, load: Load) -> Sequence[Any]:
    """Make all different calls of a load once, for its protocol."""
    door = load.protocol
    by_rpc = door.endswith("grpc")
    most = min(GRPC_CALLS, load.callers) if by_rpc else HTTP_CALLS if load.windows == 1 else MANY_CALLS
    if not load.realistic:
        return [DOORS[door](identical(bundle, load.windows))]
    manifest, whole = simulated(bundle)
    rng = np.random.default_rng(1)
    calls: list[Any] = []
    for number in range(1, most + 1):
        readings = whole[rng.integers(len(whole), size=load.windows)]
        units = [f"engine-{unit}" for unit in rng.integers(10_000, size=load.windows)]
        last_cycle = (whole.shape[1] + number + rng.integers(100, size=load.windows)).tolist()
        last_cycle[0] = whole.shape[1] + number  # so that no two calls are equal
        name = f"{number:032x}" if by_rpc else ID
        calls.append(DOORS[door](Windows(manifest, readings, units, last_cycle, name)))
    return calls


def identical(bundle: str, windows: int, *, last_cycle: Any = LAST_CYCLE) -> Windows:
    """Make the repeated call: one window, repeated."""
    manifest, whole = simulated(bundle)
    readings = np.repeat(whole[:1], windows, axis=0)
    return Windows(manifest, readings, ["1"] * windows, [last_cycle] * windows, "")


def own_json(given: Windows) -> HttpCall:
    """`POST /v1/predict`: by columns, as in the README; the repeated call by rows."""
    windows: list[dict[str, Any]] = []
    for unit, last_cycle, readings in zip(given.units, given.last_cycle, given.readings, strict=True):
        values: dict[str, Any] = {"readings": [given.numbers(row) for row in readings]}
        if given.id:
            values = {"columns": dict(zip(given.names, map(given.numbers, readings.T), strict=True))}
        windows.append({"unit": unit, "last_cycle": last_cycle, **values})
    named = {"model": given.manifest.name} if given.id else {}
    body = json.dumps({**named, "windows": windows})
    return HttpCall("/v1/predict", {"content-type": "application/json", **given.headers()}, body.encode())


def oip_json(given: Windows) -> HttpCall:
    """`infer` with the contents in JSON."""
    inputs = [described(name, array, data=given.numbers(array)) for name, array in given.arrays().items()]
    body = json.dumps({**_named(given), "inputs": inputs}).encode()
    return HttpCall(_infer(given), {"content-type": "application/json", **given.headers()}, body)


def oip_binary(given: Windows) -> HttpCall:
    """`infer` with binary contents, both ways."""
    body, size = binary_request(given.arrays(), **_named(given), parameters={"binary_data_output": True})
    headers = {"content-type": "application/octet-stream", HEADER: str(size), **given.headers()}
    return HttpCall(_infer(given), headers, body)


def oip_grpc(given: Windows) -> GrpcCall:
    """`ModelInfer` with raw contents."""
    inputs = [oip.ModelInferRequest.InferInputTensor(**described(*each)) for each in given.arrays().items()]
    raw = [array.tobytes() for array in given.arrays().values()]
    message = oip.ModelInferRequest(
        model_name=given.manifest.name, id=given.id, inputs=inputs, raw_input_contents=raw
    )
    return GrpcCall(INFER, message.SerializeToString(), given.headers())


def own_grpc(given: Windows) -> GrpcCall:
    """`Predict`: by columns, as in the README; the repeated call by rows."""
    windows: list[rul.Window] = []
    for unit, last_cycle, readings in zip(given.units, given.last_cycle, given.readings, strict=True):
        values: dict[str, Any] = {"readings": rul.Readings(values=readings.ravel().tolist())}
        if given.id:
            series = [rul.Series(values=column.tolist()) for column in readings.T]
            values = {"columns": rul.Columns(columns=dict(zip(given.names, series, strict=True)))}
        windows.append(rul.Window(unit=unit, last_cycle=last_cycle, **values))
    name = given.manifest.name if given.id else ""
    message = rul.PredictRequest(model=name, windows=windows)
    return GrpcCall(PREDICT, message.SerializeToString(), given.headers())


def _infer(given: Windows) -> str:
    return f"/v2/models/{given.manifest.name}/infer"


def _named(given: Windows) -> dict[str, str]:
    return {"id": given.id} if given.id else {}


DOORS: Final[dict[str, Callable[[Windows], Any]]] = {
    "json": own_json, "oip json": oip_json, "binary": oip_binary, "grpc": own_grpc, "oip grpc": oip_grpc,
}  # fmt: skip
