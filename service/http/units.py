"""Routes of `/v1/units`: the fleet by urgency, one unit, its readings and outcome."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from time import time
from typing import Final

import msgspec

from model.domain import LARGEST_CYCLE
from service.core.predictor import LoadedModel
from service.edge.keys import KeyScope
from service.errors import LONGEST_NAME
from service.http import units_bodies as bodies
from service.http import units_cycles
from service.http.problem import read_json, wrong
from service.http.shell import (
    JSON,
    TEXT,
    Call,
    Content,
    Endpoint,
    Handler,
    Operation,
    Parameter,
    Reply,
    json_reply,
)
from service.http.units_bodies import MOST, STATES, FleetBody, OutcomeReply, OutcomeReport
from service.labels import Route
from service.store.judgement import Outcome
from service.store.rows import FleetFilter, FleetRow, Place, UnitKey, place_of
from service.streams.window import cycle_problem
from service.units import CyclesReply, UnitReply, check_name

USUAL_LIMIT: Final = 100
UNIT: Final = "/v1/units/{unit:path}"
"""A unit's name may hold slashes."""
_MOST: Final = {"type": "integer", "minimum": 1, "maximum": MOST}
_TIME: Final = {"type": "string", "format": "date-time"}
MODEL: Final = Parameter("model", "A loaded model.")
LIMIT: Final = Parameter("limit", f"Maximum entries on a page; {USUAL_LIMIT} by default.", _MOST)
NO_STORE: Final = (
    "404 `no_store` if the service stores no predictions (RUL_STORE=false), 503 `store_unavailable` while "
    "the database does not answer; predictions themselves continue."
)


def endpoints() -> list[Endpoint]:
    """List the endpoints."""
    return [*_read(), *_written()]


def _read() -> list[Endpoint]:
    fleet = of_store(
        "listUnits",
        "The fleet by urgency: the latest prediction of each unit, smallest lower bound first",
        "Failed and removed units appear only if `state` selects them. The first page has a summary of all.",
        FleetBody,
        MODEL,
        Parameter("state", "Only units in this state.", {"enum": list(STATES)}),
        Parameter("q", "Only units whose name contains this text, ignoring case."),
        Parameter("changed_since", "Only units with a prediction after this time.", _TIME),
        LIMIT,
        Parameter("after", "The `next` of the previous page."),
    )
    explanation = of_store(
        "explainUnit",
        "Explain the prediction of a unit from its stored readings",
        "As `/v1/explain` does; nothing is stored.",
        UnitReply,
        MODEL,
        Parameter(
            "cycle",
            "The last cycle of the window, which must have a reading; by default the unit's last.",
            bodies.CYCLE,
        ),
    )
    unit = of_store(
        "getUnit",
        "One unit: its predictions, its readings, its outcome, and the accuracy",
        "Pages begin with the newest cycles; `scores` covers the last 1,000 predictions of each version "
        "before the outcome. `model` may be omitted if one is loaded.",
        bodies.UnitBody,
        MODEL,
        LIMIT,
        Parameter("before", "Only predictions and readings of earlier cycles.", bodies.CYCLE),
    )
    scope, at = KeyScope.PREDICT, f"{UNIT}/explanation"
    return [
        Endpoint("GET", "/v1/units", Route.UNITS, _fleet, scope, doc=fleet),
        Endpoint("GET", at, Route.EXPLANATION, _explanation, scope, needs_model=True, doc=explanation),
        Endpoint("GET", UNIT, Route.UNIT, _unit, scope, doc=unit),
    ]


def _written() -> list[Endpoint]:
    cycles = of_store(
        "appendCycles",
        "Store readings of a unit and predict its RUL",
        "Readings are stored before the answer, all or none. A repeated reading changes nothing; a "
        "different reading of a stored cycle is a conflict. Order does not matter. CSV has a header with "
        "`cycle` and columns, and its options are query parameters.",
        CyclesReply,
        *units_cycles.PARAMETERS,
        body={"application/json": units_cycles.CyclesQuery, "text/csv": TEXT},
    )
    outcome = of_store(
        "reportOutcome",
        "Report an outcome: the unit failed, or was removed while it ran",
        "A repeated outcome changes nothing; a different one is a conflict, unless `replace` is true.",
        OutcomeReply,
        body=OutcomeReport,
    )
    rename = of_store(
        "renameUnit",
        "Rename a unit with its predictions, readings and outcome",
        "If another unit has the name, it is a conflict.",
        bodies.UnitBody,
        body=bodies.RenameBody,
    )
    delete = of_store(
        "deleteUnit",
        "Delete a unit with its predictions, readings and outcome",
        "Metrics do not change.",
        bodies.DeletedBody,
        MODEL,
    )
    ingest, outcomes = KeyScope.INGEST, KeyScope.OUTCOMES

    def post(action: str, route: Route, handler: Handler, scope: KeyScope, doc: Operation) -> Endpoint:
        read = units_cycles.MEDIA_TYPES if route is Route.CYCLES else JSON
        path = f"{UNIT}/{action}"
        return Endpoint("POST", path, route, handler, scope, needs_model=True, media_type=read, doc=doc)

    return [
        post("cycles", Route.CYCLES, units_cycles.append, ingest, cycles),
        post("outcomes", Route.OUTCOMES, _outcome, outcomes, outcome),
        post("rename", Route.RENAME, _rename, outcomes, rename),
        Endpoint("DELETE", UNIT, Route.UNIT, _delete, outcomes, doc=delete),
    ]


