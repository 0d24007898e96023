"""The store on SQLite and PostgreSQL: exact figures, equal tables, no loss when the database dies."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import time

import httpx
import numpy as np
import pandas as pd
import pytest
import structlog
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from msgspec import UNSET
from prometheus_client import CollectorRegistry
from sqlalchemy import Connection, event, func, inspect, select, text

from model.domain import RulError
from service.errors import StoreUnavailable
from service.http.units_bodies import unit_body
from service.metrics.instruments import Shared
from service.metrics.store import StoreMetrics
from service.store.async_store import AsyncStore
from service.store.database import Database, create_tables, engine_of, migrate, revision
from service.store.explanation import BriefGrounds, explanation_text
from service.store.judgement import Outcome, OutcomeKind
from service.store.recorder import Recorder
from service.store.rows import Append, Given, ModelVersion, RowsRefused, UnitKey
from service.store.schema import HEAD, METADATA, PREDICTIONS, UNITS
from service.store.store import Store
from service.store.url import store_url
from tests.accuracy import accuracy_by_pandas
from tests.commands import rul
from tests.integration.conftest import free_port, metric, running
from tests.waiting import wait_until

PREDICTED, EVERY_UNIT, ENDED, CAP = 3000, 200, 140, 125.0
VERSION = ModelVersion("fd001", "1", CAP, 0.9)
PATIENCE = 60


def predictions() -> pd.DataFrame:
    """Predictions of units of all ages, some late, some early, some asked twice, some after the end."""
    rng = np.random.default_rng(7)
    rows = pd.DataFrame(
        {
            "unit": rng.integers(0, EVERY_UNIT, PREDICTED).astype(str),
            "last_cycle": rng.integers(1, 300, PREDICTED),
            "rul": rng.uniform(0, CAP, PREDICTED).round(3),
            "half_width": rng.uniform(0, 40, PREDICTED).round(3),
        }
    )
    rows["lower"] = (rows.rul - rows.half_width).clip(lower=0)
    rows["upper"] = (rows.rul + rows.half_width).clip(upper=CAP)
    rows["at"] = np.arange(PREDICTED) + 1e9
    return rows


def outcomes() -> pd.DataFrame:
    rng = np.random.default_rng(8)
    return pd.DataFrame(
        {
            "unit": rng.permutation(EVERY_UNIT)[:ENDED].astype(str),
            "kind": rng.choice(["failed", "removed"], ENDED),
            "cycle": rng.integers(100, 330, ENDED),
        }
    )


def by_pandas(asked: pd.DataFrame, ends: pd.DataFrame) -> dict[str, float]:
    """Expect the figures: of each unit and cycle the last prediction, up to the unit's outcome."""
    met = asked.drop_duplicates(["unit", "last_cycle"], keep="last").merge(ends, on="unit")
    met = met[met.last_cycle <= met.cycle]
    known = ends[ends.unit.isin(met.unit)].kind.value_counts()
    return {**known[["failed", "removed"]], **accuracy_by_pandas(met, CAP)}


async def fed(url: str, asked: pd.DataFrame, ends: pd.DataFrame) -> CollectorRegistry:
    """What the service counts, after two workers have written the predictions and one took the outcomes."""
    registry = CollectorRegistry()
    shared = Shared(registry)
    observer = StoreMetrics(shared)
    shared.add_model("fd001")
    recorder = Recorder(
        partial(Store.open, url, [VERSION]), most_rows=1, observer=observer, log=structlog.get_logger()
    )
    store = AsyncStore(
        recorder, [VERSION], lag_seconds=0, retention_days=10**5, timeout_seconds=PATIENCE, observer=observer
    )
    store.start()
    rows = [
        ("fd001", r.unit, "", r.last_cycle, r.rul, r.lower, r.upper, "estimated", "healthy", r.at,
         None, None, "1")
        for r in asked.itertuples()
    ]  # fmt: skip
    await asyncio.to_thread(write_by_two, url, rows)
    for end in ends.sample(frac=1, random_state=0).itertuples():
        given = Outcome("fd001", end.unit, OutcomeKind(end.kind), end.cycle, None, time())
        await store.take_outcome(given, replace=False)
    await store.close(PATIENCE)
    return registry


def write_by_two(url: str, rows: list) -> None:
    """Rows of the same units by two workers at once, which never wait for each other for good."""

    def write(part: list) -> None:
        store = Store.open(url, [VERSION])
        for start in range(0, len(part), 500):
            store.write([*{row[:4]: row for row in part[start : start + 500]}.values()])
        store.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, (rows[::2], rows[1::2])))


@pytest.fixture
def ends() -> pd.DataFrame:
    asked = set(predictions().unit)
    found = outcomes()
    return found[found.unit.isin(asked)]


