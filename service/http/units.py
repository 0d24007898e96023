"""Routes of `/v1/units`: the fleet by urgency, one unit, its readings and outcome."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from time import time
from typing import Final, TypeVar

import msgspec

from service.core.predictor import LoadedModel
from service.core.window import LARGEST_CYCLE
from service.edge.exchange import Desk
from service.edge.keys import KeyScope
from service.errors import LONGEST_NAME
from service.http import units_bodies as bodies
from service.http import units_cycles
from service.http.problem import UNREADABLE, unreadable, wrong
from service.http.shell import JSON, Call, Endpoint, Handler, Reply, json_reply
from service.http.units_bodies import MOST, STATES, FleetBody, OutcomeReply, OutcomeReport
from service.labels import Route
from service.store.async_store import AsyncStore
from service.store.judgement import Outcome
from service.store.rows import FleetFilter, FleetRow, Place, UnitKey
from service.units import check_name

USUAL_LIMIT: Final = 100
Body = TypeVar("Body")


class UnitsHttp:
    """Reads queries, readings and outcomes, asks the store, makes replies."""

    def __init__(self, desk: Desk, store: AsyncStore) -> None:
        self._desk: Final = desk
        self._store: Final = store
        self._report: Final = msgspec.json.Decoder(OutcomeReport)
        self._rename: Final = msgspec.json.Decoder(bodies.RenameBody)

    def endpoints(self) -> list[Endpoint]:
        """List the endpoints; a unit's name may hold slashes."""
        unit = "/v1/units/{unit:path}"

        def post(path: str, route: Route, handler: Handler, scope: KeyScope) -> Endpoint:
            read = units_cycles.MEDIA_TYPES if route is Route.CYCLES else JSON
            return Endpoint("POST", path, route, handler, scope, needs_model=True, media_type=read)

        return [
            Endpoint("GET", "/v1/units", Route.UNITS, self.fleet, KeyScope.PREDICT),
            post(f"{unit}/cycles", Route.CYCLES, units_cycles.append, KeyScope.INGEST),
            post(f"{unit}/outcomes", Route.OUTCOMES, self.outcome, KeyScope.OUTCOMES),
            post(f"{unit}/rename", Route.RENAME, self.rename, KeyScope.OUTCOMES),
            Endpoint(
                "GET", f"{unit}/explanation", Route.EXPLANATION, self.explanation, KeyScope.PREDICT,
                needs_model=True,
            ),
            Endpoint("GET", unit, Route.UNIT, self.unit, KeyScope.PREDICT),
            Endpoint("DELETE", unit, Route.UNIT, self.delete, KeyScope.OUTCOMES),
        ]  # fmt: skip

    async def fleet(self, call: Call) -> Reply:
        """Answer `GET /v1/units`."""
        query = read_query(call, {"model", "limit", "state", "after", "q", "changed_since"})
        models = (
            [self._model(query["model"]).name.name] if "model" in query else [*self._desk.predictor.models]
        )
        limit, state = _limit(query), query.get("state")
        if state is not None and state not in STATES:
            raise wrong("/state", f"expected one of {', '.join(STATES)}, got {state[:32]!r}")
        chosen = FleetFilter(models, call.exchange.caller.tenant, state, _text(query, "q"), _since(query))
        after = _place(query["after"]) if "after" in query else None
        rows = await self._store.fleet(chosen, limit=limit + 1, after=after)
        following = _token(rows[limit - 1]) if len(rows) > limit else None
        body = FleetBody([bodies.fleet_unit(row) for row in rows[:limit]], following)
        if after is None:
            body.summary = bodies.SummaryBody(*await self._store.summary(chosen))
        return json_reply(body)

    async def unit(self, call: Call) -> Reply:
        """Answer `GET /v1/units/{unit}`."""
        query = read_query(call, {"model", "limit", "before"})
        limit, before = _limit(query), _whole(query, "before", most=LARGEST_CYCLE + 1)
        body = await self._unit(call, self._model(query.get("model")), limit=limit, before=before)
        return json_reply(body)

    async def explanation(self, call: Call) -> Reply:
        """Answer `GET /v1/units/{unit}/explanation`."""
        query = read_query(call, {"model", "cycle"})
        until = _whole(query, "cycle", most=LARGEST_CYCLE) or LARGEST_CYCLE
        model, tenant = self._model(query.get("model")), call.exchange.caller.tenant
        call.exchange.windows = 1
        reply = await self._desk.units.explanation(model, call.path["unit"], until=until, tenant=tenant)
        return json_reply(reply)

    async def delete(self, call: Call) -> Reply:
        """Answer `DELETE /v1/units/{unit}`."""
        key = self._key(call, self._model(read_query(call, {"model"}).get("model")))
        rows = bodies.DeletedRows(*await self._store.delete(key))
        return json_reply(bodies.DeletedBody(key.unit, key.model, rows))

    async def rename(self, call: Call) -> Reply:
        """Answer `POST /v1/units/{unit}/rename`."""
        given = _decoded(self._rename, call.body)
        check_name(given.to, "/to")
        model = self._model(given.model)
        await self._store.rename(self._key(call, model), given.to)
        return json_reply(await self._unit(call, model, unit=given.to))

    async def outcome(self, call: Call) -> Reply:
        """Answer `POST /v1/units/{unit}/outcomes`."""
        given = _decoded(self._report, call.body)
        if not 1 <= given.cycle <= LARGEST_CYCLE:
            raise wrong("/cycle", f"expected 1 to {LARGEST_CYCLE}, got {given.cycle}", "bad_cycle")
        model = self._model(given.model)
        tenant, name, unit = self._key(call, model)
        happened = None if given.time is None else given.time.timestamp()
        outcome = Outcome(name, unit, given.kind, given.cycle, happened, time(), tenant)
        receipt = await self._store.take_outcome(outcome, replace=given.replace)
        body = await self._unit(call, model)
        return json_reply(OutcomeReply(result=receipt.result, **msgspec.structs.asdict(body)))

    async def _unit(
        self,
        call: Call,
        model: LoadedModel,
        *,
        unit: str | None = None,
        limit: int = USUAL_LIMIT,
        before: int | None = None,
    ) -> bodies.UnitBody:
        """Read a page of the unit of the address, or of another one."""
        tenant, name, asked = self._key(call, model)
        unit, columns = unit or asked, model.rules.names
        known = await self._store.history(
            name, unit, tenant=tenant, columns=columns, limit=limit, before=before
        )
        return bodies.unit_body(name, unit, known, columns=columns, limit=limit)

    def _key(self, call: Call, model: LoadedModel) -> UnitKey:
        return UnitKey(call.exchange.caller.tenant, model.name.name, call.path["unit"])

    def _model(self, name: str | None) -> LoadedModel:
        return self._desk.predictor.model(name)


def _decoded(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise unreadable(error) from error


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


def _text(query: Mapping[str, str], name: str) -> str | None:
    text = query.get(name)
    if text is not None and (len(text) > LONGEST_NAME or "\0" in text):
        raise wrong(f"/{name}", f"expected at most {LONGEST_NAME} characters without NUL, got {len(text)}")
    return text


def _since(query: Mapping[str, str]) -> float | None:
    text = query.get("changed_since")
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise wrong("/changed_since", f"expected a time such as 2026-03-01T12:00:00Z, got {text[:40]!r}")
    return moment.timestamp()


def _token(row: FleetRow) -> str:
    place = msgspec.json.encode((row["lower"], row["model"], row["unit"]))
    return base64.urlsafe_b64encode(place).decode("ascii").rstrip("=")


def _place(token: str) -> Place:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=Place)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        raise wrong("/after", f"expected the `next` of the previous page, got {token[:32]!r}") from None
