"""The store on SQLite: rows, replacement, outcomes, fleet, history, migrations."""

import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import event, select, update

from model.domain import LARGEST_CYCLE
from service.errors import StoreUnavailable
from service.http.units_bodies import unit_body
from service.store import database
from service.store import report as reports
from service.store.database import Database, engine_of, migrate
from service.store.fleet import RECENT
from service.store.judgement import Outcome, OutcomeKind, OutcomeResult
from service.store.report import report
from service.store.rows import MOST_JUDGED, NO_ANSWER, Append, FleetFilter, Given, ModelVersion, UnitKey
from service.store.schema import OUTCOMES, PREDICTIONS, REVISION, UNITS
from service.store.store import Store

FD001 = ModelVersion("fd001", "1", 125.0, 0.9)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/state/rul.db"


@pytest.fixture
def opened(url):
    """Open the store with these versions; each is closed at the end."""
    with ExitStack() as stack:
        yield lambda versions: stack.enter_context(closing(Store.open(url, versions)))


@pytest.fixture
def store(opened):
    return opened([FD001])


def row(
    unit="1",
    cycle=10,
    rul=50.0,
    *,
    at=1000.0,
    model="fd001",
    state="estimated",
    health="healthy",
    fails=None,
    why=None,
    tenant="",
    version="1",
):
    return (model, unit, tenant, cycle, rul, rul - 5, rul + 5, state, health, at, fails, why, version)


def failure(cycle=60, *, unit="1", kind=OutcomeKind.FAILED, happened_at=None, recorded_at=2000.0, tenant=""):
    return Outcome("fd001", unit, kind, cycle, happened_at, recorded_at, tenant)


def kept(store, table=PREDICTIONS):
    with store.reading() as connection:
        return connection.execute(select(table)).mappings().all()


def history(store, *, tenant="", limit=9, before=None):
    return store.history(UnitKey(tenant, "fd001", "1"), limit=limit, before=before)


def fleet(store, *, limit=9, after=None, **chosen):
    return store.fleet(FleetFilter(["fd001"], **chosen), limit=limit, after=after)


def reverse_rows_without_an_order(store):
    def reverse(connection):
        connection.connection.driver_connection.execute("PRAGMA reverse_unordered_selects = ON")

    event.listen(store._engine, "begin", reverse)


def names(rows):
    return [found["unit"] for found in rows]


def test_a_store_without_a_due_migration_loads_no_alembic(url):
    code = (
        "import sys; from service.store.store import Store\n"
        "for state in ('new', 'current'):\n"
        f"    Store.open({url!r}).close(); print(state, 'alembic' in sys.modules)"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said.split() == ["new", "False", "current", "False"]


def test_a_revision_without_a_migration_is_refused(store, url):
    with store.writing() as connection:
        connection.execute(update(REVISION).values(version_num="9999"))

    with pytest.raises(StoreUnavailable, match=r"revision '9999'.*newer release.*RUL_STORE_URL"):
        Store.open(url)


@pytest.mark.parametrize("content", ["no database", "no database" * 1000])
def test_a_file_that_is_no_database_is_refused_with_what_to_do(tmp_path, content):
    (tmp_path / "rul.db").write_text(content)

    with pytest.raises(StoreUnavailable, match=r"no SQLite database.*RUL_STORE_URL"):
        Store.open(f"sqlite:///{tmp_path}/rul.db")


def test_only_the_owner_reads_the_file_of_a_new_store_and_its_log(store, tmp_path):
    store.write([row()])

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()}

    assert modes == {"rul.db": 0o600, "rul.db-wal": 0o600, "rul.db-shm": 0o600}


def test_a_file_that_cannot_be_looked_up_any_more_is_a_store_that_does_not_answer(store, tmp_path):
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "state").write_bytes(b"")

    with pytest.raises(StoreUnavailable, match=NO_ANSWER):
        store.write([row()])


@pytest.mark.parametrize("replacement", [None, b""])
def test_nothing_is_written_to_a_file_that_was_removed_or_replaced(store, tmp_path, replacement):
    store.write([row()])
    for path in (tmp_path / "state").iterdir():
        path.unlink()
    if replacement is not None:
        (tmp_path / "state" / "rul.db").write_bytes(replacement)

    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        store.write([row(cycle=11)])


