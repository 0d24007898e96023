"""Describe the Open Inference Protocol for OpenAPI: its paths, and the bodies that no code decodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from service.http.oip import OipModel, OipServer, OipTensor
from service.http.oip_body import OipInferRequest
from service.oip.inference import Indexed

Described = dict[str, Any]


class OipError(Struct):
    """A refusal."""

    error: str


class OipOutput(OipTensor, frozen=True):
    """An output of the model."""

    parameters: dict[str, Any] | UnsetType = UNSET
    data: (
        Annotated[
            list[float],
            Meta(description="Row-major. Omitted if `parameters.binary_data_size` bytes follow the JSON."),
        ]
        | UnsetType
    ) = UNSET


class OipInferReply(Struct):
    """The outputs of an inference."""

    model_name: str
    model_version: str
    outputs: list[OipOutput]
    id: str | UnsetType = UNSET


BODIES: Final = (OipError, OipInferRequest, OipInferReply, OipModel, OipServer, Indexed)
BINARY: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
HEADER: Final = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "Size of the JSON in bytes, if binary tensor data follow it.",
    "schema": {"type": "integer"},
}


def paths(ref: Callable[[str], dict[str, str]], responses: Callable[..., Described]) -> dict[str, Described]:
    """Describe the paths, with the document's own references and responses."""

    def operation(summary: str, answer: Described, *refusals: int, **more: object) -> Described:
        answers = responses(answer, *refusals, media_type="application/json", error="OipError")
        return {"summary": summary, "tags": ["Open Inference Protocol"], "responses": answers, **more}

    def of_model(which: str, *names: str) -> list[Described]:
        schema = {"type": "string"}
        given = [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
        body = {"application/json": {"schema": ref("OipInferRequest")}} | BINARY
        infer = operation(
            f"Ask {which}, in tensors",
            ref("OipInferReply"),
            *(400, 401, 403, 404, 408, 413, 415, 429, 500, 503, 504),
            parameters=[HEADER, *given],
            requestBody={"required": True, "content": body},
        )
        infer["responses"]["200"]["content"] |= BINARY
        shown = operation(f"Tensors of {which}", ref("OipModel"), 401, 403, 404, parameters=given)
        ready = operation(f"Readiness of {which}", {}, 401, 403, 404, 500, 503, parameters=given)
        return [{"get": shown}, {"get": ready}, {"post": infer}]

    index = {"type": "array", "items": ref("Indexed")}
    found = {
        "/v2": {"get": operation("Name, version and extensions of the server", ref("OipServer"))},
        "/v2/health/live": {"get": operation("Liveness", {}, 500)},
        "/v2/health/ready": {"get": operation("Readiness", {}, 500, 503)},
        "/v2/repository/index": {"post": operation("Every loaded model", index, 400, 401, 403, 413)},
    }
    for path, described in {
        "/v2/models/{name}": of_model("a model", "name"),
        "/v2/models/{name}/versions/{version}": of_model("a version of a model", "name", "version"),
    }.items():
        found |= {path + suffix: one for suffix, one in zip(("", "/ready", "/infer"), described, strict=True)}
    return found
