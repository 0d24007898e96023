"""Outcomes in the store: taken once, replaced only where that is asked for, and met with predictions.

A prediction is counted against an outcome once, by whichever process comes first: the mark that says
so is set in the transaction that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from sqlalchemy import RowMapping, insert, select, update
from sqlalchemy.engine import Connection

from service.store.database import Store
from service.store.judgement import Judged, Outcome, OutcomeKind, Report, Scored, Taken, judged
from service.store.schema import OUTCOMES, PREDICTIONS, UNITS, VERSIONS

JUDGED_COLUMNS: Final = (
    PREDICTIONS.c.last_cycle,
    PREDICTIONS.c.rul,
    PREDICTIONS.c.lower,
    PREDICTIONS.c.upper,
)
"""What `judged_rows` judges."""


def take_outcome(store: Store, outcome: Outcome, *, replace: bool) -> Report:
    """Keep an outcome, where nothing speaks against it, and mark the predictions that it is counted against.

    Raises:
        StoreUnavailable: the database is away.
    """
    key = (UNITS.c.model == outcome.model) & (UNITS.c.unit == outcome.unit)
    with store.writing() as connection:
        # Locked, so that two outcomes of a unit that come at once see each other.
        if connection.execute(select(UNITS.c.unit).where(key).with_for_update()).first() is None:
            return Report(Taken.UNKNOWN_UNIT, None)
        known = known_outcome(connection, outcome.model, outcome.unit)
        if known is not None and known.agrees_with(outcome):
            return Report(Taken.UNCHANGED, known)
        if known is not None and not replace:
            return Report(Taken.CONFLICT, known)
        _keep(connection, outcome, new=known is None)
        taken = Taken.CREATED if known is None else Taken.REPLACED
        return Report(taken, outcome, _count(connection, outcome))


def settle(store: Store, *, recorded_after: float) -> list[Scored]:
    """Count the predictions that reached the store later than the outcome of their unit.

    Raises:
        StoreUnavailable: the database is away.
    """
    with store.reading() as connection:
        rows = connection.execute(select(OUTCOMES).where(OUTCOMES.c.recorded_at > recorded_after)).mappings()
        recent = [_outcome(row) for row in rows]
    scored: list[Scored] = []
    for outcome in recent:
        with store.writing() as connection:
            scored += _count(connection, outcome)
    return scored


def known_outcome(connection: Connection, model: str, unit: str) -> Outcome | None:
    """What is known of a unit's end."""
    of_unit = (OUTCOMES.c.model == model) & (OUTCOMES.c.unit == unit)
    row = connection.execute(select(OUTCOMES).where(of_unit)).mappings().first()
    return None if row is None else _outcome(row)


def _outcome(row: RowMapping) -> Outcome:
    model, unit, kind, cycle, happened_at, recorded_at = row.values()
    return Outcome(model, unit, OutcomeKind(kind), cycle, happened_at, recorded_at)


def _keep(connection: Connection, outcome: Outcome, *, new: bool) -> None:
    values: dict[str, Any] = {
        "kind": outcome.kind.value,
        "cycle": outcome.cycle,
        "happened_at": outcome.happened_at,
        "recorded_at": outcome.recorded_at,
    }
    if new:
        connection.execute(insert(OUTCOMES).values(model=outcome.model, unit=outcome.unit, **values))
    else:
        of_unit = (OUTCOMES.c.model == outcome.model) & (OUTCOMES.c.unit == outcome.unit)
        connection.execute(update(OUTCOMES).where(of_unit).values(**values))


def _count(connection: Connection, outcome: Outcome) -> list[Scored]:
    """Mark what has not been counted yet, and judge it."""
    versions = connection.execute(select(VERSIONS).where(VERSIONS.c.model == outcome.model)).mappings().all()
    marked = connection.execute(
        update(PREDICTIONS)
        .where(
            PREDICTIONS.c.version_id.in_([version["id"] for version in versions]),
            PREDICTIONS.c.unit == outcome.unit,
            PREDICTIONS.c.last_cycle <= outcome.cycle,
            PREDICTIONS.c.scored.is_(False),
        )
        .values(scored=True)
        .returning(PREDICTIONS.c.version_id, *JUDGED_COLUMNS)
    ).all()
    found: list[Scored] = []
    for version in versions:
        rows = [row for row in marked if row.version_id == version["id"]]
        if rows:
            answers = judged_rows([row[1:] for row in rows], outcome, cap=version["cap"])
            found.append(Scored(outcome.model, version["version"], answers))
    return found


def judged_rows(rows: Sequence[Sequence[float]], outcome: Outcome, *, cap: float) -> Judged:
    """Judge predictions of one unit: rows of last cycle, RUL, lower and upper."""
    last_cycle, rul, lower, upper = np.asarray(rows, dtype=np.float64).reshape(-1, 4).T
    return judged(
        failed=outcome.kind is OutcomeKind.FAILED,
        outcome_cycle=outcome.cycle,
        last_cycle=last_cycle.astype(np.int64),
        rul=rul,
        lower=lower,
        upper=upper,
        cap=cap,
    )