FIRST_REVISION = """
    INSERT INTO model_versions VALUES (1, 'fd001', '1', 125.0, 0.9);
    INSERT INTO predictions VALUES (1, 1, '1', 10, 50, 45, 55, 'estimated', 'healthy', 1000.0, true);
    INSERT INTO units VALUES ('fd001', '1', 1, 10, 50.0, 45.0, 55.0, 'estimated', 'healthy', 1000.0);
    INSERT INTO outcomes VALUES ('fd001', '1', 'failed', 60, NULL, 2000.0);
"""


def test_rows_of_the_first_revision_are_kept_without_an_explanation_and_belong_to_no_tenant(url, opened):
    with closing(Database(engine_of(url))) as database, database.writing() as connection:
        migrate(connection, to="0001")
        for statement in filter(str.strip, FIRST_REVISION.split(";")):
            connection.exec_driver_sql(statement)

    store = opened([FD001])
    store.write([row(cycle=11, why='{"evidence":{}}')])

    found = history(store)
    newest, oldest = found.predictions
    assert (oldest["rul"], oldest["scored"], oldest["explanation"]) == (50.0, True, None)
    assert newest["explanation"] == '{"evidence":{}}'
    assert found.outcome == failure()
    assert names(fleet(store, state="failed")) == ["1"]
    assert history(store, tenant="plant-a") is None


def test_units_of_one_name_of_two_tenants_are_two_units(store):
    store.write([row(rul=50.0, tenant="a"), row(rul=20.0, tenant="b"), row(rul=90.0)])

    receipt = store.take_outcome(failure(tenant="a"), replace=False)

    seen = [history(store, tenant=tenant) for tenant in ("a", "b", "")]
    assert [[found["rul"] for found in each.predictions] for each in seen] == [[50], [20], [90]]
    assert [each.outcome for each in seen] == [receipt.outcome, None, None]
    assert [len(judged.judgement) for judged in receipt.judgements] == [1]
    fleets = [fleet(store, tenant=tenant) for tenant in ("a", "b", "", "c")]
    assert [[found["rul"] for found in each] for each in fleets] == [[], [20.0], [90.0], []]
    assert store.take_outcome(failure(tenant="c"), replace=False) is None


def test_the_report_compares_predictions_before_the_outcome_of_each_unit_of_its_tenant_with_it(store):
    store.write([row(rul=50.0, tenant="a"), row(rul=20.0, tenant="b"), row(cycle=61, tenant="a")])
    store.take_outcome(failure(60, tenant="a"), replace=False)
    store.take_outcome(failure(30, tenant="b"), replace=False)

    (version,) = report(store)

    assert (version["failed"], version["predictions"], version["rmse"]) == (2, 2, 0.0)


def test_the_report_of_a_time_has_the_outcomes_that_happened_since_or_without_a_time_were_recorded(store):
    ends = {"old": (100.0, 900.0), "new": (500.0, 900.0), "untimed": (None, 500.0), "both": (None, 99.0)}
    store.write([row(unit) for unit in ends])
    for unit, (happened, recorded) in ends.items():
        outcome = failure(unit=unit, happened_at=happened, recorded_at=recorded)
        store.take_outcome(outcome, replace=False)

    assert [report(store, since=since)[0]["failed"] for since in (None, 500.0, 501.0)] == [4, 2, 0]


def test_a_report_of_many_predictions_reads_them_in_parts(store, monkeypatch):
    store.write([row(unit, cycle) for unit in ("1", "2", "3") for cycle in range(10, 20)])
    for unit, kind in (("1", OutcomeKind.FAILED), ("2", OutcomeKind.FAILED), ("3", OutcomeKind.REMOVED)):
        store.take_outcome(failure(unit=unit, kind=kind), replace=False)
    whole = report(store)
    monkeypatch.setattr(reports, "PART_ROWS", 4)  # a unit's predictions are in several parts
    read, as_numbers = [], reports._as_numbers

    def watched(rows, units):
        read.append(len(rows))
        return as_numbers(rows, units)

    monkeypatch.setattr(reports, "_as_numbers", watched)

    assert report(store) == whole
    assert read == [4] * 7 + [2]
    assert [whole[0][name] for name in ("failed", "removed", "predictions", "with_error")] == [2, 1, 30, 20]


