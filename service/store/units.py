"""A unit as a whole: its predictions, readings and outcome, deleted or renamed together."""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, Table, delete, select, update
from sqlalchemy.engine import Connection

from service.store.database import take_turns
from service.store.rows import Deleted, UnitKey
from service.store.schema import OUTCOMES, PREDICTIONS, READINGS, UNITS, VERSIONS

# Units first, as `Store.write` locks them.
_TABLES: Final = (UNITS, PREDICTIONS, OUTCOMES, READINGS)


def delete_unit(connection: Connection, key: UnitKey) -> Deleted | None:
    """Delete all rows of a unit; None if there is none."""
    take_turns(connection, [key.unit])
    counts = [connection.execute(delete(table).where(_of(table, key))).rowcount for table in _TABLES]
    return Deleted(readings=counts[3], predictions=counts[1]) if any(counts) else None


def rename_unit(connection: Connection, key: UnitKey, to: str) -> bool | None:
    """Give all rows of a unit another name; False if another unit has it, None if the unit has no rows."""
    take_turns(connection, [key.unit, to])
    new = key._replace(unit=to)
    if any(connection.execute(select(1).where(_of(table, new)).limit(1)).first() for table in _TABLES):
        return False
    counts = [
        connection.execute(update(table).where(_of(table, key)).values(unit=to)).rowcount for table in _TABLES
    ]
    return True if any(counts) else None


def _of(table: Table, key: UnitKey) -> ColumnElement[bool]:
    """Select the rows of a unit."""
    owned = (table.c.tenant == key.tenant) & (table.c.unit == key.unit)
    if table is PREDICTIONS:
        return owned & table.c.version_id.in_(select(VERSIONS.c.id).where(VERSIONS.c.model == key.model))
    return owned & (table.c.model == key.model)
