"""The tables of the store, and the statements that fill them: one description for SQLite and PostgreSQL.

A prediction is known by model version, unit and last cycle: asking again replaces the answer. `units`
holds each unit's latest prediction once more, so that a fleet is listed without reading its history.
Times are seconds since 1970. A change here needs a migration, under `migrations/versions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    and_,
    bindparam,
    cast,
    false,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.sql.expression import ColumnElement

HEAD: Final = "0001"
"""The revision that this module describes; known here, so that a store which is current loads no alembic."""

METADATA: Final = MetaData()
_KEY: Final = BigInteger().with_variant(Integer, "sqlite")  # which SQLite numbers by itself

VERSIONS: Final = Table(
    "model_versions",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("model", String, nullable=False),
    Column("version", String, nullable=False),
    Column("cap", Double, nullable=False),
    Column("nominal_coverage", Double, nullable=False),
    UniqueConstraint("model", "version"),
)

PREDICTIONS: Final = Table(
    "predictions",
    METADATA,
    # Rows lie in the order in which they came: the old ones are found without an index on their age.
    Column("id", _KEY, primary_key=True),
    Column("version_id", Integer, nullable=False),
    Column("unit", String, nullable=False),
    Column("last_cycle", Integer, nullable=False),
    Column("rul", Double, nullable=False),
    Column("lower", Double, nullable=False),
    Column("upper", Double, nullable=False),
    Column("rul_state", String, nullable=False),
    Column("health_state", String, nullable=False),
    Column("predicted_at", Double, nullable=False),
    # True once it has been counted against an outcome: from then on it is neither replaced nor counted.
    Column("scored", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("version_id", "unit", "last_cycle"),
)

UNITS: Final = Table(
    "units",
    METADATA,
    Column("model", String, primary_key=True),
    Column("unit", String, primary_key=True),
    Column("version_id", Integer, nullable=False),
    Column("last_cycle", Integer, nullable=False),
    Column("rul", Double, nullable=False),
    Column("lower", Double, nullable=False),
    Column("upper", Double, nullable=False),
    Column("rul_state", String, nullable=False),
    Column("health_state", String, nullable=False),
    Column("predicted_at", Double, nullable=False),
)

OUTCOMES: Final = Table(
    "outcomes",
    METADATA,
    Column("model", String, primary_key=True),
    Column("unit", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("cycle", Integer, nullable=False),
    Column("happened_at", Double),
    Column("recorded_at", Double, nullable=False),
)

PREDICTION_COLUMNS: Final = tuple(
    column.name for column in PREDICTIONS.columns if column.name not in {"id", "scored"}
)
UNIT_COLUMNS: Final = tuple(column.name for column in UNITS.columns)


class Upserts:
    """Insert or replace many rows at once, in what costs least with each driver.

    SQLite takes plain tuples, one after the other; PostgreSQL one JSON text of them all, for a round trip
    or a prepared statement a row would cost this process three times as much.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._at_once: Final = dialect.name == "postgresql"
        insert = postgresql.insert if self._at_once else sqlite.insert
        new, old = insert(PREDICTIONS), PREDICTIONS.c
        answered = ("rul", "lower", "upper", "rul_state", "health_state", "predicted_at")
        not_older = new.excluded.predicted_at >= old.predicted_at
        self._prediction: Final = _text(
            _selected(new, PREDICTION_COLUMNS, at_once=self._at_once).on_conflict_do_update(
                index_elements=["version_id", "unit", "last_cycle"],
                set_={name: new.excluded[name] for name in answered},
                where=and_(not_older, old.scored.is_(False)),
            ),
            dialect,
            PREDICTION_COLUMNS,
        )
        new = insert(UNITS)
        self._unit: Final = _text(
            _selected(new, UNIT_COLUMNS, at_once=self._at_once).on_conflict_do_update(
                index_elements=["model", "unit"],
                set_={name: new.excluded[name] for name in ("version_id", "last_cycle", *answered)},
                where=_not_before(new.excluded.last_cycle, new.excluded.predicted_at),
            ),
            dialect,
            UNIT_COLUMNS,
        )

    def predictions(self, connection: Connection, rows: Sequence[Sequence[object]]) -> None:
        """Rows of `PREDICTION_COLUMNS`, each key once; what is older or has been scored already is left."""
        self._run(connection, self._prediction, rows)

    def units(self, connection: Connection, rows: Sequence[Sequence[object]]) -> None:
        """Rows of `UNIT_COLUMNS`, each key once; what is of an earlier cycle is left."""
        self._run(connection, self._unit, rows)

    def _run(self, connection: Connection, statement: str, rows: Sequence[Sequence[object]]) -> None:
        given: Any = (msgspec.json.encode(rows).decode(),) if self._at_once else rows
        connection.exec_driver_sql(statement, given)


Insert = sqlite.Insert | postgresql.Insert


def _selected(statement: Insert, columns: tuple[str, ...], *, at_once: bool) -> Insert:
    if not at_once:
        return statement
    row = func.json_array_elements(cast(bindparam("rows", type_=String), JSON)).column_valued("row")
    values = [
        cast(row.op("->>")(literal_column(str(i))), statement.table.c[name].type)
        for i, name in enumerate(columns)
    ]
    return statement.from_select(list(columns), select(*values))


def _not_before(cycle: ColumnElement[int], at: ColumnElement[float]) -> ColumnElement[bool]:
    return or_(cycle > UNITS.c.last_cycle, and_(cycle == UNITS.c.last_cycle, at >= UNITS.c.predicted_at))


def _text(statement: Insert, dialect: Dialect, columns: tuple[str, ...]) -> str:
    compiled = statement.compile(dialect=dialect, column_keys=list(columns))
    if tuple(compiled.positiontup or ()) not in {columns, ("rows",)}:
        raise AssertionError(f"expected the parameters {columns}, got {compiled.positiontup}")
    return str(compiled)
