"""Units as the store knows them: the fleet by urgency, and one unit's history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, or_, select, tuple_
from sqlalchemy.sql.expression import ColumnElement

from model.domain import HEALTH_STATES
from service.outcomes.judged import OutcomeKind
from service.store.database import Store
from service.store.outcomes import known_outcome
from service.store.rows import FleetRow, History, Place
from service.store.schema import OUTCOMES, PREDICTIONS, UNITS, VERSIONS


def fleet(
    store: Store, models: Sequence[str], *, state: str | None, limit: int, after: Place | None
) -> list[FleetRow]:
    """The latest prediction of each unit, the smallest RUL first.

    Units whose life has ended are left out, unless `state` asks for them.

    Raises:
        StoreUnavailable: the database is away.
    """
    order = (UNITS.c.rul, UNITS.c.model, UNITS.c.unit)
    of_unit = and_(OUTCOMES.c.model == UNITS.c.model, OUTCOMES.c.unit == UNITS.c.unit)
    query = (
        select(UNITS, VERSIONS.c.version, VERSIONS.c.nominal_coverage, OUTCOMES.c.kind, OUTCOMES.c.cycle)
        .join(VERSIONS, VERSIONS.c.id == UNITS.c.version_id)
        .outerjoin(OUTCOMES, of_unit)
        .where(UNITS.c.model.in_(models), _in_state(state))
        .order_by(*order)
        .limit(limit)
    )
    if after is not None:
        query = query.where(tuple_(*order) > tuple_(*after))
    with store.reading() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def history(store: Store, model: str, unit: str) -> History | None:
    """Everything that is stored of a unit; None where that is nothing.

    Raises:
        StoreUnavailable: the database is away.
    """
    with store.reading() as connection:
        versions = {
            row["id"]: dict(row)
            for row in connection.execute(select(VERSIONS).where(VERSIONS.c.model == model)).mappings()
        }
        of_unit = select(PREDICTIONS).where(
            PREDICTIONS.c.version_id.in_(versions), PREDICTIONS.c.unit == unit
        )
        newest_first = of_unit.order_by(PREDICTIONS.c.last_cycle.desc(), PREDICTIONS.c.predicted_at.desc())
        predictions = [dict(row) for row in connection.execute(newest_first).mappings()]
        outcome = known_outcome(connection, model, unit)
    return History(outcome, versions, predictions) if predictions or outcome else None


def _in_state(state: str | None) -> ColumnElement[bool]:
    # A unit that reports cycles after its end is in service again.
    running: Any = or_(OUTCOMES.c.cycle.is_(None), OUTCOMES.c.cycle < UNITS.c.last_cycle)
    if state is None:
        return running
    if state in list(OutcomeKind):
        return OUTCOMES.c.kind == state
    column = UNITS.c.health_state if state in HEALTH_STATES else UNITS.c.rul_state
    return and_(running, column == state)
