"""`GET /v1/units/{unit}/decision`: when to stop a unit, from its latest stored prediction."""

from __future__ import annotations

from typing import Final

import msgspec

from model.decision import CostCurve, Forecast
from model.domain import RulState
from service.edge.keys import KeyScope
from service.http.problem import wrong
from service.http.shell import Call, Endpoint, Reply, json_reply
from service.http.units import MODEL, key_of, of_store, read_query
from service.http.units_bodies import Curve, UnitDecision
from service.http.units_cycles import COST_PARAMETERS, costs_of_address
from service.labels import Route
from service.store.rows import FleetRow

PATH: Final = "/v1/units/{unit:path}/decision"
MOST_SHOWN: Final = 500
"""Maximum points of a curve in an answer."""


def endpoints() -> list[Endpoint]:
    """List the endpoints."""
    doc = of_store(
        "getDecision",
        "When to stop a unit: the planned stop with the lowest expected cost per cycle",
        "Costs may be left out if RUL_COSTS names those of the model.",
        UnitDecision,
        MODEL,
        *COST_PARAMETERS,
    )
    return [Endpoint("GET", PATH, Route.DECISION, _decision, KeyScope.PREDICT, doc=doc)]


async def _decision(call: Call) -> Reply:
    query = read_query(call)
    model = call.desk.predictor.model(query.get("model"))
    costs = costs_of_address(query) or model.planner.costs
    if costs is None:
        raise wrong("/planned", "expected the costs planned and failure, got none", "missing")
    key = key_of(call, model)
    known = await call.desk.store.history(key, limit=1, before=None, predicted=True)
    latest = known.predictions[0]
    planned = None
    if known.outcome is None:
        version = known.versions[latest["version_id"]]
        planned = model.planner.plan(
            _forecast(latest),
            costs,
            state=RulState(latest["rul_state"]),
            age=latest["last_cycle"],
            coverage=version["nominal_coverage"],
            cap=version["cap"],
        )
    decision, curve = (None, None) if planned is None else (planned[0], _shown(planned[1]))
    return json_reply(UnitDecision(key.unit, key.model, latest["last_cycle"], decision, curve))


def _forecast(row: FleetRow) -> Forecast:
    """Read a stored prediction; those of earlier versions have no failure probabilities."""
    stored = row.get("failure_probability")
    probabilities = {} if stored is None else msgspec.json.decode(stored, type=dict[int, float])
    return Forecast(row["rul"], row["lower"], row["upper"], probabilities)


def _shown(curve: CostCurve) -> Curve:
    every = -(-len(curve.in_cycles) // MOST_SHOWN)
    return Curve(curve.in_cycles[::every].astype(int).tolist(), curve.cost_per_cycle[::every].tolist())
