"""The Open Inference Protocol by HTTP: what answers below /v2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Final

import msgspec

from model.version import VERSION
from service.core.turns import LARGE_BYTES
from service.edge.exchange import Desk
from service.edge.keys import KeyScope
from service.http.oip_body import decoded, encoded
from service.http.oip_large import decoded_in_slices
from service.http.problem import UNREADABLE, unreadable
from service.http.shell import Call, Endpoint, Reply, json_reply
from service.labels import Route, Stage
from service.oip.inference import EXTENSIONS, PLATFORM, SERVER_NAME, Inference

BINARY: Final = b"application/octet-stream"
HEADER_LENGTH: Final = b"inference-header-content-length"


class OipServer(msgspec.Struct, frozen=True):
    """The server, its version and the extensions of the protocol that it has."""

    name: str
    version: str
    extensions: Sequence[str]


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


class OipHttp:
    """Answers /v2."""

    def __init__(self, desk: Desk) -> None:
        self._desk: Final = desk
        self._inference: Final = Inference(desk.predictor, desk.lifecycle)

    def endpoints(self) -> list[Endpoint]:
        """List the endpoints."""
        fixed = [
            Endpoint("GET", "/v2", Route.V2, self._server, KeyScope.OPEN),
            Endpoint("GET", "/v2/", Route.V2, self._server, KeyScope.OPEN),
            Endpoint("GET", "/v2/health/live", Route.V2_LIVE, self._live, KeyScope.OPEN),
            Endpoint("GET", "/v2/health/ready", Route.V2_READY, self._ready, KeyScope.OPEN),
            Endpoint("POST", "/v2/repository/index", Route.V2_INDEX, self._index, KeyScope.ANY),
        ]
        of_model = [
            Endpoint(method, f"{model}{action}", route, handler, scope, needs_model=route is Route.V2_INFER)
            for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
            for method, action, route, handler, scope in (
                ("POST", "/infer", Route.V2_INFER, self._infer, KeyScope.PREDICT),
                ("GET", "/ready", Route.V2_MODEL_READY, self._model_ready, KeyScope.ANY),
                ("GET", "", Route.V2_MODEL, self._model, KeyScope.ANY),
            )
        ]
        return fixed + of_model

    def hot_paths(self) -> list[str]:
        """The paths of inference, which are asked for again and again."""
        return [f"/v2/models/{name}/infer" for name in self._desk.predictor.models]

    async def _infer(self, call: Call) -> Reply:
        exchange, head = call.exchange, call.headers.get(HEADER_LENGTH, b"")
        model = self._inference.model(**call.path)
        sliced = None
        if len(call.body) > LARGE_BYTES:  # in slices, between which others run: no stage
            async with call.desk.large_requests:
                sliced = await decoded_in_slices(call.body, head)
        start = perf_counter()
        query, form = sliced or decoded(call.body, head)
        ask = self._inference.read(model, query)
        exchange.windows = ask.count
        exchange.stages.append((Stage.DECODE, start, perf_counter()))
        if ask.timeout_seconds != math.inf:
            call.limit.shorten(ask.timeout_seconds)
        version = call.path.get("version", "")
        name, values = await self._inference.answer(model, ask, exchange.stages, version=version)
        start = perf_counter()
        body, size = encoded(name, ask.id, ask.wanted, values, form)
        exchange.stages.append((Stage.ENCODE, start, perf_counter()))
        if size is None:
            return Reply(body)
        return Reply(body, media_type=BINARY, headers=[(HEADER_LENGTH, b"%d" % size)])

    async def _server(self, _call: Call) -> Reply:
        return json_reply(OipServer(SERVER_NAME, VERSION, EXTENSIONS))

    async def _live(self, _call: Call) -> Reply:
        self._desk.lifecycle.check_alive()
        return json_reply({"live": True})

    async def _ready(self, _call: Call) -> Reply:
        self._desk.lifecycle.check_alive()
        self._desk.lifecycle.check_ready()
        return json_reply({"ready": True})

    async def _model(self, call: Call) -> Reply:
        model = self._inference.model(**call.path)
        signature = self._inference.signature(model)
        inputs, outputs = (
            [OipTensor(*spec) for spec in specs] for specs in (signature.inputs, signature.outputs)
        )
        return json_reply(OipModel(model.name.name, [model.name.version], PLATFORM, inputs, outputs))

    async def _model_ready(self, call: Call) -> Reply:
        model = self._inference.model(**call.path)
        self._desk.lifecycle.check_alive()
        self._desk.lifecycle.check_ready()
        return json_reply({"name": model.name.name, "ready": True})

    async def _index(self, call: Call) -> Reply:
        body = call.body
        try:
            asked = msgspec.json.decode(body, type=_IndexBody) if body.strip() else _IndexBody()
        except UNREADABLE as error:
            raise unreadable(error) from error
        return json_reply(self._inference.index(ready_only=asked.ready))


class _IndexBody(msgspec.Struct):
    ready: bool = False
