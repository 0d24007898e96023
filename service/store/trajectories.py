"""Stored readings and the ends of their units, as rows of a file that trains the next model."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
import numpy as np
from sqlalchemy import Row, or_, select
from sqlalchemy.engine import Connection

from service.store.database import Database, check_revision
from service.store.judgement import OutcomeKind
from service.store.readings import FLOAT32
from service.store.schema import COLUMN_LISTS, OUTCOMES, READINGS, VERSIONS, same_unit

PART_ROWS: Final = 10_000
"""Readings that are objects of Python at a time."""

Cells = list[object]


def models_of(database: Database) -> list[str]:
    """List the models that a service with this store has loaded.

    Raises:
        StoreUnavailable: the database does not answer, or has tables of another release.
    """
    with database.reading() as connection:
        check_revision(connection)
        return [*connection.scalars(select(VERSIONS.c.model).distinct().order_by(VERSIONS.c.model))]


def read_trajectories(database: Database, model: str) -> Generator[Cells]:
    """Yield the header, then a row for each reading: unit, cycle, failed, and the columns; None = missing.

    `failed` is 1 in the row of a unit's failure and 0 in all others; the row has no readings if none are
    stored of that cycle. Readings after a unit's outcome are left out. A unit of a tenant is `tenant/unit`.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    with database.reading() as connection:
        columns = _columns(connection, model)
        names = list(dict.fromkeys(name for of in columns.values() for name in of))
        yield ["unit", "cycle", "failed", *names]
        for _, rows in groupby(_stored(connection, model), key=lambda row: (row.tenant, row.unit)):
            yield from _life([*rows], columns, names)


def _columns(connection: Connection, model: str) -> dict[int, list[str]]:
    """Return the column lists of a model's readings, by id."""
    used = select(READINGS.c.columns_id).where(READINGS.c.model == model).distinct()
    query = select(COLUMN_LISTS).where(COLUMN_LISTS.c.id.in_(used)).order_by(COLUMN_LISTS.c.id)
    return {row.id: msgspec.json.decode(row.names, type=list[str]) for row in connection.execute(query)}


def _stored(connection: Connection, model: str) -> Iterable[Row[*tuple[Any, ...]]]:
    """Read the readings in order of unit and cycle, each with its unit's outcome."""
    names = ("tenant", "unit", "cycle", "columns_id", "values")
    query = (
        select(*(READINGS.c[name] for name in names), OUTCOMES.c.kind, OUTCOMES.c.cycle.label("end"))
        .outerjoin_from(READINGS, OUTCOMES, same_unit(READINGS, OUTCOMES))
        .where(
            READINGS.c.model == model, or_(OUTCOMES.c.cycle.is_(None), READINGS.c.cycle <= OUTCOMES.c.cycle)
        )
        .order_by(READINGS.c.tenant, READINGS.c.unit, READINGS.c.cycle)
    )
    return connection.execute(query.execution_options(yield_per=PART_ROWS))


def _life(
    rows: Sequence[Row[*tuple[Any, ...]]], columns: dict[int, list[str]], names: list[str]
) -> Iterator[Cells]:
    """Yield the rows of one unit."""
    last = rows[-1]
    unit = f"{last.tenant}/{last.unit}" if last.tenant else last.unit
    failure = last.end if last.kind == OutcomeKind.FAILED else None
    for row in rows:
        values = np.frombuffer(row.values, FLOAT32)
        cells = {
            name: None if np.isnan(value) else str(value)  # the fewest digits that float32 needs
            for name, value in zip(columns[row.columns_id], values, strict=True)
        }
        yield [unit, row.cycle, int(row.cycle == failure), *map(cells.get, names)]
    if failure is not None and last.cycle < failure:
        yield [unit, failure, 1, *[None] * len(names)]