async def test_the_figures_of_thousands_of_predictions_are_those_of_pandas(url, ends):
    expected = by_pandas(predictions(), ends)
    assert predictions().duplicated(["unit", "last_cycle"]).any()

    registry = await fed(url, predictions(), ends)

    def counted(name: str, **labels: str) -> float:
        return registry.get_sample_value(name, labels)

    model = {"model": "fd001"}
    assert counted("rul_outcomes_total", kind="failed") == (ends.kind == "failed").sum()
    assert counted("rul_outcomes_total", kind="removed") == (ends.kind == "removed").sum()
    assert counted("rul_coverage_units_total", **model) == expected["failed"]
    assert counted("rul_coverage_trials_total", **model) == expected["with_error"]
    for verdict in ("contradicted", "open"):
        assert counted("rul_removed_predictions_total", verdict=verdict, **model) == expected[verdict]
    assert counted("rul_coverage_hits_total", **model) == expected["hits"]
    assert counted("rul_outcome_absolute_error_cycles_count", **model) == expected["with_error"]
    assert counted("rul_outcome_absolute_error_cycles_sum", **model) == pytest.approx(
        expected["mean_absolute_error"] * expected["with_error"]
    )
    for side in ("late", "early"):
        assert counted("rul_outcome_error_cycles_total", side=side, **model) == pytest.approx(expected[side])
    assert counted("rul_outcome_nasa_score_total", **model) == pytest.approx(
        expected["nasa_score"] * expected["with_error"]
    )
    (row,) = rul_outcomes(url)
    for name in expected.keys() & row.keys():
        assert row[name] == pytest.approx(expected[name]), name
    assert row["coverage_low"] < row["coverage"] < row["coverage_high"]


def rul_outcomes(url: str, *options: str) -> list[dict]:
    done = rul("outcomes", "--store", url, "--format", "json", *options)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_outcomes_of_before_a_day_are_left_out(tmp_path):
    url = store_url(f"sqlite:///{tmp_path}/rul.db")
    asyncio.run(
        fed(url, predictions().head(50), outcomes()[outcomes().unit.isin(predictions().head(50).unit)])
    )

    (row,) = rul_outcomes(url, "--since", "2999-01-01")

    assert (row["predictions"], row["failed"], row["rmse"]) == (0, 0, None)


def test_to_look_for_a_store_makes_none(tmp_path):
    done = rul("outcomes", "--store", f"sqlite:///{tmp_path}/no.db")

    assert isinstance(done.exception, RulError)
    assert "no store at" in str(done.exception)
    assert not (tmp_path / "no.db").exists()


def test_why_a_store_does_not_answer_is_said_to_the_operator():
    done = rul("outcomes", "--store", f"postgresql://nobody:secret@127.0.0.1:{free_port()}/rul")

    assert isinstance(done.exception, RulError)
    assert "the store does not answer: " in str(done.exception)
    assert "Connection refused" in str(done.exception)
    assert "secret" not in str(done.exception)


@pytest.fixture
def store(url) -> Iterator[Store]:
    opened = Store.open(url, [VERSION])
    yield opened
    opened.close()


def row(unit: str = "1", cycle: int = 10, rul: float = 50.0, *, at: float = 1000.0, why: str | None = None):
    return ("fd001", unit, "", cycle, rul, rul - 5, rul + 5, "estimated", "healthy", at, None, why, "1")


def kept(store: Store) -> list[tuple]:
    with store.reading() as connection:
        columns = PREDICTIONS.c.unit, PREDICTIONS.c.last_cycle, PREDICTIONS.c.rul
        return [tuple(found) for found in connection.execute(select(*columns).order_by(*columns))]


@pytest.mark.parametrize("found", [None, "0001"])
def test_workers_that_start_together_find_one_set_of_tables_at_this_revision(url, found):
    if found is not None:
        old = Database(engine_of(url))
        with old.writing() as connection:
            migrate(connection, to=found)
        old.close()

    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: Store.open(url, [VERSION]), range(4)))

    for i, store in enumerate(stores):
        store.write([row(f"unit {i}")])
    assert [found[0] for found in kept(stores[0])] == ["unit 0", "unit 1", "unit 2", "unit 3"]
    with stores[0].reading() as connection:
        assert revision(connection) == HEAD
    for store in stores:
        store.close()


def test_a_reader_sees_nothing_that_is_written_meanwhile(store):
    with store.reading() as connection:
        connection.execute(select(PREDICTIONS)).all()
        store.write([row()])
        seen = connection.execute(select(PREDICTIONS)).all()

    assert seen == []
    assert len(kept(store)) == 1


