"""Routes of `/v1/units`: the fleet by urgency, one unit's history, outcomes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from time import time
from typing import Final

import msgspec

from service.core.window import LARGEST_CYCLE
from service.edge.exchange import Desk
from service.edge.keys import KeyScope
from service.errors import InvalidRequest, Problem
from service.http import units_bodies as bodies
from service.http import units_cycles
from service.http.problem import UNREADABLE, unreadable
from service.http.shell import JSON, Call, Endpoint, Reply, json_reply
from service.http.units_bodies import MOST, STATES, FleetBody, OutcomeReply, OutcomeReport
from service.labels import Route
from service.store.async_store import AsyncStore
from service.store.judgement import Outcome
from service.store.rows import FleetRow, Place

USUAL_LIMIT: Final = 100


class UnitsHttp:
    """Reads queries and outcomes, asks the store, makes replies."""

    def __init__(self, desk: Desk, store: AsyncStore) -> None:
        self._desk: Final = desk
        self._store: Final = store
        self._report: Final = msgspec.json.Decoder(OutcomeReport)

    def endpoints(self) -> list[Endpoint]:
        """List the endpoints; a unit's name may hold slashes."""
        return [
            Endpoint("GET", "/v1/units", Route.UNITS, self.fleet, KeyScope.PREDICT),
            Endpoint(
                "POST",
                "/v1/units/{unit:path}/outcomes",
                Route.OUTCOMES,
                self.outcome,
                KeyScope.OUTCOMES,
                needs_model=True,
                media_type=JSON,
            ),
            Endpoint(
                "POST",
                "/v1/units/{unit:path}/cycles",
                Route.CYCLES,
                units_cycles.append,
                KeyScope.INGEST,
                needs_model=True,
                media_type=units_cycles.MEDIA_TYPES,
            ),
            Endpoint("GET", "/v1/units/{unit:path}", Route.UNIT, self.unit, KeyScope.PREDICT),
        ]

    async def fleet(self, call: Call) -> Reply:
        """Answer `GET /v1/units`."""
        query = read_query(call, {"model", "limit", "state", "after"})
        models = [self._model(query["model"])] if "model" in query else list(self._desk.predictor.models)
        limit, state = _limit(query), query.get("state")
        if state is not None and state not in STATES:
            raise wrong("/state", f"expected one of {', '.join(STATES)}, got {state[:32]!r}")
        after = _place(query["after"]) if "after" in query else None
        tenant = call.exchange.caller.tenant
        rows = await self._store.fleet(models, tenant=tenant, state=state, limit=limit + 1, after=after)
        following = _token(rows[limit - 1]) if len(rows) > limit else None
        return json_reply(FleetBody([bodies.fleet_unit(row) for row in rows[:limit]], following))

    async def unit(self, call: Call) -> Reply:
        """Answer `GET /v1/units/{unit}`."""
        query = read_query(call, {"model", "limit", "before"})
        model, unit = self._model(query.get("model")), call.path["unit"]
        limit, before = _limit(query), _whole(query, "before", most=LARGEST_CYCLE + 1)
        tenant = call.exchange.caller.tenant
        known = await self._store.history(model, unit, tenant=tenant, limit=limit, before=before)
        return json_reply(bodies.unit_body(model, unit, known, limit=limit))

    async def outcome(self, call: Call) -> Reply:
        """Answer `POST /v1/units/{unit}/outcomes`."""
        unit, tenant = call.path["unit"], call.exchange.caller.tenant
        given = self._read(call.body)
        model = self._model(given.model)
        happened = None if given.time is None else given.time.timestamp()
        outcome = Outcome(model, unit, given.kind, given.cycle, happened, time(), tenant)
        receipt = await self._store.take_outcome(outcome, replace=given.replace)
        known = await self._store.history(model, unit, tenant=tenant, limit=USUAL_LIMIT, before=None)
        body = bodies.unit_body(model, unit, known, limit=USUAL_LIMIT)
        return json_reply(OutcomeReply(result=receipt.result, **msgspec.structs.asdict(body)))

    def _model(self, name: str | None) -> str:
        return self._desk.predictor.model(name).name.name

    def _read(self, body: bytes) -> OutcomeReport:
        try:
            given = self._report.decode(body)
        except UNREADABLE as error:
            raise unreadable(error) from error
        if not 1 <= given.cycle <= LARGEST_CYCLE:
            raise wrong("/cycle", f"expected 1 to {LARGEST_CYCLE}, got {given.cycle}", "bad_cycle")
        return given


def read_query(call: Call, known: set[str]) -> Mapping[str, str]:
    """Read the parameters of a path.

    Raises:
        InvalidRequest: there are others.
    """
    unknown = sorted(set(call.query) - known)
    if unknown:
        names = ", ".join(sorted(known))
        raise wrong(f"/{unknown[0][:32]}", f"expected {names}, got {unknown[0][:32]!r}", "unknown_parameter")
    return dict(call.query)


def _limit(query: Mapping[str, str]) -> int:
    return _whole(query, "limit", most=MOST) or USUAL_LIMIT


def _whole(query: Mapping[str, str], name: str, *, most: int) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    # Nine digits hold every limit; int() of a million digits would take seconds.
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0
    if not 1 <= number <= most:
        raise wrong(f"/{name}", f"expected a whole number from 1 to {most}, got {text[:32]!r}")
    return number


def _token(row: FleetRow) -> str:
    place = msgspec.json.encode((row["rul"], row["model"], row["unit"]))
    return base64.urlsafe_b64encode(place).decode("ascii").rstrip("=")


def _place(token: str) -> Place:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=Place)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        raise wrong("/after", f"expected the `next` of the previous page, got {token[:32]!r}") from None


def wrong(pointer: str, detail: str, code: str = "bad_parameter") -> InvalidRequest:
    """Make the refusal of a parameter or field."""
    return InvalidRequest(f"{pointer}: {detail}", [Problem(pointer, code, detail)])
