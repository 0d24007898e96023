"""Where predictions and outcomes are kept: a database, opened, brought up to date and written to.

Synchronous, for threads that may wait; the event loop must not call it. This module must not know
who asks, nor what an outcome says of a prediction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, Self

from sqlalchemy import create_engine, delete, event, func, insert, inspect, select, text, update
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.errors import StoreUnavailable
from service.store.rows import ModelVersion, Row, RowsRefused
from service.store.schema import HEAD, OUTCOMES, PREDICTIONS, UNITS, VERSIONS, Upserts

BUSY_SECONDS: Final = 10
"""How long a statement waits for other processes to finish theirs."""
LOCKED_SECONDS: Final = 0.01
"""Between two tries at what SQLite does not wait for by itself."""
MIGRATION_LOCK: Final = 7_281_930_225
"""Any number that no other program locks in PostgreSQL."""
PURGE_ROWS: Final = 5000
WRITES: Final = "rul_writes"


class Store:
    """An open database."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._upserts: Final = Upserts(engine.dialect)
        self._ids: dict[str, int] = {}

    @classmethod
    def open(cls, url: str, versions: Sequence[ModelVersion] = ()) -> Self:
        """Connect, bring the tables up to date, and make these model versions known.

        Raises:
            StoreUnavailable: the database cannot be reached.
        """
        store = cls(engine_of(url))
        try:
            store._upgrade()
            store._ids = {known.model: store._register(known) for known in versions}
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Let go of every connection."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """A transaction that only reads.

        Raises:
            StoreUnavailable: the database is away.
        """
        with _as_unavailable(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """A transaction that is there when this returns without an error, and else not at all.

        Raises:
            StoreUnavailable: the database is away.
        """
        with (
            _as_unavailable(),
            self._engine.connect() as connection,
            connection.execution_options(**{WRITES: True}).begin(),
        ):
            yield connection

    def write(self, rows: Sequence[Row]) -> None:
        """Keep predictions, all or none; each replaces what was predicted of its unit and cycle before.

        Raises:
            StoreUnavailable: the database is away.
            RowsRefused: a row cannot be kept.
        """
        # In one order everywhere: two processes that lock rows crosswise would wait for each other.
        ordered = sorted(rows)
        ids = self._ids
        latest = {row[:2]: row for row in ordered}
        units = [(row[0], row[1], ids[row[0]], *row[2:]) for row in latest.values()]
        try:
            with self.writing() as connection:  # units first, as an outcome does: see `ordered`
                self._upserts.units(connection, units)
                self._upserts.predictions(connection, [(ids[row[0]], *row[1:]) for row in ordered])
        except (DataError, IntegrityError, ValueError, OverflowError) as error:
            raise RowsRefused(f"one of {len(rows)} predictions cannot be kept") from error

    def purge(self, before: float) -> int:
        """Forget what is older than this time; how many predictions that were."""
        with self.writing() as connection:
            connection.execute(delete(UNITS).where(UNITS.c.predicted_at < before))
            connection.execute(delete(OUTCOMES).where(OUTCOMES.c.recorded_at < before))
        gone, done = 0, 0
        while True:  # a little at a time: whoever else writes gets a turn
            some = select(PREDICTIONS.c.id).where(PREDICTIONS.c.id > done)
            some = some.order_by(PREDICTIONS.c.id).limit(PURGE_ROWS).subquery()
            with self.writing() as connection:
                upto = connection.scalar(select(func.max(some.c.id)))
                if upto is None:
                    return gone
                old = PREDICTIONS.c.id.between(done, upto) & (PREDICTIONS.c.predicted_at < before)
                deleted = connection.execute(delete(PREDICTIONS).where(old)).rowcount
            if not deleted:  # rows lie in the order in which they came: what follows is younger
                return gone
            gone, done = gone + deleted, upto

    def _register(self, known: ModelVersion) -> int:
        where = (VERSIONS.c.model == known.model) & (VERSIONS.c.version == known.version)
        judged_by = {"cap": known.cap, "nominal_coverage": known.nominal_coverage}
        with self.writing() as connection:
            self._lock(connection)
            found = connection.scalar(select(VERSIONS.c.id).where(where))
            if found is not None:
                connection.execute(update(VERSIONS).where(where).values(**judged_by))
                return found
            row = {"model": known.model, "version": known.version, **judged_by}
            return connection.execute(insert(VERSIONS).values(row).returning(VERSIONS.c.id)).scalar_one()

    def _upgrade(self) -> None:
        with self.reading() as connection:
            if _revision(connection) == HEAD:
                return
        from service.store.migrate import upgrade  # noqa: PLC0415 40 MB that a current store never needs

        with self.writing() as connection:
            self._lock(connection)
            upgrade(connection)

    def _lock(self, connection: Connection) -> None:
        """Until the transaction ends, nobody else changes tables; SQLite's writers take turns anyway."""
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.scalar(text("SELECT version_num FROM alembic_version"))


@contextmanager
def _as_unavailable() -> Generator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout, OSError) as error:
        raise StoreUnavailable("the store of predictions cannot be reached now") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise StoreUnavailable("the store of predictions cannot be reached now") from error
        raise


def engine_of(url: str) -> Engine:
    """Connections to a database, set up as the store needs them; none is made yet."""
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        return _sqlite(url, Path(address.database or ""))
    return create_engine(
        address,
        paramstyle="format",
        pool_size=4,
        pool_pre_ping=True,  # a server that was restarted costs a question, not an answer
        connect_args={
            "connect_timeout": 5,
            "tcp_user_timeout": 10_000,
            "options": "-c statement_timeout=30000 -c lock_timeout=10000",
            "application_name": "rulserve",
        },
    )


def _sqlite(url: str, path: Path) -> Engine:
    engine = create_engine(
        url, pool_size=4, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False}
    )

    def opened(connection: sqlite3.Connection, _record: Any) -> None:  # noqa: ANN401 SQLAlchemy's own
        connection.isolation_level = None  # transactions begin where we say, below
        # Readers do not wait for the writer; what is committed is on the disk.
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=4000")  # pages that many rows touch are moved once

    def begun(connection: Connection) -> None:
        # A reader that turns writer half-way would fail where another process wrote in between.
        writes = connection.get_execution_options().get(WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    def about_to_connect(*_args: Any) -> None:  # noqa: ANN401 SQLAlchemy's own
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    event.listen(engine, "do_connect", about_to_connect)
    event.listen(engine, "connect", opened)
    event.listen(engine, "begin", begun)
    return engine


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log; SQLite refuses at once, without its timeout, while another does so too."""
    patience = monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > patience:
                raise
            sleep(LOCKED_SECONDS)
        else:
            return
