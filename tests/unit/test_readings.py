"""Readings in the store on SQLite: order, repeats, conflicts, groups, columns, bounds."""

from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError

from service.errors import CycleConflict, RuntimeFailed, StoreUnavailable
from service.store.readings import Readings
from service.store.rows import Append, Given, ModelVersion, UnitKey
from service.store.store import Store
from tests.examples import examples

COLUMNS = ("setting_1", "sensor_1")
KEY = UnitKey("", "fake", "7")
CONTEXT = 4


@pytest.fixture
def store(tmp_path):
    opened = Store.open(f"sqlite:///{tmp_path}/rul.db", [ModelVersion("fake", "1", 125.0, 0.9)])
    yield opened
    opened.close()


def value(cycle):
    """The reading of a cycle; every third has a missing value."""
    return (float(cycle), np.nan if cycle % 3 == 0 else 100.0 + cycle)


def request(*cycles, unit="7", values=None, columns=COLUMNS, context=CONTEXT):
    rows = [value(cycle or 0) for cycle in cycles] if values is None else values
    key = KEY._replace(unit=unit)
    read = np.array(rows, np.float32)
    return Append(key, columns, context, Given(cycles, read, lambda i, name: f"/{i}/{name}"))


def append(store, *requests, at=1000.0):
    return store.readings.append(requests, at=at)


def stored(store, unit="7", columns=COLUMNS, most=1000):
    return store.readings.newest(KEY._replace(unit=unit), columns, most=most)


def assert_readings(stretch, cycles):
    assert stretch.cycles == sorted(cycles)
    np.testing.assert_array_equal(stretch.values, np.array([value(c) for c in sorted(cycles)], np.float32))


UNITS = count()


@examples(60)
@given(
    parts=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=5), min_size=1, max_size=8),
    group=st.integers(1, 4),
)
def test_order_repeats_groups_and_restarts_change_neither_rows_nor_windows(store, parts, group):
    unit, known = str(next(UNITS)), set()

    for start in range(0, len(parts), group):
        requests = [request(*cycles, unit=unit) for cycles in parts[start : start + group]]
        results = Readings(store).append(requests, at=1000.0)  # as after a restart: it has nothing in memory
        for cycles, result in zip(parts[start:], results, strict=False):
            new = set(cycles) - known
            known |= new
            assert (result.stored, result.repeated) == (len(new), len(cycles) - len(new))
            assert_readings(result.newest, sorted(known)[-CONTEXT:])

    assert_readings(stored(store, unit), known)


def test_a_missing_value_conflicts_with_a_stored_one(store):
    append(store, request(1))

    (error,) = append(store, request(1, values=[(1.0, np.nan)]))

    assert error.problems[0].detail == "cycle 1 has sensor_1 = 101.0, got none"


def test_a_cycle_twice_in_a_request_is_a_repeat_or_a_conflict(store):
    same, other = append(store, request(1, 1), request(2, 2, values=[(2.0, 1.0), (2.0, 3.0)], unit="8"))

    assert (same.stored, same.repeated) == (1, 1)
    assert isinstance(other, CycleConflict)


def test_a_request_that_conflicts_disturbs_no_other_of_its_transaction(store):
    append(store, request(1))

    first, bad, last = append(store, request(2), request(3, 1, values=[value(3), (9.0, 9.0)]), request(4))

    assert (first.stored, last.stored) == (1, 1)
    assert isinstance(bad, CycleConflict)
    assert_readings(stored(store), [1, 2, 4])


def test_readings_without_a_number_follow_the_last_one(store):
    new, old, mixed = append(
        store,
        request(None, None, values=[value(1), value(2)]),
        request(None, values=[value(3)]),
        request(9, None, None, values=[value(9), value(10), value(11)]),
    )

    assert new.newest.cycles == [1, 2]
    assert old.newest.cycles == [1, 2, 3]
    assert mixed.newest.cycles == [3, 9, 10, 11]


