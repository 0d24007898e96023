"""The table of all HTTP endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal

import msgspec
from prometheus_client.exposition import choose_encoder

from service.core.lifecycle import Phase
from service.core.queries import PredictQuery, PredictReply
from service.edge.exchange import Desk
from service.edge.keys import KeyScope
from service.http import decisions, monitoring, openapi, page, units
from service.http.events import EventsHttp
from service.http.models import Changer, ModelsHttp
from service.http.oip import OipHttp
from service.http.predict import explain, predict
from service.http.shell import JSON, TEXT, Call, Endpoint, Operation, Reply, Shell, json_reply, unknown_route
from service.labels import Route

PREDICT_PATH: Final = Route.PREDICT.value
Schema = Callable[[], dict[str, Any]]
"""Describes the API to clients of BentoML, at /schema.json."""


class LiveBody(msgspec.Struct, frozen=True):
    """The state of a live service."""

    status: Literal["alive"]


class ReadyModel(msgspec.Struct, frozen=True):
    """A ready model. It runs on `provider`; operators that this cannot run, on the later `providers`.

    `fallback`: why it runs on another provider than RUL_PROVIDER names; null if it does not.
    """

    name: str
    version: str
    provider: str
    providers: tuple[str, ...]
    fallback: str | None


class ReadyBody(msgspec.Struct, frozen=True):
    """The state of the service, and its models."""

    status: Phase
    models: list[ReadyModel]


def pages(schema: Schema) -> list[Endpoint]:
    """List the endpoints for health, metrics and documents."""
    folder = openapi.assets()

    async def for_bentoml(_call: Call) -> Reply:
        return json_reply(await asyncio.to_thread(schema))  # loads BentoML

    async def asset(call: Call) -> Reply:
        if call.path["name"] not in openapi.ASSETS:
            raise unknown_route(call)
        return page.unless_kept(call, file(call.path["name"]))

    @cache
    def file(name: str) -> Reply:
        content = openapi.START.encode() if name == openapi.STARTS else (folder / name).read_bytes()
        return page.kept(folder / name, content, openapi.SECURITY)

    ready = Operation("getReadiness", "Readiness: every golden window agrees", ReadyBody, (500, 503))
    # 503: from Envoy, if a worker's heartbeat stops.
    live = Operation("getLiveness", "Liveness", LiveBody, (500, 503))
    exposition = {"text/plain": TEXT, "application/openmetrics-text": TEXT}
    metrics = Operation("getMetrics", "Prometheus metrics", exposition)
    return [
        Endpoint("GET", "/readyz", Route.READYZ, _readyz, KeyScope.OPEN, doc=ready),
        Endpoint("GET", "/livez", Route.LIVEZ, _livez, KeyScope.OPEN, doc=live),
        Endpoint("GET", "/healthz", Route.LIVEZ, _livez, KeyScope.OPEN),
        Endpoint("GET", "/metrics", Route.METRICS, _metrics, KeyScope.METRICS, doc=metrics),
        Endpoint("GET", "/schema.json", Route.OPENAPI, for_bentoml, KeyScope.PAGES),
        Endpoint("GET", "/docs", Route.DOCS, _docs, KeyScope.PAGES),
        Endpoint("GET", "/docs/assets/{name:path}", Route.DOCS, asset, KeyScope.PAGES),
    ]


async def _livez(call: Call) -> Reply:
    call.desk.lifecycle.check_alive()
    return json_reply(LiveBody("alive"))


async def _readyz(call: Call) -> Reply:
    lifecycle = call.desk.lifecycle
    lifecycle.check_ready()
    models = [
        ReadyModel(m.name.name, m.name.version, m.provider, m.placement.providers, m.placement.fallback)
        for m in call.desk.predictor.models.values()
    ]
    return json_reply(ReadyBody(lifecycle.phase, models))


async def _metrics(call: Call) -> Reply:
    try:
        encode, content_type = choose_encoder(call.headers.get(b"accept", b"").decode("latin-1"))
    except TypeError:  # a version that is no number
        encode, content_type = choose_encoder("")
    return Reply(await call.desk.metrics.exposition(encode), media_type=content_type.encode())


async def _docs(_call: Call) -> Reply:
    return Reply(openapi.PAGE.encode(), media_type=b"text/html; charset=utf-8", headers=openapi.SECURITY)


def http_application(desk: Desk, schema: Schema, change: Changer) -> Shell:
    """The ASGI application for everything but gRPC."""
    models = desk.predictor.models
    table = endpoints(desk, schema, change)
    manifest = next(iter(models.values())).manifest

    @cache
    def described() -> Reply:
        return json_reply(openapi.document(table, manifest))  # 10 ms

    async def document(_call: Call) -> Reply:
        return described()

    table.append(Endpoint("GET", "/openapi.json", Route.OPENAPI, document, KeyScope.PAGES))
    return Shell(desk, table, hot_paths=[f"/v2/models/{name}/infer" for name in models])


def endpoints(desk: Desk, schema: Schema, change: Changer) -> list[Endpoint]:
    """The table of endpoints, without the document that describes them."""
    answers = (
        (Route.PREDICT, predict, "predict", "Remaining useful life of each unit, in cycles"),
        (Route.EXPLAIN, explain, "explain", "Predict and explain: `/v1/predict` with `explain` full"),
    )
    predictions = [
        Endpoint(
            "POST",
            route.value,
            route,
            answer,
            KeyScope.PREDICT,
            needs_model=True,
            media_type=JSON,
            doc=Operation(name, summary, PredictReply, (404, 422), body=PredictQuery),
        )
        for route, answer, name, summary in answers
    ]
    return [
        *predictions,
        *ModelsHttp(change).endpoints(),
        *monitoring.endpoints(),
        *decisions.endpoints(),
        *units.endpoints(),
        *EventsHttp(desk).endpoints(),
        *page.endpoints(),
        *pages(schema),
        *OipHttp(desk).endpoints(),
    ]
