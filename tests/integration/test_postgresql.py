"""PostgreSQL as operators run it: behind a pooler, with settings, roles and encodings of their own."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
import pytest
from sqlalchemy import text

from service.errors import StoreUnavailable
from service.store.rows import Append, FleetFilter, Given, ModelVersion, UnitKey
from service.store.store import Store
from service.store.url import store_url
from tests.databases import pgbouncer
from tests.programs import ROOT

VERSION = ModelVersion("fd001", "1", 125.0, 0.9)
TURNS = 30
PAGE = ROOT / "docs" / "postgresql.md"

pytestmark = pytest.mark.system


@pytest.fixture
def address(postgres, tmp_path):
    return postgres.database(tmp_path.name)


def row(unit, cycle):
    return ("fd001", unit, "", cycle, 50.0, 45.0, 55.0, "estimated", "healthy", 1000.0, None, None, "1")


def reading(unit, cycle):
    given = Given([cycle], np.full((1, 2), cycle, np.float32), lambda i, column: "/readings")
    return Append(UnitKey("", "fd001", unit), ("speed", "load"), 100, given)


def shown(store, name):
    with store.writing() as connection:
        return connection.scalar(text(f"SHOW {name}"))


def test_nothing_is_lost_or_mixed_up_behind_a_pooler_that_gives_each_transaction_another_session(
    postgres, address
):
    with pgbouncer(postgres) as pooled:
        stores = [Store.open(store_url(address + pooled), [VERSION]) for _ in range(2)]

        def live(number):
            store, unit = stores[number % 2], f"unit {number}"
            for cycle in range(1, TURNS + 1):
                store.write([row(unit, cycle)])
                store.readings.append([reading(unit, cycle)], at=1000.0)
                store.fleet(FleetFilter(["fd001"]), limit=5)
            return store.history(
                UnitKey("", "fd001", unit), columns=("speed", "load"), limit=TURNS, before=None
            )

        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(live, range(6)))
        for store in stores:
            store.close()

    for number, history in enumerate(found):
        assert [past["last_cycle"] for past in history.predictions] == [*range(TURNS, 0, -1)]
        assert {past["unit"] for past in history.predictions} == {f"unit {number}"}
        assert history.readings.values[:, 0].tolist() == [*range(1, TURNS + 1)]


def test_options_of_the_address_add_to_those_of_the_store_or_replace_them(address):
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA fleet")
    options = "-csearch_path%3Dfleet%20-cstatement_timeout%3D60000"

    store = Store.open(store_url(f"{address}&options={options}&application_name=plant"), [VERSION])

    assert shown(store, "search_path") == "fleet"
    assert shown(store, "statement_timeout") == "1min"
    assert shown(store, "lock_timeout") == "10s"
    assert shown(store, "application_name") == "plant"
    with store.reading() as connection:
        tables = connection.execute(text("SELECT schemaname FROM pg_tables WHERE tablename = 'units'"))
        assert [*tables.scalars()] == ["fleet"]
    store.close()


def test_a_server_that_vanishes_during_a_statement_is_missed_within_seconds(address):
    store = Store.open(store_url(address), [VERSION])

    with store.reading() as connection:
        given = connection.connection.driver_connection.info.get_parameters()

    # Else the kernel asks after two hours whether the server is still there.
    idle, unanswered = int(given["keepalives_idle"]), int(given["tcp_user_timeout"]) / 1000
    assert 0 < idle < idle + unanswered <= 15  # 0: the kernel's own
    store.close()


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_a_server_with_another_isolation_level_is_written_as_any_other(address, level):
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            f"ALTER DATABASE \"{connection.info.dbname}\" SET default_transaction_isolation = '{level}'"
        )

    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: Store.open(store_url(address), [VERSION]), range(4)))

    assert {shown(store, "transaction_isolation") for store in stores} == {"read committed"}
    for store in stores:
        store.close()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_name_is_refused(postgres, encoding):
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {encoding} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")

    with pytest.raises(StoreUnavailable, match=f"encoding {encoding}.*ENCODING 'UTF8'"):
        Store.open(store_url(postgres.url.replace("/postgres?", f"/{encoding.lower()}?")))


def test_a_role_that_only_reads_and_writes_rows_serves_tables_of_their_owner(postgres, address):
    (grants,) = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE ROLE rul LOGIN")
        connection.execute(grants)
    Store.open(store_url(address)).close()
    owner = address.partition("//")[2].partition("@")[0]
    store = Store.open(store_url(address.replace(f"//{owner}@", "//rul@")), [VERSION])
    key = UnitKey("", "fd001", "1")

    store.write([row("1", 1)])
    store.readings.append([reading("1", 1)], at=1000.0)
    for _ in store.purge(before=0):
        pass
    assert store.rename(key, "2")
    assert store.delete(key._replace(unit="2")) is not None

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("REVOKE ALL ON readings FROM rul")
    with pytest.raises(StoreUnavailable, match=r"permission denied for table readings.*GRANT SELECT"):
        store.readings.append([reading("1", 1)], at=1000.0)
    store.close()
