"""Units as the store knows them: the fleet by urgency, and one unit's history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, and_, or_, select, tuple_
from sqlalchemy.engine import Connection
from sqlalchemy.sql.expression import ColumnElement

from model.domain import HEALTH_STATES
from service.store.database import Store
from service.store.judgement import Fared, Outcome, OutcomeKind, fared
from service.store.outcomes import JUDGED_COLUMNS, judged_rows, known_outcome
from service.store.rows import MOST_JUDGED, FleetRow, History, Place
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


def history(store: Store, model: str, unit: str, *, limit: int, before: int | None) -> History | None:
    """What is stored of a unit, a page of it; None where nothing is.

    Args:
        store: An open store.
        model: The model that predicted.
        unit: Its name.
        limit: Most predictions a page.
        before: Only predictions of earlier cycles.

    Raises:
        StoreUnavailable: the database is away.
    """
    with store.reading() as connection:
        versions = {
            row["id"]: dict(row)
            for row in connection.execute(select(VERSIONS).where(VERSIONS.c.model == model)).mappings()
        }
        outcome = known_outcome(connection, model, unit)
        # One version after the other, each along the index: no version has two predictions of a cycle, so
        # one row more than a page tells whether another page follows.
        page = _newest(connection, versions, unit, most=limit + 1, before=before)
        known = outcome is not None or page or _newest(connection, versions, unit, most=1)
        fared = {} if outcome is None else _fared(connection, versions, outcome)
    return History(outcome, versions, page, fared) if known else None


def _newest(
    connection: Connection, versions: Iterable[int], unit: str, *, most: int, before: int | None = None
) -> list[dict[str, Any]]:
    """The newest predictions of each version, at most so many of each, newest first."""
    found = [
        dict(row)
        for version in versions
        for row in connection.execute(_of_unit(version, unit, most=most, before=before)).mappings()
    ]
    return sorted(found, key=lambda row: (-row["last_cycle"], -row["predicted_at"]))


def _fared(
    connection: Connection, versions: Mapping[int, Mapping[str, Any]], outcome: Outcome
) -> dict[int, Fared]:
    found: dict[int, Fared] = {}
    for number, version in versions.items():
        until = _of_unit(number, outcome.unit, most=MOST_JUDGED, before=outcome.cycle + 1)
        rows = connection.execute(until.with_only_columns(*JUDGED_COLUMNS)).all()
        if rows:
            found[number] = fared(judged_rows([tuple(row) for row in rows], outcome, cap=version["cap"]))
    return found


def _of_unit(version: int, unit: str, *, most: int, before: int | None) -> Select[Any]:
    """The newest predictions of one version; the key of `predictions` is the index that serves this."""
    wanted = [PREDICTIONS.c.version_id == version, PREDICTIONS.c.unit == unit]
    if before is not None:
        wanted.append(PREDICTIONS.c.last_cycle < before)
    return select(PREDICTIONS).where(*wanted).order_by(PREDICTIONS.c.last_cycle.desc()).limit(most)


def _in_state(state: str | None) -> ColumnElement[bool]:
    # A unit that reports cycles after its end is in service again.
    running: Any = or_(OUTCOMES.c.cycle.is_(None), OUTCOMES.c.cycle < UNITS.c.last_cycle)
    if state is None:
        return running
    if state in list(OutcomeKind):
        return OUTCOMES.c.kind == state
    column = UNITS.c.health_state if state in HEALTH_STATES else UNITS.c.rul_state
    return and_(running, column == state)
