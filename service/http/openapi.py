"""The OpenAPI document of the HTTP API, made from the types that decode and encode it, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from export.bundle import Manifest
from model.version import VERSION
from service.core.queries import ModelName, Prediction, Refused
from service.errors import STATUS
from service.http import decisions, oip_openapi, units_openapi
from service.http.examples import add_examples

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
<script src="/docs/assets/start.js"></script>
</body>
</html>
"""
START: Final = """SwaggerUIBundle({
  url: "/openapi.json", dom_id: "#api", deepLinking: true, tryItOutEnabled: true
});
"""
EVENTS: Final = (
    "An endless stream: `event: units`, whose data are a list of units as `GET /v1/units` has them, at most "
    "once a second; a comment every 15 s. A client that is cut off reads the list and connects again."
)
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Scripts and data from this service alone; no frame around a page. Swagger UI sets styles of elements."""
SECURITY: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


def assets() -> Path:
    """The folder of Swagger UI in BentoML's wheel: no second copy, and nothing from another host."""
    spec = find_spec("bentoml")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("bentoml is not installed")
    return Path(spec.origin).parent / "_internal" / "server" / "static_content"


def document(types: Sequence[type], manifest: Manifest) -> dict[str, Any]:
    """Describe the API by OpenAPI 3.1.

    Args:
        types: What the routes read and answer, beside the predictions themselves.
        manifest: The model that examples of requests are for.
    """
    _, components = msgspec.json.schema_components(
        [*types, *oip_openapi.BODIES, ModelName, Prediction, Refused],
        ref_template="#/components/schemas/{name}",
    )
    answer = {"anyOf": [_ref("Prediction"), _ref("Refused")]}
    components["PredictReply"] = {  # by hand: msgspec describes what it could decode, which this is not
        "title": "PredictReply",
        "description": "One prediction a window, in the order of the request.",
        "type": "object",
        "required": ["model", "predictions"],
        "properties": {"model": _ref("ModelName"), "predictions": {"type": "array", "items": answer}},
    }
    paths = _paths()
    for module in (units_openapi, decisions, oip_openapi):
        paths |= module.paths(_ref, _responses)
    add_examples(paths, manifest)
    security = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rulserve",
            "version": VERSION,
            "description": "Remaining useful life with a calibrated interval, and the attention weight and "
            "exact contribution of every cycle.",
        },
        "components": {"schemas": components, "securitySchemes": security},
        "security": [{}, {"bearer": []}, {"apiKey": []}],
        "paths": paths,
    }


def _paths() -> dict[str, Any]:
    refused = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)

    def answers(summary: str) -> dict[str, Any]:
        responses = _responses(_ref("PredictReply"), *refused)
        return {"post": {"summary": summary, "requestBody": _body("PredictQuery"), "responses": responses}}

    events = {"200": {"description": EVENTS, "content": {"text/event-stream": {"schema": {}}}}}
    return {
        "/v1/predict": answers("Remaining useful life of each unit, in cycles"),
        "/v1/explain": answers("The same with `explain` full: why, in numbers and words"),
        "/v1/models": _get("Every loaded model", _responses(_ref("ModelsBody"), 401, 403))
        | _change("post", "Load another model", 400, 413, 415, requestBody=_body("BundleBody")),
        **_model_paths(),
        "/v1/events": _get(
            "Units with new predictions, as server-sent events",
            _responses({}, 401, 403, 404, 429, 503, 504) | events,
        ),
        "/readyz": _get("Readiness: every golden window agrees", _responses(_ref("ReadyBody"), 503)),
        "/livez": _get("Liveness", {"200": {"description": "alive"}, "503": {"description": "not alive"}}),
        "/metrics": _get(
            "Prometheus metrics", _responses({}, 401, 403) | {"200": {"description": "metrics"}}
        ),
    }


def _model_paths() -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    seed = {"name": "seed", "in": "query", "schema": {"type": "integer", "minimum": 0}}

    def get(summary: str, body: str, *errors: int, more: Sequence[Any] = ()) -> dict[str, Any]:
        return _get(summary, _responses(_ref(body), 401, 403, 404, *errors), parameters=[name, *more])

    def post(summary: str, body: str) -> dict[str, Any]:
        return _change("post", summary, *(400, 404, 413, 415), requestBody=_body(body), parameters=[name])

    def delete(summary: str) -> dict[str, Any]:
        return _change("delete", summary, 404, parameters=[name])

    at = "/v1/models/{name}"
    return {
        at: get("One loaded model with its manifest", "ModelBody")
        | post("Swap a model while requests run", "BundleBody")
        | delete("Unload a model"),
        f"{at}/shadow": post("Ask a candidate beside a model, and measure how far it is off", "ShadowBody")
        | delete("Ask the candidate no more"),
        f"{at}/canary": post("Let a candidate answer a share of the requests, within bounds", "CanaryBody")
        | delete("Let the candidate answer no more"),
        f"{at}/simulated": get(
            "A simulated unit of a model, from its first cycle to its failure",
            "SimulatedBody",
            422,
            more=[seed],
        ),
        f"{at}/monitoring": get(
            "Drift, attention entropy and coverage of a model as it serves, all workers together",
            "MonitoringBody",
        ),
    }


def _get(summary: str, responses: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": responses, **more}}


def _change(method: str, summary: str, *errors: int, **more: object) -> dict[str, Any]:
    responses = _responses(_ref("ChangeBody"), 401, 403, *errors, 409, 422, 503)
    return {method: {"summary": summary, "responses": responses, **more}}


def _body(name: str) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": _ref(name)}}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _responses(
    schema: dict[str, Any],
    *errors: int,
    media_type: str = "application/problem+json",
    error: str = "ProblemBody",
) -> dict[str, Any]:
    titles: dict[int, list[str]] = {}
    for status in STATUS.values():
        titles.setdefault(status.http, []).append(status.title)
    problem = {media_type: {"schema": _ref(error)}}
    answer = {"200": {"description": "the answer", "content": {"application/json": {"schema": schema}}}}
    refused = {str(code): {"description": "; ".join(titles[code]), "content": problem} for code in errors}
    return answer | refused
