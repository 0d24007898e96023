"""Bodies of `/v1/units`; their docstrings are part of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from model.domain import HEALTH_LABELS, LARGEST_CYCLE, FloatArray, RulState
from service.core.queries import Decision, Interval
from service.store.explanation import StoredExplanation, read_explanation
from service.store.judgement import Accuracy, Outcome, OutcomeKind, OutcomeResult, judge_unit
from service.store.rows import DeletedRows, FleetRow, History, Stretch

STATES: Final = (*HEALTH_LABELS, *(state.value for state in RulState), *(kind.value for kind in OutcomeKind))
"""Values of the filter `state`: health states, RUL states, kinds of outcomes."""

MOST: Final = 1000
"""Maximum entries on a page."""
CYCLE: Final = {"type": "integer", "minimum": 0, "maximum": LARGEST_CYCLE}
Cycle = Annotated[float, Meta(extra_json_schema={**CYCLE, "multipleOf": 1})]
"""A cycle number, checked by `cycle_problem`: pandas writes 3 as 3.0 if numbers are missing."""
Moment = Annotated[datetime, Meta(tz=True)]
"""A time with its zone."""


class OutcomeReport(msgspec.Struct, forbid_unknown_fields=True):
    """How a unit's life ended.

    `failed`: `cycle` was its last one. `removed`: it was taken out of service while it still ran. `replace`
    corrects an earlier report.
    """

    kind: OutcomeKind
    cycle: Cycle
    model: str | None = None
    time: Moment | None = None
    replace: bool = False


class OutcomeBody(msgspec.Struct, frozen=True):
    """The stored outcome of a unit."""

    kind: OutcomeKind
    cycle: int
    time: Moment | None
    recorded_at: Moment


class ScoreBody(msgspec.Struct, frozen=True):
    """Accuracy of a model version's last 1,000 predictions before the outcome, in cycles.

    An error is predicted minus true RUL; above 0 is late. Errors and coverage come from failed units
    (`with_error` counts their predictions); `contradicted` counts intervals whose upper bound a removed unit
    outlived. The NASA score is the mean over predictions; null for models with a cap above 150 cycles.
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
    """A stored prediction, its explanation and, if the outcome is known, its error.

    Only models that explain readings have an `explanation`, if RUL_STORE_EXPLANATIONS is true. `truth` is
    capped as predictions are. For a removed unit `truth` is a lower bound, `error` is missing, and `covered`
    is false if the unit outlived the upper bound, otherwise missing.
    """

    version: str
    last_cycle: int
    rul: float
    rul_state: str
    interval: Interval
    failure_probability: dict[str, float]
    health_state: str
    predicted_at: Moment
    explanation: StoredExplanation | UnsetType = UNSET
    truth: float | UnsetType = UNSET
    error: float | UnsetType = UNSET
    covered: bool | UnsetType = UNSET


class Curve(msgspec.Struct, frozen=True):
    """Expected cost per cycle of a planned stop after a number of cycles."""

    in_cycles: list[int]
    cost_per_cycle: list[float]


class UnitDecision(msgspec.Struct, frozen=True):
    """When to stop a unit, and the cost of every other stop.

    Both are null if the unit has failed or was removed, or if its latest prediction allows no decision.
    """

    unit: str
    model: str
    last_cycle: int
    decision: Decision | None
    curve: Curve | None


class ReadingsBody(msgspec.Struct, frozen=True):
    """Stored readings: ascending cycle numbers and the values of each column; null = missing."""

    cycles: list[int]
    columns: dict[str, list[float | None]]


class UnitBody(msgspec.Struct, frozen=True, kw_only=True):
    """One unit: outcome, accuracy of its predictions, predictions (newest first) and readings.

    Pass `next` as `before` for the next page, which has earlier cycles.
    """

    unit: str
    model: str
    outcome: OutcomeBody | None
    scores: list[ScoreBody]
    predictions: list[PastPrediction]
    readings: ReadingsBody
    next: int | None


class OutcomeReply(UnitBody, frozen=True):
    """The effect of an outcome report, and the unit afterwards."""

    result: OutcomeResult


class DeletedBody(msgspec.Struct, frozen=True):
    """A deleted unit."""

    unit: str
    model: str
    deleted: DeletedRows


class RenameBody(msgspec.Struct, forbid_unknown_fields=True):
    """The new name of a unit."""

    to: str
    model: str | None = None


