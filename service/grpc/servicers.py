"""gRPC methods: a thin layer over the predictor.

`server` runs them on `grpc.aio`, `over_asgi` behind an HTTP/2 front end. This module knows messages and
status codes; it must not know HTTP, ONNX Runtime or batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache, partial
from time import perf_counter
from typing import Any, Final

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from msgspec import to_builtins
from msgspec.structs import replace

from service.core.predictor import LoadedModel
from service.core.queries import Explain
from service.core.turns import LARGE_BYTES
from service.edge.exchange import Desk, Exchange, Limit
from service.edge.keys import KeyScope
from service.errors import TooLarge, UnknownRoute
from service.grpc.call import Context, Method, caller_of, exchanged, finish, foreign, parsed
from service.grpc.health import Health
from service.grpc.oip import INFERENCE_SERVICE, InferenceServicer
from service.grpc.predict import costs_of, explain_of, fill, model_reference, predict, stored
from service.grpc.streams import predict_stream
from service.labels import Route, Stage, Transport
from service.proto import rul_v1_pb2 as pb
from service.units import check_count, given_rows

SERVICE: Final = "rul.v1.RulService"
HEALTH: Final[str] = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTION: Final[str] = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
SERVICES: Final = (SERVICE, INFERENCE_SERVICE, HEALTH, REFLECTION)


class Methods(dict[str, Method]):
    """Methods by path; unknown paths are refused, counted and logged like other requests."""

    def __init__(self, desk: Desk, methods: Mapping[str, Method]) -> None:
        super().__init__(methods)
        self._desk: Final = desk

    def __missing__(self, path: str) -> Method:
        """Return a method that refuses the unknown path."""
        return partial(_unknown, self._desk, path)


def methods_of(desk: Desk, health_service: Health) -> Methods:
    """Return all methods by path, including health and reflection.

    Methods decode their messages themselves, so that an unreadable message is refused, counted and logged
    like any other request. A server that decodes for its servicers would answer UNKNOWN.
    """

    def unary(
        route: Route, answer: Callable[..., Awaitable[bytes]], scope: KeyScope, *, needs_model: bool = False
    ) -> Method:
        return partial(exchanged, desk, route, partial(answer, desk), scope=scope, needs_model=needs_model)

    reflection_service = Reflection(desk)
    services: dict[str, Mapping[str, Method]] = {
        SERVICE: {
            "Predict": unary(Route.GRPC_PREDICT, predict, KeyScope.PREDICT, needs_model=True),
            "AppendCycles": unary(Route.GRPC_APPEND, _append, KeyScope.INGEST, needs_model=True),
            "PredictStream": partial(predict_stream, desk),
            "GetModel": unary(Route.GRPC_GET_MODEL, _get_model, KeyScope.ANY),
            "ListModels": unary(Route.GRPC_LIST_MODELS, _list_models, KeyScope.ANY),
        },
        INFERENCE_SERVICE: InferenceServicer(desk).methods(),
        HEALTH: {"Check": health_service.check, "Watch": health_service.watch},
        REFLECTION: {"ServerReflectionInfo": reflection_service.info},
    }
    paths = {f"/{service}/{name}": m for service, methods in services.items() for name, m in methods.items()}
    return Methods(desk, paths)


class Reflection:
    """Reflection for callers with a key; a silent stream ends soon."""

    def __init__(self, desk: Desk) -> None:
        self._desk: Final = desk

    async def info(self, messages: AsyncIterator[bytes], context: Context) -> None:
        """Answer the requests of a stream while the key is valid."""
        metadata = dict(context.invocation_metadata())
        with _other(self._desk, metadata) as exchange:
            caller_of(self._desk.credentials, KeyScope.PAGES, metadata)
        finish(exchange, context)
        requests = self._in_time(messages, metadata)
        described = await asyncio.to_thread(_described)
        async for reply in described.ServerReflectionInfo(requests, context):
            await context.write(reply.SerializeToString())

    async def _in_time(self, messages: AsyncIterator[bytes], metadata: dict[str, Any]) -> AsyncIterator[Any]:
        try:
            while True:
                async with asyncio.timeout(self._desk.intake.seconds):
                    raw = await anext(messages)
                caller_of(self._desk.credentials, KeyScope.PAGES, metadata)
                yield foreign(reflection_pb2.ServerReflectionRequest, raw)
        except (StopAsyncIteration, TimeoutError):
            return


@cache
def _described() -> Any:  # noqa: ANN401 gRPC's
    """Describe all services."""
    from grpc_reflection.v1alpha import reflection  # noqa: PLC0415 loads grpcio, 10 MiB

    return reflection.aio.ReflectionServicer(SERVICES)


def _other(desk: Desk, metadata: dict[str, Any]) -> Exchange:
    return Exchange(desk, Transport.GRPC, Route.OTHER, metadata.get("x-request-id"), metadata)


async def _unknown(desk: Desk, path: str, _messages: AsyncIterator[bytes], context: Context) -> None:
    with _other(desk, dict(context.invocation_metadata())) as exchange:
        raise UnknownRoute(f"there is no method {path}")
    finish(exchange, context)


async def _append(desk: Desk, raw: bytes, exchange: Exchange, _limit: Limit) -> bytes:
    """Store the readings of a message and answer with the unit's prediction."""
    if len(raw) > LARGE_BYTES:  # each value becomes a Python object
        raise TooLarge(f"expected at most {LARGE_BYTES} bytes, got {len(raw)}; send readings in parts")
    start = perf_counter()
    request = parsed(pb.AppendCyclesRequest, raw)
    model = desk.predictor.model(request.model or None)
    check_count(len(request.readings), model.rules, "/readings")
    rows = [
        (reading.cycle if reading.HasField("cycle") else None, reading.values, reading.columns)
        for reading in request.readings
    ]
    given = given_rows(rows, model.rules, "/readings/{}".format)
    exchange.stages.append((Stage.DECODE, start, perf_counter()))
    exchange.windows = 1
    reply = await desk.units.append(
        model,
        request.unit,
        given,
        explain=explain_of(request.explain) if request.explain else Explain.NONE,
        store=stored(request),
        costs=costs_of(request),
        stages=exchange.stages,
        tenant=exchange.caller.tenant,
    )
    start = perf_counter()
    message = pb.AppendCyclesReply(**to_builtins(replace(reply, prediction=None)))
    if reply.prediction is not None:
        fill(message.prediction, reply.prediction)
    encoded = message.SerializeToString()
    exchange.stages.append((Stage.ENCODE, start, perf_counter()))
    return encoded


async def _get_model(desk: Desk, raw: bytes, _exchange: Exchange, _limit: Limit) -> bytes:
    model = desk.predictor.model(parsed(pb.GetModelRequest, raw).name)
    described = _model(model)
    described.manifest_json = model.manifest.model_dump_json()
    return described.SerializeToString()


async def _list_models(desk: Desk, raw: bytes, _exchange: Exchange, _limit: Limit) -> bytes:
    parsed(pb.ListModelsRequest, raw)
    models = [_model(model) for model in desk.predictor.models.values()]
    return pb.ListModelsReply(models=models).SerializeToString()


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
