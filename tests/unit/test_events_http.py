"""GET /v1/events: one look at the store for all listeners; streams that end when they must, and HEAD."""

import asyncio
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest
from structlog.testing import capture_logs

from service.core.lifecycle import Phase
from service.edge.access import NOBODY
from service.edge.keys import Grant, KeyScope
from service.errors import NoStore, Overloaded, StoreUnavailable
from service.http import events
from service.http.events import EventsHttp
from service.store.rows import place_of
from tests.in_process import in_process, keeping, until

QUICK = 0.005
SECONDS = 10


class FakeStore:
    """A fleet whose units a test changes, and a count of the looks at it."""

    def __init__(self):
        self.rows = []
        self.looks = []
        self.error = None
        self.failures = 0

    def predict(self, unit, *, tenant="", rul=40.0):
        now = time.time()
        row = {
            "model": "fake", "unit": unit, "tenant": tenant, "version": "1", "nominal_coverage": 0.9,
            "last_cycle": 7, "rul": rul, "lower": rul - 5, "upper": rul + 5, "rul_state": "estimated",
            "health_state": "degrading", "predicted_at": now, "failure_probability": None, "kind": None,
            "cycle": None, "last_reading_at": None, "last_reading_cycle": None, "recent": [rul],
            "trend": None,
        }  # fmt: skip
        self.rows = [old for old in self.rows if (old["unit"], old["tenant"]) != (unit, tenant)] + [row]

    async def ask(self, question):
        await asyncio.sleep(0)
        return question(self)

    def fleet(self, chosen, *, limit, after=None):
        if self.error is not None:
            self.failures += 1
            raise self.error
        self.looks.append(chosen.tenant)
        since = chosen.changed_since
        found = [r for r in self.rows if r["tenant"] == chosen.tenant and r["predicted_at"] > since]
        found.sort(key=place_of)
        return [row for row in found if after is None or place_of(row) > after][:limit]


@pytest.fixture
async def desk():
    async with in_process() as service:
        yield service.desk


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def told(desk, store):
    desk.store = store
    return EventsHttp(desk, poll_seconds=QUICK)


async def listen(told, caller=NOBODY):
    """Open a stream and read its first line."""
    (endpoint,) = told.endpoints()
    reply = await endpoint.handler(SimpleNamespace(exchange=SimpleNamespace(caller=caller)))
    assert reply.media_type == b"text/event-stream"
    assert await anext(reply.stream) == b": open\n\n"
    return reply.stream


async def units_of(stream):
    """The names in the next event."""
    event = await asyncio.wait_for(anext(stream), SECONDS)
    first, data = event.decode().strip().split("\n")
    assert first == "event: units"
    return [unit["unit"] for unit in msgspec.json.decode(data.removeprefix("data: "))]


async def ended(stream):
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(stream), SECONDS)


async def test_a_unit_is_told_once_until_it_changes_again(told, store):
    stream = await listen(told)
    store.predict("17")
    assert await units_of(stream) == ["17"]
    store.predict("18")
    assert await units_of(stream) == ["18"]
    store.predict("17", rul=30.0)

    assert await units_of(stream) == ["17"]


async def test_a_listener_after_a_time_without_any_is_told_what_changes_from_then_on(told, store):
    await (await listen(told)).aclose()
    await until(told._polling.done)
    store.predict("17")

    stream = await listen(told)
    store.predict("18")

    assert await units_of(stream) == ["18"]


async def test_units_that_change_together_are_told_however_many_they_are(told, store):
    names = [f"{number:04}" for number in range(2 * events.PAGE_UNITS + 1)]
    stream = await listen(told)
    for name in names:
        store.predict(name)

    assert sorted(await units_of(stream)) == names


async def test_units_are_encoded_beside_the_event_loop(told, store):
    class Watched(dict):
        def __getitem__(self, name):
            if name == "recent":  # which nothing but the encoding reads
                threads.add(threading.current_thread())
            return super().__getitem__(name)

    threads = set()
    stream = await listen(told)
    store.predict("17")
    store.rows = [Watched(row) for row in store.rows]

    assert await units_of(stream) == ["17"]
    assert threads
    assert threading.current_thread() not in threads


async def test_a_changed_unit_is_told_to_many_listeners_by_one_look(told, store):
    streams = [await listen(told) for _ in range(10)]
    store.looks.clear()
    store.predict("17")

    assert [await units_of(stream) for stream in streams] == [["17"]] * 10
    assert len(store.looks) < len(streams)


async def test_a_tenant_hears_of_its_own_units_only(told, store, desk):
    desk.credentials.holds = lambda *_: True
    ours, theirs = [await listen(told, Grant(name, frozenset(), name)) for name in ("ours", "theirs")]
    store.predict("a", tenant="ours")
    store.predict("b", tenant="theirs")

    assert (await units_of(ours), await units_of(theirs)) == (["a"], ["b"])


async def test_a_revoked_key_ends_its_stream(told, store, desk):
    stream = await listen(told, Grant("gone", frozenset({KeyScope.PREDICT}), "", b"unknown"))

    await ended(stream)


