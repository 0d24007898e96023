"""What the OpenAPI document says of the Open Inference Protocol: its paths and the bodies they carry."""

from __future__ import annotations

from typing import Any, Final

from service.errors import STATUS

Described = dict[str, Any]

ERROR: Final = "OipError"
REFUSALS_OF_A_MODEL: Final = (401, 403, 404)
REFUSALS_OF_INFERENCE: Final = (400, 401, 403, 404, 413, 415, 429, 500, 503, 504)


def components() -> dict[str, Described]:
    """The protocol's bodies."""
    text, number, integer = {"type": "string"}, {"type": "number"}, {"type": "integer"}
    shape = {"type": "array", "items": integer}
    parameters = {"type": "object", "additionalProperties": True}
    data = {
        "type": "array",
        "items": {"type": ["number", "null"]},
        "description": "row-major, flat or nested as the shape says; null: missing. Left out where "
        "`parameters.binary_data_size` gives its size in bytes after the JSON.",
    }
    tensor = {"name": text, "datatype": text, "shape": shape, "parameters": parameters}
    announced = _object({"name": text, "datatype": text, "shape": shape}, "name", "datatype", "shape")
    return {
        ERROR: _object({"error": text}, "error"),
        "OipInferRequest": _object(
            {
                "id": text,
                "parameters": parameters,
                "inputs": _array(_object({**tensor, "data": data}, "name", "datatype", "shape")),
                "outputs": _array(_object({"name": text, "parameters": parameters}, "name")),
            },
            "inputs",
        ),
        "OipInferReply": _object(
            {
                "model_name": text,
                "model_version": text,
                "id": text,
                "outputs": _array(_object({**tensor, "data": _array(number)}, "name", "datatype", "shape")),
            },
            "model_name",
            "model_version",
            "outputs",
        ),
        "OipModel": _object(
            {
                "name": text,
                "versions": _array(text),
                "platform": text,
                "inputs": _array(announced),
                "outputs": _array(announced),
            },
            "name",
            "versions",
            "platform",
            "inputs",
            "outputs",
        ),
        "OipServer": _object(
            {"name": text, "version": text, "extensions": _array(text)}, "name", "version", "extensions"
        ),
        "OipIndex": _array(
            _object(
                {"name": text, "version": text, "state": text, "reason": text}, "name", "version", "state"
            )
        ),
    }


def paths() -> dict[str, Described]:
    """The protocol's paths; those of a model once for any version and once for a certain one."""
    found: dict[str, Described] = {
        "/v2": {"get": _operation("Name, version and extensions of the server", "OipServer")},
        "/v2/health/live": {"get": _operation("Liveness", None, 500)},
        "/v2/health/ready": {"get": _operation("Readiness", None, 500, 503)},
        "/v2/repository/index": {"post": _operation("Every loaded model", "OipIndex", 400, 401, 403, 413)},
    }
    for names in (["name"], ["name", "version"]):
        path = "/v2/models/{name}" + ("/versions/{version}" if "version" in names else "")
        which = "a model" + (" of a given version" if "version" in names else "")
        parameters = [
            {"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names
        ]
        found[path] = {"get": _operation(f"The tensors of {which}", "OipModel", *REFUSALS_OF_A_MODEL)}
        found[f"{path}/ready"] = {
            "get": _operation(f"Readiness of {which}", None, 500, 503, *REFUSALS_OF_A_MODEL)
        }
        found[f"{path}/infer"] = {"post": _inference(f"Predict with {which}, in tensors")}
        for suffix in ("", "/ready", "/infer"):
            for operation in found[path + suffix].values():
                operation["parameters"] = [*operation.get("parameters", []), *parameters]
    return found


def _inference(summary: str) -> Described:
    operation = _operation(summary, "OipInferReply", *REFUSALS_OF_INFERENCE)
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    operation["responses"]["200"]["content"] |= binary
    operation["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": _reference("OipInferRequest")}, **binary},
    }
    operation["parameters"] = [
        {
            "name": "Inference-Header-Content-Length",
            "in": "header",
            "description": "size of the JSON in bytes, if binary tensor data follow it",
            "schema": {"type": "integer"},
        }
    ]
    return operation


def _operation(summary: str, answer: str | None, *refusals: int) -> Described:
    titles: dict[int, list[str]] = {}
    for status in STATUS.values():
        titles.setdefault(status.http, []).append(status.title)
    schema: Described = {"type": "object"} if answer is None else _reference(answer)
    responses: dict[str, Described] = {"200": {"description": "the answer", "content": _json(schema)}}
    for code in sorted(refusals):
        responses[str(code)] = {"description": "; ".join(titles[code]), "content": _json(_reference(ERROR))}
    return {"summary": summary, "tags": ["Open Inference Protocol"], "responses": responses}


def _json(schema: Described) -> Described:
    return {"application/json": {"schema": schema}}


def _reference(name: str) -> Described:
    return {"$ref": f"#/components/schemas/{name}"}


def _array(items: Described) -> Described:
    return {"type": "array", "items": items}


def _object(properties: Described, *required: str) -> Described:
    return {"type": "object", "properties": properties, "required": list(required)}