def test_if_the_store_is_lost_during_the_commit_no_retry_is_asked_of_a_reading_without_a_number(store):
    def lose(_connection):
        raise ConnectionResetError

    append(store, request(1))
    event.listen(store._engine, "commit", lose)

    results = append(store, request(None), request(2, unit="8"))

    assert [type(result) for result in results] == [RuntimeFailed, StoreUnavailable]


def test_readings_of_a_model_with_other_columns_are_read_by_name(store):
    append(store, request(1, 2))

    (result,) = append(store, request(2, 3, columns=("sensor_1", "sensor_9"), values=[(102, np.nan), (5, 6)]))

    # What the model does not read any more is not compared.
    assert (result.stored, result.repeated) == (1, 1)
    np.testing.assert_array_equal(result.newest.values, [[101, np.nan], [102, np.nan], [5, 6]])
    np.testing.assert_array_equal(stored(store).values, [[1, 101], [2, 102], [np.nan, 5]])
    after_a_restart = Readings(store).newest(KEY, COLUMNS, most=9)
    np.testing.assert_array_equal(after_a_restart.values, stored(store).values)


def test_a_longer_context_in_the_same_transaction_reads_further_back(store):
    append(store, request(*range(1, 10)))

    short, long = append(store, request(10), request(11, context=8))

    assert short.newest.cycles == [7, 8, 9, 10]
    assert long.newest.cycles == [*range(4, 12)]


def test_an_old_reading_that_is_repeated_does_not_read_all_that_follow_it(store):
    append(store, request(*range(1, 101)), request(1, unit="8", values=[(9.0, 9.0)]))
    statements = []

    def watch(_connection, _cursor, *statement):
        statements.append(statement[:2])

    event.listen(store._engine, "before_cursor_execute", watch)
    (result,) = append(store, request(1))
    event.remove(store._engine, "before_cursor_execute", watch)

    with store.reading() as connection:
        read = [connection.exec_driver_sql(*each).all() for each in statements if "SELECT" in each[0]]
    assert result.repeated == 1
    assert sum(map(len, read)) == CONTEXT + 1


def test_only_the_newest_readings_of_a_unit_are_kept(store):
    readings, kept = Readings(store, most=3), []
    for cycles in ([0, 1, 2, 3], [900], [1]):
        readings.append([request(*cycles), request(1, unit="8")], at=1000.0)
        kept.append(stored(store).cycles)

    assert kept == [[1, 2, 3], [2, 3, 900], [2, 3, 900]]
    assert stored(store, unit="8").cycles == [1]


def test_readings_older_than_those_kept_count_neither_as_stored_nor_as_repeated(store):
    readings = Readings(store, most=3)

    asked = [request(1, 2, 3, 4, 5), request(1, 2), request(1, 4, 6)]
    counts = [
        (result.stored, result.repeated)
        for one in asked
        for result in readings.append([one, request(9, unit="8")], at=1000.0)[:1]
    ]

    assert counts == [(3, 0), (0, 0), (1, 1)]


def test_a_window_has_no_more_readings_than_are_kept(store):
    readings = Readings(store, most=CONTEXT - 1)

    (result,) = readings.append([request(1, 2, 3, 4, 5)], at=1000.0)

    assert result.newest.cycles == [3, 4, 5]


def test_old_readings_are_deleted_in_parts(store, monkeypatch):
    monkeypatch.setattr("service.store.readings.PURGE_ROWS", 2)
    append(store, request(1, 2, 3, 4, 5), at=1000.0)
    append(store, request(6), at=3000.0)

    parts = [len(stored(store).cycles) for _ in store.readings.purge(2000.0)]

    assert parts == [4, 2, 1]
    assert stored(store).cycles == [6]


def test_an_error_of_the_database_names_no_unit_and_shows_no_reading(store):
    with store.writing() as connection:
        connection.execute(
            text("CREATE TRIGGER no BEFORE INSERT ON readings BEGIN SELECT RAISE(ABORT, 'no'); END")
        )

    with pytest.raises(IntegrityError, match="INSERT INTO readings") as caught:
        append(store, request(1, unit="secret"))

    assert "secret" not in str(caught.value)