def test_the_interval_of_the_coverage_does_not_depend_on_the_order_of_rows(store):
    for i in range(40):
        rows = [row(f"{i}", cycle, rul=20.0 if cycle < 10 + i % 7 else 500.0) for cycle in range(10, 20)]
        store.write(rows)
        store.take_outcome(failure(30, unit=f"{i}"), replace=False)

    def interval():
        return [report(store)[0][f"coverage_{end}"] for end in ("low", "high")]

    found = interval()
    reverse_rows_without_an_order(store)

    assert interval() == found


def test_a_unit_is_shown_judged_renamed_and_deleted_for_one_model_alone(opened):
    store = opened([FD001, replace(FD001, model="fd002")])
    store.write([row(model="fd001"), row(model="fd002")])
    assert [version["model"] for version in history(store).versions.values()] == ["fd001"]

    store.take_outcome(failure(60), replace=False)
    assert [version["failed"] for version in report(store)] == [1, 0]
    assert store.rename(UnitKey("", "fd001", "1"), "2")
    assert [sorted(names(kept(store, table))) for table in (UNITS, PREDICTIONS)] == [["1", "2"]] * 2
    assert store.delete(UnitKey("", "fd002", "1")).predictions == 1

    assert [names(kept(store, table)) for table in (UNITS, PREDICTIONS)] == [["2"]] * 2


@pytest.mark.parametrize("written", [("old", "new"), ("new", "old")], ids=" then ".join)
def test_of_two_predictions_of_a_cycle_the_newer_is_kept_with_its_explanation(store, written):
    predicted = {"old": row(rul=50.0, at=1000.0, why="old"), "new": row(rul=49.0, at=1001.0, why="new")}

    for each in written:
        store.write([predicted[each]])

    assert [(found["rul"], found["explanation"]) for found in kept(store)] == [(49.0, "new")]
    assert [found["rul"] for found in fleet(store)] == [49.0]


def test_predictions_until_a_time_are_deleted_of_one_unit_alone(store):
    store.write([row(at=1000.0), row(cycle=11, at=3000.0), row("2", at=1000.0)])

    assert store.delete(UnitKey("", "fd001", "1"), until=1000.0).predictions == 1

    left = sorted((found["unit"], found["last_cycle"]) for found in kept(store))
    assert left == [("1", 11), ("2", 10)]
    assert names(kept(store, UNITS)) == ["1", "2"]


def test_connections_that_make_a_new_database_together_wait_for_each_other(tmp_path):
    meeting = threading.Barrier(4, timeout=60)

    def connect(engine):
        meeting.wait()
        engine.connect().close()
        engine.dispose()

    for n in range(150):  # whether they collide is chance
        engines = [engine_of(f"sqlite:///{tmp_path}/{n}.db") for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(connect, engines))


def test_a_folder_that_cannot_be_made_is_an_unavailable_store(tmp_path):
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StoreUnavailable):
        Store.open(f"sqlite:///{tmp_path}/file/rul.db", [FD001])


def test_a_file_that_cannot_be_opened_is_reported_with_the_rights_that_it_needs(tmp_path):
    with pytest.raises(StoreUnavailable, match=r"unable to open.*-wal.*folder"):
        Store.open(f"sqlite:///{tmp_path}")


def test_a_file_that_cannot_be_written_is_reported_with_the_rights_that_it_needs(store):
    def refuse_writes(connection):
        connection.connection.driver_connection.execute("PRAGMA query_only = ON")

    event.listen(store._engine, "begin", refuse_writes)

    with pytest.raises(StoreUnavailable, match=r"readonly.*-wal.*folder"):
        store.write([row()])


def test_old_predictions_are_deleted_with_their_units_and_outcomes(store):
    store.write([row("old", at=1000.0), row("young", at=3000.0)])
    store.take_outcome(failure(unit="old", recorded_at=1500.0), replace=False)
    store.take_outcome(failure(unit="young", recorded_at=3500.0), replace=False)

    [*store.purge(2000.0)]

    assert names(kept(store)) == names(kept(store, UNITS)) == names(kept(store, OUTCOMES)) == ["young"]


def test_a_unit_that_has_failed_is_running_again_by_no_purge(store):
    store.write([row(at=1000.0)])
    store.take_outcome(failure(recorded_at=1500.0), replace=False)
    store.write([row(cycle=11, at=3000.0)])

    [*store.purge(2000.0)]

    assert fleet(store) == []
    [*store.purge(4000.0)]
    assert kept(store, OUTCOMES) == []


