"""The table of everything that answers by HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from service.core.lifecycle import Phase
from service.core.predictor import LoadedModel
from service.core.queries import PredictQuery
from service.edge.exchange import Desk
from service.edge.keys import KeyScope
from service.errors import UnknownRoute
from service.http import openapi
from service.http.decisions import DecisionsHttp, UnitDecision
from service.http.events import EventsHttp
from service.http.models import (
    BundleBody,
    CanaryBody,
    ChangeBody,
    Changer,
    ModelBody,
    ModelsBody,
    ModelsHttp,
    ShadowBody,
    SimulatedBody,
)
from service.http.monitoring import MonitoringBody, MonitoringHttp
from service.http.oip import OipHttp
from service.http.page import PageHttp
from service.http.predict import explain, predict
from service.http.problem import ProblemBody
from service.http.shell import JSON, Call, Endpoint, Reply, Shell, json_reply
from service.http.units import UnitsHttp
from service.http.units_bodies import (
    DeletedBody,
    FleetBody,
    OutcomeReply,
    OutcomeReport,
    RenameBody,
    UnitBody,
)
from service.http.units_cycles import CyclesQuery
from service.labels import Route
from service.store.async_store import AsyncStore
from service.units import CyclesReply, UnitReply

PREDICT_PATH: Final = Route.PREDICT.value
Schema = Callable[[], dict[str, Any]]
"""Describes the API to clients of BentoML, at /schema.json."""
MEDIA_TYPES: Final = {".css": b"text/css; charset=utf-8", ".js": b"text/javascript; charset=utf-8"}


class ReadyModel(msgspec.Struct, frozen=True):
    """A model that answers: on `provider`, and on the later ones of `providers` what that cannot run.

    `fallback` says why it is not the provider that RUL_PROVIDER asks for; null where it is.
    """

    name: str
    version: str
    provider: str
    providers: tuple[str, ...]
    fallback: str | None


class ReadyBody(msgspec.Struct, frozen=True):
    """The service answers, and on what."""

    status: Phase
    models: list[ReadyModel]


BODIES: Final = (
    PredictQuery, ModelsBody, ModelBody, BundleBody, ShadowBody, CanaryBody, SimulatedBody, ChangeBody,
    ReadyBody, ProblemBody, OutcomeReport, OutcomeReply, UnitBody, FleetBody, MonitoringBody, UnitDecision,
    CyclesQuery, CyclesReply, UnitReply, RenameBody, DeletedBody,
)  # fmt: skip
"""What the routes read and answer, for the OpenAPI document."""


class Pages:
    """What the service says of itself: health, metrics, documents."""

    def __init__(self, desk: Desk, registry: CollectorRegistry, schema: Schema) -> None:
        self._desk: Final = desk
        self._registry: Final = registry
        self._bentoml: Final = schema
        manifest = next(iter(desk.predictor.models.values())).manifest
        self._openapi: Final = json_reply(openapi.document(BODIES, manifest))
        self._assets: Final[dict[str, Path]] = {
            path.name: path for path in openapi.assets().iterdir() if path.suffix in MEDIA_TYPES
        }

    def endpoints(self) -> list[Endpoint]:
        """List the endpoints."""
        return [
            Endpoint("GET", "/livez", Route.LIVEZ, self._livez, KeyScope.OPEN),
            Endpoint("GET", "/healthz", Route.LIVEZ, self._livez, KeyScope.OPEN),
            Endpoint("GET", "/readyz", Route.READYZ, self._readyz, KeyScope.OPEN),
            Endpoint("GET", "/metrics", Route.METRICS, self._metrics, KeyScope.METRICS),
            Endpoint("GET", "/openapi.json", Route.OPENAPI, self._document, KeyScope.PAGES),
            Endpoint("GET", "/schema.json", Route.OPENAPI, self._schema, KeyScope.PAGES),
            Endpoint("GET", "/docs", Route.DOCS, self._docs, KeyScope.PAGES),
            Endpoint("GET", "/docs/assets/{name:path}", Route.DOCS, self._asset, KeyScope.PAGES),
        ]

    async def _livez(self, _call: Call) -> Reply:
        self._desk.lifecycle.check_alive()
        return json_reply({"status": "alive"})

    async def _readyz(self, _call: Call) -> Reply:
        lifecycle = self._desk.lifecycle
        lifecycle.check_alive()
        lifecycle.check_ready()
        models = self._desk.predictor.models.values()
        return json_reply(ReadyBody(lifecycle.phase, [ready_model(model) for model in models]))

    async def _metrics(self, call: Call) -> Reply:
        encode, content_type = choose_encoder(call.headers.get(b"accept", b"").decode("latin-1"))
        return Reply(encode(self._registry), media_type=content_type.encode())

    async def _document(self, _call: Call) -> Reply:
        return self._openapi

    async def _schema(self, _call: Call) -> Reply:
        return json_reply(await asyncio.to_thread(self._bentoml))  # loads BentoML

    async def _docs(self, _call: Call) -> Reply:
        return Reply(openapi.PAGE.encode(), media_type=b"text/html; charset=utf-8", headers=openapi.SECURITY)

    async def _asset(self, call: Call) -> Reply:
        name = call.path["name"]
        path = self._assets.get(name)
        if path is None and name != "start.js":
            raise UnknownRoute(f"no endpoint at {call.scope['path'][:80]}; /docs lists all endpoints")
        content = openapi.START.encode() if path is None else path.read_bytes()
        return Reply(content, media_type=MEDIA_TYPES[Path(name).suffix], headers=openapi.SECURITY)


def http_application(
    desk: Desk, registry: CollectorRegistry, store: AsyncStore, schema: Schema, change: Changer
) -> Shell:
    """The ASGI application for everything but gRPC."""
    oip = OipHttp(desk)
    endpoints = [
        *(
            Endpoint("POST", route.value, route, answer, KeyScope.PREDICT, needs_model=True, media_type=JSON)
            for route, answer in ((Route.PREDICT, predict), (Route.EXPLAIN, explain))
        ),
        *ModelsHttp(desk, change).endpoints(),
        *MonitoringHttp(desk).endpoints(),
        *DecisionsHttp(desk, store).endpoints(),
        *UnitsHttp(desk, store).endpoints(),
        *EventsHttp(desk, store).endpoints(),
        *PageHttp().endpoints(),
        *Pages(desk, registry, schema).endpoints(),
        *oip.endpoints(),
    ]
    return Shell(desk, endpoints, hot_paths=oip.hot_paths())


def ready_model(model: LoadedModel) -> ReadyModel:
    """A loaded model as /readyz shows it."""
    placed = model.placement
    return ReadyModel(model.name.name, model.name.version, model.provider, placed.providers, placed.fallback)
