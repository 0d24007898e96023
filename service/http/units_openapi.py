"""The part of the OpenAPI document that is about units and their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from service.http.units_bodies import STATES

_NAME: Final[dict[str, Any]] = {"type": "string"}
_AWAY: Final = (500, 503, 504)
_NO_STORE: Final = (
    "404 `no_store` where the service keeps no predictions (RUL_STORE=false), 503 `store_unavailable` while "
    "its database is away: predictions themselves go on."
)


def paths(ref: Callable[[str], dict[str, str]], responses: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """The paths, with the document's own way to refer to a type and to describe refusals."""
    unit = _parameter("unit", "The unit's name, as it was asked about.", _NAME, where="path")
    limit = _parameter("limit", "Most entries a page; 100 where it is left out.", _whole(1, 1000))
    model = _parameter("model", "A loaded model.", _NAME)
    return {
        "/v1/units": {
            "get": {
                "summary": "The fleet by urgency: each unit's latest prediction, the smallest RUL first",
                "description": "Units whose life has ended are left out, unless `state` asks for them. "
                + _NO_STORE,
                "parameters": [
                    model,
                    _parameter("state", "Only units in this state.", {"enum": list(STATES)}),
                    limit,
                    _parameter("after", "The `next` of the page before.", _NAME),
                ],
                "responses": responses("FleetBody", 401, 403, 404, 422, 429, *_AWAY),
            }
        },
        "/v1/units/{unit}": {
            "get": {
                "summary": "One unit: its predictions, its outcome, and how the predictions fared",
                "description": "Predictions come newest first, a page at a time; `scores` is of the last "
                "1,000 of each version before the unit's end. `model` may be left out where one is loaded. "
                + _NO_STORE,
                "parameters": [
                    unit,
                    model,
                    limit,
                    _parameter("before", "Only predictions of earlier cycles.", _whole(1, 2**24)),
                ],
                "responses": responses("UnitBody", 401, 403, 404, 422, 429, *_AWAY),
            }
        },
        "/v1/units/{unit}/outcomes": {
            "post": {
                "summary": "What really happened: the unit failed, or was removed while it ran",
                "description": "The same outcome again changes nothing; another one is a conflict, unless "
                f"`replace` is true. {_NO_STORE}",
                "parameters": [unit],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": ref("OutcomeReport")}},
                },
                "responses": responses("OutcomeReply", 400, 401, 403, 404, 409, 413, 415, 422, 429, *_AWAY),
            }
        },
    }


def _parameter(
    name: str, description: str, schema: dict[str, Any], *, where: str = "query"
) -> dict[str, Any]:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "description": description,
        "schema": schema,
    }


def _whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}
