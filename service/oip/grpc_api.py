"""The Open Inference Protocol by gRPC: `inference.GRPCInferenceService`.

Inputs are raw (`raw_input_contents`) or typed (`contents`), and outputs come back the way the inputs
went. This module knows messages; it must not know what a model takes.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
import numpy as np

from service.errors import InvalidTensor, MalformedBody
from service.exchange import Desk, Exchange
from service.grpc_call import Context, exchanged, limit, parsed, serialized
from service.grpc_messages import tag
from service.labels import Route, Stage
from service.oip.asked import (
    EXTENSIONS,
    MAX_TENSORS,
    PLATFORM,
    SERVER_NAME,
    Inference,
    InferQuery,
    InferReply,
    server_version,
    timeout_of,
)
from service.oip.tensors import DTYPES, FP32, INT64, Contents, GivenTensor, TensorSpec, short
from service.proto import open_inference_pb2 as pb

INFERENCE_SERVICE: Final = "inference.GRPCInferenceService"

CONTENTS: Final = {FP32: "fp32_contents", INT64: "int64_contents"}
"""Where typed values stand; no model takes other datatypes."""

FLOATS: Final = pb.InferTensorContents.FP32_CONTENTS_FIELD_NUMBER

Answer = Callable[[bytes], Awaitable[Any]]


class InferenceServicer:
    """`inference.GRPCInferenceService`, on messages as they came."""

    def __init__(self, desk: Desk) -> None:
        self._desk: Final = desk
        self._inference: Final = Inference(desk)

    def handlers(self) -> dict[str, Any]:
        """The method handlers, by the methods' names."""
        methods = {
            "ServerLive": self._asked(self._live, open_to_all=True),
            "ServerReady": self._asked(self._ready, open_to_all=True),
            "ServerMetadata": self._asked(self._server, open_to_all=True),
            "ModelReady": self._asked(self._model_ready),
            "ModelMetadata": self._asked(self._model),
            "RepositoryIndex": self._asked(self._index),
            "ModelInfer": self.infer,
        }
        return {
            name: grpc.unary_unary_rpc_method_handler(method, response_serializer=serialized)
            for name, method in methods.items()
        }

    async def infer(self, raw: bytes, context: Context) -> pb.ModelInferResponse:
        """Answer windows."""
        return await exchanged(self._desk, Route.GRPC_INFER, self._infer, raw, context)

    def _asked(
        self, answer: Answer, *, open_to_all: bool = False
    ) -> Callable[[bytes, Context], Awaitable[Any]]:
        """A method that needs no more than its message."""

        async def call(raw: bytes, _context: Context, _exchange: Exchange) -> Any:  # noqa: ANN401 any reply
            return await answer(raw)

        async def method(raw: bytes, context: Context) -> Any:  # noqa: ANN401 any reply
            route = Route.GRPC_INFERENCE
            return await exchanged(self._desk, route, call, raw, context, open_to_all=open_to_all)

        return method

    async def _infer(self, raw: bytes, context: Context, exchange: Exchange) -> pb.ModelInferResponse:
        desk = self._desk
        with desk.lifecycle.request():
            with desk.metrics.stage(Stage.DECODE):
                request = parsed(pb.ModelInferRequest, raw)
                model = self._inference.model(request.model_name, request.model_version)
                query = _query(request)
                group = self._inference.read(model, query)
            exchange.windows = len(group.windows)
            seconds = min(query.timeout_seconds, desk.request_timeout_seconds)
            reply = await self._inference.infer(model, group, query, deadline=limit(context, seconds))
            with desk.metrics.stage(Stage.ENCODE):
                return _response(reply, raw=bool(request.raw_input_contents))

    async def _live(self, raw: bytes) -> pb.ServerLiveResponse:
        parsed(pb.ServerLiveRequest, raw)
        self._desk.lifecycle.check_alive()
        return pb.ServerLiveResponse(live=True)

    async def _ready(self, raw: bytes) -> pb.ServerReadyResponse:
        parsed(pb.ServerReadyRequest, raw)
        return pb.ServerReadyResponse(ready=self._is_ready())

    async def _model_ready(self, raw: bytes) -> pb.ModelReadyResponse:
        request = parsed(pb.ModelReadyRequest, raw)
        self._inference.model(request.name, request.version)
        return pb.ModelReadyResponse(ready=self._is_ready())

    def _is_ready(self) -> bool:
        self._desk.lifecycle.check_alive()
        return self._inference.ready

    async def _server(self, raw: bytes) -> pb.ServerMetadataResponse:
        parsed(pb.ServerMetadataRequest, raw)
        return pb.ServerMetadataResponse(name=SERVER_NAME, version=server_version(), extensions=EXTENSIONS)

    async def _model(self, raw: bytes) -> pb.ModelMetadataResponse:
        request = parsed(pb.ModelMetadataRequest, raw)
        model = self._inference.model(request.name, request.version)
        signature = self._inference.signature(model)
        return pb.ModelMetadataResponse(
            name=model.name.name,
            versions=[model.name.version],
            platform=PLATFORM,
            inputs=_described(signature.inputs),
            outputs=_described(signature.outputs),
        )

    async def _index(self, raw: bytes) -> pb.RepositoryIndexResponse:
        request = parsed(pb.RepositoryIndexRequest, raw)
        models = [
            pb.RepositoryIndexResponse.ModelIndex(
                name=m.name, version=m.version, state=m.state, reason=m.reason
            )
            for m in self._inference.index(ready_only=request.ready)
        ]
        return pb.RepositoryIndexResponse(models=models)


