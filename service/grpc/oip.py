"""The Open Inference Protocol by gRPC: `inference.GRPCInferenceService`.

This module knows methods; it must not know what a model takes, nor how tensors stand in messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, Final

import grpc

from service.edge.exchange import Desk, Exchange
from service.grpc.call import Context, exchanged, limit, parsed, serialized
from service.grpc.oip_messages import query_of, response_of
from service.labels import Route, Stage
from service.oip.inference import (
    EXTENSIONS,
    PLATFORM,
    SERVER_NAME,
    Inference,
    server_version,
)
from service.oip.tensors import TensorSpec
from service.proto import open_inference_pb2 as pb

INFERENCE_SERVICE: Final = "inference.GRPCInferenceService"

Answer = Callable[[bytes], Awaitable[Any]]


class InferenceServicer:
    """`inference.GRPCInferenceService`, on messages as they came."""

    def __init__(self, desk: Desk) -> None:
        self._desk: Final = desk
        self._inference: Final = Inference(desk.predictor, desk.lifecycle)

    def handlers(self) -> dict[str, Any]:
        """The method handlers, by the methods' names."""
        methods = {
            "ServerLive": self._asked(self._live, open_to_all=True),
            "ServerReady": self._asked(self._ready, open_to_all=True),
            "ServerMetadata": self._asked(self._server, open_to_all=True),
            "ModelReady": self._asked(self._model_ready),
            "ModelMetadata": self._asked(self._model),
            "RepositoryIndex": self._asked(self._index),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(method, response_serializer=serialized)
            for name, method in methods.items()
        }
        infer = grpc.unary_unary_rpc_method_handler(self.infer, response_serializer=bytes)
        return handlers | {"ModelInfer": infer}

    async def infer(self, raw: bytes, context: Context) -> bytes:
        """Answer windows, with a message as it travels."""
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

    async def _infer(self, raw: bytes, context: Context, exchange: Exchange) -> bytes:
        exchange.admit()
        start = perf_counter()
        request = parsed(pb.ModelInferRequest, raw)
        model = self._inference.model(request.model_name, request.model_version)
        query = query_of(request)
        ask = self._inference.read(model, query)
        exchange.timed(Stage.DECODE, start)
        exchange.windows = len(ask.windows)
        tensors = await self._inference.answer(model, ask, limit(self._desk, context, query.timeout_seconds))
        start = perf_counter()
        is_raw = bool(request.raw_input_contents)
        encoded = response_of(model.name, query.id, tensors, is_raw=is_raw).SerializeToString()
        exchange.timed(Stage.ENCODE, start)
        return encoded

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
        return self._inference.is_ready

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