def test_the_newest_prediction_of_a_cycle_stays_exactly_as_it_was(store):
    store.write([row(rul=0.1 + 0.2, at=1001.0), row('ü"\\', 3)])
    store.write([row(rul=1.0, at=1000.0)])

    assert kept(store) == [("1", 10, 0.1 + 0.2), ('ü"\\', 3, 50.0)]


def test_an_explanation_stays_exactly_as_it_was(store):
    text = explanation_text(BriefGrounds(([3], [0.5], [0], [-7.25]), 10, ('ü"\\',), UNSET))

    store.write([row(cycle=10), row(cycle=11, why=text)])

    found = store.history(UnitKey("", "fd001", "1"), limit=5, before=None)
    assert [prediction["explanation"] for prediction in found.predictions] == [text, None]


@pytest.mark.parametrize("bad", [row(rul=float("nan")), row(unit="\ud800")])
def test_a_row_that_cannot_be_kept_is_refused_with_its_company_and_not_for_ever(store, bad):
    with pytest.raises(RowsRefused):
        store.write([row("good"), bad])

    store.write([row("good")])
    assert kept(store) == [("good", 10, 50.0)]


def plans(store: Store, question: Callable[[], object]) -> list[str]:
    """How the database goes about each statement of a question on predictions."""
    asked = []

    def remember(_connection, _cursor, statement, parameters, *_more):
        if "FROM predictions" in statement:
            asked.append((statement, parameters))

    event.listen(store._engine, "before_cursor_execute", remember)
    question()
    event.remove(store._engine, "before_cursor_execute", remember)
    explain = "EXPLAIN QUERY PLAN " if store._engine.dialect.name == "sqlite" else "EXPLAIN "
    with store.reading() as connection:
        return [
            "\n".join(str(line[-1]) for line in connection.exec_driver_sql(explain + statement, given))
            for statement, given in asked
        ]


@pytest.fixture
def long_lives(url) -> Iterator[Store]:
    """Two units of three thousand cycles, predicted by two versions, one of which has failed."""
    for version in ("1", "2"):
        store = Store.open(url, [ModelVersion("fd001", version, CAP, 0.9)])
        for unit in ("1", "2"):
            store.write(
                [(*row(unit, cycle, at=1000.0 + int(version))[:-1], version) for cycle in range(1, 3001)]
            )
        store.close()
    store = Store.open(url, [VERSION])
    store.take_outcome(Outcome("fd001", "1", OutcomeKind.FAILED, 3100, None, 2000.0), replace=False)
    with store.writing() as connection:
        connection.execute(text("ANALYZE"))
    yield store
    store.close()


def test_a_page_of_a_long_history_is_read_along_an_index_and_nothing_is_sorted(long_lives):
    seen = plans(long_lives, lambda: long_lives.history(UnitKey("", "fd001", "1"), limit=100, before=2000))

    assert len(seen) == 5  # the versions; of each, a page and what is judged
    for plan in seen:
        assert re.search("USING INDEX|Index (Only )?Scan", plan), plan
        assert re.search("SCAN predictions|TEMP B-TREE|Seq Scan on predictions|Sort", plan) is None, plan


def test_the_pages_of_a_long_history_hold_each_prediction_once(long_lives):
    seen, before = [], None
    while True:
        found = long_lives.history(UnitKey("", "fd001", "1"), limit=999, before=before)
        assert len(found.predictions) <= 2 * 1000
        body = unit_body("fd001", "1", found, limit=999)
        seen += [(past.last_cycle, past.version) for past in body.predictions]
        assert [score.predictions for score in body.scores] == [1000, 1000]
        before = body.next
        if before is None:
            break

    assert seen == [(cycle, version) for cycle in range(3000, 0, -1) for version in ("2", "1")]


def layout(connection: Connection) -> dict[str, object]:
    seen = inspect(connection)
    return {
        table: [
            [{**column, "type": str(column["type"])} for column in seen.get_columns(table)],
            seen.get_pk_constraint(table), seen.get_unique_constraints(table), seen.get_indexes(table),
        ]
        for table in seen.get_table_names()
    }  # fmt: skip


def test_created_tables_are_those_of_the_migrations(url):
    database = Database(engine_of(url))

    with database.writing() as connection:
        migrate(connection)
        assert revision(connection) == HEAD
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        migrated = layout(connection)
        METADATA.drop_all(connection)
        create_tables(connection)
        assert revision(connection) == HEAD
        assert layout(connection) == migrated
        assert "predictions" in migrated
    database.close()


