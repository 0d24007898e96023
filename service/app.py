"""BentoML hosts the service: life cycle, schema and packaging.

`bentoml serve service.app:RulService` runs it on BentoML's own server, with gRPC on a second port. `rul
serve` runs `service.envoy:application` behind Envoy, with HTTP and gRPC on one port (docs/adr/0001).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

import bentoml

from service.assembly import HOST
from service.core.queries import Explain
from service.edge.asgi import Receive, Scope, Send
from service.http.routes import PREDICT_PATH

# Above the limits of Settings by default, so that our own answer comes first; a request or a change of models
# that takes longer gets BentoML's 504. BentoML keeps a timer of this length for each request: with 60 s they
# grew to 25 MB in 39,000 requests.
BENTOML_TIMEOUT_SECONDS: Final = 30


class Front:
    """An ASGI middleware in BentoML's chain that answers every request."""

    def __init__(self, app: Any) -> None:  # noqa: ANN401 any ASGI application
        self._app: Final = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Return the answer to a request; lifespan events are BentoML's."""
        if scope["type"] == "http" and HOST.parts is not None:
            return HOST.parts.handle(scope, receive, send)
        return self._app(scope, receive, send)


@bentoml.service(
    name="rulserve",
    workers=1,  # `rul serve` starts several by itself, behind one port: docs/adr/0005
    traffic={"timeout": BENTOML_TIMEOUT_SECONDS},
    metrics={"enabled": False},  # BentoML labels by raw path, so that unknown URLs add series
    logging={"access": {"enabled": False}},  # ours is sampled; BentoML's costs 0.2 ms a request
    tracing={"excluded_urls": ".*"},  # 0.6 ms a request
)
class RulService:
    """Remaining useful life of units, with the attention and contribution of every cycle."""

    @bentoml.api(route=PREDICT_PATH)
    async def predict(  # noqa: PLR0917 the fields of the request
        self,
        windows: list[dict[str, Any]],
        model: str | None = None,
        explain: Explain = Explain.ATTENTION,
        partial: bool = False,  # noqa: FBT001, FBT002 a field of the request
        store: bool = True,  # noqa: FBT001, FBT002 as above
        costs: dict[str, float] | None = None,
    ) -> dict[str, Any]:
        """Predict the remaining useful life of windows of readings."""
        raise NotImplementedError  # for BentoML's schema: `Front` answers requests before BentoML routes them

    @bentoml.on_startup
    async def start(self) -> None:
        """Start the service."""
        await HOST.start(RulService.schema)  # pyrefly: ignore[missing-attribute] the decorator's

    @bentoml.on_shutdown
    async def stop(self) -> None:
        """Stop the service."""
        await HOST.stop()


RulService.add_asgi_middleware(Front)  # pyrefly: ignore[missing-attribute] the decorator's
