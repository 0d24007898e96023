"""Routes of `/v1/units` in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from service.core.window import LARGEST_CYCLE
from service.http.units_bodies import MOST, STATES

NO_STORE: Final = (
    "404 `no_store` if the service stores no predictions (RUL_STORE=false), 503 `store_unavailable` while "
    "the database does not answer; predictions themselves continue."
)


def paths(ref: Callable[[str], dict[str, str]], responses: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Describe the paths for OpenAPI, with the document's own references and error responses."""
    name = {"type": "string"}
    unit = parameter("unit", "Name of the unit.", name, where="path")
    most = {"type": "integer", "minimum": 1, "maximum": MOST}
    limit = parameter("limit", "Most entries on a page; 100 by default.", most)
    model = parameter("model", "A loaded model.", name)
    state = parameter("state", "Only units in this state.", {"enum": list(STATES)})
    after = parameter("after", "The `next` of the previous page.", name)
    number = {"type": "integer", "minimum": 1, "maximum": LARGEST_CYCLE}
    before = parameter("before", "Only predictions and readings of earlier cycles.", number)
    cycle = parameter("cycle", "The last cycle of the window; by default the unit's.", number)
    part = parameter("q", "Only units whose name contains this text.", name)
    since = {"type": "string", "format": "date-time"}
    changed = parameter("changed_since", "Only units with a prediction after this time.", since)
    refused, written = (401, 403, 404, 422, 429, 500, 503, 504), (400, 409, 413, 415)

    def body(schema: str, **others: object) -> dict[str, Any]:
        return {"required": True, "content": {"application/json": {"schema": ref(schema)}, **others}}

    def operation(
        summary: str, description: str, parameters: list[Any], answer: str, *codes: int, **more: object
    ) -> dict[str, Any]:
        answers = responses(ref(answer), *codes, *refused)
        said = {"summary": summary, "description": f"{description} {NO_STORE}"}
        return {**said, "parameters": parameters, **more, "responses": answers}

    fleet = operation(
        "The fleet by urgency: the latest prediction of each unit, smallest lower bound first",
        "Ended units appear only if `state` is failed or removed. The first page has a summary of all.",
        [model, state, part, changed, limit, after],
        "FleetBody",
    )
    history = operation(
        "One unit: its predictions, its readings, its outcome, and the accuracy",
        "Pages begin with the newest cycles; `scores` is of the last 1,000 of each version before the "
        "outcome. `model` may be omitted if one is loaded.",
        [unit, model, limit, before],
        "UnitBody",
    )
    outcome = operation(
        "Report an outcome: the unit failed, or was removed while it ran",
        "The same outcome again changes nothing; another one is a conflict, unless `replace` is true.",
        [unit],
        "OutcomeReply",
        *written,
        requestBody=body("OutcomeReport"),
    )
    cycles = operation(
        "Store readings of a unit, and predict for it",
        "Readings are stored before the answer, all or none. The same reading again changes nothing, another "
        "one of a stored cycle is a conflict. Order does not matter. CSV has a header with `cycle` and "
        "columns; its address may have `model`, `explain` and `store`.",
        [unit],
        "CyclesReply",
        *written,
        requestBody=body("CyclesQuery", **{"text/csv": {"schema": name}}),
    )
    explanation = operation(
        "Explain the prediction of a unit from its stored readings",
        "As `explain` full does; nothing is stored.",
        [unit, model, cycle],
        "UnitReply",
    )
    rename = operation(
        "Rename a unit with its predictions, readings and outcome",
        "A name that another unit has is a conflict.",
        [unit],
        "UnitBody",
        *written,
        requestBody=body("RenameBody"),
    )
    deletion = operation(
        "Delete a unit with its predictions, readings and outcome",
        "Metrics keep what they have counted.",
        [unit, model],
        "DeletedBody",
    )
    at = "/v1/units/{unit}"
    return {
        "/v1/units": {"get": fleet},
        at: {"get": history, "delete": deletion},
        f"{at}/cycles": {"post": cycles},
        f"{at}/explanation": {"get": explanation},
        f"{at}/outcomes": {"post": outcome},
        f"{at}/rename": {"post": rename},
    }


def parameter(name: str, description: str, schema: dict[str, Any], *, where: str = "query") -> dict[str, Any]:
    """Describe a parameter."""
    required = where == "path"
    return {"name": name, "in": where, "required": required, "description": description, "schema": schema}
