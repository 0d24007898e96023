"""Connections to SQLite or PostgreSQL, transactions, and tables at the current revision.

Calls block, so only threads may make them. This module must not know units or outcomes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final
from zlib import crc32

from sqlalchemy import create_engine, event, insert, inspect, select, text
from sqlalchemy.engine import Connection, Dialect, Engine, ExceptionContext, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.errors import StoreUnavailable
from service.store.rows import NO_ANSWER, reason_of
from service.store.schema import HEAD, METADATA, REVISION

BUSY_SECONDS: Final = 10
"""Maximum seconds that a SQLite statement waits for the lock of another process."""
LOCKED_SECONDS: Final = 0.001
"""Seconds between attempts to take SQLite's lock."""
LOCK: Final = 7_281_930_225
"""Key of an advisory lock in PostgreSQL: any number that no other program uses."""
NAME_LOCKS: Final = 1024
"""Number of advisory locks, after `LOCK`, that names share: a server has memory for some 6,400."""
MIGRATIONS: Final = Path(__file__).with_name("migrations")
WRITES: Final = "rul_writes"
READ_ONLY: Final = "25006"
"""PostgreSQL's code for a write refused by a standby or a server with a full disk."""
OPTIONS: Final = {
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "5",  # notices during a statement that the server's machine is gone
    "keepalives_interval": "2",
    "options": "-c statement_timeout=30000 -c lock_timeout=10000",
    "application_name": "rulserve",
}
"""Options of a connection to PostgreSQL, unless the address has others."""
NOT_GRANTED: Final = "42501"
"""PostgreSQL's code for a missing privilege."""
UNREADABLE: Final = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}
NOT_PERMITTED: Final = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


class Database:
    """Transactions on one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        # SQLite's transactions always see one state of the database.
        level = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
        self._snapshots: Final = engine.execution_options(**level)
        self._file: tuple[int, int] | None = None

    @property
    def dialect(self) -> Dialect:
        """SQLite's or PostgreSQL's."""
        return self._engine.dialect

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def check(self) -> None:
        """Check that SQLite's file is still the opened one: rows in a removed file would be lost.

        Raises:
            StoreUnavailable: the file was removed or replaced; reopen the store.
        """
        if self._file is not None and self._file != _file_of(self._engine):
            raise StoreUnavailable("the file of the store was removed or replaced while it was open")

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """Open a transaction for reads, which sees one state of the database.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        with self._unavailable(), self._snapshots.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """Open a transaction that commits on return and rolls back on an error.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        with self._unavailable():
            self.check()
            with (
                self._engine.connect() as connection,
                connection.execution_options(**{WRITES: True}).begin(),
            ):
                yield connection

    @contextmanager
    def locked(self) -> Generator[Connection]:
        """Open a writing transaction that excludes other `locked` ones, as SQLite writers always do."""
        with self.writing() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
            yield connection

    def analyze(self) -> None:
        """Update PostgreSQL's planner statistics; autovacuum may be late or off."""
        if self.dialect.name == "postgresql":
            with self.writing() as connection:
                connection.execute(text(f"ANALYZE (SKIP_LOCKED) {', '.join(METADATA.tables)}"))

    def upgrade(self) -> None:
        """Create or migrate the tables in one transaction; concurrent starts take turns.

        Raises:
            StoreUnavailable: the tables are those of a newer release, the role may not change tables, or the
                database has another encoding than UTF-8.
        """
        with self.reading() as connection:
            self._file = _file_of(self._engine)
            _check_encoding(connection)
            if revision(connection) == HEAD:
                return
        with self.locked() as connection:
            _change_tables(connection)

    @contextmanager
    def _unavailable(self) -> Generator[None]:
        try:
            yield
        except (OperationalError, InterfaceError, PoolTimeout, OSError) as error:
            if _sqlite_code(error) in NOT_PERMITTED:
                raise StoreUnavailable(
                    f"the file of the store cannot be opened or written ({reason_of(error)}): the user of "
                    "the service must be able to write it, its log (-wal, -shm) and their folder"
                ) from None
            raise StoreUnavailable(NO_ANSWER) from error
        except ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) == NOT_GRANTED:
                raise StoreUnavailable(
                    f"the role of the store lacks a privilege ({reason_of(error)}): GRANT SELECT, "
                    "INSERT, UPDATE, DELETE on its tables and USAGE on its sequences"
                ) from None
            with suppress(DBAPIError), self._engine.connect() as connection:
                check_revision(connection)  # a newer release may have migrated the tables meanwhile
            raise
        except DBAPIError as error:
            if _sqlite_code(error) in UNREADABLE:
                raise StoreUnavailable(
                    f"the file of the store is damaged, or no SQLite database ({error.orig}): restore it "
                    "from a backup, or set RUL_STORE_URL to another file"
                ) from None
            if error.connection_invalidated:
                raise StoreUnavailable(NO_ANSWER) from error
            raise


