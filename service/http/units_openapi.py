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


def parameter(name: str, description: str, schema: dict[str, Any], *, where: str = "query") -> dict[str, Any]:
    """Describe a parameter."""
    required = where == "path"
    return {"name": name, "in": where, "required": required, "description": description, "schema": schema}


AT: Final = "/v1/units/{unit}"
TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "minimum": 1, "maximum": LARGEST_CYCLE}
_MOST: Final = {"type": "integer", "minimum": 1, "maximum": MOST}
_TIME: Final = {"type": "string", "format": "date-time"}
UNIT: Final = parameter("unit", "Name of the unit.", TEXT, where="path")
MODEL: Final = parameter("model", "A loaded model.", TEXT)
STATE: Final = parameter("state", "Only units in this state.", {"enum": list(STATES)})
PART: Final = parameter("q", "Only units whose name contains this text.", TEXT)
CHANGED: Final = parameter("changed_since", "Only units with a prediction after this time.", _TIME)
LIMIT: Final = parameter("limit", "Most entries on a page; 100 by default.", _MOST)
AFTER: Final = parameter("after", "The `next` of the previous page.", TEXT)
BEFORE: Final = parameter("before", "Only predictions and readings of earlier cycles.", _NUMBER)
CYCLE: Final = parameter("cycle", "The last cycle of the window; by default the unit's.", _NUMBER)

Operation = Callable[..., dict[str, Any]]
"""Describes an operation: summary, description, parameters, name of its answer, further errors."""


def paths(ref: Callable[[str], dict[str, str]], responses: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Describe the paths for OpenAPI, with the document's own references and error responses."""
    refused = (401, 403, 404, 422, 429, 500, 503, 504)

    def operation(
        summary: str, description: str, parameters: list[Any], answer: str, *codes: int, **more: object
    ) -> dict[str, Any]:
        answers = responses(ref(answer), *codes, *refused)
        said = {"summary": summary, "description": f"{description} {NO_STORE}"}
        return {**said, "parameters": parameters, **more, "responses": answers}

    def posted(summary: str, description: str, body: str, answer: str, **media: object) -> dict[str, Any]:
        content = {"application/json": {"schema": ref(body)}, **media}
        given = {"required": True, "content": content}
        codes = (400, 409, 413, 415)
        return {"post": operation(summary, description, [UNIT], answer, *codes, requestBody=given)}

    return _read(operation) | _written(posted)


def _read(operation: Operation) -> dict[str, Any]:
    fleet = operation(
        "The fleet by urgency: the latest prediction of each unit, smallest lower bound first",
        "Ended units appear only if `state` is failed or removed. The first page has a summary of all.",
        [MODEL, STATE, PART, CHANGED, LIMIT, AFTER],
        "FleetBody",
    )
    history = operation(
        "One unit: its predictions, its readings, its outcome, and the accuracy",
        "Pages begin with the newest cycles; `scores` is of the last 1,000 of each version before the "
        "outcome. `model` may be omitted if one is loaded.",
        [UNIT, MODEL, LIMIT, BEFORE],
        "UnitBody",
    )
    deletion = operation(
        "Delete a unit with its predictions, readings and outcome",
        "Metrics keep what they have counted.",
        [UNIT, MODEL],
        "DeletedBody",
    )
    explanation = operation(
        "Explain the prediction of a unit from its stored readings",
        "As `explain` full does; nothing is stored.",
        [UNIT, MODEL, CYCLE],
        "UnitReply",
    )
    return {
        "/v1/units": {"get": fleet},
        AT: {"get": history, "delete": deletion},
        f"{AT}/explanation": {"get": explanation},
    }


def _written(posted: Operation) -> dict[str, Any]:
    return {
        f"{AT}/cycles": posted(
            "Store readings of a unit, and predict for it",
            "Readings are stored before the answer, all or none. The same reading again changes nothing, "
            "another one of a stored cycle is a conflict. Order does not matter. CSV has a header with "
            "`cycle` and columns; its address may have `model`, `explain`, `store`, and the costs `planned` "
            "and `failure`.",
            "CyclesQuery",
            "CyclesReply",
            **{"text/csv": {"schema": TEXT}},
        ),
        f"{AT}/outcomes": posted(
            "Report an outcome: the unit failed, or was removed while it ran",
            "The same outcome again changes nothing; another one is a conflict, unless `replace` is true.",
            "OutcomeReport",
            "OutcomeReply",
        ),
        f"{AT}/rename": posted(
            "Rename a unit with its predictions, readings and outcome",
            "A name that another unit has is a conflict.",
            "RenameBody",
            "UnitBody",
        ),
    }