def _described(specs: Sequence[TensorSpec]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    return [
        pb.ModelMetadataResponse.TensorMetadata(name=s.name, datatype=s.datatype, shape=s.shape)
        for s in specs
    ]


def _query(request: pb.ModelInferRequest) -> InferQuery:
    if len(request.inputs) > MAX_TENSORS or len(request.outputs) > MAX_TENSORS:
        raise MalformedBody(f"expected at most {MAX_TENSORS} inputs and outputs")
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidTensor(
            f"expected raw_input_contents for each of {len(request.inputs)} inputs, got {len(raw)}"
        )
    inputs = [
        GivenTensor(
            tensor.name,
            tensor.datatype,
            tensor.shape,
            _raw(tensor, raw[i]) if raw else _typed(tensor),
        )
        for i, tensor in enumerate(request.inputs)
    ]
    outputs = [output.name for output in request.outputs]
    return InferQuery(inputs, outputs, request.id, _timeout_seconds(request))


def _raw(tensor: pb.ModelInferRequest.InferInputTensor, contents: bytes) -> Contents:
    if tensor.HasField("contents") and tensor.contents.ListFields():
        raise InvalidTensor(f"input {short(tensor.name)}: expected contents or raw_input_contents, got both")
    return contents


def _typed(tensor: pb.ModelInferRequest.InferInputTensor) -> Contents:
    wanted = CONTENTS.get(tensor.datatype)
    if wanted is None:
        return ()  # no model takes this datatype: whoever knows the model will say so
    others = [field.name for field, _ in tensor.contents.ListFields() if field.name != wanted]
    if others:
        raise InvalidTensor(
            f"input {short(tensor.name)}: {tensor.datatype} stands in {wanted}, got {', '.join(others)}"
        )
    dtype = DTYPES[tensor.datatype]
    values = getattr(tensor.contents, wanted)
    head, raw = tag(FLOATS, 4 * len(values)), tensor.contents.SerializeToString()
    if tensor.datatype == FP32 and len(values) and raw.startswith(head):  # as it stands on the wire
        return np.frombuffer(raw, dtype, offset=len(head))
    return np.array(values, dtype=dtype)


def _timeout_seconds(request: pb.ModelInferRequest) -> float:
    """The parameter `timeout`, as by HTTP."""
    if "timeout" not in request.parameters:  # reading would make it
        return math.inf
    parameter = request.parameters["timeout"]
    which = parameter.WhichOneof("parameter_choice")
    return timeout_of(None if which is None else getattr(parameter, which))


def _response(reply: InferReply, *, raw: bool) -> pb.ModelInferResponse:
    response = pb.ModelInferResponse(
        model_name=reply.model.name, model_version=reply.model.version, id=reply.id
    )
    for tensor in reply.tensors:
        output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.values.shape)
        if raw:
            response.raw_output_contents.append(tensor.values.tobytes())
        else:
            output.contents.MergeFromString(tag(FLOATS, tensor.values.nbytes) + tensor.values.tobytes())
    return response
