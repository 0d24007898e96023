"""The Open Inference Protocol by gRPC: `inference.GRPCInferenceService`.

This module knows methods; it must not know what a model takes, nor how tensors stand in messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc

from service.edge.exchange import Desk, Exchange
from service.grpc.call import Context, exchanged, limit, parsed, serialized
from service.grpc.oip_messages import response_of
from service.grpc.oip_plan import Messages
from service.labels import Route, Stage
from service.oip.inference import (
    EXTENSIONS,
    PLATFORM,
    SERVER_NAME,
    Inference,
    InferReply,
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
        self._inference: Final = Inference(desk)
        self._messages: Final = Messages(self._inference)

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
        desk = self._desk
        with desk.lifecycle.request():
            with desk.metrics.stage(Stage.DECODE):
                asked, group, form = self._messages.read(raw)
            model, query, windows = asked.model, asked.query, group.windows
            exchange.windows = len(windows)
            seconds = min(query.timeout_seconds, desk.request_timeout_seconds)
            outputs = await desk.predictor.outputs(model, windows, deadline=limit(context, seconds))
            with desk.metrics.stage(Stage.EXPLAIN):
                answer = None if form is None else form.written(outputs[0])
                if answer is None:
                    answer = self._inference.reply(model, group, query, outputs)
            with desk.metrics.stage(Stage.ENCODE):
                if isinstance(answer, InferReply):
                    return response_of(answer, raw=asked.raw).SerializeToString()
                return b"".join(answer)

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
