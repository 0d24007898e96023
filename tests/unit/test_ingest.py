"""Group commit of readings: who shares a transaction, and who hears of its failure."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from service.errors import NotReady, Overloaded, StoreUnavailable
from service.store import ingest
from service.store.ingest import Ingest
from service.store.rows import Append, Appended, Given, Stretch, UnitKey

SECONDS = 10


class FakeReadings:
    """Keeps the units of each transaction; refuses one with the unit `bad`, as a database does."""

    def __init__(self):
        self.transactions = []

    def append(self, requests, *, at):
        units = [request.key.unit for request in requests]
        if "bad" in units:
            raise ValueError("a value that the database rejects")
        self.transactions.append(units)
        return [Appended(1, 0, Stretch([1], request.given.values)) for request in requests]


def request(unit):
    given = Given([1], np.zeros((1, 1), np.float32), lambda i, name: "")
    return Append(UnitKey("", "fake", unit), ("sensor_1",), 4, given)


async def answers(made, *units):
    return await asyncio.gather(*(made.append(request(unit)) for unit in units), return_exceptions=True)


async def test_a_request_that_the_database_rejects_costs_no_other_and_only_stored_readings_count():
    readings, committed = FakeReadings(), []

    found = await answers(Ingest(lambda: readings, committed.append), "a", "bad", "b")

    assert [type(answer) for answer in found] == [Appended, ValueError, Appended]
    assert readings.transactions == [["a"], ["b"]]
    assert committed == [2]


async def test_requests_that_wait_share_transactions_of_a_bounded_size(monkeypatch):
    monkeypatch.setattr(ingest, "GROUP_READINGS", 2)
    readings = FakeReadings()

    await answers(Ingest(lambda: readings, lambda stored: None), *"abcde")

    assert readings.transactions == [["a", "b"], ["c", "d"], ["e"]]


@pytest.fixture
def slow():
    """An Ingest whose database writes once `gate` is set; `entered` is set as it begins."""
    readings, entered, gate = FakeReadings(), threading.Event(), threading.Event()

    def opened():
        entered.set()
        gate.wait()
        return readings

    return SimpleNamespace(
        made=Ingest(opened, lambda stored: None), readings=readings, entered=entered, gate=gate
    )


async def test_requests_that_come_while_a_transaction_is_written_share_the_next_one(slow):
    waiting = [asyncio.ensure_future(slow.made.append(request("a")))]
    await asyncio.to_thread(slow.entered.wait)
    for unit in "bcd":
        waiting.append(asyncio.ensure_future(slow.made.append(request(unit))))
        await asyncio.sleep(0)
    slow.gate.set()
    await asyncio.gather(*waiting)

    assert slow.readings.transactions == [["a"], ["b", "c", "d"]]


async def test_a_caller_who_leaves_while_its_readings_are_written_costs_no_other_its_answer(slow):
    leaves, *stay = (asyncio.ensure_future(slow.made.append(request(unit))) for unit in "abc")
    await asyncio.to_thread(slow.entered.wait)

    leaves.cancel()
    slow.gate.set()

    assert [type(answer) for answer in await asyncio.gather(*stay)] == [Appended, Appended]
    assert slow.readings.transactions == [["a", "b", "c"]]


async def test_while_too_many_requests_wait_a_further_one_is_refused(monkeypatch):
    monkeypatch.setattr(ingest, "MOST_WAITING", 2)

    found = await answers(Ingest(FakeReadings, lambda stored: None), *"abc")

    assert [type(answer) for answer in found] == [Appended, Appended, Overloaded]


async def test_closing_ends_the_thread_that_writes():
    others = set(threading.enumerate())
    made = Ingest(FakeReadings, lambda stored: None)
    await answers(made, "a")
    (writing,) = set(threading.enumerate()) - others

    made.close()

    writing.join(SECONDS)
    assert not writing.is_alive()


async def test_at_a_shutdown_readings_being_written_are_stored_and_waiting_ones_are_to_be_sent_again(slow):
    written = asyncio.ensure_future(slow.made.append(request("a")))
    await asyncio.to_thread(slow.entered.wait)
    waiting = asyncio.ensure_future(slow.made.append(request("b")))
    await asyncio.sleep(0)

    slow.made.close()
    slow.gate.set()

    found = await asyncio.gather(written, waiting, slow.made.append(request("c")), return_exceptions=True)
    assert [type(answer) for answer in found] == [Appended, NotReady, NotReady]


async def test_all_who_wait_hear_that_the_store_is_away_and_later_ones_are_stored():
    opened = [StoreUnavailable("away"), StoreUnavailable("away"), FakeReadings()]

    def open_():
        if isinstance(first := opened.pop(0), Exception):
            raise first
        return first

    made = Ingest(open_, lambda stored: None)

    assert [type(answer) for answer in await answers(made, "a", "b")] == [StoreUnavailable] * 2
    with pytest.raises(StoreUnavailable):
        await made.append(request("a"))
    assert [type(answer) for answer in await answers(made, "a")] == [Appended]


async def test_a_request_that_was_committed_alone_does_not_hear_that_the_store_went_away_later():
    readings, committed = FakeReadings(), []
    opened = [readings, readings, StoreUnavailable("away")]  # the group, its first request alone, its second

    def open_():
        if isinstance(first := opened.pop(0), Exception):
            raise first
        return first

    found = await answers(Ingest(open_, committed.append), "a", "bad", "b")

    assert [type(answer) for answer in found] == [Appended, StoreUnavailable, StoreUnavailable]
    assert committed == [1]


async def test_readings_of_a_caller_who_left_the_line_are_not_stored():
    readings = FakeReadings()
    made = Ingest(lambda: readings, lambda stored: None)
    left, stays = (asyncio.ensure_future(made.append(request(unit))) for unit in "ab")
    await asyncio.sleep(0)

    left.cancel()
    await stays

    with pytest.raises(asyncio.CancelledError):
        await left
    assert readings.transactions == [["b"]]
