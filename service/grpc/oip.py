"""The Open Inference Protocol by gRPC: `inference.GRPCInferenceService`.

This module knows methods and messages; it must not know what a model takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from time import perf_counter
from typing import Final

import numpy as np
from google.protobuf.message import Message

from model.domain import FloatArray
from model.version import VERSION
from service.core.queries import ModelName
from service.edge.exchange import Desk, Exchange, Limit
from service.edge.keys import KeyScope
from service.errors import InvalidTensor, MalformedBody, short
from service.grpc.call import Method, exchanged, parsed
from service.grpc.predict import tag
from service.labels import Route, Stage
from service.oip.inference import (
    EXTENSIONS,
    MAX_TENSORS,
    PLATFORM,
    SERVER_NAME,
    Ask,
    Inference,
    InferQuery,
    timeout_of,
)
from service.oip.tensors import DTYPES, FP32, INT64, Contents, GivenTensor, TensorSpec
from service.proto import open_inference_pb2 as pb

INFERENCE_SERVICE: Final = "inference.GRPCInferenceService"

CONTENTS: Final = {FP32: "fp32_contents", INT64: "int64_contents"}
"""Fields of typed values by datatype; no model takes other datatypes."""

FLOATS: Final = pb.InferTensorContents.FP32_CONTENTS_FIELD_NUMBER


class InferenceServicer:
    """`inference.GRPCInferenceService`, on raw messages."""

    def __init__(self, desk: Desk) -> None:
        self._desk: Final = desk
        self._inference: Final = Inference(desk.predictor, desk.lifecycle)

    def methods(self) -> dict[str, Method]:
        """The methods by name."""
        return {
            "ServerLive": self._asked(self._live, KeyScope.OPEN),
            "ServerReady": self._asked(self._ready, KeyScope.OPEN),
            "ServerMetadata": self._asked(self._server, KeyScope.OPEN),
            "ModelReady": self._asked(self._model_ready, KeyScope.ANY),
            "ModelMetadata": self._asked(self._model, KeyScope.ANY),
            "RepositoryIndex": self._asked(self._index, KeyScope.ANY),
            "ModelInfer": partial(
                exchanged, self._desk, Route.GRPC_INFER, self._infer, scope=KeyScope.PREDICT, needs_model=True
            ),
        }

    def _asked(self, answer: Callable[[bytes], Message], scope: KeyScope) -> Method:
        """Make a method that needs only its message."""

        async def call(raw: bytes, _exchange: Exchange, _limit: Limit) -> bytes:
            return answer(raw).SerializeToString()

        return partial(exchanged, self._desk, Route.GRPC_INFERENCE, call, scope=scope)

    async def _infer(self, raw: bytes, exchange: Exchange, limit: Limit) -> bytes:
        start = perf_counter()
        request = parsed(pb.ModelInferRequest, raw)
        model = self._inference.model(request.model_name, request.model_version)
        ask = self._inference.read(model, query_of(request))
        exchange.windows = ask.count
        exchange.stages.append((Stage.DECODE, start, perf_counter()))
        if ask.timeout_seconds != math.inf:
            limit.shorten(ask.timeout_seconds)
        version, is_raw = request.model_version, bool(request.raw_input_contents)
        del request  # or its tensors would stay in memory while the call waits
        name, values = await self._inference.answer(model, ask, exchange.stages, version=version)
        start = perf_counter()
        encoded = response_of(name, ask, values, is_raw=is_raw).SerializeToString()
        exchange.stages.append((Stage.ENCODE, start, perf_counter()))
        return encoded

    def _live(self, raw: bytes) -> pb.ServerLiveResponse:
        parsed(pb.ServerLiveRequest, raw)
        self._desk.lifecycle.check_alive()
        return pb.ServerLiveResponse(live=True)

    def _ready(self, raw: bytes) -> pb.ServerReadyResponse:
        parsed(pb.ServerReadyRequest, raw)
        return pb.ServerReadyResponse(ready=self._is_ready())

    def _model_ready(self, raw: bytes) -> pb.ModelReadyResponse:
        request = parsed(pb.ModelReadyRequest, raw)
        self._inference.model(request.name, request.version)
        return pb.ModelReadyResponse(ready=self._is_ready())

    def _is_ready(self) -> bool:
        self._desk.lifecycle.check_alive()
        return self._inference.is_ready

    def _server(self, raw: bytes) -> pb.ServerMetadataResponse:
        parsed(pb.ServerMetadataRequest, raw)
        return pb.ServerMetadataResponse(name=SERVER_NAME, version=VERSION, extensions=EXTENSIONS)

    def _model(self, raw: bytes) -> pb.ModelMetadataResponse:
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

    def _index(self, raw: bytes) -> pb.RepositoryIndexResponse:
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


# Messages of ModelInfer: outputs are raw or typed, as the inputs are


def query_of(request: pb.ModelInferRequest) -> InferQuery:
    """Read a message as a query.

    Raises:
        MalformedBody: it has too many tensors, or its timeout is invalid.
        InvalidTensor: a tensor's contents are missing, given twice, or in the wrong field.
    """
    if len(request.inputs) > MAX_TENSORS or len(request.outputs) > MAX_TENSORS:
        raise MalformedBody(f"expected at most {MAX_TENSORS} inputs and outputs")
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidTensor(
            f"expected raw_input_contents for each of {len(request.inputs)} inputs, got {len(raw)}"
        )
    inputs = [
        GivenTensor(
            tensor.name, tensor.datatype, tensor.shape, _raw(tensor, raw[i]) if raw else _typed(tensor)
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
        return ()  # no model takes this datatype: the check against the model refuses it
    others = [field.name for field, _ in tensor.contents.ListFields() if field.name != wanted]
    if others:
        where, got = f"input {short(tensor.name)}", ", ".join(others)
        raise InvalidTensor(f"{where}: expected {tensor.datatype} values in {wanted}, got {got}")
    dtype = DTYPES[tensor.datatype]
    values = getattr(tensor.contents, wanted)
    head, raw = tag(FLOATS, 4 * len(values)), tensor.contents.SerializeToString()
    if tensor.datatype == FP32 and len(values) and raw.startswith(head):  # a copy of the bytes on the wire
        return np.frombuffer(raw, dtype, len(values), len(head))  # fields that are not known follow
    return np.array(values, dtype=dtype)


def _timeout_seconds(request: pb.ModelInferRequest) -> float:
    """The parameter `timeout`, as in HTTP."""
    if "timeout" not in request.parameters:  # reading a missing key would create it
        return math.inf
    parameter = request.parameters["timeout"]
    which = parameter.WhichOneof("parameter_choice")
    return timeout_of(None if which is None else getattr(parameter, which))


def response_of(
    model: ModelName, ask: Ask, arrays: Sequence[FloatArray], *, is_raw: bool
) -> pb.ModelInferResponse:
    """Outputs as a message, their contents raw or typed."""
    response = pb.ModelInferResponse()
    response.CopyFrom(_described_outputs(model, ask.wanted, ask.count, ask.cycles))
    response.id = ask.id
    contents = [values.tobytes() for values in arrays]
    if is_raw:
        response.raw_output_contents.extend(contents)
    else:
        for output, raw in zip(response.outputs, contents, strict=True):
            output.contents.MergeFromString(tag(FLOATS, len(raw)) + raw)
    return response


@lru_cache(maxsize=256)
def _described_outputs(
    model: ModelName, wanted: tuple[TensorSpec, ...], windows: int, cycles: int
) -> pb.ModelInferResponse:
    """A response without contents, to copy."""
    outputs = [
        pb.ModelInferResponse.InferOutputTensor(
            name=spec.name, datatype=spec.datatype, shape=spec.sized(windows=windows, cycles=cycles)
        )
        for spec in wanted
    ]
    return pb.ModelInferResponse(model_name=model.name, model_version=model.version, outputs=outputs)
