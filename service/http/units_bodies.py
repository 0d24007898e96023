"""Bodies of `/v1/units` and their part of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from model.domain import HEALTH_LABELS, RulState
from service.core.queries import Interval
from service.core.window import LARGEST_CYCLE
from service.store.explanation import Explanation, read_explanation
from service.store.judgement import Accuracy, Outcome, OutcomeKind, OutcomeResult, judge_unit
from service.store.rows import FleetRow, History

STATES: Final = (*HEALTH_LABELS, *(state.value for state in RulState), *(kind.value for kind in OutcomeKind))
"""Filters of a fleet: health states, RUL states, kinds of outcomes."""

MOST: Final = 1000
"""Most entries on a page."""
_CYCLE: Final = {"minimum": 1, "maximum": LARGEST_CYCLE}
NO_STORE: Final = (
    "404 `no_store` if the service stores no predictions (RUL_STORE=false), 503 `store_unavailable` while "
    "the database does not answer; predictions themselves continue."
)


class OutcomeReport(msgspec.Struct, forbid_unknown_fields=True):
    """How a unit's life ended.

    `failed`: `cycle` was its last. `removed`: it left service while it still ran. `replace` corrects an
    earlier report.
    """

    kind: OutcomeKind
    cycle: Annotated[int, Meta(extra_json_schema=_CYCLE)]
    model: str | None = None
    time: Annotated[datetime, Meta(tz=True)] | None = None
    replace: bool = False


class OutcomeBody(msgspec.Struct, frozen=True):
    """The stored outcome of a unit."""

    kind: OutcomeKind
    cycle: int
    time: datetime | None
    recorded_at: datetime


class ScoreBody(msgspec.Struct, frozen=True):
    """Accuracy of a model version's last 1,000 predictions before the outcome, in cycles.

    Errors are predicted less true; above 0 is late. A failed unit gives errors and coverage (`with_error`
    of the `predictions`); a removed one gives `contradicted`, the intervals that it outlived. The NASA
    score is the mean for each prediction.
    """

    version: str
    predictions: int
    with_error: int
    covered: int
    contradicted: int
    coverage: float | None
    nominal_coverage: float
    rmse: float | None
    mean_absolute_error: float | None
    bias: float | None
    nasa_score: float | None
    mean_width: float | None


class PastPrediction(msgspec.Struct, frozen=True):
    """A stored prediction, what it rested on, and, if the outcome is known, its error.

    `explanation` comes from models that explain readings, while RUL_STORE_EXPLANATIONS is true.
    `truth` is capped as predictions are. For a removed unit it is a lower bound, `error` is missing, and
    `covered` is false if the unit outlived the interval, otherwise missing.
    """

    version: str
    last_cycle: int
    rul: float
    rul_state: str
    interval: Interval
    health_state: str
    predicted_at: datetime
    explanation: Explanation | UnsetType = UNSET
    truth: float | UnsetType = UNSET
    error: float | UnsetType = UNSET
    covered: bool | UnsetType = UNSET


class UnitBody(msgspec.Struct, frozen=True, kw_only=True):
    """One unit: its outcome, the accuracy of its predictions, and the predictions, newest first.

    `next` is the `before` of the next page.
    """

    unit: str
    model: str
    outcome: OutcomeBody | None
    scores: list[ScoreBody]
    predictions: list[PastPrediction]
    next: int | None


class OutcomeReply(UnitBody, frozen=True):
    """What the store did with an outcome, and the unit afterwards."""

    result: OutcomeResult


class FleetUnit(msgspec.Struct, frozen=True):
    """Latest prediction of a unit."""

    unit: str
    model: str
    version: str
    last_cycle: int
    rul: float
    rul_state: str
    interval: Interval
    health_state: str
    predicted_at: datetime
    outcome: OutcomeKind | None


class FleetBody(msgspec.Struct, frozen=True):
    """Units by urgency, smallest RUL first; `next` is the `after` of the next page."""

    units: list[FleetUnit]
    next: str | None


def _answer(row: FleetRow, coverage: float) -> dict[str, Any]:
    return {
        **{name: row[name] for name in ("last_cycle", "rul", "rul_state", "health_state")},
        "interval": Interval(coverage, row["lower"], row["upper"]),
        "predicted_at": _moment(row["predicted_at"]),
    }


def fleet_unit(row: FleetRow) -> FleetUnit:
    """Make a unit of the fleet from its row."""
    return FleetUnit(
        **{name: row[name] for name in ("unit", "model", "version")},
        **_answer(row, row["nominal_coverage"]),
        outcome=None if row["kind"] is None else OutcomeKind(row["kind"]),
    )


def unit_body(model: str, unit: str, known: History, *, limit: int) -> UnitBody:
    """Make one page of a unit's history."""
    page = list(known.predictions[:limit])
    # Versions that predicted at the same cycle share a page: the next one begins below it.
    page += [row for row in known.predictions[limit:] if row["last_cycle"] == page[-1]["last_cycle"]]
    more = len(page) < len(known.predictions)
    errors = {} if known.outcome is None else _errors(page, known.versions, known.outcome)

    def past(row: FleetRow) -> PastPrediction:
        version = known.versions[row["version_id"]]
        answer = _answer(row, version["nominal_coverage"])
        explanation = read_explanation(row["explanation"])
        return PastPrediction(
            version["version"], **answer, explanation=explanation, **errors.get(row["id"], {})
        )

    def score(number: int, accuracy: Accuracy) -> ScoreBody:
        figures = {name: known.versions[number][name] for name in ("version", "nominal_coverage")}
        return ScoreBody(**figures, **asdict(accuracy))

    return UnitBody(
        unit=unit,
        model=model,
        outcome=None if known.outcome is None else _outcome_body(known.outcome),
        scores=[score(*found) for found in known.accuracy.items()],
        predictions=[past(row) for row in page],
        next=page[-1]["last_cycle"] if more else None,
    )


