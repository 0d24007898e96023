"""The OpenAPI document of the HTTP API, made from the types that decode and encode it, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from model.version import VERSION
from service.core.queries import ModelName, Prediction, Refused
from service.errors import STATUS
from service.http import oip_openapi, units_bodies

PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>rulserve API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/assets/swagger-ui.css">
</head>
<body>
<div id="api"></div>
<script src="/docs/assets/swagger-ui-bundle.js"></script>
<script>
SwaggerUIBundle({url: "/openapi.json", dom_id: "#api", deepLinking: true, tryItOutEnabled: true});
</script>
</body>
</html>
"""


def assets() -> Path:
    """The folder of Swagger UI in BentoML's wheel: no second copy, and nothing from another host."""
    spec = find_spec("bentoml")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("bentoml is not installed")
    return Path(spec.origin).parent / "_internal" / "server" / "static_content"


def document(types: Sequence[type]) -> dict[str, Any]:
    """The OpenAPI 3.1 document.

    Args:
        types: What the routes read and answer, beside the predictions themselves.
    """
    _, components = msgspec.json.schema_components(
        [*types, ModelName, Prediction, Refused], ref_template="#/components/schemas/{name}"
    )
    components["PredictReply"] = {  # by hand: msgspec describes what it could decode, which this is not
        "title": "PredictReply",
        "description": "One prediction a window, in the order of the request.",
        "type": "object",
        "required": ["model", "predictions"],
        "properties": {
            "model": _ref("ModelName"),
            "predictions": {"type": "array", "items": {"anyOf": [_ref("Prediction"), _ref("Refused")]}},
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rulserve",
            "version": VERSION,
            "description": "Remaining useful life with a calibrated interval, and the attention weight and "
            "exact contribution of every cycle.",
        },
        "components": {
            "schemas": components | oip_openapi.components(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"apiKey": []}],
        "paths": {
            "/v1/predict": {
                "post": {
                    "summary": "Predict the remaining useful life of units",
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": _ref("PredictQuery")}},
                    },
                    "responses": _responses(
                        "PredictReply", 400, 401, 403, 404, 413, 415, 422, 429, 500, 503, 504
                    ),
                }
            },
            "/v1/models": {
                "get": {"summary": "Every loaded model", "responses": _responses("ModelsBody", 401, 403)}
            },
            "/v1/models/{name}": {
                "get": {
                    "summary": "One loaded model with its manifest",
                    "parameters": [
                        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
                    ],
                    "responses": _responses("ModelBody", 401, 403, 404),
                }
            },
            "/readyz": {
                "get": {
                    "summary": "Readiness: every golden window agrees on this machine",
                    "responses": _responses("ReadyBody", 503),
                }
            },
            "/livez": {
                "get": {
                    "summary": "Liveness",
                    "responses": {"200": {"description": "alive"}},
                }
            },
            "/metrics": {
                "get": {"summary": "Prometheus metrics", "responses": {"200": {"description": "metrics"}}}
            },
            **units_bodies.paths(_ref, _responses),
            **oip_openapi.paths(),
        },
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _responses(name: str, *errors: int) -> dict[str, Any]:
    titles: dict[int, list[str]] = {}
    for status in STATUS.values():
        titles.setdefault(status.http, []).append(status.title)
    problem = {"application/problem+json": {"schema": _ref("ProblemBody")}}
    answer = {"200": {"description": "the answer", "content": {"application/json": {"schema": _ref(name)}}}}
    refused = {str(code): {"description": "; ".join(titles[code]), "content": problem} for code in errors}
    return answer | refused