def take_turns(connection: Connection, names: Iterable[str]) -> None:
    """Wait for other transactions on one of these names; SQLite writers always take turns."""
    if connection.dialect.name != "postgresql":
        return
    # Sorted, because transactions that lock in different orders would deadlock.
    keys = sorted({LOCK + 1 + crc32(name.encode()) % NAME_LOCKS for name in names})
    lock = text("SELECT pg_advisory_xact_lock(key) FROM unnest(CAST(:keys AS bigint[])) AS key")
    connection.execute(lock, {"keys": keys})


def revision(connection: Connection) -> str | None:
    """Read the revision of the tables; None in a new database."""
    if not inspect(connection).has_table(REVISION.name):
        return None
    return connection.scalar(select(REVISION.c.version_num))


def check_revision(connection: Connection) -> None:
    """Check that the tables are those of this release.

    Raises:
        StoreUnavailable: they are missing, or have another revision.
    """
    found = revision(connection)
    if found == HEAD:
        return
    tables = "no tables" if found is None else f"tables of revision {found!r}"
    remedy = (
        "start a service of this release, which makes or migrates them"
        if (found or "") < HEAD
        else "run the newer release that made them, or set RUL_STORE_URL to another database"
    )
    raise StoreUnavailable(f"the store has {tables}, and this release reads revision {HEAD!r}: {remedy}")


def create_tables(connection: Connection) -> None:
    """Create all tables at `HEAD`, without alembic."""
    METADATA.create_all(connection)
    connection.execute(insert(REVISION).values(version_num=HEAD))


def migrate(connection: Connection, *, to: str = "head") -> None:
    """Run the pending migrations in the transaction of this connection."""
    from alembic import command, config  # noqa: PLC0415 8 MB and 0.2 s that only a migration needs

    options = config.Config(attributes={"connection": connection})
    options.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    options.set_main_option("path_separator", "os")
    command.upgrade(options, to)


