"""What goes over the wire about units: an outcome that is reported, a fleet, one unit's history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from model.domain import HEALTH_STATES, RulState
from service.core.queries import Interval
from service.core.window import LARGEST_CYCLE
from service.store.judgement import Fared, Judged, Outcome, OutcomeKind, Taken, judged
from service.store.rows import FleetRow, History

STATES: Final = (*HEALTH_STATES, *(state.value for state in RulState), *(kind.value for kind in OutcomeKind))
"""What a fleet may be asked for: a health state, a RUL state, or how lives ended."""

_CYCLE: Final = {"minimum": 1, "maximum": LARGEST_CYCLE}


class OutcomeReport(msgspec.Struct, forbid_unknown_fields=True):
    """How a unit's life ended, as it is reported.

    `failed`: `cycle` was its last. `removed`: it was taken out of service while it still ran. `replace`
    corrects what was reported before.
    """

    kind: OutcomeKind
    cycle: Annotated[int, Meta(extra_json_schema=_CYCLE)]
    model: str | None = None
    time: Annotated[datetime, Meta(tz=True)] | None = None
    replace: bool = False


class OutcomeBody(msgspec.Struct, frozen=True):
    """What is known of a unit's end."""

    kind: OutcomeKind
    cycle: int
    time: datetime | None
    recorded_at: datetime


class ScoreBody(msgspec.Struct, frozen=True):
    """How the predictions of one model version before the unit's end fared, its last 1,000, in cycles.

    Errors are predicted less true; above 0 is late. Errors and coverage are of a unit that failed
    (`with_error` of the `predictions`); of one that was removed, `contradicted` intervals were too short.
    The NASA score is the mean a prediction.
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
    """What was predicted of a unit and, where its end is known, how that was.

    `truth` is capped as predictions are; of a unit that was removed it is what its RUL was at least, there
    is no `error`, and `covered` is false where the unit had outrun the interval and else left out.
    """

    version: str
    last_cycle: int
    rul: float
    rul_state: str
    interval: Interval
    health_state: str
    predicted_at: datetime
    truth: float | UnsetType = UNSET
    error: float | UnsetType = UNSET
    covered: bool | UnsetType = UNSET


class UnitBody(msgspec.Struct, frozen=True):
    """One unit: its end, how the predictions before it fared, and the predictions, newest first.

    `next` is the `before` of the page that follows.
    """

    unit: str
    model: str
    outcome: OutcomeBody | None
    scores: list[ScoreBody]
    predictions: list[PastPrediction]
    next: int | None


class OutcomeReply(msgspec.Struct, frozen=True):
    """What became of an outcome that was reported, and what is known of the unit now."""

    result: Taken
    unit: str
    model: str
    outcome: OutcomeBody | None
    scores: list[ScoreBody]
    predictions: list[PastPrediction]
    next: int | None


class FleetUnit(msgspec.Struct, frozen=True):
    """A unit's latest prediction."""

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
    """Units by urgency, the smallest RUL first; `next` is the `after` of the page that follows."""

    units: list[FleetUnit]
    next: str | None


def fleet_unit(row: FleetRow) -> FleetUnit:
    """A unit of the fleet as it is shown."""
    return FleetUnit(
        row["unit"],
        row["model"],
        row["version"],
        row["last_cycle"],
        row["rul"],
        row["rul_state"],
        Interval(row["nominal_coverage"], row["lower"], row["upper"]),
        row["health_state"],
        moment(row["predicted_at"]),
        None if row["kind"] is None else OutcomeKind(row["kind"]),
    )


def unit_body(model: str, unit: str, known: History, *, limit: int) -> UnitBody:
    """One page of a unit's history."""
    page = list(known.predictions[:limit])
    # A cycle that two versions predicted at is not torn apart: the next page begins below it.
    page += [row for row in known.predictions[limit:] if row["last_cycle"] == page[-1]["last_cycle"]]
    following = page[-1]["last_cycle"] if len(page) < len(known.predictions) else None
    by_id: dict[int, PastPrediction] = {}
    for number, version in known.versions.items():
        rows = [row for row in page if row["version_id"] == number]
        by_id |= {row["id"]: _past(row, version) for row in rows}
        outcome = known.outcome
        ended = [row for row in rows if outcome is not None and row["last_cycle"] <= outcome.cycle]
        if outcome is not None and ended:
            found = _judged(ended, outcome, cap=version["cap"])
            by_id |= {row["id"]: _past(row, version, found, i) for i, row in enumerate(ended)}
    return UnitBody(
        unit,
        model,
        None if known.outcome is None else outcome_body(known.outcome),
        [_score(figures, known.versions[number]) for number, figures in known.fared.items()],
        [by_id[row["id"]] for row in page],
        following,
    )


def outcome_body(outcome: Outcome) -> OutcomeBody:
    """An outcome as it is shown."""
    happened = None if outcome.happened_at is None else moment(outcome.happened_at)
    return OutcomeBody(outcome.kind, outcome.cycle, happened, moment(outcome.recorded_at))


def moment(seconds: float) -> datetime:
    """Seconds since 1970 as a time that says its zone."""
    return datetime.fromtimestamp(seconds, UTC)


def _judged(rows: Sequence[FleetRow], outcome: Outcome, *, cap: float) -> Judged:
    def column(name: str) -> Any:  # noqa: ANN401 an array of whatever the column holds
        return np.array([row[name] for row in rows])

    return judged(
        failed=outcome.kind is OutcomeKind.FAILED,
        outcome_cycle=outcome.cycle,
        last_cycle=column("last_cycle"),
        rul=column("rul"),
        lower=column("lower"),
        upper=column("upper"),
        cap=cap,
    )


def _past(row: FleetRow, version: FleetRow, found: Judged | None = None, i: int = 0) -> PastPrediction:
    plain = PastPrediction(
        version["version"],
        row["last_cycle"],
        row["rul"],
        row["rul_state"],
        Interval(version["nominal_coverage"], row["lower"], row["upper"]),
        row["health_state"],
        moment(row["predicted_at"]),
    )
    if found is None:
        return plain
    error = float(found.error[i])
    return msgspec.structs.replace(
        plain,
        truth=float(found.truth[i]),
        error=UNSET if np.isnan(error) else error,
        covered=bool(found.held[i]) if found.failed[i] or found.contradicted[i] else UNSET,
    )


def _score(figures: Fared, version: FleetRow) -> ScoreBody:
    return ScoreBody(
        version=version["version"],
        nominal_coverage=version["nominal_coverage"],
        **{name: getattr(figures, name) for name in figures.__slots__},
    )