def test_an_outcome_is_shown_after_the_predictions_of_its_unit_were_deleted(store):
    store.write([row(at=1000.0)])
    store.take_outcome(failure(recorded_at=3000.0), replace=False)

    [*store.purge(2000.0)]

    assert history(store).outcome == failure(recorded_at=3000.0)


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ([[("unit", cycle, 1992.0 + cycle) for cycle in range(10)]], [("unit", 8), ("unit", 9)]),
        ([[("unit", cycle, 1000.0) for cycle in range(6)], [("unit", cycle, 3000.0) for cycle in range(3)]],
         [("unit", 0), ("unit", 1), ("unit", 2)]),
        ([[("ahead", cycle, 1e11) for cycle in range(4)], [("old", cycle, 1000.0) for cycle in range(4)]],
         [("ahead", cycle) for cycle in range(4)]),
    ],
    ids=["more than one transaction reads", "behind those made again", "behind those of a clock ahead"],
)  # fmt: skip
def test_a_purge_deletes_all_old_predictions_wherever_they_lie(store, monkeypatch, written, left):
    monkeypatch.setattr("service.store.store.PURGE_ROWS", 3)
    for rows in written:
        store.write([row(unit, cycle=cycle, at=at) for unit, cycle, at in rows])
    before = len(kept(store))

    sizes = [before, *(len(kept(store)) for _ in store.purge(2000.0))]

    assert [(found["unit"], found["last_cycle"]) for found in kept(store)] == left
    assert np.diff(sizes).min() >= -3


def test_of_two_versions_predictions_in_one_write_the_fleet_shows_the_later(opened):
    store = opened([FD001, replace(FD001, version="2")])
    store.write([row(rul=100.0, at=1000.0, version="1"), row(rul=20.0, at=1001.0, version="2")])

    (shown,) = fleet(store)

    assert (shown["version"], shown["rul"]) == ("2", 20.0)


def test_another_time_of_an_outcome_is_a_conflict(store):
    store.write([row()])
    store.take_outcome(failure(happened_at=1600.0), replace=False)

    receipt = store.take_outcome(failure(happened_at=1700.0), replace=False)

    assert receipt.result is OutcomeResult.CONFLICT
    assert receipt.outcome == failure(happened_at=1600.0)


def test_predictions_that_are_written_after_an_outcome_however_long_ago_are_counted_once(store):
    store.write([row(cycle=10)])
    store.take_outcome(failure(recorded_at=0.0), replace=False)
    store.write([row(cycle=11), row(cycle=60), row(cycle=61), row("2")])

    first, again = ([*store.judge_late_predictions()] for _ in range(2))

    assert [len(found.judgement) for found in first] == [2]
    assert again == []


def test_late_predictions_are_found_however_many_were_written_since_the_last_look(store, monkeypatch):
    monkeypatch.setattr("service.store.store.LATE_ROWS", 0)
    store.write([row(cycle=10)])
    store.take_outcome(failure(), replace=False)
    assert [*store.judge_late_predictions()] == []
    store.write([row(cycle=60)])
    store.write([row("2", cycle) for cycle in range(20)])

    (found,) = store.judge_late_predictions()

    assert len(found.judgement) == 1


def test_outcomes_without_late_predictions_cost_one_transaction_together(store):
    for unit in map(str, range(20)):
        store.write([row(unit)])
        store.take_outcome(failure(unit=unit), replace=False)
    store.write([row("7", 11), row("8", 61)])  # the second is of a cycle after the outcome
    begun = []
    event.listen(store._engine, "begin", begun.append)

    judged = [*store.judge_late_predictions()]

    assert (len(judged), len(begun)) == (1, 2)


def test_judgements_of_an_outcome_are_heard_of_even_if_the_store_is_lost_before_the_next(store):
    for unit in ("1", "2"):
        store.write([row(unit)])
        store.take_outcome(failure(unit=unit), replace=False)
    store.write([row("1", 11), row("2", 11)])
    begun, judged = [], []

    def lose(connection):
        begun.append(connection)
        if len(begun) == 3:  # of a read and two judgements
            raise OSError

    event.listen(store._engine, "begin", lose)
    with pytest.raises(StoreUnavailable):
        judged.extend(store.judge_late_predictions())

    assert (len(judged), [each["scored"] for each in kept(store)].count(True)) == (1, 3)


