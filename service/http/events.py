"""Route `/v1/events`: units that changed, as server-sent events.

The store is polled once a second for each tenant with listeners, whatever their number. A unit that changes
between two pages of a poll moves in the order; the next poll overlaps and finds it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from time import time
from typing import Final

import msgspec

from service.core.lifecycle import Phase
from service.edge.exchange import Desk
from service.edge.keys import Grant, KeyScope
from service.errors import Overloaded, ServiceError
from service.http import units_bodies as bodies
from service.http.shell import TEXT, Call, Endpoint, Operation, Reply
from service.labels import Route
from service.store.rows import FleetFilter, FleetRow, place_of

POLL_SECONDS: Final = 1.0
HEARTBEAT_SECONDS: Final = 15.0
OVERLAP_SECONDS: Final = 5.0
"""Seconds that a row may be written after its prediction: each poll looks so far back."""
MOST_LISTENERS: Final = 100
"""Maximum open streams of a worker. A tenant's oldest stream ends for a tenant with at least two fewer."""
MOST_WAITING: Final = 16
"""Events that may wait for a slow listener; beyond them it is disconnected and must reconnect."""
PAGE_UNITS: Final = 1000
"""Units per query of the store."""

HEADERS: Final = ((b"x-accel-buffering", b"no"),)
Event = bytes | None
"""Chunks to send; None ends the stream."""


class Listener:
    """One open stream and its unsent events."""

    def __init__(self, caller: Grant) -> None:
        self.caller: Final = caller
        self.waiting: Final[asyncio.Queue[Event]] = asyncio.Queue(MOST_WAITING)


class Seen:
    """Times of predictions that a tenant's listeners have, and the time from which the next poll reads."""

    def __init__(self) -> None:
        self.since = time()
        self.told: dict[tuple[str, str], float] = {}


class EventsHttp:
    """Tells listeners which units have new predictions.

    Attributes:
        listeners: The open streams, oldest first.
    """

    def __init__(self, desk: Desk, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._desk: Final = desk
        self._poll_seconds: Final = poll_seconds
        self.listeners: Final[dict[Listener, None]] = {}
        self._seen: Final[dict[str, Seen]] = {}
        self._polling: asyncio.Task[None] | None = None

    def endpoints(self) -> list[Endpoint]:
        """List the endpoints."""
        doc = Operation(
            "streamEvents",
            "Units with new predictions, as server-sent events",
            {"text/event-stream": TEXT},
            (404, 429, 504),
            "An endless stream: `event: units`, whose data are a JSON list of `FleetUnit` as `GET /v1/units` "
            "has them, at most once a second; a comment after 15 s of silence. A client that is cut off "
            "reads the list and connects again.",
        )
        return [
            Endpoint(
                "GET", "/v1/events", Route.EVENTS, self._open, KeyScope.PREDICT, needs_model=True, doc=doc
            )
        ]

    async def _open(self, call: Call) -> Reply:
        caller = call.exchange.caller
        await self._changed(caller.tenant, time())  # if the store does not answer, the stream is refused
        if len(self.listeners) >= MOST_LISTENERS:
            self._make_room(caller.tenant)
        return Reply(media_type=b"text/event-stream", headers=HEADERS, stream=self._stream(Listener(caller)))

    def _make_room(self, tenant: str) -> None:
        streams = Counter(listener.caller.tenant for listener in self.listeners)
        largest, most = streams.most_common(1)[0]
        if most < streams[tenant] + 2:
            raise Overloaded(
                f"{MOST_LISTENERS} event streams are open, the most of a worker; try again later"
            )
        self._end(next(listener for listener in self.listeners if listener.caller.tenant == largest))

    async def _stream(self, listener: Listener) -> AsyncGenerator[bytes, None]:
        self.listeners[listener] = None
        self._seen.setdefault(listener.caller.tenant, Seen())
        if self._polling is None or self._polling.done():
            self._polling = asyncio.ensure_future(self._poll())
        try:
            yield b": open\n\n"
            while (event := await self._next(listener)) is not None:
                yield event
        finally:
            self.listeners.pop(listener, None)

    async def _next(self, listener: Listener) -> Event:
        try:
            return await asyncio.wait_for(listener.waiting.get(), HEARTBEAT_SECONDS)
        except TimeoutError:
            return b": heartbeat\n\n"

    async def _poll(self) -> None:
        """Poll the store while there are listeners."""
        while self.listeners:
            await asyncio.sleep(self._poll_seconds)
            for listener in [*self.listeners]:
                if not self._may_stay(listener.caller):
                    self._end(listener)
            for tenant in {listener.caller.tenant for listener in self.listeners}:
                try:
                    await self._tell(tenant)
                except ServiceError:
                    pass  # the next poll starts at the same time
                except Exception as error:  # without polls, open streams would be silent for ever
                    self._desk.log.exception("events not sent", reason=str(error))
        self._seen.clear()

    def _may_stay(self, caller: Grant) -> bool:
        answers = self._desk.lifecycle.phase is Phase.READY
        return answers and self._desk.credentials.holds(caller, KeyScope.PREDICT)

    async def _tell(self, tenant: str) -> None:
        seen, now = self._seen[tenant], time()
        rows = await self._changed(tenant, seen.since)
        seen.since = now - OVERLAP_SECONDS
        told, seen.told = seen.told, {(row["model"], row["unit"]): row["predicted_at"] for row in rows}
        news = [row for row in rows if told.get((row["model"], row["unit"])) != row["predicted_at"]]
        if news:
            event = await asyncio.to_thread(_event, news)  # 20,000 units take 0.2 s
            for listener in [*self.listeners]:
                if listener.caller.tenant == tenant and listener.waiting.full():
                    self._end(listener)
                elif listener.caller.tenant == tenant:
                    listener.waiting.put_nowait(event)

    async def _changed(self, tenant: str, since: float) -> list[FleetRow]:
        chosen = FleetFilter([*self._desk.predictor.models], tenant, changed_since=since)
        ask = self._desk.store.ask
        page = await ask(lambda store: store.fleet(chosen, limit=PAGE_UNITS))
        rows = [*page]
        while len(page) == PAGE_UNITS:
            after = place_of(page[-1])
            page = await ask(lambda store, after=after: store.fleet(chosen, limit=PAGE_UNITS, after=after))
            rows += page
        return rows

    def _end(self, listener: Listener) -> None:
        """End a stream and drop its unsent events, which a listener that reads nothing would hold."""
        self.listeners.pop(listener, None)
        while not listener.waiting.empty():
            listener.waiting.get_nowait()
        listener.waiting.put_nowait(None)


def _event(rows: list[FleetRow]) -> bytes:
    return b"event: units\ndata: " + msgspec.json.encode([*map(bodies.fleet_unit, rows)]) + b"\n\n"
