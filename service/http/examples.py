"""Examples of requests for the OpenAPI document, with usual readings of a model that serves."""

from __future__ import annotations

from typing import Any, Final

from export.bundle import Manifest
from service.oip.tensors import FP32, LAST_CYCLE, READINGS

DECILES: Final = (3, 4, 5)
"""Of the training readings, in the regime that is seen first: one a cycle."""
LAST: Final = 121.0


def add_examples(paths: dict[str, Any], manifest: Manifest) -> None:
    """Add examples for this model to the requests that the paths describe."""
    names = [column.name for column in manifest.columns]
    edges = manifest.regimes[0].histogram_edges
    cycles = [[float(f"{of_column[i]:.6g}") for of_column in edges] for i in DECILES]
    by_name = dict(zip(names, map(list, zip(*cycles, strict=True)), strict=True))
    reading = {name: values[-1] for name, values in by_name.items()}
    window = {"unit": "17", "last_cycle": LAST}
    infer = {
        "inputs": [
            {
                "name": READINGS,
                "shape": [1, len(cycles), len(names)],
                "datatype": FP32,
                "data": [reading for cycle in cycles for reading in cycle],
            },
            {"name": LAST_CYCLE, "shape": [1], "datatype": FP32, "data": [LAST]},
        ]
    }
    for path, examples in {
        "/v1/predict": {
            "columns by name": {"model": manifest.name, "windows": [window | {"columns": by_name}]},
            "rows, without storing the prediction": {
                "model": manifest.name,
                "windows": [window | {"readings": cycles}],
                "explain": "none",
                "store": False,
            },
            "when to act, by the costs of a planned stop and of a failure": {
                "model": manifest.name,
                "windows": [window | {"columns": by_name}],
                "costs": {"planned": 800.0, "failure": 12000.0},
            },
        },
        "/v1/units/{unit}/cycles": {
            "one reading": {"model": manifest.name, "cycle": 121, "columns": reading},
            "readings by column": {"model": manifest.name, "cycles": [119, 120, 121], "columns": by_name},
        },
        "/v1/units/{unit}/outcomes": {
            "a failure": {"model": manifest.name, "kind": "failed", "cycle": 196},
            "a removal": {"model": manifest.name, "kind": "removed", "cycle": 150},
        },
        "/v2/models/{name}/infer": {"one window": infer},
        "/v2/models/{name}/versions/{version}/infer": {"one window": infer},
    }.items():
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]
        body["examples"] = {name: {"value": value} for name, value in examples.items()}