@pytest.mark.system
def test_a_purge_renews_the_statistics_that_postgresql_plans_by(postgres, tmp_path):
    store = Store.open(store_url(postgres.database(tmp_path.name)), [VERSION])
    store.write([row(str(unit)) for unit in range(300)])

    [*store.purge(before=0.0)]

    with store.reading() as connection:
        rows = "SELECT reltuples FROM pg_class WHERE relname = 'units'"
        assert connection.scalar(text(rows)) == 300
    store.close()


@pytest.mark.system
def test_a_name_that_postgresql_cannot_hold_is_refused(postgres):
    store = Store.open(store_url(postgres.database("zero")), [VERSION])

    with pytest.raises(RowsRefused):
        store.write([row("a\0b")])

    store.close()


@pytest.mark.system
@pytest.mark.parametrize("change", ["delete", "rename"])
def test_a_unit_that_is_changed_during_its_first_prediction_stays_whole(postgres, change):
    url = store_url(postgres.database(f"first-{change}"))
    store, replica = Store.open(url, [VERSION]), Store.open(url, [VERSION])
    key, reading = UnitKey("", "fd001", "1"), Given([1], np.ones((1, 1), np.float32), lambda *_: "")
    store.readings.append([Append(key, ("sensor",), 1, reading)], at=1000.0)

    def waits_for_a_lock() -> bool:
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        with replica.reading() as connection:
            return connection.scalar(waiting) > 0

    def predict(_connection, _cursor, statement, *_more):
        if "units" in statement.split("WHERE")[0] and statement.startswith(("DELETE", "UPDATE")):
            writing.append(pool.submit(replica.write, [row()]))
            wait_until(lambda: writing[0].done() or waits_for_a_lock(), PATIENCE)

    writing = []
    event.listen(store._engine, "after_cursor_execute", predict)
    with ThreadPoolExecutor(1) as pool:
        store.delete(key) if change == "delete" else store.rename(key, "2")
    writing[0].result()

    with store.reading() as connection:
        tables = [connection.scalars(select(of.c.unit)).all() for of in (UNITS, PREDICTIONS)]
    assert tables == [["1"], ["1"]]
    replica.close()
    store.close()


@pytest.mark.system
def test_a_database_that_takes_no_writes_for_a_while_is_away_and_comes_back(postgres):
    store = Store.open(store_url(postgres.database("replica")), [VERSION])
    server = Database(engine_of(store_url(postgres.url)))
    read_only = "ALTER DATABASE replica SET default_transaction_read_only ="

    with server.writing() as connection:
        connection.execute(text(f"{read_only} on"))
    store.close()  # the next session has the new setting
    with pytest.raises(StoreUnavailable):
        store.write([row()])
    with server.writing() as connection:
        connection.execute(text(f"{read_only} off"))
    store.write([row()])

    assert len(kept(store)) == 1
    store.close()
    server.close()


@pytest.mark.system
def test_a_database_that_dies_under_load_costs_no_prediction_and_nothing_that_was_kept(
    postgres, tiny_bundle, windows, tmp_path
):
    url = postgres.database("killed")
    aged = next(window.json() for window in windows if window.last_cycle is not None)
    asked = 0

    def ask(count: int) -> None:
        nonlocal asked
        for _ in range(count):
            window = aged | {"unit": f"unit-{asked}"}
            assert http.post("/v1/predict", json={"windows": [window]}).status_code == 200
            asked += 1

    def written() -> float:
        return metric(service, "rul_store_rows_total", kind="prediction")

    settings = {"store_url": url, "store_queue_rows": "300"}
    with (
        running(tmp_path, str(tiny_bundle.path), **settings) as service,
        httpx.Client(base_url=service.http, trust_env=False, timeout=PATIENCE) as http,
    ):
        ask(100)
        wait_until(lambda: written() == 100, PATIENCE, what="the first rows")
        ask(20)
        postgres.stop()
        said = written()
        ask(500)
        wait_until(lambda: metric(service, "rul_store_up") == 0, PATIENCE, what="that the store is away")
        lost = http.get("/v1/units").status_code
        dropped = metric(service, "rul_store_dropped_total", reason="full")
        assert metric(service, "rul_store_pending_rows") == 300
        postgres.start()
        wait_until(
            lambda: metric(service, "rul_store_pending_rows") == 0, PATIENCE, what="that the store is back"
        )
        ask(50)
        wait_until(lambda: written() == asked - dropped, PATIENCE, what="the last rows")
        up = metric(service, "rul_store_up")

    store = Store.open(store_url(url))
    with store.reading() as connection:
        kept = connection.scalar(select(func.count()).select_from(PREDICTIONS))
    store.close()
    assert said >= 100
    assert lost == 503
    assert dropped > 0
    assert kept == asked - dropped
    assert up == 1