async def test_a_service_that_shuts_down_ends_every_stream(told, desk):
    stream = await listen(told)
    desk.lifecycle.enter(Phase.DRAINING, "it is shutting down")

    await ended(stream)


@pytest.mark.parametrize(
    ("error", "said"),
    [(StoreUnavailable("the database is away"), set()), (RuntimeError("a bug"), {"events not sent"})],
)
async def test_a_store_that_fails_for_a_moment_ends_no_stream_and_an_unexpected_error_is_logged(
    told, store, error, said
):
    stream = await listen(told)
    store.error = error
    store.predict("17")
    with capture_logs() as logged:
        await until(lambda: store.failures > 1 or told._polling.done())
    store.error = None

    assert await units_of(stream) == ["17"]
    assert {event["event"] for event in logged} == said


async def test_without_a_store_there_is_no_stream(told, store):
    store.error = NoStore("the service stores no predictions")

    with pytest.raises(NoStore):
        await listen(told)


async def test_listeners_that_come_together_are_no_more_than_the_limit(told, monkeypatch):
    monkeypatch.setattr(events, "MOST_LISTENERS", 2)

    opened = await asyncio.gather(*(listen(told) for _ in range(4)), return_exceptions=True)

    assert [isinstance(one, Overloaded) for one in opened] == [False, False, True, True]


async def test_a_tenant_that_holds_most_streams_gives_its_oldest_to_another(told, desk, monkeypatch):
    monkeypatch.setattr(events, "MOST_LISTENERS", 4)
    desk.credentials.holds = lambda *_: True
    many, few = Grant("many", frozenset(), "many"), Grant("few", frozenset(), "few")
    few_have = [await listen(told, few)]
    oldest, *others = [await listen(told, many) for _ in range(3)]

    few_have += [await listen(told, few)]

    await ended(oldest)
    assert len(told.listeners) == len([*others, *few_have])


async def test_tenants_with_even_numbers_of_streams_take_none_from_each_other(told, desk, monkeypatch):
    monkeypatch.setattr(events, "MOST_LISTENERS", 2)
    desk.credentials.holds = lambda *_: True
    ours, theirs = Grant("ours", frozenset(), "ours"), Grant("theirs", frozenset(), "theirs")
    _streams = [await listen(told, caller) for caller in (ours, theirs)]

    with pytest.raises(Overloaded, match="2 event streams"):
        await listen(told, ours)


async def test_a_listener_that_leaves_makes_room(told, monkeypatch):
    monkeypatch.setattr(events, "MOST_LISTENERS", 1)
    stream = await listen(told)
    await stream.aclose()

    assert await listen(told) is not None


async def test_a_listener_that_takes_nothing_is_disconnected_and_holds_no_events(told, store, monkeypatch):
    monkeypatch.setattr(events, "MOST_WAITING", 2)
    stream = await listen(told)
    for unit in range(10):
        store.predict(str(unit))
        looks = len(store.looks)
        await until(lambda looks=looks: len(store.looks) > looks + 1 or not told.listeners)

    await ended(stream)


async def test_a_quiet_stream_has_a_heartbeat(told, monkeypatch):
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", QUICK)
    stream = await listen(told)

    assert await asyncio.wait_for(anext(stream), SECONDS) == b": heartbeat\n\n"


# As a server hears it


@pytest.fixture
async def service(tmp_path):
    async with keeping(tmp_path) as started:
        while (await started.http.get("/v1/units")).status_code == 503:
            pass  # the database is being made
        yield started


class Caller:
    """One request for events to the application, and what came back; `error`: raised with the first part."""

    def __init__(self, service, method, error=None):
        self._error = error
        self.left = asyncio.Event()
        self.begun = asyncio.Event()
        self.sent = []
        scope = {
            "type": "http", "method": method, "path": "/v1/events", "raw_path": b"/v1/events",
            "query_string": b"", "headers": [(b"host", b"localhost")],
        }  # fmt: skip
        self.answer = asyncio.ensure_future(service.parts.http(scope, self._receive, self._send))

    async def _receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.sent.append(message)
        if message.get("body"):
            self.begun.set()
            if self._error is not None:
                raise self._error


async def test_a_stream_has_no_length_and_ends_when_its_caller_leaves(service):
    caller = Caller(service, "GET")
    await asyncio.wait_for(caller.begun.wait(), SECONDS)
    assert not caller.answer.done()
    caller.left.set()

    await asyncio.wait_for(caller.answer, SECONDS)
    assert caller.sent[1]["body"] == b": open\n\n"
    headers = dict(caller.sent[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream"
    assert b"content-length" not in headers


async def test_a_server_that_raises_one_error_for_all_who_leave_keeps_none_of_their_streams(service):
    error = ConnectionResetError()
    for _ in range(3):
        await asyncio.wait_for(Caller(service, "GET", error).answer, SECONDS)

    assert error.__traceback__ is None


async def test_head_of_a_stream_is_answered_at_once_without_a_body(service):
    caller = Caller(service, "HEAD")

    await asyncio.wait_for(caller.answer, SECONDS)
    assert [message.get("body", b"") for message in caller.sent] == [b"", b""]
