"""The OpenAPI document, made from the table of endpoints, and its page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final

import msgspec

from export.bundle import Manifest
from model.version import VERSION
from service.core.queries import ModelName, Prediction, PredictReply, Refused
from service.edge.keys import KeyScope
from service.errors import STATUS
from service.http.page import security_headers
from service.http.problem import OipError, ProblemBody, is_oip
from service.http.shell import TEXT, Content, Endpoint, Operation, Schema
from service.http.units_cycles import FORMS, CyclesQuery
from service.oip.tensors import FP32, LAST_CYCLE, READINGS

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
STARTS: Final = "start.js"
ASSETS: Final = ("swagger-ui.css", "swagger-ui-bundle.js", STARTS)
"""The files of the page; all but `STARTS` are Swagger UI's."""
START: Final = """SwaggerUIBundle({
  url: "/openapi.json", dom_id: "#api", deepLinking: true, tryItOutEnabled: true
});
"""
SECURITY: Final = security_headers(styles="'self' 'unsafe-inline'")  # Swagger UI sets styles of elements
DESCRIPTION: Final = """Remaining useful life with a calibrated interval, and the attention weight and exact \
contribution of every cycle.

Every request may have the headers `request-timeout` (seconds; shortens the deadline), `x-request-id` \
(returned with the answer), `traceparent` (the trace continues) and `content-encoding` (gzip or deflate). \
The header `retry-after` of a refusal has the seconds to wait before a retry.
"""
"""Description of the API, in Markdown."""
PLACES: Final = {
    "unit": "Name of the unit; it may hold slashes, which clients send as %2F.",
    "name": "Name of the model.",
    "version": "Version of the model.",
}
"""Descriptions of path parameters."""
BASIC: Final = (ModelName, Prediction, Refused, ProblemBody, OipError, *FORMS)
"""Types of `PredictReply`, of errors and of `CyclesQuery`."""
BY_HAND: Final = (PredictReply, CyclesQuery)
"""Types that msgspec cannot describe."""
TAGS: Final = {
    "Predictions": (("/v1/predict", "/v1/explain"), "Readings in, RUL out."),
    "Units": (("/v1/units", "/v1/events"), "Stored readings, predictions and outcomes of units."),
    "Models": (("/v1/models",), "Loaded models, and their change while requests run."),
    "Open Inference Protocol": (
        ("/v2",),
        "The same predictions as tensors, for clients of KServe and Triton.",
    ),
    "Service": (("/",), "Health and metrics."),
}
"""Groups of operations: the first with a prefix of the path, and its description."""
REQUEST_ID: Final = "X-Request-ID"
HEADERS: Final = {
    REQUEST_ID: {"description": "Names the request in the log of the service.", "schema": TEXT},
    "Retry-After": {
        "description": "Seconds to wait before a retry.",
        "schema": {"type": "integer", "format": "int64"},
    },
    "WWW-Authenticate": {"description": "How to send an API key.", "schema": TEXT},
}
"""Headers of answers."""
HEADERS_OF: Final = {
    401: "WWW-Authenticate",
    **{status.http: "Retry-After" for kind, status in STATUS.items() if kind.retry_after_seconds},
}
FORMATS: Final = {"number": "double", "integer": "int64"}
"""Formats of numbers: without them many generators read 32 bits."""
VALUES: Final = ("enum", "default", "required")
"""Keys of a schema whose values are no schemas."""
DECILES: Final = (3, 4, 5)
"""Indices of deciles of the training readings in the first regime: 40, 50 and 60 %, one reading each."""
LAST: Final = 121.0
"""The last cycle of an example."""


def assets() -> Path:
    """Folder of Swagger UI in BentoML's wheel; nothing loads from another host."""
    spec = find_spec("bentoml")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("bentoml is not installed")
    return Path(spec.origin).parent / "_internal" / "server" / "static_content"