async def _fleet(call: Call) -> Reply:
    query = read_query(call)
    models = (
        [call.desk.predictor.model(query["model"]).name.name]
        if "model" in query
        else [*call.desk.predictor.models]
    )
    limit, state = _limit(query), query.get("state")
    if state is not None and state not in STATES:
        raise wrong("/state", f"expected one of {', '.join(STATES)}, got {state[:32]!r}")
    chosen = FleetFilter(models, call.exchange.caller.tenant, state, _text(query, "q"), _since(query))
    after = _place(query["after"]) if "after" in query else None
    rows = await call.desk.store.ask(lambda store: store.fleet(chosen, limit=limit + 1, after=after))
    following = _token(rows[limit - 1]) if len(rows) > limit else None
    body = FleetBody([bodies.fleet_unit(row) for row in rows[:limit]], following)
    if after is None:
        body.summary = bodies.SummaryBody(*await call.desk.store.ask(lambda store: store.summary(chosen)))
    return json_reply(body)


async def _unit(call: Call) -> Reply:
    query = read_query(call)
    limit, before = _limit(query), whole(query, "before", most=LARGEST_CYCLE + 1, least=0)
    model = call.desk.predictor.model(query.get("model"))
    return json_reply(await _unit_body(call, model, key_of(call, model), limit=limit, before=before))


async def _explanation(call: Call) -> Reply:
    query = read_query(call)
    until = whole(query, "cycle", most=LARGEST_CYCLE, least=0)
    model, tenant = call.desk.predictor.model(query.get("model")), call.exchange.caller.tenant
    call.exchange.windows = 1
    reply = await call.desk.units.explanation(model, call.path["unit"], until=until, tenant=tenant)
    return json_reply(reply)


async def _delete(call: Call) -> Reply:
    key = key_of(call, call.desk.predictor.model(read_query(call).get("model")))
    rows = await call.desk.store.delete(key)
    return json_reply(bodies.DeletedBody(key.unit, key.model, rows))


async def _rename(call: Call) -> Reply:
    given = read_json(call.body, bodies.RenameBody)
    check_name(given.to, "/to")
    model = call.desk.predictor.model(given.model)
    key = key_of(call, model)
    await call.desk.store.rename(key, given.to)
    return json_reply(await _unit_body(call, model, key._replace(unit=given.to)))


async def _outcome(call: Call) -> Reply:
    given = read_json(call.body, OutcomeReport)
    if problem := cycle_problem(given.cycle, "/cycle"):
        raise wrong(problem.pointer, problem.detail, problem.code)
    model = call.desk.predictor.model(given.model)
    key = key_of(call, model)
    happened = None if given.time is None else _seconds_of(given.time)
    outcome = Outcome(key.model, key.unit, given.kind, int(given.cycle), happened, time(), key.tenant)
    receipt = await call.desk.store.take_outcome(outcome, replace=given.replace)
    body = await _unit_body(call, model, key)
    return json_reply(OutcomeReply(result=receipt.result, **msgspec.structs.asdict(body)))


async def _unit_body(
    call: Call, model: LoadedModel, key: UnitKey, *, limit: int = USUAL_LIMIT, before: int | None = None
) -> bodies.UnitBody:
    columns = model.rules.names
    known = await call.desk.store.history(key, columns=columns, limit=limit, before=before)
    return bodies.unit_body(key.model, key.unit, known, columns=columns, limit=limit)


def key_of(call: Call, model: LoadedModel) -> UnitKey:
    """Return the unit named in the path."""
    return UnitKey(call.exchange.caller.tenant, model.name.name, call.path["unit"])


def of_store(
    name: str,
    summary: str,
    description: str,
    answer: type,
    *parameters: Parameter,
    body: Content | None = None,
) -> Operation:
    """Describe an endpoint that needs the store."""
    errors = (404, 422, 429, 500, 503, 504, *((409,) if body else ()))
    return Operation(name, summary, answer, errors, f"{description} {NO_STORE}", parameters, body)


def read_query(call: Call) -> Mapping[str, str]:
    """Read the query parameters.

    Raises:
        InvalidRequest: the endpoint has not declared one of them.
    """
    doc = call.endpoint.doc
    known = {parameter.name for parameter in (doc.parameters if doc else ())}
    unknown = sorted(set(call.query) - known)
    if unknown:
        names = ", ".join(sorted(known))
        raise wrong(f"/{unknown[0][:32]}", f"expected {names}, got {unknown[0][:32]!r}", "unknown_parameter")
    return dict(call.query)


def _limit(query: Mapping[str, str]) -> int:
    return whole(query, "limit", most=MOST) or USUAL_LIMIT


def whole(query: Mapping[str, str], name: str, *, most: int, least: int = 1) -> int | None:
    """Read a whole number in plain digits from the query parameters; return None if not given.

    Raises:
        InvalidRequest: it is not a whole number, or out of the range.
    """
    text = query.get(name)
    if text is None:
        return None
    # Nine digits hold every limit; int() of a million digits would take seconds.
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else -1
    if not least <= number <= most:
        raise wrong(f"/{name}", f"expected a whole number from {least} to {most}, got {text[:32]!r}")
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


def _seconds_of(moment: datetime) -> float:
    """Return seconds since the epoch; refuse a time that cannot be shown."""
    seconds = moment.timestamp()
    if bodies.moment_of(seconds) is None:
        raise wrong("/time", f"expected a year of 1 to 9999 in UTC, got {moment.isoformat()}")
    return seconds


def _token(row: FleetRow) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place_of(row))).decode("ascii").rstrip("=")


def _place(token: str) -> Place:
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=Place)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        place = None
    has_nul = any(isinstance(each, str) and "\0" in each for each in place or ())
    if place is None or has_nul:  # PostgreSQL refuses NUL
        raise wrong("/after", f"expected the `next` of the previous page, got {token[:32]!r}")
    return place
