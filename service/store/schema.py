"""Tables of the store and the statements that fill them, for SQLite and PostgreSQL.

Model version, tenant, unit and last cycle identify a prediction: a newer one replaces it. `units` repeats the
latest prediction of each unit, so that listing a fleet reads no history. Tenant, model, unit and cycle
identify a reading, which never changes. Times are seconds since 1970.
A change here needs a migration in `migrations/versions` and a new `HEAD`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect

from service.store.rows import UnitKey

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

HEAD: Final = "0004"
"""The revision of these tables: a database that has it needs no alembic."""

METADATA: Final = sa.MetaData()
PREDICTION_KEY: Final = ("version_id", "tenant", "unit", "last_cycle")
UNIT_KEY: Final = UnitKey._fields
READING_KEY: Final = (*UNIT_KEY, "cycle")
_ANSWER: Final[dict[str, Any]] = {
    "rul": sa.Double,
    "lower": sa.Double,
    "upper": sa.Double,
    "rul_state": sa.String,
    "health_state": sa.String,
    "predicted_at": sa.Double,
}


def _columns(**kinds: Any) -> list[sa.Column[Any]]:  # noqa: ANN401 a class of SQLAlchemy's
    return [sa.Column(name, kind, nullable=False) for name, kind in kinds.items()]


def _tenant() -> sa.Column[str]:
    """Make the column of a unit's tenant; "" is the tenant of keys without one."""
    return sa.Column("tenant", sa.String, nullable=False, server_default="")


def _failure_probability() -> sa.Column[str]:
    """Make the column of probabilities by horizon, a JSON object; rows of earlier revisions have none."""
    return sa.Column("failure_probability", sa.String)


REVISION: Final = sa.Table(  # alembic's table
    "alembic_version",
    METADATA,
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)

VERSIONS: Final = sa.Table(
    "model_versions",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    *_columns(model=sa.String, version=sa.String, cap=sa.Double, nominal_coverage=sa.Double),
    sa.UniqueConstraint("model", "version"),
)

PREDICTIONS: Final = sa.Table(
    "predictions",
    METADATA,
    # Rows are in order of arrival, also replaced ones, so a purge needs no index on time.
    # SQLite assigns only INTEGER keys.
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    *_columns(version_id=sa.Integer, unit=sa.String, last_cycle=sa.Integer, **_ANSWER),
    # True once an outcome has judged the prediction: it is neither replaced nor counted again.
    sa.Column("scored", sa.Boolean, nullable=False, server_default=sa.false()),
    # JSON (`explanation.Explanation`), of models that explain readings.
    sa.Column("explanation", sa.String),
    _tenant(),
    _failure_probability(),
    sa.UniqueConstraint(*PREDICTION_KEY, name="predictions_key"),
)

UNITS: Final = sa.Table(
    "units",
    METADATA,
    *_columns(model=sa.String, unit=sa.String, version_id=sa.Integer, last_cycle=sa.Integer, **_ANSWER),
    _tenant(),
    _failure_probability(),
    sa.PrimaryKeyConstraint(*UNIT_KEY, name="units_pkey"),
)

OUTCOMES: Final = sa.Table(
    "outcomes",
    METADATA,
    *_columns(model=sa.String, unit=sa.String, kind=sa.String, cycle=sa.Integer),
    sa.Column("happened_at", sa.Double),
    *_columns(recorded_at=sa.Double),
    _tenant(),
    sa.PrimaryKeyConstraint(*UNIT_KEY, name="outcomes_pkey"),
)

COLUMN_LISTS: Final = sa.Table(
    "column_lists",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("names", sa.String, nullable=False, unique=True),  # JSON
)

READINGS: Final = sa.Table(
    "readings",
    METADATA,
    _tenant(),
    *_columns(model=sa.String, unit=sa.String, cycle=sa.Integer, columns_id=sa.Integer),
    # float32, little-endian, in the order of the column list; NaN = missing.
    *_columns(values=sa.LargeBinary, received_at=sa.Double),
    sa.PrimaryKeyConstraint(*READING_KEY, name="readings_pkey"),
    sa.Index("readings_received_at", "received_at"),
    sqlite_with_rowid=False,  # the cycles of a unit are adjacent: a window is two or three pages
)

