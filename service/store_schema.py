"""The tables of the store, and the statements that fill them: one description for SQLite and PostgreSQL.

A prediction is known by model version, unit and last cycle: asking again replaces the answer. `units`
holds each unit's latest prediction once more, so that a fleet is listed without reading its history.
Times are seconds since 1970. A change here needs a migration, under `migrations/versions`.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
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
    false,
    or_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
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
    """Insert or replace, as text of one database: rows then go to its driver as plain tuples.

    Attributes:
        prediction: Takes `PREDICTION_COLUMNS`; what is older or has been scored already is left.
        unit: Takes `UNIT_COLUMNS`; what is of an earlier cycle is left.
    """

    def __init__(self, dialect: Dialect) -> None:
        insert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
        new, old = insert(PREDICTIONS), PREDICTIONS.c
        answered = ("rul", "lower", "upper", "rul_state", "health_state", "predicted_at")
        not_older = new.excluded.predicted_at >= old.predicted_at
        self.prediction: Final = _text(
            new.on_conflict_do_update(
                index_elements=["version_id", "unit", "last_cycle"],
                set_={name: new.excluded[name] for name in answered},
                where=and_(not_older, old.scored.is_(False)),
            ),
            dialect,
            PREDICTION_COLUMNS,
        )
        new = insert(UNITS)
        self.unit: Final = _text(
            new.on_conflict_do_update(
                index_elements=["model", "unit"],
                set_={name: new.excluded[name] for name in ("version_id", "last_cycle", *answered)},
                where=_not_before(new.excluded.last_cycle, new.excluded.predicted_at),
            ),
            dialect,
            UNIT_COLUMNS,
        )


def _not_before(cycle: ColumnElement[int], at: ColumnElement[float]) -> ColumnElement[bool]:
    return or_(cycle > UNITS.c.last_cycle, and_(cycle == UNITS.c.last_cycle, at >= UNITS.c.predicted_at))


def _text(statement: sqlite.Insert | postgresql.Insert, dialect: Dialect, columns: tuple[str, ...]) -> str:
    compiled = statement.compile(dialect=dialect, column_keys=list(columns))
    if tuple(compiled.positiontup or ()) != columns:
        raise AssertionError(f"expected the parameters {columns}, got {compiled.positiontup}")
    return str(compiled)
