"""gRPC: a thin shell over the predictor. Messages in, answers or statuses out.

The same servicers run on `grpc.aio` and, through `over_asgi`, behind an HTTP/2 front end. This
module knows messages and status codes; it must not know HTTP, ONNX Runtime or batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from service.core.predictor import LoadedModel
from service.edge.access import Credentials
from service.edge.exchange import Desk, Exchange, Limit
from service.edge.keys import KeyScope
from service.errors import ServiceError, public_detail, status_of
from service.grpc.call import caller_of, parsed, serialized, unary
from service.grpc.health import Health
from service.grpc.oip import INFERENCE_SERVICE, InferenceServicer
from service.grpc.predict import model_reference, predict
from service.grpc.streams import StreamServicer
from service.grpc.units import append
from service.labels import Route
from service.proto import rul_v1_pb2 as pb

SERVICE: Final = "rul.v1.RulService"


def rul_handlers(desk: Desk) -> dict[str, Any]:
    """The method handlers of `rul.v1.RulService`, by the methods' names, on messages as they came.

    Decoding them is part of answering: a message that cannot be read is refused, counted and logged
    as any other request is. A server that decodes for its servicers would answer UNKNOWN.
    """

    async def get_model(raw: bytes, _exchange: Exchange, _limit: Limit) -> pb.Model:
        model = desk.predictor.model(parsed(pb.GetModelRequest, raw).name)
        described = _model(model)
        described.manifest_json = model.manifest.model_dump_json()
        return described

    async def list_models(raw: bytes, _exchange: Exchange, _limit: Limit) -> pb.ListModelsReply:
        parsed(pb.ListModelsRequest, raw)
        return pb.ListModelsReply(models=[_model(model) for model in desk.predictor.models.values()])

    append_cycles = partial(append, desk)
    return {
        "Predict": unary(
            desk, Route.GRPC_PREDICT, partial(predict, desk), KeyScope.PREDICT, needs_model=True
        ),
        "AppendCycles": unary(desk, Route.GRPC_APPEND, append_cycles, KeyScope.INGEST, needs_model=True),
        "PredictStream": grpc.stream_stream_rpc_method_handler(StreamServicer(desk).predict_stream),
        "GetModel": unary(desk, Route.GRPC_GET_MODEL, get_model, KeyScope.ANY, encode=serialized),
        "ListModels": unary(desk, Route.GRPC_LIST_MODELS, list_models, KeyScope.ANY, encode=serialized),
    }


class Reflection:
    """The descriptions of our messages, for a caller with a key; a silent stream ends soon."""

    def __init__(self, names: Iterable[str], *, credentials: Credentials, idle_seconds: float) -> None:
        self._described: Final[Any] = reflection.aio.ReflectionServicer(names)
        self._credentials: Final = credentials
        self._idle_seconds: Final = idle_seconds

    async def ServerReflectionInfo(  # noqa: N802 the protocol's name
        self,
        requests: AsyncIterator[Any],
        context: Any,  # noqa: ANN401 as the library
    ) -> AsyncIterator[Any]:
        """Answer each request of a stream, as long as the key is valid."""
        metadata = dict(context.invocation_metadata())
        try:
            caller_of(self._credentials, KeyScope.PAGES, metadata)
            allowed = self._in_time(requests, metadata)
            async for reply in self._described.ServerReflectionInfo(allowed, context):
                yield reply
        except ServiceError as error:
            await context.abort(status_of(error).grpc, public_detail(error))

    async def _in_time(self, requests: AsyncIterator[Any], metadata: dict[str, Any]) -> AsyncIterator[Any]:
        try:
            while True:
                async with asyncio.timeout(self._idle_seconds):
                    request = await anext(requests)
                caller_of(self._credentials, KeyScope.PAGES, metadata)
                yield request
        except (StopAsyncIteration, TimeoutError):
            return


def add_servicers(server: Any, desk: Desk) -> Health:  # noqa: ANN401 grpc.aio.Server or its stand-in
    """Register our services, health and reflection; the health that it answers, to be changed."""
    ours = {SERVICE: rul_handlers(desk), INFERENCE_SERVICE: InferenceServicer(desk).handlers()}
    names = (*ours, health.SERVICE_NAME, reflection.SERVICE_NAME)
    answered = Health(names)
    for name, handlers in ours.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        server.add_registered_method_handlers(name, handlers)
    health_pb2_grpc.add_HealthServicer_to_server(answered, server)
    described: Any = Reflection(names, credentials=desk.credentials, idle_seconds=desk.intake.seconds)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(described, server)
    return answered


def _model(model: LoadedModel) -> pb.Model:
    manifest = model.manifest
    return pb.Model(
        reference=model_reference(model.name),
        provider=model.provider,
        columns=[pb.ModelColumn(name=column.name, unit=column.unit) for column in manifest.columns],
        context=manifest.context,
        cap=manifest.cap,
        horizons=manifest.horizons,
    )
