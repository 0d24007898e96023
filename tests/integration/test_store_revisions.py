"""Tables that this release did not make, or that move: upgrades, backups, other databases, deletions."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psycopg
import pytest
from sqlalchemy import MetaData, insert, select, text, update

from service.errors import StoreUnavailable
from service.store.database import Database, engine_of, migrate, revision
from service.store.fleet import read_fleet
from service.store.judgement import Outcome, OutcomeKind
from service.store.rows import Append, FleetFilter, Given, ModelVersion, UnitKey
from service.store.schema import HEAD, METADATA, REVISION
from service.store.store import Store
from service.store.url import store_url
from tests.commands import rul
from tests.programs import program

DOCS = Path(__file__).parents[2] / "docs"
VERSIONS = [ModelVersion("fd001", version, 125.0, 0.9) for version in ("1", "2")]
TENANTS = "", "plant-a", "plant-b"


def made(url: str, at: str) -> None:
    """Make the tables of an earlier revision."""
    database = Database(engine_of(url))
    with database.writing() as connection:
        migrate(connection, to=at)
    database.close()


def found(url: str) -> str | None:
    database = Database(engine_of(url))
    with database.reading() as connection:
        at = revision(connection)
    database.close()
    return at


def append(store: Store, key: UnitKey, cycles: Iterable[int], columns: tuple[str, ...]) -> None:
    values = np.array([[0.1 + cycle, np.nan] for cycle in cycles], np.float32)
    given = Given([*cycles], values, lambda i, name: f"/{i}/{name}")
    [_] = store.readings.append([Append(key, columns, 9, given)], at=1e9)


def fill(store: Store) -> None:
    """Store tenants, versions, a failed unit, explanations, odd names and two column lists."""
    for tenant in TENANTS:
        for unit, cycles in ("7", range(5, 9)), ("Pümpe 'ß'/%", range(3)):
            fails, why = '{"30":0.5}', '{"evidence":{"8":0.1}}'
            store.write([
                ("fd001", unit, tenant, cycle, 1 / 3, 0.1, 55.0 + cycle, "estimated", "healthy",
                 1e9 + cycle / 7, fails, why, version)
                for cycle in cycles
                for version in ("1", "2")
            ])  # fmt: skip
            columns = ("a", "b") if unit == "7" else ("b", "c")
            append(store, UnitKey(tenant, "fd001", unit), cycles, columns)
        end = Outcome("fd001", "7", OutcomeKind.FAILED, 7, None, 2e9, tenant)
        store.take_outcome(end, replace=False)
        append(store, UnitKey(tenant, "fd001", "silent"), [1], ("a", "b"))


def rows(url: str) -> dict[str, list[str]]:
    """All rows of all tables in one order, with the numbers of the rows."""
    database = Database(engine_of(url))
    with database.reading() as connection:
        every = {
            str(table): sorted(repr({**row}) for row in connection.execute(select(table)).mappings())
            for table in METADATA.sorted_tables
        }
    database.close()
    return every


def block(page: str, heading: str, language: str) -> str:
    """The first block of a section of a page."""
    section = (DOCS / page).read_text("utf-8").partition(f"## {heading}\n")[2]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)[0]


@pytest.fixture
def postgres_url(postgres, tmp_path):
    return store_url(postgres.database(tmp_path.name))


def test_a_report_leaves_the_tables_of_an_earlier_release_as_they_are(url):
    made(url, "0001")

    result = rul("outcomes", "--store", url)

    assert isinstance(result.exception, StoreUnavailable)
    assert "revision '0001'" in str(result.exception)
    assert "start a service of this release" in str(result.exception)
    assert found(url) == "0001"


@pytest.mark.system
def test_a_report_on_an_empty_database_creates_no_tables(postgres_url):
    result = rul("outcomes", "--store", postgres_url)

    assert "no tables" in str(result.exception)
    assert found(postgres_url) is None


@pytest.mark.system
def test_a_migration_has_no_time_limit(postgres_url):
    made(postgres_url, "0002")
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION check_limit() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF current_setting('statement_timeout') <> '0' THEN RAISE 'limited'; END IF; END $$"
        )
        connection.execute(
            "CREATE EVENT TRIGGER check_limit ON ddl_command_start EXECUTE FUNCTION check_limit()"
        )

    store = Store.open(postgres_url)

    with store.reading() as connection:
        assert revision(connection) == HEAD
        assert connection.scalar(text("SHOW statement_timeout")) == "30s"
    store.close()


@pytest.mark.system
@pytest.mark.parametrize("at", [None, "0002"])
def test_a_role_that_may_not_change_tables_is_refused_with_what_to_grant(postgres, postgres_url, at):
    if at is not None:
        made(postgres_url, at)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS reader")
        connection.execute("CREATE ROLE reader LOGIN IN ROLE pg_read_all_data")

    with pytest.raises(
        StoreUnavailable, match=r"(must be owner|permission denied).*RUL_STORE_URL needs a role"
    ):
        Store.open(postgres_url.replace("//postgres@", "//reader@"))


@pytest.mark.system
def test_a_service_whose_tables_a_newer_release_migrated_says_so(postgres_url):
    store = Store.open(postgres_url)
    with store.writing() as connection:
        connection.execute(text("ALTER TABLE units RENAME COLUMN health_state TO health"))
        connection.execute(update(REVISION).values(version_num="9999"))

    with (
        pytest.raises(StoreUnavailable, match=r"revision '9999'.*newer release"),
        store.reading() as connection,
    ):
        read_fleet(connection, FleetFilter(["fd001"]), limit=1, after=None)

    store.close()


@pytest.mark.parametrize("at", ["0001", "0002", "0003"])
def test_an_upgrade_keeps_every_row_of_an_earlier_revision(url, tmp_path, at):
    now = Store.open(f"sqlite:///{tmp_path}/now.db", VERSIONS)
    fill(now)
    made(url, at)
    old, then = Database(engine_of(url)), MetaData()
    with now.reading() as source, old.writing() as target:
        then.reflect(target)
        for table in METADATA.sorted_tables:
            if table is not REVISION and table.name in then.tables:
                columns = then.tables[table.name].c
                no_tenant = [table.c.tenant == ""] if "tenant" in table.c else []
                given = source.execute(select(*(table.c[c.name] for c in columns)).where(*no_tenant))
                target.execute(insert(then.tables[table.name]), [*given.mappings()])
    before = contents(old, then)
    old.close()
    now.close()

    store = Store.open(url, VERSIONS)

    assert contents(store, then) == before
    assert sum(map(len, before.values())) > 15
    history = store.history(UnitKey("", "fd001", "7"), limit=99, before=None)
    assert [row["last_cycle"] for row in history.predictions] == [8, 8, 7, 7, 6, 6, 5, 5]
    assert history.outcome.cycle == 7
    store.close()


def contents(database: Database, tables: MetaData) -> dict[str, list[str]]:
    """All rows of these tables, in one order."""
    with database.reading() as connection:
        return {
            table.name: sorted(repr({**row}) for row in connection.execute(select(table)).mappings())
            for table in tables.sorted_tables
            if table.name != REVISION.name
        }


@pytest.mark.system
def test_the_documented_move_from_sqlite_to_postgresql_keeps_every_row_and_counts_on(postgres_url, tmp_path):
    url = f"sqlite:///{tmp_path}/rul.db"
    store = Store.open(url, VERSIONS)
    fill(store)
    store.close()
    script = block("postgresql.md", "Move from SQLite", "bash").partition("<<'PYTHON'\n")[2]
    address = postgres_url.replace("+psycopg", "")

    done = subprocess.run(
        [sys.executable, "-", url, address],
        input=script.removesuffix("PYTHON\n"),
        check=False,
        text=True,
        capture_output=True,
    )

    assert done.returncode == 0, done.stderr
    assert rows(postgres_url) == rows(url)
    moved = Store.open(postgres_url, [*VERSIONS, ModelVersion("fd001", "3", 125.0, 0.9)])
    moved.write([("fd001", "7", "", 9, 1.0, 0.0, 2.0, "estimated", "healthy", 2e9, None, None, "3")])
    append(moved, UnitKey("", "fd001", "7"), [9], ("new", "a"))
    history = moved.history(UnitKey("", "fd001", "7"), columns=("new",), limit=99, before=None)
    assert (len(history.predictions), history.readings.cycles) == (9, [5, 6, 7, 8, 9])
    moved.close()


def test_the_documented_statements_delete_a_tenant_and_nothing_of_another(url):
    store = Store.open(url, VERSIONS)
    fill(store)
    before = rows(url)
    statements = block("outcomes.md", "Delete", "sql").removeprefix("BEGIN;").partition("COMMIT")[0]

    with store.writing() as connection:
        for statement in filter(str.strip, statements.split(";")):
            connection.exec_driver_sql(statement)

    after = rows(url)
    assert after == {table: [row for row in kept if "plant-a" not in row] for table, kept in before.items()}
    assert sum(map(len, after.values())) < sum(map(len, before.values()))
    store.close()


def test_the_documented_command_erases_what_was_deleted_while_the_store_is_open(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/rul.db", VERSIONS)
    fill(store)

    def is_on_disk(name: str) -> bool:
        # Another process reads: one that closes the file loses SQLite's locks on it.
        return subprocess.run(["grep", "-rq", name, tmp_path], check=False).returncode == 0

    for tenant in TENANTS:
        store.delete(UnitKey(tenant, "fd001", "silent"))
    assert is_on_disk("silent")
    command = f"store={tmp_path}/rul.db\n{block('outcomes.md', 'Delete', 'bash')}"

    subprocess.run(["bash", "-ec", command], check=True)

    assert not is_on_disk("silent")
    append(store, UnitKey("", "fd001", "7"), [9], ("a", "b"))
    assert is_on_disk("plant-a")
    store.close()


@pytest.mark.system
def test_a_backup_of_an_earlier_release_is_restored_as_documented_and_upgraded_again(
    postgres, postgres_url, tmp_path
):
    address, copy = postgres_url.replace("+psycopg", ""), tmp_path / "copy.dump"
    made(postgres_url, "0003")
    subprocess.run([program("pg_dump"), "--format=custom", f"--file={copy}", address], check=True)
    Store.open(postgres_url, VERSIONS).close()
    section = (DOCS / "outcomes.md").read_text("utf-8")
    restored = postgres.url.replace("/postgres?", "/restored?")
    psql, restore = re.findall(r"^(?:psql|pg_restore) .*$", section, re.MULTILINE)
    psql = psql.replace("postgresql://rul:secret@db/postgres", f"'{postgres.url}'")
    restore = restore.replace("postgresql://rul:secret@db/restored", f"'{restored}'").replace(
        "copy.dump", str(copy)
    )

    subprocess.run(["bash", "-ec", f"{psql}\n{restore}"], check=True)

    assert found(store_url(restored)) == "0003"
    Store.open(store_url(restored), VERSIONS).close()
    assert found(store_url(restored)) == HEAD


@pytest.mark.system
def test_tables_left_beside_a_restored_backup_are_named_with_what_to_do(postgres_url):
    made(postgres_url, HEAD)
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0003'")

    with pytest.raises(StoreUnavailable, match=r"already exists.*restore a backup into an empty database"):
        Store.open(postgres_url)
