"""HTTP: a thin shell over the predictor. Bodies in, answers or RFC 9457 problems out.

This module knows JSON, status codes and headers; it must not know ONNX Runtime, batches or gRPC.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount
from starlette.routing import Route as PathRoute

from service.core.lifecycle import Phase
from service.core.predictor import LoadedModel
from service.core.queries import PredictQuery
from service.edge.asgi import Message, Receive, Scope, Send
from service.edge.exchange import Desk, Exchange
from service.errors import MethodNotAllowed, UnknownRoute
from service.http import openapi
from service.http.oip import OipHttp
from service.http.predict import JSON, PredictRoute
from service.http.problem import ProblemBody, problem
from service.http.units import UnitsHttp
from service.http.units_bodies import FleetBody, OutcomeReply, OutcomeReport, UnitBody
from service.labels import Route, Transport
from service.store.async_store import AsyncStore

PREDICT_PATH: Final = "/v1/predict"

Handler = Callable[[Request, Exchange], Awaitable[Response]]


class ModelBody(msgspec.Struct, frozen=True):
    """A loaded model: which weights, where they run, and what their manifest says."""

    name: str
    version: str
    sha256: str
    provider: str
    manifest: msgspec.Raw | dict[str, Any]


class ModelsBody(msgspec.Struct, frozen=True):
    """Every loaded model."""

    models: list[ModelBody]


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
    PredictQuery, ModelsBody, ModelBody, ReadyBody, ProblemBody,
    OutcomeReport, OutcomeReply, UnitBody, FleetBody,
)  # fmt: skip
"""What the routes read and answer, for the OpenAPI document."""


class HttpApi:
    """The ASGI application for everything but gRPC."""

    def __init__(self, desk: Desk, registry: CollectorRegistry, store: AsyncStore) -> None:
        self._desk: Final = desk
        self._registry: Final = registry
        self._units: Final = UnitsHttp(desk, store)
        self._oip: Final = OipHttp(desk)
        self._predict: Final = PredictRoute(desk)
        self._encoder: Final = msgspec.json.Encoder()
        self._openapi: Final = self._encoder.encode(openapi.document(BODIES))
        self._app: Final = Starlette(
            routes=[
                PathRoute(PREDICT_PATH, self._predict, methods=["POST"]),
                self._route("/v1/models", Route.MODELS, self._models),
                self._route("/v1/models/{name}", Route.MODEL, self._model),
                self._route(Route.UNITS, Route.UNITS, self._fleet),
                # A unit's name may hold slashes.
                self._route("/v1/units/{unit:path}/outcomes", Route.OUTCOMES, self._outcome, method="POST"),
                self._route("/v1/units/{unit:path}", Route.UNIT, self._unit),
                self._route("/livez", Route.LIVEZ, self._livez),
                self._route("/healthz", Route.LIVEZ, self._livez),
                self._route("/readyz", Route.READYZ, self._readyz),
                self._route("/metrics", Route.METRICS, self._metrics),
                self._route("/openapi.json", Route.OPENAPI, self._openapi_document),
                self._route("/docs", Route.DOCS, self._docs),
                Mount("/docs/assets", openapi.assets()),
                self._route("/", Route.OTHER, self._index),
            ],
            exception_handlers={HTTPException: self._unrouted},
        )
        self._app.router.redirect_slashes = False  # it would send callers to whatever host they named

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """What answers one request."""
        method = scope["method"]
        if method == "POST" and scope["path"] == PREDICT_PATH:
            return self._predict(scope, receive, send)
        app = self._oip if OipHttp.answers(scope) else self._app
        return app(scope, receive, _without_body(send) if method == "HEAD" else send)

    def _route(self, path: str, route: Route, handler: Handler, *, method: str = "GET") -> PathRoute:
        async def endpoint(request: Request) -> Response:
            return await self._exchanged(route, handler, request)

        return PathRoute(path, endpoint, methods=[method])

    async def _exchanged(self, route: Route, handler: Handler, request: Request) -> Response:
        response = Response(status_code=499)  # what nobody will read: the caller has gone
        given = request.headers.get("x-request-id")
        with self._desk.exchange(Transport.HTTP, route, given, request.scope) as exchange:
            response = await handler(request, exchange)
        if exchange.error is not None:
            status, headers, body = problem(exchange.error, exchange.request_id)
            response = Response(body, status_code=status, headers=headers)
        response.headers["x-request-id"] = exchange.request_id
        return response

    async def _unrouted(self, request: Request, error: Exception) -> Response:
        """Starlette's own refusals: no such path, no such method."""
        allowed = ""
        if isinstance(error, HTTPException) and error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")

        async def refuse(request: Request, _exchange: Exchange) -> Response:
            if allowed:
                raise MethodNotAllowed(
                    f"{request.url.path} answers {allowed}, got {request.method}"
                ) from error
            raise UnknownRoute(f"nothing answers at {request.url.path}; /docs lists what does") from error

        response = await self._exchanged(Route.OTHER, refuse, request)
        if allowed:
            response.headers["allow"] = allowed
        return response

    def _json(self, body: object) -> Response:
        return Response(self._encoder.encode(body), media_type=JSON)

    def _authorised(self, request: Request) -> None:
        headers = request.headers
        self._desk.credentials.check(headers.get("authorization", ""), headers.get("x-api-key", ""))

    # What answers

    async def _models(self, request: Request, _exchange: Exchange) -> Response:
        self._authorised(request)
        return self._json(ModelsBody([model_body(model) for model in self._desk.predictor.models.values()]))

    async def _model(self, request: Request, _exchange: Exchange) -> Response:
        self._authorised(request)
        return self._json(model_body(self._desk.predictor.model(request.path_params["name"])))

    async def _fleet(self, request: Request, _exchange: Exchange) -> Response:
        self._authorised(request)
        return self._json(await self._units.fleet(request))

    async def _unit(self, request: Request, _exchange: Exchange) -> Response:
        self._authorised(request)
        return self._json(await self._units.unit(request))

    async def _outcome(self, request: Request, _exchange: Exchange) -> Response:
        self._authorised(request)
        return self._json(await self._units.outcome(request))

    async def _livez(self, _request: Request, _exchange: Exchange) -> Response:
        self._desk.lifecycle.check_alive()
        return self._json({"status": "alive"})

    async def _readyz(self, _request: Request, _exchange: Exchange) -> Response:
        lifecycle = self._desk.lifecycle
        lifecycle.check_alive()
        lifecycle.check_ready()
        models = self._desk.predictor.models.values()
        return self._json(ReadyBody(lifecycle.phase, [ready_model(model) for model in models]))

    async def _metrics(self, request: Request, _exchange: Exchange) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"content-type": content_type})

    async def _openapi_document(self, _request: Request, _exchange: Exchange) -> Response:
        return Response(self._openapi, media_type=JSON)

    async def _docs(self, _request: Request, _exchange: Exchange) -> Response:
        return HTMLResponse(openapi.PAGE)

    async def _index(self, _request: Request, _exchange: Exchange) -> Response:
        return RedirectResponse("/docs")


def _without_body(send: Send) -> Send:
    """Answer HEAD with the headers of GET alone: not every ASGI server drops the body by itself."""

    async def send_headers(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return send_headers


def ready_model(model: LoadedModel) -> ReadyModel:
    """A loaded model as /readyz shows it."""
    placed = model.placement
    return ReadyModel(model.name.name, model.name.version, model.provider, placed.providers, placed.fallback)


def model_body(model: LoadedModel) -> ModelBody:
    """A loaded model as /v1/models shows it."""
    return ModelBody(
        model.name.name,
        model.name.version,
        model.name.sha256,
        model.provider,
        msgspec.Raw(model.manifest.model_dump_json().encode()),
    )