class FleetUnit(msgspec.Struct, frozen=True):
    """Latest prediction of a unit.

    `recent`: RULs of its last 30 predictions by this version, in cycle order; `trend`: their slope, in cycles
    of RUL per cycle. `last_reading_at`, `last_reading_cycle`: arrival time and cycle of its last stored
    reading; null if it has none. If `last_reading_cycle` is above `last_cycle`, the window that ends there
    was refused, or its prediction was not stored.
    """

    unit: str
    model: str
    version: str
    last_cycle: int
    rul: float
    rul_state: str
    interval: Interval
    failure_probability: dict[str, float]
    health_state: str
    predicted_at: Moment
    last_reading_at: Moment | None
    last_reading_cycle: int | None
    trend: float | None
    recent: list[float]
    outcome: OutcomeKind | None


class SummaryBody(msgspec.Struct, frozen=True):
    """Units on all pages: number, number in each health state, and number expected to fail.

    `fails_within`: the sum of failure probabilities by model and horizon in cycles, without units whose
    health is `unknown`, because their readings are unlike the training data.
    """

    units: int
    states: dict[str, int]
    fails_within: dict[str, dict[str, float]]


class FleetBody(msgspec.Struct):
    """Units by urgency, smallest lower bound first.

    Pass `next` as `after` for the next page. Only the first page has a `summary`.
    """

    units: list[FleetUnit]
    next: str | None
    summary: SummaryBody | UnsetType = UNSET


def _answer(row: FleetRow, coverage: float) -> dict[str, Any]:
    probabilities = row["failure_probability"] or "{}"  # rows of earlier versions have none
    return {
        **{name: row[name] for name in ("last_cycle", "rul", "rul_state", "health_state")},
        "interval": Interval(coverage, row["lower"], row["upper"]),
        "failure_probability": msgspec.json.decode(probabilities, type=dict[str, float]),
        "predicted_at": _moment(row["predicted_at"]),
    }


def fleet_unit(row: FleetRow) -> FleetUnit:
    """Make a unit of the fleet from its row."""
    return FleetUnit(
        **{name: row[name] for name in ("unit", "model", "version")},
        **_answer(row, row["nominal_coverage"]),
        last_reading_at=None if (at := row["last_reading_at"]) is None else _moment(at),
        **{name: row[name] for name in ("last_reading_cycle", "trend", "recent")},
        outcome=None if row["kind"] is None else OutcomeKind(row["kind"]),
    )


def unit_body(
    model: str, unit: str, known: History, *, columns: tuple[str, ...] = (), limit: int
) -> UnitBody:
    """Make one page of a unit's history; `columns` names those of its readings."""
    page = list(known.predictions[:limit])
    # Predictions of several versions at one cycle stay on one page: the next page begins below it.
    page += [row for row in known.predictions[limit:] if row["last_cycle"] == page[-1]["last_cycle"]]
    ends = [page[-1]["last_cycle"]] if len(page) < len(known.predictions) else []
    if len(known.readings.cycles) > limit:
        ends.append(known.readings.cycles[-limit])
    following = max(ends, default=None)
    if following is not None:
        page = [row for row in page if row["last_cycle"] >= following]
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
        readings=_readings(known.readings, columns, first=following or 0),
        next=following,
    )


def _outcome_body(outcome: Outcome) -> OutcomeBody:
    happened = None if outcome.happened_at is None else moment_of(outcome.happened_at)
    return OutcomeBody(outcome.kind, outcome.cycle, happened, _moment(outcome.recorded_at))


def _readings(stretch: Stretch, columns: tuple[str, ...], *, first: int) -> ReadingsBody:
    cycles = [cycle for cycle in stretch.cycles if cycle >= first]
    values = stretch.values[len(stretch.cycles) - len(cycles) :]
    lists = shortest(values).T.tolist()
    by_name = {name: [v if v == v else None for v in of] for name, of in zip(columns, lists, strict=True)}  # noqa: PLR0124 NaN
    return ReadingsBody(cycles, by_name)


def shortest(values: FloatArray) -> FloatArray:
    """Convert float32 to float64 numbers with few digits that round to the same float32.

    >>> shortest(np.array([641.82, 8138.62], np.float32)).tolist()
    [641.82, 8138.62]
    """
    exact = values.astype(np.float64)
    with np.errstate(divide="ignore"):
        digits = np.clip(6 - np.floor(np.log10(np.abs(exact))), -22, 22)
    short = np.round(exact * 10.0**digits) / 10.0**digits
    return np.where(short.astype(np.float32) == values, short, exact)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def moment_of(seconds: float) -> datetime | None:
    """Return a client's time in UTC; None if its year is not 1 to 9999."""
    try:
        return _moment(seconds)
    except (OverflowError, ValueError):
        return None


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