def _check_encoding(connection: Connection) -> None:
    """Check that PostgreSQL's database can hold the names of all units."""
    if connection.dialect.name != "postgresql":
        return
    encoding = connection.scalar(text("SHOW server_encoding"))
    if encoding != "UTF8":
        raise StoreUnavailable(
            f"the database has the encoding {encoding}, which cannot hold every name: make one with CREATE "
            "DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )


def _change_tables(connection: Connection) -> None:
    """Create or migrate the tables, unless another process did so or they are those of a newer release."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))  # large tables take minutes
    found = revision(connection)
    try:
        if found is None:
            create_tables(connection)
        elif found < HEAD:
            migrate(connection)
    except ProgrammingError as error:
        reason = str(error.orig).partition("\n")[0]
        raise StoreUnavailable(
            f"the database does not let the store create or migrate its tables ({reason}): RUL_STORE_URL "
            "needs a role that owns them and may create tables; restore a backup into an empty database"
        ) from None
    check_revision(connection)


def _sqlite_code(error: Exception) -> int:
    """Return the primary code of a SQLite error: the low byte of its extended code."""
    code: int = getattr(getattr(error, "orig", error), "sqlite_errorcode", 0)
    return code & 0xFF


def _file_of(engine: Engine) -> tuple[int, int] | None:
    """Return device and inode of SQLite's file; None if there is no file."""
    path = engine.url.database if engine.dialect.name == "sqlite" else None
    try:
        found = None if path is None else Path(path).stat()
    except FileNotFoundError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def engine_of(url: str) -> Engine:
    """Make an engine with the store's options; it does not connect yet."""
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        return _sqlite(url, Path(address.database or ""))
    given = address.query
    options = f"{OPTIONS['options']} {given.get('options', '')}".strip()  # of repeated ones the last counts
    engine = create_engine(
        address.set(query={**OPTIONS, **given, "options": options}),
        isolation_level="READ COMMITTED",  # whatever the server's default: stricter levels refuse writers
        hide_parameters=True,  # errors are logged, and readings stay out of logs
        paramstyle="format",
        pool_size=4,
        pool_pre_ping=True,  # after a server restart the next query reconnects
        # A pooler may run each transaction in another session, which has other prepared statements.
        connect_args={"client_encoding": "utf8", "prepare_threshold": None},
    )
    event.listen(engine, "handle_error", _leave_read_only)
    return engine


def _leave_read_only(context: ExceptionContext) -> None:
    """Drop all connections to a read-only server: sessions stay read-only, new ones may not be."""
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


def _sqlite(url: str, path: Path) -> Engine:
    arguments = {"timeout": BUSY_SECONDS, "check_same_thread": False}
    engine = create_engine(url, hide_parameters=True, pool_size=4, connect_args=arguments)

    def before_connect(*_args: Any) -> None:  # noqa: ANN401 SQLAlchemy's own
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            path.touch(mode=0o600)  # SQLite gives its log the same mode

    def on_connect(connection: sqlite3.Connection, _record: Any) -> None:  # noqa: ANN401 SQLAlchemy's own
        connection.isolation_level = None  # `on_begin` begins transactions
        connection.create_function("lower", 1, _lower, deterministic=True)
        # WAL lets readers work beside a writer; SQLite ignores its timeout here.
        _insist(lambda: connection.execute("PRAGMA journal_mode=WAL"))
        connection.execute("PRAGMA synchronous=FULL")  # a committed row is on disk
        connection.execute("PRAGMA wal_autocheckpoint=4000")  # a page that changes often is checkpointed once

    def on_begin(connection: Connection) -> None:
        if not connection.get_execution_options().get(WRITES):
            connection.exec_driver_sql("BEGIN")
            return
        # SQLite itself would retry after up to 100 ms, while readings wait to be acknowledged.
        connection.exec_driver_sql("PRAGMA busy_timeout=0")
        try:
            # Not plain BEGIN: a reader that starts to write fails if another process wrote in between.
            _insist(lambda: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={1000 * BUSY_SECONDS:.0f}")

    event.listen(engine, "do_connect", before_connect)
    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
    return engine


def _lower(text: str | None) -> str | None:
    """Lower-case a text of any alphabet; SQLite's own function knows only A to Z."""
    return None if text is None else text.lower()


def _insist(run: Callable[[], object]) -> None:
    """Retry while another connection holds the lock, for `BUSY_SECONDS`."""
    give_up_at = monotonic() + BUSY_SECONDS
    while True:
        try:
            run()
        except (sqlite3.OperationalError, OperationalError) as error:
            # Another connection may also be recovering the log of a killed process.
            if _sqlite_code(error) != sqlite3.SQLITE_BUSY or monotonic() > give_up_at:
                raise
            sleep(LOCKED_SECONDS)
        else:
            return