def _outcome_body(outcome: Outcome) -> OutcomeBody:
    happened = None if outcome.happened_at is None else _moment(outcome.happened_at)
    return OutcomeBody(outcome.kind, outcome.cycle, happened, _moment(outcome.recorded_at))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _errors(
    page: Sequence[FleetRow], versions: Mapping[int, FleetRow], outcome: Outcome
) -> dict[int, dict[str, Any]]:
    """Judge the predictions before the outcome: the fields to show, by row id."""
    errors: dict[int, dict[str, Any]] = {}
    for number, version in versions.items():
        rows = [r for r in page if r["version_id"] == number and r["last_cycle"] <= outcome.cycle]
        numbers = [(r["last_cycle"], r["rul"], r["lower"], r["upper"]) for r in rows]
        found = judge_unit(numbers, outcome, cap=version["cap"])
        for i, row in enumerate(rows):
            shown = errors[row["id"]] = {"truth": float(found.truth[i])}
            if found.failed[i]:
                shown["error"] = float(found.error[i])
            if found.failed[i] or found.contradicted[i]:
                shown["covered"] = bool(found.held[i])
    return errors


def paths(ref: Callable[[str], dict[str, str]], responses: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Describe the paths for OpenAPI, with the document's own references and error responses."""
    name = {"type": "string"}
    unit = parameter("unit", "Name of the unit.", name, where="path")
    limit = parameter("limit", "Most entries on a page; 100 by default.", _whole(1, MOST))
    model = parameter("model", "A loaded model.", name)
    state = parameter("state", "Only units in this state.", {"enum": list(STATES)})
    after = parameter("after", "The `next` of the previous page.", name)
    before = parameter("before", "Only predictions of earlier cycles.", _whole(1, LARGEST_CYCLE))
    refused = (401, 403, 404, 422, 429, 500, 503, 504)
    body = {"required": True, "content": {"application/json": {"schema": ref("OutcomeReport")}}}

    def operation(
        summary: str, description: str, parameters: list[Any], answer: str, *codes: int, **more: object
    ) -> dict[str, Any]:
        answers = responses(ref(answer), *codes, *refused)
        said = {"summary": summary, "description": f"{description} {NO_STORE}"}
        return {**said, "parameters": parameters, **more, "responses": answers}

    fleet = operation(
        "The fleet by urgency: the latest prediction of each unit, smallest RUL first",
        "Ended units appear only if `state` is failed or removed.",
        [model, state, limit, after],
        "FleetBody",
    )
    history = operation(
        "One unit: its predictions, its outcome, and their accuracy",
        "Predictions come newest first, in pages; `scores` is of the last 1,000 of each version before the "
        "outcome. `model` may be omitted if one is loaded.",
        [unit, model, limit, before],
        "UnitBody",
    )
    outcome = operation(
        "Report an outcome: the unit failed, or was removed while it ran",
        "The same outcome again changes nothing; another one is a conflict, unless `replace` is true.",
        [unit],
        "OutcomeReply",
        *(400, 409, 413, 415),
        requestBody=body,
    )
    found = {"/v1/units": {"get": fleet}, "/v1/units/{unit}": {"get": history}}
    return found | {"/v1/units/{unit}/outcomes": {"post": outcome}}


def parameter(name: str, description: str, schema: dict[str, Any], *, where: str = "query") -> dict[str, Any]:
    """Describe a parameter for OpenAPI."""
    required = where == "path"
    return {"name": name, "in": where, "required": required, "description": description, "schema": schema}


def _whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}