def document(endpoints: Sequence[Endpoint], manifest: Manifest) -> dict[str, Any]:
    """Describe endpoints by OpenAPI 3.1, with examples of requests for the model of this manifest."""
    described = [(endpoint, endpoint.doc) for endpoint in endpoints if endpoint.doc is not None]
    schemas, components = _schemas(doc for _, doc in described)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint, doc in described:
        path = endpoint.path.replace(":path}", "}")
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, doc, schemas)
    _add_examples(paths, manifest)
    _add_parameters(paths, manifest)
    security = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rulserve",
            "version": VERSION,
            "description": DESCRIPTION,
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, (_, text) in TAGS.items()],
        "components": {"schemas": components, "headers": HEADERS, "securitySchemes": security},
        "security": [{}, {"bearer": []}, {"apiKey": []}],
        "paths": paths,
    }


def _schemas(docs: Iterable[Operation]) -> tuple[dict[Any, Schema], dict[str, Any]]:
    """The schema of each type that the operations name, and what the schemas refer to."""
    named = [kind for doc in docs for _, kind in (*_media(doc.answer), *_media(doc.body or {}))]
    kinds = [kind for kind in named if not isinstance(kind, Mapping) and kind not in BY_HAND]
    types = [*dict.fromkeys([*BASIC, *kinds])]
    found, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas: dict[Any, Schema] = dict(zip(types, found, strict=True))
    for component in components.values():  # docstrings become Markdown, without their `Raises:`
        if text := component.get("description"):
            component["description"] = cleandoc(text).partition("\n\nRaises:")[0]
    components = _explicit(components)
    answer = {"anyOf": [schemas[Prediction], schemas[Refused]]}
    components["PredictReply"] = {
        "title": "PredictReply",
        "description": "One prediction per window, in the order of the request.",
        "type": "object",
        "required": ["model", "predictions"],
        "properties": {"model": schemas[ModelName], "predictions": {"type": "array", "items": answer}},
    }
    components["CyclesQuery"] = {
        "title": "CyclesQuery",
        "description": "Readings of a unit: one, several by column, or several one after the other.\n\n"
        "`store`: false keeps the prediction, but not the readings, out of the store. `costs` add a decision "
        "to the prediction.",
        "anyOf": [schemas[form] for form in FORMS],
    }
    by_hand = {kind: {"$ref": f"#/components/schemas/{kind.__name__}"} for kind in BY_HAND}
    return schemas | by_hand, components


def _explicit(schema: Any) -> Any:  # noqa: ANN401 JSON
    """State what generators of clients guess: types of enumerations and numbers, formats, fields of objects.

    A default of null is dropped: fields with a default are required in some generated types.
    """
    if isinstance(schema, list):
        parts = [_explicit(part) for part in schema]
        has_float = any(part.get("type") == "number" for part in parts)
        return [part for part in parts if part.get("type") != "integer"] if has_float else parts
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: value if key in VALUES else _explicit(value) for key, value in schema.items()}
    if "default" in kept and kept["default"] is None:
        del kept["default"]
    if "enum" in kept:
        kept = {"type": "string"} | kept
    if kept.get("multipleOf") == 1:
        kept["type"] = "integer"
    kind = kept.get("type")
    if kind == "object" and "properties" not in kept:
        return {"additionalProperties": True} | kept
    # In `properties`, `type` is the schema of a property with this name.
    return kept | {"format": FORMATS[kind]} if isinstance(kind, str) and kind in FORMATS else kept


def _media(given: Content) -> Iterator[tuple[str, Any]]:
    yield from given.items() if isinstance(given, Mapping) else [("application/json", given)]


