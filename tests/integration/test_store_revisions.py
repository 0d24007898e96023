"""Tables of another revision than this release's: migrated by a service, refused by everything else."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import text, update

from service.errors import StoreUnavailable
from service.store.database import Database, engine_of, migrate, revision
from service.store.fleet import read_fleet
from service.store.rows import FleetFilter
from service.store.schema import HEAD, REVISION
from service.store.store import Store
from service.store.url import store_url
from tests.commands import rul


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
