"""The Open Inference Protocol by HTTP: every path under /v2, and errors as the protocol words them.

An ASGI application without a framework: inference is asked for thousands of times a second. This
module knows paths, headers and statuses; it must not know tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from service.edge.asgi import Patience, Receive, Scope, Send, body_of
from service.edge.exchange import Desk, Exchange
from service.errors import MalformedBody, MethodNotAllowed, UnknownRoute, public_detail, status_of
from service.http.oip_body import encoded, inflated
from service.http.oip_plan import Bodies
from service.http.predict import Headers, asked_timeout, check_access
from service.http.problem import refusal_headers
from service.labels import Route, Stage, Transport
from service.oip.inference import EXTENSIONS, PLATFORM, SERVER_NAME, Inference, InferReply, server_version
from service.oip.tensors import TensorSpec, short

JSON: Final = b"application/json"
BINARY: Final = b"application/octet-stream"
HEADER_LENGTH: Final = b"inference-header-content-length"

_MODEL: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/ready|/infer)?")


class Call(msgspec.Struct, frozen=True, eq=False):
    """One request: what it names, and where its body comes from."""

    scope: Scope
    headers: Headers
    receive: Receive
    exchange: Exchange
    model: str
    version: str


class Reply(msgspec.Struct, frozen=True, eq=False):
    """What goes back."""

    body: bytes
    status: int = 200
    media_type: bytes = JSON
    headers: Sequence[tuple[bytes, bytes]] = ()


UNREAD: Final = Reply(b"", 499)
"""What nobody will read: the caller has gone."""

Handler = Callable[[Call], Awaitable[Reply]]
Found = tuple[str, Route, Handler, tuple[str, str]]
"""What is answered at a path: by which method, as which route, by whom, of which model and version."""

NO_MODEL: Final = ("", "")


class OipHttp:
    """Answers /v2."""

    def __init__(self, desk: Desk) -> None:
        self._desk: Final = desk
        self._inference: Final = Inference(desk)
        self._bodies: Final = Bodies(self._inference)
        self._encoder: Final = msgspec.json.Encoder()
        self._fixed: Final[dict[str, Found]] = {
            "/v2": ("GET", Route.V2, self._server, NO_MODEL),
            "/v2/": ("GET", Route.V2, self._server, NO_MODEL),
            "/v2/health/live": ("GET", Route.V2_LIVE, self._live, NO_MODEL),
            "/v2/health/ready": ("GET", Route.V2_READY, self._ready, NO_MODEL),
            "/v2/repository/index": ("POST", Route.V2_INDEX, self._index, NO_MODEL),
        }
        self._of_model: Final[dict[str | None, tuple[str, Route, Handler]]] = {
            None: ("GET", Route.V2_MODEL, self._model),
            "/ready": ("GET", Route.V2_MODEL_READY, self._model_ready),
            "/infer": ("POST", Route.V2_INFER, self._infer),
        }
        for name in desk.predictor.models:  # the paths that are asked for again and again
            path = f"/v2/models/{name}/infer"
            self._fixed[path] = self._found(path)

    @staticmethod
    def answers(scope: Scope) -> bool:
        """Whether a request is the protocol's."""
        path: str = scope["path"]
        return path.startswith("/v2/") or path == "/v2"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        allowed, route, handler, names = self._found(scope["path"])
        method = scope["method"]
        refused = method != allowed and bool(allowed) and (allowed, method) != ("GET", "HEAD")
        if refused:
            route, handler = Route.OTHER, _refusing(allowed)
        headers: Headers = dict(scope["headers"])
        reply = UNREAD
        given = headers.get(b"x-request-id")
        given = given.decode("latin-1") if given else None
        with self._desk.exchange(Transport.HTTP, route, given, scope) as exchange:
            reply = await handler(Call(scope, headers, receive, exchange, *names))
        if exchange.error is not None:
            reply = self._refusal(exchange.error, allowed if refused else "")
        answer = [
            (b"content-type", reply.media_type),
            (b"content-length", b"%d" % len(reply.body)),
            (b"x-request-id", exchange.request_id.encode("latin-1")),
            *reply.headers,
        ]
        await send({"type": "http.response.start", "status": reply.status, "headers": answer})
        await send({"type": "http.response.body", "body": reply.body})

    def _found(self, path: str) -> Found:
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed
        match = _MODEL.fullmatch(path)
        if match is not None:
            name, version, action = match.groups()
            return *self._of_model[action], (name, version or "")
        return "", Route.OTHER, _unknown, NO_MODEL

    def _refusal(self, error: Exception, allowed: str) -> Reply:
        given = refusal_headers(error) | ({"allow": allowed} if allowed else {})
        headers = [(name.encode(), value.encode()) for name, value in given.items()]
        body = self._encoder.encode({"error": public_detail(error)})
        return Reply(body, status_of(error).http, JSON, headers)

    def _json(self, body: object) -> Reply:
        return Reply(self._encoder.encode(body))

    # What answers

    async def _infer(self, call: Call) -> Reply:
        desk, headers = self._desk, call.headers
        check_access(desk, headers)
        model = self._inference.model(call.model, call.version)
        given = headers.get(b"request-timeout")
        timeout = math.inf if given is None else asked_timeout(given)
        with desk.lifecycle.request():
            body = await body_of(headers, call.receive, max_bytes=desk.max_body_bytes)
            with desk.metrics.stage(Stage.DECODE):
                if b"content-encoding" in headers:
                    body = inflated(body, headers[b"content-encoding"], max_bytes=desk.max_body_bytes)
                asked, group, form = self._bodies.read(model, body, headers.get(HEADER_LENGTH, b""))
            query, windows = asked.query, group.windows
            call.exchange.windows = len(windows)
            seconds = min(timeout, query.timeout_seconds, desk.request_timeout_seconds)
            patience = Patience(seconds, call.receive)
            outputs = await desk.predictor.outputs(model, windows, deadline=patience)
            with desk.metrics.stage(Stage.EXPLAIN):
                answer = None if form is None else form.written(outputs[0])
                if answer is None:
                    answer = self._inference.reply(model, group, query, outputs)
            with desk.metrics.stage(Stage.ENCODE):
                if isinstance(answer, InferReply):
                    body, size = encoded(answer, asked)
                else:
                    body, size = b"".join(answer), len(answer[0]) or None
        if size is None:
            return Reply(body)
        return Reply(body, media_type=BINARY, headers=[(HEADER_LENGTH, b"%d" % size)])

    async def _server(self, _call: Call) -> Reply:
        return self._json({"name": SERVER_NAME, "version": server_version(), "extensions": EXTENSIONS})

    async def _live(self, _call: Call) -> Reply:
        self._desk.lifecycle.check_alive()
        return self._json({"live": True})

    async def _ready(self, _call: Call) -> Reply:
        self._check_ready()
        return self._json({"ready": True})

    async def _model(self, call: Call) -> Reply:
        check_access(self._desk, call.headers)
        model = self._inference.model(call.model, call.version)
        signature = self._inference.signature(model)
        return self._json(
            {
                "name": model.name.name,
                "versions": [model.name.version],
                "platform": PLATFORM,
                "inputs": [_described(spec) for spec in signature.inputs],
                "outputs": [_described(spec) for spec in signature.outputs],
            }
        )

    async def _model_ready(self, call: Call) -> Reply:
        check_access(self._desk, call.headers)
        model = self._inference.model(call.model, call.version)
        self._check_ready()
        return self._json({"name": model.name.name, "ready": True})

    async def _index(self, call: Call) -> Reply:
        check_access(self._desk, call.headers)
        body = await body_of(call.headers, call.receive, max_bytes=self._desk.max_body_bytes)
        try:
            asked = msgspec.json.decode(body, type=_IndexBody) if body.strip() else _IndexBody()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedBody(f"the body is not a repository index request: {error}") from error
        return self._json(self._inference.index(ready_only=asked.ready))

    def _check_ready(self) -> None:
        self._desk.lifecycle.check_alive()
        self._desk.lifecycle.check_ready()


class _IndexBody(msgspec.Struct):
    ready: bool = False


async def _unknown(call: Call) -> Reply:
    raise UnknownRoute(f"nothing answers at {short(call.scope['path'])}")


def _refusing(allowed: str) -> Handler:
    async def refuse(call: Call) -> Reply:
        raise MethodNotAllowed(f"{short(call.scope['path'])} answers {allowed}, got {call.scope['method']}")

    return refuse


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}
