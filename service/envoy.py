"""Envoy hosts the service: an ASGI application for HTTP and gRPC.

`service.app` hosts the same service in BentoML. Here BentoML loads only when a client asks for its schema,
which saves 19 MiB per worker.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from service.assembly import HOST
from service.edge.asgi import Receive, Scope, Send


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve behind Envoy, with BentoML's schema but not its HTTP application."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
    elif HOST.parts is not None:
        await HOST.parts.handle(scope, receive, send)


def _schema() -> dict[str, Any]:
    from service.app import RulService  # noqa: PLC0415 BentoML, which nothing else here needs

    return RulService.schema()  # pyrefly: ignore[missing-attribute] the decorator's


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception of a callback; ignore a body that arrives after its deadline."""
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)


async def _live(receive: Receive, send: Send) -> None:
    await receive()
    try:
        await HOST.start(_schema)
    except Exception:  # noqa: BLE001 already in the log, to which Envoy would add a line of its own
        os._exit(1)
    asyncio.get_running_loop().set_exception_handler(_report)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await HOST.stop()
    os._exit(0)  # all clients have their answers; Envoy would wait up to a second for its allocator's thread
