"""The fleet by urgency: the latest prediction of each running unit, and a summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from sqlalchemy import JSON, ColumnElement, Double, Subquery, cast, func, select, tuple_
from sqlalchemy.engine import Connection

from model.domain import HEALTH_LABELS, HEALTH_STATES
from service.store.judgement import OutcomeKind
from service.store.rows import FleetFilter, FleetRow, Place, Summary
from service.store.schema import OUTCOMES, PREDICTIONS, READINGS, UNITS, VERSIONS, same_unit

RECENT: Final = 30
"""Number of predictions from which a unit's trend is computed."""
_ENDS: Final = UNITS.outerjoin(OUTCOMES, same_unit(OUTCOMES, UNITS))
_ORDER: Final = (UNITS.c.lower, UNITS.c.model, UNITS.c.unit)
_JSON: Final = {
    "sqlite": ("json_array", "json_group_array", "json_each"),
    "postgresql": ("json_build_array", "json_agg", "json_each_text"),
}
"""JSON functions of a dialect: array of values, array of rows, rows of an object."""


def read_fleet(
    connection: Connection, chosen: FleetFilter, *, limit: int, after: Place | None
) -> list[FleetRow]:
    """List the latest prediction of each chosen unit, smallest lower bound first."""
    page = (
        select(UNITS, VERSIONS.c.version, VERSIONS.c.nominal_coverage, OUTCOMES.c.kind, OUTCOMES.c.cycle)
        .select_from(_ENDS.join(VERSIONS, VERSIONS.c.id == UNITS.c.version_id))
        .where(*_conditions(chosen))
        .order_by(*_ORDER)
        .limit(limit)
    )
    if after is not None:
        page = page.where(tuple_(*_ORDER) > tuple_(*after))
    # A subquery: databases may compute what follows before they sort, here for the units of the page alone.
    unit = page.subquery()
    query = select(unit, *_readings_of(unit), _recent_of(unit, connection.dialect.name))
    query = query.order_by(*(unit.c[column.name] for column in _ORDER))
    return [_with_trend(dict(row)) for row in connection.execute(query).mappings()]


def _readings_of(unit: Subquery) -> list[ColumnElement[Any]]:
    """Return the time and cycle of the unit's last reading."""
    readings = select(READINGS.c.received_at, READINGS.c.cycle).where(same_unit(READINGS, unit))
    newest = readings.order_by(READINGS.c.cycle.desc()).limit(1)
    return [
        newest.with_only_columns(column).scalar_subquery().label(f"last_reading_{name}")
        for name, column in (("at", READINGS.c.received_at), ("cycle", READINGS.c.cycle))
    ]


def _recent_of(unit: Subquery, dialect: str) -> ColumnElement[Any]:
    """Return the last predictions of the unit's version as JSON: pairs of cycle and RUL."""
    array, gather, _ = _JSON[dialect]
    latest = (
        select(PREDICTIONS.c.last_cycle, PREDICTIONS.c.rul)
        .where(*(PREDICTIONS.c[key] == unit.c[key] for key in ("version_id", "tenant", "unit")))
        .order_by(PREDICTIONS.c.last_cycle.desc())
        .limit(RECENT)
        .correlate(unit)
        .subquery()
    )
    pair = getattr(func, array)(latest.c.last_cycle, latest.c.rul)
    return select(getattr(func, gather)(pair)).select_from(latest).scalar_subquery().label("recent")


def read_summary(connection: Connection, chosen: FleetFilter) -> Summary:
    """Count the chosen units by state, and compute how many running ones are expected to fail."""
    where = _conditions(chosen)
    counts = (
        select(UNITS.c.health_state, func.count())
        .select_from(_ENDS)
        .where(*where)
        .group_by(UNITS.c.health_state)
    )
    states: dict[str, int] = dict.fromkeys(HEALTH_LABELS, 0)
    states |= {row[0]: row[1] for row in connection.execute(counts)}
    name, text = connection.dialect.name, UNITS.c.failure_probability
    given = cast(text, JSON) if name == "postgresql" else text
    each = getattr(func, _JSON[name][2])(given).table_valued("key", "value", joins_implicitly=True)
    expected = func.sum(cast(each.c.value, Double))
    sums = select(UNITS.c.model, each.c.key, expected).select_from(_ENDS, each)
    # Ended units cannot fail. Readings unlike the training data say nothing about when a unit fails.
    sums = sums.where(OUTCOMES.c.kind.is_(None), UNITS.c.health_state.in_(HEALTH_STATES))
    fails: dict[str, dict[str, float]] = {}
    for model, horizon, units in connection.execute(sums.where(*where).group_by(UNITS.c.model, each.c.key)):
        fails.setdefault(model, {})[horizon] = round(float(units), 2)
    in_order = {model: dict(sorted(of.items(), key=lambda one: int(one[0]))) for model, of in fails.items()}
    return Summary(sum(states.values()), states, in_order)


def _conditions(chosen: FleetFilter) -> list[ColumnElement[bool]]:
    found = [UNITS.c.tenant == chosen.tenant, UNITS.c.model.in_(chosen.models), _in_state(chosen.state)]
    if chosen.name is not None:
        found.append(UNITS.c.unit.icontains(chosen.name, autoescape=True))
    if chosen.changed_since is not None:
        found.append(UNITS.c.predicted_at > chosen.changed_since)
    return found


def _in_state(state: str | None) -> ColumnElement[bool]:
    if state in list(OutcomeKind):
        return OUTCOMES.c.kind == state
    # Ended units stay out even if they get later predictions.
    running = OUTCOMES.c.kind.is_(None)
    if state is None:
        return running
    column = UNITS.c.health_state if state in HEALTH_LABELS else UNITS.c.rul_state
    return running & (column == state)


def _with_trend(row: dict[str, Any]) -> FleetRow:
    """Replace the JSON of the recent predictions by their RULs in cycle order and their slope."""
    given = row["recent"] or []
    if isinstance(given, str):  # PostgreSQL's driver decodes it
        given = msgspec.json.decode(given, type=list[tuple[int, float]])
    pairs = sorted(given)
    row["recent"], row["trend"] = [rul for _, rul in pairs], slope(pairs)
    return row


def slope(pairs: Sequence[tuple[int, float]]) -> float | None:
    """Return the least-squares slope of RUL over cycles; None for fewer than two.

    >>> slope([(10, 50.0), (11, 49.0), (12, 48.0)])
    -1.0
    """
    if len(pairs) < 2:
        return None
    cycle, rul = np.array(pairs, np.float64).T
    off = cycle - cycle.mean()
    return round(float(off @ rul / (off @ off)), 4)