def test_late_predictions_are_not_judged_by_an_outcome_that_was_corrected_meanwhile(store, opened):
    other = opened([FD001])
    store.write([row()])
    store.take_outcome(failure(60), replace=False)
    store.write([row(cycle=59)])
    event.listen(store._engine, "commit", lambda _: other.take_outcome(failure(50), replace=True), once=True)

    assert [*store.judge_late_predictions()] == []


def test_a_fleet_is_listed_by_urgency_page_by_page(store):
    store.write([row(name, rul=rul) for name, rul in [("a", 20.0), ("b", 20.0), ("c", 10.0), ("d", 30.0)]])

    first = fleet(store, limit=2)
    second = fleet(store, limit=2, after=(15.0, "fd001", "a"))

    assert names(first) + names(second) == ["c", "a", "b", "d"]


def test_a_fleet_shows_the_last_reading_the_recent_predictions_and_the_trend_of_each_unit(store):
    cycles = range(1, RECENT + 6)
    falls = {"b": 2.0, "a": 1.0}
    store.write([row(unit, cycle, 200.0 - fall * cycle) for unit, fall in falls.items() for cycle in cycles])
    for unit in falls:
        key = UnitKey("", "fd001", unit)
        for cycle, at in ((50, 1000.0 + ord(unit)), (49, 2000.0)):  # the second is late
            given = Given([cycle], np.ones((1, 1), np.float32), lambda *_: "")
            store.readings.append([Append(key, ("sensor",), 1, given)], at=at)
    reverse_rows_without_an_order(store)

    found = fleet(store)

    assert names(found) == ["b", "a"]
    for each in found:
        fall = falls[each["unit"]]
        assert (each["last_reading_cycle"], each["last_reading_at"]) == (50, 1000.0 + ord(each["unit"]))
        assert each["recent"] == [200.0 - fall * cycle for cycle in cycles][-RECENT:]
        assert each["trend"] == -fall


def test_a_page_of_a_fleet_gathers_the_predictions_of_its_own_units_alone(store):
    store.write([row(f"{i:03}", rul=500.0 - i) for i in range(300)])  # the most urgent last
    gathered = []

    class Gather:
        def step(self, prediction): ...

        def finalize(self):
            gathered.append(1)
            return "[]"

    def watch(connection):
        connection.connection.driver_connection.create_aggregate("json_group_array", 1, Gather)

    event.listen(store._engine, "begin", watch)
    page = fleet(store, limit=9)

    assert (len(page), len(gathered)) == (9, 9)


@pytest.mark.parametrize("text", ["pümpe-Ж", "PÜMPE-ж", "ÜM"])
def test_names_are_found_in_either_case_of_any_alphabet(store, text):
    store.write([row("Pümpe-Ж"), row("pumpe")])

    assert names(fleet(store, name=text)) == ["Pümpe-Ж"]


def test_signs_of_patterns_in_a_name_stand_for_themselves(store):
    store.write([row("50%_a"), row("50xxa")])

    assert names(fleet(store, name="0%_")) == ["50%_a"]


def test_expected_failures_are_in_order_of_their_horizons(store):
    store.write([row(fails='{"100":0.5,"9":0.123,"30":0.25}'), row("2", fails='{"9":0.1}')])

    fails = store.summary(FleetFilter(["fd001"])).fails_within

    assert [*fails["fd001"].items()] == [("9", 0.22), ("30", 0.25), ("100", 0.5)]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("healthy", ["well"]), ("critical", ["ill"]), ("at_least_cap", ["well"]), ("estimated", ["ill"]),
        ("failed", ["dead"]), ("removed", ["gone"]), (None, ["ill", "well"]),
    ],
)  # fmt: skip
def test_a_fleet_can_be_filtered_by_state(store, state, expected):
    store.write([
        row("well", rul=125.0, state="at_least_cap"), row("ill", rul=5.0, health="critical"),
        row("dead"), row("gone"),
    ])  # fmt: skip
    store.take_outcome(failure(unit="dead"), replace=False)
    store.take_outcome(failure(unit="gone", kind=OutcomeKind.REMOVED), replace=False)

    assert names(fleet(store, state=state)) == expected


