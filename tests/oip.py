"""Requests of the Open Inference Protocol, written by hand, and parsers of answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

NAMES = {np.dtype("<f4"): "FP32", np.dtype("<i8"): "INT64", np.dtype("<f8"): "FP64"}
HEADER = "inference-header-content-length"


def described(name: str, array: Any, **changed: Any) -> dict[str, Any]:
    """Make an input without its contents."""
    return {"name": name, "datatype": NAMES[array.dtype], "shape": list(array.shape), **changed}


def json_request(arrays: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Make a request with its contents as flat JSON, NaN as null."""
    inputs = [
        described(name, array, data=[None if math.isnan(x) else x for x in array.ravel().tolist()])
        for name, array in arrays.items()
    ]
    return {"inputs": inputs, **options}


def binary_request(arrays: Mapping[str, Any], **options: Any) -> tuple[bytes, int]:
    """Make a body with binary contents after its JSON, and return the size of the JSON too."""
    inputs = [
        described(name, array, parameters={"binary_data_size": array.nbytes})
        for name, array in arrays.items()
    ]
    head = json.dumps({"inputs": inputs, **options}).encode()
    return b"".join([head, *(array.tobytes() for array in arrays.values())]), len(head)


def arrays_of(body: bytes, size: int | None) -> dict[str, Any]:
    """Read the outputs of an answer, with contents in JSON or binary."""
    head = json.loads(body[:size])
    offset = size
    arrays: dict[str, Any] = {}
    for output in head["outputs"]:
        if "data" in output:
            values = np.array(output["data"], dtype="<f4")
        else:
            stop = offset + output["parameters"]["binary_data_size"]
            values = np.frombuffer(body[offset:stop], dtype="<f4")
            offset = stop
        arrays[output["name"]] = values.reshape(output["shape"])
    assert offset in {None, len(body)}
    return arrays
