"""Envoy hosts the service: an ASGI application for HTTP and gRPC.

`service.app` hosts the same service in BentoML, which is loaded here once its schema is asked for: a worker
that is never asked has 19 MiB less.
"""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse, Response

from service.assembly import HOST, SCHEMA_PATH
from service.edge.asgi import Receive, Scope, Send


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve behind Envoy, with BentoML's schema but not its HTTP application."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
    elif scope["path"] == SCHEMA_PATH:
        answer = await asyncio.to_thread(_schema)
        await answer(scope, receive, send)
    elif HOST.parts is not None:
        await HOST.parts.handle(scope, receive, send)


def _schema() -> Response:
    from service.app import RulService  # noqa: PLC0415 BentoML, which nothing else here needs

    return JSONResponse(RulService.schema())


async def _live(receive: Receive, send: Send) -> None:
    await receive()
    try:
        await HOST.start()
    except Exception:  # noqa: BLE001 already in the log
        await send({"type": "lifespan.startup.failed", "message": ""})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await HOST.stop()
    await send({"type": "lifespan.shutdown.complete"})