def test_a_removed_unit_stays_out_of_the_fleet_whatever_is_predicted_later(store):
    store.write([row(cycle=10)])
    store.take_outcome(failure(20, kind=OutcomeKind.REMOVED), replace=False)

    store.write([row(cycle=21)])

    assert names(fleet(store)) == []
    assert store.summary(FleetFilter(["fd001"])).units == 0


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_of_a_history_have_every_prediction_once_also_of_versions_at_one_cycle(opened, limit):
    cycles = {"1": (7, 8, 10), "2": (8, 9, 10), "3": (5, 8, 10)}
    whole = [(cycle, version) for version, every in cycles.items() for cycle in every]
    store = opened([replace(FD001, version=version) for version in cycles])
    store.write([row(cycle=cycle, version=version, at=float(version)) for cycle, version in whole])
    store.write([row("another")])

    seen, before = [], LARGEST_CYCLE + 1
    while before is not None:
        page = unit_body("fd001", "1", history(store, limit=limit, before=before), limit=limit)
        seen += [(each.last_cycle, each.version) for each in page.predictions]
        before = page.next

    assert seen == sorted(whole, reverse=True)


def test_a_unit_that_is_deleted_while_its_history_is_read_is_read_whole(store, opened):
    other, key = opened([FD001]), UnitKey("", "fd001", "1")
    given = Given([10], np.ones((1, 1), np.float32), lambda *_: "")
    store.readings.append([Append(key, ("sensor",), 1, given)], at=1000.0)
    store.write([row()])
    event.listen(store._engine, "commit", lambda _: other.delete(key), once=True)

    found = store.history(key, columns=("sensor",), limit=5, before=None)

    assert (len(found.predictions), found.readings.cycles) == (1, [10])


def test_a_version_that_is_loaded_later_is_registered_with_its_first_prediction(opened):
    versions = [FD001]
    store = opened(versions)
    versions.append(ModelVersion("fd001", "2", 130.0, 0.8))

    store.write([row(version="2", at=1001.0)])
    store.write([row()])

    found = history(store)
    assert [found.versions[p["version_id"]]["version"] for p in found.predictions] == ["2", "1"]


def work(store):
    """Count the instructions of SQLite for the history of an ended unit."""
    done = 0

    def count():
        nonlocal done
        done += 1

    def watch(connection):
        connection.connection.driver_connection.set_progress_handler(count, 1)

    event.listen(store._engine, "begin", watch)
    history(store)
    event.remove(store._engine, "begin", watch)
    return done


def test_a_history_costs_no_more_of_a_unit_that_has_lived_ten_times_as_long(store):
    store.write([row(cycle=cycle) for cycle in range(1, MOST_JUDGED + 1)])
    store.write([row("another", cycle) for cycle in range(1, 500)])
    store.take_outcome(failure(10 * MOST_JUDGED), replace=False)
    young = work(store)

    store.write([row(cycle=cycle) for cycle in range(MOST_JUDGED + 1, 10 * MOST_JUDGED)])

    assert young > MOST_JUDGED
    assert work(store) < 1.01 * young


def statements(store):
    """Count the statements for the histories of an ended and of an unknown unit."""
    done = []

    def watch(*_args):
        done.append(1)

    event.listen(store._engine, "before_cursor_execute", watch)
    history(store)
    store.history(UnitKey("", "fd001", "unknown"), limit=9, before=None)
    event.remove(store._engine, "before_cursor_execute", watch)
    return len(done)


def test_a_history_costs_no_statement_for_versions_that_did_not_predict_its_unit(store, opened):
    store.write([row(cycle=cycle) for cycle in (10, 20)])
    store.take_outcome(failure(), replace=False)
    alone = statements(store)

    among = opened([replace(FD001, version=str(version)) for version in range(9)])
    among.write([row("another", version="2")])

    assert statements(among) == alone


def test_a_model_version_that_is_exported_again_is_judged_by_its_new_cap(opened):
    store = opened([FD001, replace(FD001, version="2")])
    store.write([row(cycle=10), row(cycle=10, version="2")])
    opened([replace(FD001, cap=40.0)])

    scored = store.take_outcome(failure(110), replace=False).judgements

    assert {of.version: of.judgement.truth.tolist() for of in scored} == {"1": [40.0], "2": [100.0]}


def test_a_writer_waits_while_another_connection_recovers_the_log():
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
    begun = iter([error, error, None])

    def begin():
        if (refusal := next(begun)) is not None:
            raise refusal

    database._insist(begin)

    assert list(begun) == []