def _operation(endpoint: Endpoint, doc: Operation, schemas: Mapping[Any, Schema]) -> dict[str, Any]:
    def content(given: Content) -> dict[str, Any]:
        return {
            media: {"schema": kind if isinstance(kind, Mapping) else schemas[kind]}
            for media, kind in _media(given)
        }

    is_of_oip = is_oip(endpoint.path)
    refusal = {"application/json": OipError} if is_of_oip else {"application/problem+json": ProblemBody}
    described = [(name, text, schema) for name, text, schema, place in doc.parameters if place == "header"]
    of_body = {name: {"description": text, "schema": _explicit(schema)} for name, text, schema in described}
    headers = _headers(REQUEST_ID) | of_body
    answers = {"200": {"description": "The answer", "headers": headers, "content": content(doc.answer)}}
    for code in sorted(_errors(endpoint, doc)):
        titles = "; ".join(status.title for status in STATUS.values() if status.http == code)
        headers = _headers(REQUEST_ID, *([HEADERS_OF[code]] if code in HEADERS_OF else ()))
        answers[str(code)] = {"description": titles, "headers": headers, "content": content(refusal)}
    tag = next(tag for tag, (begins, _) in TAGS.items() if endpoint.path.startswith(begins))
    operation = {
        "operationId": doc.name,
        "summary": doc.summary,
        "description": doc.description,
        "tags": [tag],
        "parameters": _parameters(endpoint, doc),
        "requestBody": doc.body and {"required": True, "content": content(doc.body)},
        "responses": answers,
    }
    return {key: value for key, value in operation.items() if value}


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _errors(endpoint: Endpoint, doc: Operation) -> set[int]:
    """Statuses of an operation's errors: its own, and those of all endpoints of its kind."""
    errors = {*doc.errors, 400}  # a path, query or header that cannot be read
    if endpoint.scope is not KeyScope.OPEN:
        errors |= {401, 403}
    if "{" in endpoint.path:
        errors.add(404)
    if endpoint.method == "POST":
        errors |= {408, 413, 415, 429}
    if endpoint.needs_model:
        errors |= {429, 500, 503, 504}
    return errors


def _parameters(endpoint: Endpoint, doc: Operation) -> list[dict[str, Any]]:
    of_path = [
        {"name": name, "in": "path", "required": True, "description": PLACES[name], "schema": TEXT}
        for name in re.findall(r"{(\w+)", endpoint.path)
    ]
    others = [
        {"name": name, "in": place, "description": text, "schema": _explicit(schema)}
        for name, text, schema, place in doc.parameters
    ]
    return of_path + others


def _add_examples(paths: dict[str, Any], manifest: Manifest) -> None:
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
    by_columns = {"model": manifest.name, "windows": [window | {"columns": by_name}]}
    by_rows = {"model": manifest.name, "windows": [window | {"readings": cycles}]}
    for path, examples in {
        "/v1/predict": {
            "columns by name": by_columns,
            "rows, without storing the prediction": {**by_rows, "explain": "none", "store": False},
            "when to act, by the costs of a planned stop and of a failure": {
                **by_columns,
                "costs": {"planned": 800.0, "failure": 12000.0},
            },
        },
        "/v1/explain": {"columns by name": by_columns},
        "/v1/units/{unit}/cycles": {
            "one reading": {"model": manifest.name, "cycle": 121, "columns": reading},
            "readings by column": {"model": manifest.name, "cycles": [119, 120, 121], "columns": by_name},
        },
        "/v1/units/{unit}/outcomes": {
            "a failure": {"model": manifest.name, "kind": "failed", "cycle": 196},
            "a removal": {"model": manifest.name, "kind": "removed", "cycle": 150},
        },
        "/v1/units/{unit}/rename": {"a new name": {"model": manifest.name, "to": "engine-17"}},
        "/v2/models/{name}/infer": {"one window": infer},
        "/v2/models/{name}/versions/{version}/infer": {"one window": infer},
    }.items():
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]
        body["examples"] = {name: {"value": value} for name, value in examples.items()}
    lines = [",".join(map(str, line)) for line in (["cycle", *names], [119, *cycles[0]], [120, *cycles[1]])]
    csv = paths["/v1/units/{unit}/cycles"]["post"]["requestBody"]["content"]["text/csv"]
    csv["example"] = "\n".join(lines)


def _add_parameters(paths: dict[str, Any], manifest: Manifest) -> None:
    """Add examples for this model to the parameters that the paths describe."""
    known = {"unit": "17", "name": manifest.name, "model": manifest.name, "version": manifest.version}
    for operation in (each for operations in paths.values() for each in operations.values()):
        for parameter in operation.get("parameters", ()):
            if parameter["name"] in known:
                parameter["example"] = known[parameter["name"]]
