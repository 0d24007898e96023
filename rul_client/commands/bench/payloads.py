"""Requests of `rul bench`, from simulated windows, made before the measurement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.bundle import Manifest
from model.domain import pad_windows
from model.simulation import simulate
from rul_client.readings import Window
from service.proto import open_inference_pb2 as oip
from service.proto import rul_v1_pb2 as pb

UNITS: Final = 16
POOL_WINDOWS: Final = 64  # different windows of a model; larger requests repeat them
MAX_BODIES: Final = 8
BODY_WINDOWS: Final = 512  # in all bodies of a model together, which bounds memory
SEED: Final = 1
REQUEST_ID: Final = "request-id".center(32, "-")  # marks its place in a body; as long as an id


class Call(NamedTuple):
    """A request: path or gRPC method, HTTP headers, body parts to join with the request id, if it has one."""

    path: str
    headers: dict[str, str]
    parts: list[bytes]
    has_id: bool


class Pool(NamedTuple):
    """Windows of one model."""

    model: str
    columns: tuple[str, ...]
    context: int
    windows: list[Window]


def simulated_pool(manifest: Manifest) -> Pool:
    """Cut windows of context length at random ages; a unit that lived shorter gives a shorter one."""
    units = simulate(manifest, manifest.schema_of_columns, units=UNITS, seed=SEED)
    rng, context = np.random.default_rng(SEED), manifest.context
    windows: list[Window] = []
    for i in range(POOL_WINDOWS):
        unit = units[i % UNITS]
        end = int(rng.integers(min(context, len(unit)), len(unit) + 1))
        readings = unit.readings[max(0, end - context) : end]
        windows.append(Window(str(i + 1), int(unit.cycles[end - 1]), readings))
    return Pool(manifest.name, manifest.schema_of_columns.names, context, windows)


def calls_of(
    protocol: str, pools: Sequence[Pool], size: int, *, identical: bool = False, store: bool = False
) -> list[Call]:
    """Make requests of `size` windows, all models in turn; `identical`: one request, without an id.

    The Open Inference Protocol names no units, so its predictions are never stored.
    """
    make = {
        "json": partial(_json, store=store),
        "binary": _binary,
        "grpc": partial(_grpc, store=store),
        "oip-grpc": _oip_grpc,
    }[protocol]
    count, models = (1, 1) if identical else (max(1, min(MAX_BODIES, BODY_WINDOWS // size)), len(pools))
    return [
        make(pool._replace(windows=[pool.windows[i % POOL_WINDOWS] for i in part]), identical=identical)
        for part in (range(first, first + size) for first in range(0, count * size, size))
        for pool in pools[:models]
    ]


def _json(pool: Pool, *, identical: bool, store: bool) -> Call:
    def values(window: Window) -> dict[str, Any]:
        if identical:  # a float32 in as many digits as it takes
            return {"readings": [[float(str(x)) for x in row] for row in window.readings]}
        columns = zip(pool.columns, window.readings.T.tolist(), strict=True)
        return {"columns": {name: [float(f"{x:.15g}") for x in column] for name, column in columns}}

    windows = [{"unit": w.unit, "last_cycle": w.last_cycle} | values(w) for w in pool.windows]
    body = json.dumps(
        {"model": pool.model, "store": store, "windows": windows}, separators=(",", ":")
    ).encode()
    return Call("/v1/predict", {"content-type": "application/json"}, [body], not identical)


def _grpc(pool: Pool, *, identical: bool, store: bool) -> Call:
    request = pb.PredictRequest(model=pool.model, store=store)
    for w in pool.windows:
        window = request.windows.add(unit=w.unit, last_cycle=w.last_cycle)
        if identical:
            window.readings.values.extend(w.readings.ravel().tolist())
        else:
            for name, column in zip(pool.columns, w.readings.T.tolist(), strict=True):
                window.columns.columns[name].values.extend(column)
    return Call("/rul.v1.RulService/Predict", {}, [request.SerializeToString()], not identical)


def _binary(pool: Pool, *, identical: bool) -> Call:
    tensors = _tensors(pool, padded=identical)
    inputs = [
        {"name": name, "datatype": kind, "shape": x.shape, "parameters": {"binary_data_size": x.nbytes}}
        for name, kind, x in tensors
    ]
    head: dict[str, Any] = {} if identical else {"id": REQUEST_ID}
    text = json.dumps(head | {"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(text))}
    parts = b"".join([text, *(x.tobytes() for _, _, x in tensors)]).split(REQUEST_ID.encode())
    return Call(f"/v2/models/{pool.model}/infer", headers, parts, not identical)


def _oip_grpc(pool: Pool, *, identical: bool) -> Call:
    request = oip.ModelInferRequest(model_name=pool.model, id="" if identical else REQUEST_ID)
    for name, kind, x in _tensors(pool, padded=identical):
        request.inputs.add(name=name, datatype=kind, shape=x.shape)
        request.raw_input_contents.append(x.tobytes())
    parts = request.SerializeToString().split(REQUEST_ID.encode())
    return Call("/inference.GRPCInferenceService/ModelInfer", {}, parts, not identical)


def _tensors(pool: Pool, *, padded: bool) -> list[tuple[str, str, NDArray[Any]]]:
    """Return name, datatype and values of each input; `lengths` if `padded`, or if a window is short."""
    readings = pad_windows([w.readings for w in pool.windows], length=pool.context)
    last_cycle = np.array([w.last_cycle for w in pool.windows], dtype=np.float32)
    lengths = np.array([len(w.readings) for w in pool.windows], dtype=np.int64)
    tensors = [("readings", "FP32", readings), ("last_cycle", "FP32", last_cycle)]
    return [*tensors, ("lengths", "INT64", lengths)] if padded or lengths.min() < pool.context else tensors
