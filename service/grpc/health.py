"""The health of the service as gRPC's own protocol asks for it (grpc.health.v1).

Ours, because the stock servicer says SERVING before anyone has set anything, writes to its call in
a way that only grpc's own server has, and forgets all watchers of a name when one of them leaves.
This module must not know what makes the service healthy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Reply = health_pb2.HealthCheckResponse

MOST_WATCHERS: Final = 256
"""Open `Watch` calls of a server."""


class Health(health_pb2_grpc.HealthServicer):
    """One health for the whole server and each of its services: they serve together or not at all.

    Args:
        services: The names that may be asked for, beside "" for the server.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._known: Final = frozenset(["", *services])
        self._serving = False
        self._changed = asyncio.Event()
        self._watchers = 0

    def advertise(self, *, serving: bool) -> None:
        """Change what is answered, and tell whoever watches."""
        self._serving = serving
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:  # noqa: ANN401, N802
        """Answer once; a service that is not ours is NOT_FOUND, as the protocol has it."""
        if request.service not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service is known")
        return Reply(status=self._status(request.service))

    async def Watch(  # noqa: N802
        self,
        request: health_pb2.HealthCheckRequest,
        context: Any,  # noqa: ANN401 either transport's
    ) -> AsyncIterator[Any]:
        """Answer now and at each change, for as long as someone listens; no key is asked for."""
        if self._watchers >= MOST_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MOST_WATCHERS} callers already watch")
        self._watchers += 1
        try:
            async for reply in self._changes(request):
                yield reply
        finally:
            self._watchers -= 1

    async def _changes(self, request: health_pb2.HealthCheckRequest) -> AsyncIterator[Any]:
        told = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != told:
                yield Reply(status=status)
                told = status
            await changed.wait()

    def _status(self, service: str) -> Any:  # noqa: ANN401 an enum of generated code
        if service not in self._known:
            return Reply.SERVICE_UNKNOWN
        return Reply.SERVING if self._serving else Reply.NOT_SERVING
