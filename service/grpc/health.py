"""The health of the service by gRPC's health protocol (grpc.health.v1).

The stock servicer is not used: it says SERVING before any status is set, writes to its call in a way that
only grpc's own server supports, and forgets all watchers of a name when one of them disconnects.
This module must not know what makes the service healthy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from google.rpc.code_pb2 import Code
from grpc_health.v1 import health_pb2

from service.edge.exchange import Limit
from service.errors import MalformedBody
from service.grpc.call import Aborted, Context, foreign, receive_of

Reply = health_pb2.HealthCheckResponse

MOST_WATCHERS: Final = 256
"""Maximum open `Watch` calls of a server."""


class Health:
    """One health for the server and all of its services: they serve together or not at all.

    Args:
        services: Names of the services; "" is the server.
        seconds: Maximum time for a message to arrive.
    """

    def __init__(self, services: Iterable[str], *, seconds: float) -> None:
        self._known: Final = frozenset(["", *services])
        self._seconds: Final = seconds
        self._serving = False
        self._changed = asyncio.Event()
        self._watchers = 0

    def advertise(self, *, serving: bool) -> None:
        """Change the status and tell all watchers."""
        self._serving = serving
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def check(self, messages: AsyncIterator[bytes], _context: Context) -> bytes:
        """Answer once; an unknown service is NOT_FOUND, as in the protocol."""
        service = await self._asked(messages)
        if service not in self._known:
            raise Aborted(Code.NOT_FOUND, "no such service is known")
        return Reply(status=self._status(service)).SerializeToString()

    async def watch(self, messages: AsyncIterator[bytes], context: Context) -> None:
        """Answer now and at each change until the caller disconnects; no key is needed."""
        service = await self._asked(messages)
        if self._watchers >= MOST_WATCHERS:
            raise Aborted(Code.RESOURCE_EXHAUSTED, f"{MOST_WATCHERS} callers already watch")
        self._watchers += 1
        told = None
        try:
            with Limit(None, receive_of(context)):
                while True:
                    changed, status = self._changed, self._status(service)
                    if status != told:
                        await context.write(Reply(status=status).SerializeToString())
                        told = status
                    await changed.wait()
        finally:
            self._watchers -= 1

    async def _asked(self, messages: AsyncIterator[bytes]) -> str:
        with Limit(None, reading_seconds=self._seconds):
            if (raw := await anext(messages, None)) is None:
                raise MalformedBody("the request has no message")
        return foreign(health_pb2.HealthCheckRequest, raw).service

    def _status(self, service: str) -> Any:  # noqa: ANN401 an enum of generated code
        if service not in self._known:
            return Reply.SERVICE_UNKNOWN
        return Reply.SERVING if self._serving else Reply.NOT_SERVING
