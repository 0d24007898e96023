"""The Open Inference Protocol by HTTP: endpoints below /v2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from model.domain import FloatArray
from model.version import VERSION
from service.core.predictor import LoadedModel
from service.core.queries import ModelName
from service.core.turns import LARGE_BYTES, in_slices
from service.edge.exchange import Desk
from service.edge.keys import KeyScope
from service.http.oip_body import Form, OipInferRequest, decoded, decoded_in_slices
from service.http.problem import read_json
from service.http.shell import Call, Endpoint, Operation, Parameter, Reply, encode, json_reply
from service.labels import Route, Stage
from service.oip.inference import EXTENSIONS, PLATFORM, SERVER_NAME, Ask, Indexed, Inference
from service.oip.tensors import TensorSpec

BINARY: Final = b"application/octet-stream"
RAW: Final = {"type": "string", "format": "binary"}
SIZE: Final = "Size of the JSON in bytes, if binary tensor data follow it."
HEADER_LENGTH: Final = b"inference-header-content-length"
NUMBERS_AT_ONCE: Final = 2**16
"""Numbers of an output to encode in one slice: 2 ms."""


class OipServer(msgspec.Struct, frozen=True):
    """The server, its version and the extensions of the protocol that it supports."""

    name: str
    version: str
    extensions: Sequence[str]


class OipIndexRequest(msgspec.Struct):
    """A request for the models; `ready`: only those that are ready."""

    ready: bool = False


class OipLive(msgspec.Struct, frozen=True):
    """Whether the server is live."""

    live: bool


class OipReady(msgspec.Struct, frozen=True):
    """Whether the server is ready."""

    ready: bool


class OipModelReady(msgspec.Struct, frozen=True):
    """Whether a model is ready."""

    name: str
    ready: bool


class OipTensor(msgspec.Struct, frozen=True):
    """A tensor; -1 stands for any size."""

    name: str
    datatype: str
    shape: Sequence[int]


class OipModel(msgspec.Struct, frozen=True):
    """A model and its tensors."""

    name: str
    versions: Sequence[str]
    platform: str
    inputs: Sequence[OipTensor]
    outputs: Sequence[OipTensor]


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


class OipInferReply(msgspec.Struct):
    """The outputs of an inference."""

    model_name: str
    model_version: str
    outputs: list[OipOutput]
    id: str | UnsetType = UNSET


class OipHttp:
    """Answers /v2."""

    def __init__(self, desk: Desk) -> None:
        self._inference: Final = Inference(desk.predictor, desk.lifecycle)

    def endpoints(self) -> list[Endpoint]:
        """List the endpoints."""
        server = Operation("serverMetadata", "Name, version and extensions of the server", OipServer)
        live = Operation("serverLive", "Liveness", OipLive, (500,))
        ready = Operation("serverReady", "Readiness", OipReady, (500, 503))
        index = Operation("repositoryIndex", "Every loaded model", list[Indexed], body=OipIndexRequest)
        fixed = [
            Endpoint("GET", "/v2", Route.V2, self._server, KeyScope.OPEN, doc=server),
            Endpoint("GET", "/v2/", Route.V2, self._server, KeyScope.OPEN),
            Endpoint("GET", "/v2/health/live", Route.V2_LIVE, self._live, KeyScope.OPEN, doc=live),
            Endpoint("GET", "/v2/health/ready", Route.V2_READY, self._ready, KeyScope.OPEN, doc=ready),
            Endpoint("POST", "/v2/repository/index", Route.V2_INDEX, self._index, KeyScope.ANY, doc=index),
        ]
        named, version = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
        return (
            fixed
            + self._of_model(named, "model", "a model")
            + self._of_model(version, "modelVersion", "a version of a model")
        )

    def _of_model(self, at: str, name: str, which: str) -> list[Endpoint]:
        shown = Operation(f"{name}Metadata", f"Tensors of {which}", OipModel)
        ready = Operation(f"{name}Ready", f"Readiness of {which}", OipModelReady, (500, 503))
        infer = Operation(
            f"{name}Infer",
            f"Ask {which}, in tensors",
            {"application/json": OipInferReply, "application/octet-stream": RAW},
            parameters=(Parameter("Inference-Header-Content-Length", SIZE, {"type": "integer"}, "header"),),
            body={"application/json": OipInferRequest, "application/octet-stream": RAW},
        )
        route, scope = Route.V2_INFER, KeyScope.PREDICT
        return [
            Endpoint("POST", f"{at}/infer", route, self._infer, scope, needs_model=True, doc=infer),
            Endpoint("GET", f"{at}/ready", Route.V2_MODEL_READY, self._model_ready, KeyScope.ANY, doc=ready),
            Endpoint("GET", at, Route.V2_MODEL, self._model, KeyScope.ANY, doc=shown),
        ]

    async def _infer(self, call: Call) -> Reply:
        exchange = call.exchange
        model, ask, form = await self._read(call)
        exchange.windows = ask.count
        if ask.timeout_seconds != math.inf:
            call.limit.shorten(ask.timeout_seconds)
        version = call.path.get("version", "")
        name, values = await self._inference.answer(model, ask, exchange.stages, version=version)
        written = await _written_in_slices(ask.wanted, values, form)
        start = perf_counter()
        body, size = encoded(name, ask.id, ask.wanted, values, form, written=written)
        exchange.stages.append((Stage.ENCODE, start, perf_counter()))
        if size is None:
            return Reply(body)
        return Reply(body, media_type=BINARY, headers=[(HEADER_LENGTH, b"%d" % size)])

    async def _read(self, call: Call) -> tuple[LoadedModel, Ask, Form]:
        """Read a body at once, or in slices that let other requests run: these are no stage."""
        model, head = self._inference.model(**call.path), call.headers.get(HEADER_LENGTH, b"")
        start = perf_counter()
        found = decoded(call.body, head)
        read = None if found is None else (model, self._inference.read(model, found[0]), found[1])
        if read is not None:
            call.exchange.stages.append((Stage.DECODE, start, perf_counter()))
            return read
        turn = call.desk.large_requests if len(call.body) > LARGE_BYTES else nullcontext()
        async with turn:
            query, form = await decoded_in_slices(call.body, head)
        start = perf_counter()
        ask = self._inference.read(model, query)
        call.exchange.stages.append((Stage.DECODE, start, perf_counter()))
        return model, ask, form

    async def _server(self, _call: Call) -> Reply:
        return json_reply(OipServer(SERVER_NAME, VERSION, EXTENSIONS))

    async def _live(self, call: Call) -> Reply:
        call.desk.lifecycle.check_alive()
        return json_reply(OipLive(live=True))

    async def _ready(self, call: Call) -> Reply:
        call.desk.lifecycle.check_ready()
        return json_reply(OipReady(ready=True))

    async def _model(self, call: Call) -> Reply:
        model = self._inference.model(**call.path)
        signature = self._inference.signature(model)
        inputs, outputs = (
            [OipTensor(*spec) for spec in specs] for specs in (signature.inputs, signature.outputs)
        )
        return json_reply(OipModel(model.name.name, [model.name.version], PLATFORM, inputs, outputs))

    async def _model_ready(self, call: Call) -> Reply:
        model = self._inference.model(**call.path)
        call.desk.lifecycle.check_ready()
        return json_reply(OipModelReady(model.name.name, ready=True))

    async def _index(self, call: Call) -> Reply:
        asked = read_json(call.body, OipIndexRequest) if call.body.strip() else OipIndexRequest()
        return json_reply(self._inference.index(ready_only=asked.ready))


def encoded(
    model: ModelName,
    request_id: str,
    specs: Sequence[TensorSpec],
    arrays: Sequence[FloatArray],
    form: Form,
    *,
    written: Mapping[str, msgspec.Raw],
) -> tuple[bytes, int | None]:
    """Outputs as a body, and the size of its JSON if binary contents follow.

    `written` holds values that are encoded already.
    """
    outputs: list[dict[str, Any]] = []
    behind: list[bytes] = []
    for (name, datatype, _), values in zip(specs, arrays, strict=True):
        described: dict[str, Any] = {"name": name, "datatype": datatype, "shape": values.shape}
        if form.by_name.get(name, form.is_binary):
            described["parameters"] = {"binary_data_size": values.nbytes}
            behind.append(values.tobytes())
        else:
            described["data"] = written[name] if name in written else values.ravel()
        outputs.append(described)
    head: dict[str, Any] = {"model_name": model.name, "model_version": model.version}
    if request_id:
        head["id"] = request_id
    head["outputs"] = outputs
    text = encode(head)
    return (b"".join([text, *behind]), len(text)) if behind else (text, None)


async def _written_in_slices(
    specs: Sequence[TensorSpec], arrays: Sequence[FloatArray], form: Form
) -> dict[str, msgspec.Raw]:
    """Encode the values of large outputs in slices that let other requests run: these are no stage."""
    written: dict[str, msgspec.Raw] = {}
    for (name, _, _), values in zip(specs, arrays, strict=True):
        if values.size > NUMBERS_AT_ONCE and not form.by_name.get(name, form.is_binary):
            lists = await in_slices(values.ravel(), NUMBERS_AT_ONCE, encode)
            written[name] = msgspec.Raw(b"[" + b",".join(memoryview(part)[1:-1] for part in lists) + b"]")
    return written