PREDICTION_COLUMNS: Final = (
    "version_id", "unit", "last_cycle", *_ANSWER, "explanation", "tenant", "failure_probability"
)  # fmt: skip
UNIT_COLUMNS: Final = ("model", "unit", "version_id", "last_cycle", *_ANSWER, "tenant", "failure_probability")


def of_unit(table: sa.Table, key: UnitKey) -> sa.ColumnElement[bool]:
    """Select the rows of a unit."""
    owned = (table.c.tenant == key.tenant) & (table.c.unit == key.unit)
    if table is PREDICTIONS:
        return owned & table.c.version_id.in_(sa.select(VERSIONS.c.id).where(VERSIONS.c.model == key.model))
    return owned & (table.c.model == key.model)


def same_unit(one: sa.Table, other: sa.FromClause) -> sa.ColumnElement[bool]:
    """Join the rows of two tables that belong to one unit."""
    return sa.and_(*(one.c[name] == other.c[name] for name in UNIT_KEY))


class Upserts:
    """Insert or replace many rows by the fastest way of each driver.

    SQLite takes tuples. PostgreSQL takes one JSON text: a round trip or a prepared statement for each
    row costs this process three times as much.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._as_json: Final = dialect.name == "postgresql"
        insert = import_module(f"sqlalchemy.dialects.{dialect.name}").insert  # 2 MB less than both
        new, old = insert(PREDICTIONS), PREDICTIONS.c
        not_older = new.excluded.predicted_at >= old.predicted_at
        self._prediction: Final = self._text(
            new,
            PREDICTION_COLUMNS,
            key=PREDICTION_KEY,
            where=not_older & old.scored.is_(False),
            dialect=dialect,
            renewed=("id",),
        )
        new, old = insert(UNITS), UNITS.c
        cycle, not_older = new.excluded.last_cycle, new.excluded.predicted_at >= old.predicted_at
        is_later = (cycle > old.last_cycle) | ((cycle == old.last_cycle) & not_older)
        self._unit: Final = self._text(new, UNIT_COLUMNS, key=UNIT_KEY, where=is_later, dialect=dialect)

    def predictions(self, connection: Connection, rows: Sequence[Sequence[object]]) -> None:
        """Write rows of `PREDICTION_COLUMNS`, each key once; keep newer and scored ones."""
        self._run(connection, self._prediction, rows)

    def units(self, connection: Connection, rows: Sequence[Sequence[object]]) -> None:
        """Write rows of `UNIT_COLUMNS`, each key once; keep those of a later cycle."""
        self._run(connection, self._unit, rows)

    def _run(self, connection: Connection, statement: str, rows: Sequence[Sequence[object]]) -> None:
        given: Any = (msgspec.json.encode(rows).decode(),) if self._as_json else rows
        connection.exec_driver_sql(statement, given)

    def _text(
        self,
        new: sqlite.Insert | postgresql.Insert,
        columns: tuple[str, ...],
        *,
        key: tuple[str, ...],
        where: sa.ColumnElement[bool],
        dialect: Dialect,
        renewed: tuple[str, ...] = (),
    ) -> str:
        """Compile an upsert of columns, given in the table's order; `renewed` ones get their defaults."""
        if self._as_json:
            given = sa.cast(sa.bindparam("rows", type_=sa.String), sa.JSON)
            row = sa.func.json_array_elements(given).column_valued("row")
            values = [
                sa.cast(row.op("->>")(sa.literal_column(str(i))), new.table.c[name].type)
                for i, name in enumerate(columns)
            ]
            new = new.from_select(list(columns), sa.select(*values))
        changed = {name: new.excluded[name] for name in (*columns, *renewed) if name not in key}
        upsert = new.on_conflict_do_update(index_elements=key, set_=changed, where=where)
        compiled = upsert.compile(dialect=dialect, column_keys=list(columns))
        if tuple(compiled.positiontup or ()) not in {columns, ("rows",)}:
            raise AssertionError(f"expected the parameters {columns}, got {compiled.positiontup}")
        return str(compiled)
