"""`PredictStream` around a stand-in runtime: what each message is answered with, and how a stream ends."""

import asyncio
import math
import tracemalloc
from contextlib import asynccontextmanager
from time import monotonic

import grpc
import pytest

from service.core.lifecycle import Phase
from service.edge.keys import add_key, revoke_key
from service.labels import Route
from service.proto import rul_v1_pb2 as pb
from service.streams import life
from tests.fakes import FakeRuntime
from tests.in_process import CODES, framed, in_process, unframed, until

STREAM = "/rul.v1.RulService/PredictStream"
CLOSE, LEAVE = object(), object()
INVALID = grpc.StatusCode.INVALID_ARGUMENT


class Caller:
    """A client of one stream over ASGI that sends and hears message by message."""

    def __init__(self, app, *, metadata=()):
        headers = [(b"content-type", b"application/grpc")]
        headers += [(key.encode(), value.encode()) for key, value in metadata]
        scope = {"type": "http", "http_version": "2", "method": "POST", "path": STREAM, "headers": headers}
        self._events = asyncio.Queue()
        self._answers = asyncio.Queue()
        self.code = None
        self.trailers = {}
        self._done = False
        self.task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app, scope):
        try:
            await app(scope, self._receive, self._send)
        finally:
            self._done = True
            self._events.put_nowait({"type": "http.disconnect"})
            self._answers.put_nowait(None)

    async def _receive(self):
        return await self._events.get()

    async def _send(self, event):
        if event["type"] == "http.response.body":
            for message in unframed(event["body"]):
                self._answers.put_nowait(pb.StreamReply.FromString(message))
        if event["type"] == "http.response.trailers":
            self.trailers = {key.decode(): value.decode() for key, value in event["headers"]}
            self.code = CODES[int(self.trailers["grpc-status"])]

    def send(self, *messages):
        for message in messages:
            if message is LEAVE:
                self._events.put_nowait({"type": "http.disconnect"})
            elif message is CLOSE:
                self._events.put_nowait({"type": "http.request", "body": b"", "more_body": False})
            else:
                raw = message if isinstance(message, bytes) else message.SerializeToString()
                self._events.put_nowait({"type": "http.request", "body": framed(raw), "more_body": True})

    async def answer(self):
        return await self._answers.get()

    async def ask(self, message):
        self.send(message)
        return await self.answer()

    async def rest(self):
        """What is still answered, until the stream ends."""
        found = []
        while (answer := await self.answer()) is not None:
            found.append(answer)
        await self.task
        return found


def opening(**options):
    return pb.StreamRequest(open=pb.StreamOpen(unit="7", **options))


def reading(rul=40.0, **options):
    """A reading that `FakeRuntime` answers with this RUL."""
    return pb.StreamRequest(reading=pb.Reading(values=[0.0, rul, 0.0], **options))


@asynccontextmanager
async def calling(service, **options):
    """A stream that is open, and ended at the end."""
    caller = Caller(service.grpc, **options)
    try:
        yield caller
    finally:
        caller.send(LEAVE)
        await asyncio.gather(caller.task, return_exceptions=True)


async def opened(caller, **options):
    answer = await caller.ask(opening(**options))
    assert answer.WhichOneof("reply") == "opened"
    return answer.opened


@pytest.mark.parametrize(
    ("bad", "code", "pointer"),
    [
        (pb.Reading(values=[1.0]), INVALID, "/reading/values"),
        (pb.Reading(columns={"sensor_1": math.inf}), INVALID, "/reading/columns/sensor_1"),
        (pb.Reading(values=[0.0] * 3, cycle=1), grpc.StatusCode.ABORTED, None),
    ],
)  # fmt: skip
async def test_a_bad_reading_carries_its_own_error_and_the_stream_goes_on_without_it(bad, code, pointer):
    async with in_process() as service, calling(service) as caller:
        await opened(caller, first_cycle=1)
        await caller.ask(reading())
        answer = await caller.ask(pb.StreamRequest(reading=bad))
        after = await caller.ask(reading(33.0))

        labels = {"protocol": "grpc", "route": Route.GRPC_READING.value}
        assert service.value("rul_requests_total", **labels, code=code.name) == 1
        assert service.value("rul_requests_total", **labels, code="OK") == 2

    assert (answer.error.code, answer.error.kept) == (code.value[0], False)
    assert [problem.pointer for problem in answer.error.errors] == ([pointer] if pointer else [])
    assert list(after.prediction.attention.cycles) == [1, 2]


async def test_a_reading_whose_inference_failed_is_kept_and_nothing_of_the_fault_is_shown():
    runtime = FakeRuntime()
    runtime.failures = 1

    async with in_process(runtime) as service, calling(service) as caller:
        await opened(caller)
        failed, answered = [await caller.ask(reading()) for _ in range(2)]

    assert (failed.error.code, failed.error.kept) == (grpc.StatusCode.INTERNAL.value[0], True)
    assert "secret" not in str(failed)
    assert len(answered.prediction.attention.cycles) == 2


async def test_a_full_queue_costs_a_prediction_and_not_the_window():
    async with in_process(max_pending_windows=1) as service, calling(service) as caller:
        async with service.busy():
            waiting = asyncio.create_task(service.predict_grpc())
            await service.waiting(1)
            await opened(caller)
            refused = await caller.ask(reading())
        await waiting
        answered = await caller.ask(reading())

    assert (refused.error.code, refused.error.kept) == (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], True)
    assert len(answered.prediction.attention.cycles) == 2


@pytest.mark.parametrize(
    ("messages", "code", "detail"),
    [
        ([reading()], INVALID, "first message"),
        ([opening(), opening()], INVALID, "each message after the first"),
        ([opening(model="none")], grpc.StatusCode.NOT_FOUND, "only fake"),
        ([opening(readings=pb.Readings(values=[1.0]))], INVALID, "/open/readings/0"),
        ([pb.StreamRequest(open=pb.StreamOpen(unit=""))], INVALID, "/open/unit: expected a name of 1 to 256"),
        ([pb.StreamRequest(open=pb.StreamOpen(unit="a\0"))], INVALID, "/open/unit: expected a name of 1"),
    ],
)
async def test_an_error_that_no_later_reading_could_mend_ends_the_stream(messages, code, detail):
    async with in_process() as service, calling(service) as caller:
        caller.send(*messages)
        await caller.rest()

        labels = {"protocol": "grpc", "route": Route.GRPC_STREAM.value}
        assert service.value("rul_requests_total", **labels, code=code.name) == 1

    assert caller.code is code
    assert detail in caller.trailers["grpc-message"]


@pytest.mark.parametrize(("options", "stored"), [({}, ["7"]), ({"store": False}, [])])
async def test_a_stream_keeps_its_predictions_unless_told_otherwise(tmp_path, options, stored):
    async with in_process(store=f"sqlite:///{tmp_path}/rul.db") as service, calling(service) as caller:
        await opened(caller, first_cycle=1, **options)
        await caller.ask(reading())

        fleet = (await service.http.get("/v1/units")).json()["units"]

    assert [unit["unit"] for unit in fleet] == stored


async def test_a_stream_with_costs_says_with_each_prediction_when_to_act():
    async with in_process() as service, calling(service) as caller:
        await opened(caller, costs=pb.Costs(planned=1.0, failure=20.0), first_cycle=100)

        decisions = [(await caller.ask(reading())).prediction.decision for _ in range(2)]

    assert decisions[1].costs.failure == 20.0
    assert decisions[1].act_at_cycle == 101 + decisions[1].act_in_cycles


async def test_no_stream_is_opened_before_the_service_is_ready():
    async with in_process(ready=False) as service, calling(service) as caller:
        await caller.rest()

    assert caller.code is grpc.StatusCode.UNAVAILABLE


async def test_one_stream_more_than_may_be_open_is_refused_until_another_ends():
    async with in_process(max_streams=1) as service:
        async with calling(service) as first, calling(service) as second:
            await opened(first)
            await second.rest()
            assert service.value("rul_open_streams") == 1
        async with calling(service) as third:
            await opened(third)

    assert second.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "1 streams are open" in second.trailers["grpc-message"]


def set_clock_ahead(monkeypatch, seconds):
    """Let the loop's timers and the streams see a later time, as if a test had waited for it."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: monotonic() + seconds)
    monkeypatch.setattr(life, "monotonic", lambda: monotonic() + seconds)


async def test_a_stream_is_not_idle_while_its_reading_is_being_answered(monkeypatch):
    runtime = FakeRuntime()
    runtime.gate.clear()
    limits = {"stream_idle_seconds": 600, "request_timeout_seconds": 86400}

    async with in_process(runtime, **limits) as service, calling(service) as caller:
        await opened(caller)
        caller.send(reading(33.0), CLOSE)
        await until(runtime.entered.is_set)
        set_clock_ahead(monkeypatch, 1000)
        passed = asyncio.Event()
        asyncio.get_running_loop().call_later(0, passed.set)  # after the timers that are due
        await passed.wait()
        runtime.gate.set()
        (answer,) = await caller.rest()

    assert answer.prediction.rul == 33.0
    assert caller.code is grpc.StatusCode.OK


async def test_readings_that_come_while_a_slow_one_is_answered_are_answered_too(monkeypatch):
    monkeypatch.setattr("service.edge.exchange.LOOK_SECONDS", 0.001)
    runtime = FakeRuntime()
    runtime.gate.clear()

    async with in_process(runtime) as service, calling(service) as caller:
        await opened(caller)
        caller.send(reading(33.0))
        await until(runtime.entered.is_set)
        passed = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, passed.set)
        await passed.wait()
        caller.send(reading(34.0), reading(35.0), CLOSE)
        runtime.gate.set()
        async with asyncio.timeout(10):
            answers = await caller.rest()

    assert [answer.prediction.rul for answer in answers] == [33.0, 34.0, 35.0]


async def test_a_drain_answers_the_reading_in_flight_ends_every_stream_and_waits_for_them():
    runtime = FakeRuntime()

    async with in_process(runtime) as service, calling(service) as idle, calling(service) as busy:
        await opened(idle)
        await opened(busy)
        runtime.gate.clear()
        busy.send(reading(33.0), reading(34.0))
        await until(runtime.entered.is_set)

        draining = asyncio.create_task(service.lifecycle.drain(30))
        left = await idle.rest()
        assert not draining.done()
        runtime.gate.set()
        answered = await busy.rest()
        drained = await draining

    assert drained
    assert left == []
    assert [answer.prediction.rul for answer in answered] == [33.0]
    assert (idle.code, busy.code) == (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)
    assert "shutting down" in idle.trailers["grpc-message"]
    assert service.lifecycle.phase is Phase.DRAINING


@pytest.mark.parametrize("in_flight", [False, True])
async def test_a_caller_who_leaves_takes_its_stream_and_its_window_with_it(in_flight):
    runtime = FakeRuntime()

    async with in_process(runtime) as service:
        before = asyncio.all_tasks()
        caller = Caller(service.grpc)
        await opened(caller)
        await caller.ask(reading())
        other = None
        if in_flight:
            runtime.entered.clear()
            runtime.gate.clear()
            other = asyncio.create_task(service.predict_grpc())
            await until(runtime.entered.is_set)
            caller.send(reading())
            await until(lambda: service.batcher.pending_windows == 1)

        caller.send(LEAVE)
        await caller.task
        pending = service.batcher.pending_windows
        runtime.gate.set()
        if other is not None:
            await other

        labels = {"protocol": "grpc", "code": "CANCELLED"}
        assert service.value("rul_open_streams") == 0
        assert service.value("rul_inflight_requests") == 0
        assert service.value("rul_requests_total", **labels, route=Route.GRPC_STREAM.value) == 1
        assert service.value("rul_requests_total", **labels, route=Route.GRPC_READING.value) == in_flight
        assert service.value("rul_cancelled_total") == in_flight  # not those that were answered
        await until(lambda: asyncio.all_tasks() == before)
    assert pending == 0
    assert caller.code is None


async def test_a_stream_that_ends_by_its_callers_deadline_is_no_fault_of_the_service(monkeypatch):
    async with in_process() as service, calling(service, metadata=[("grpc-timeout", "1H")]) as caller:
        await opened(caller)
        set_clock_ahead(monkeypatch, 3601)
        assert await caller.rest() == []

        labels = {"protocol": "grpc", "route": Route.GRPC_STREAM.value}
        assert service.value("rul_requests_total", **labels, code="CANCELLED") == 1
        assert service.value("rul_open_streams") == 0
    assert caller.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_stream_that_ended_leaves_no_reader_behind():
    async with in_process() as service:
        before = asyncio.all_tasks()
        async with calling(service) as caller:
            caller.send(opening(), reading(), reading(), opening(), reading(), reading())
            await caller.rest()

        await until(lambda: asyncio.all_tasks() == before)


@pytest.mark.parametrize(
    "message",
    [
        opening(readings=pb.Readings(values=[0.0] * 15_000)),
        pb.StreamRequest(reading=pb.Reading(values=[0.0] * 15_000)),
    ],
)
async def test_a_silent_stream_holds_no_large_message(message):
    async with in_process(max_window_cycles=5000) as service:
        async with calling(service) as before:  # loads what all streams share
            await opened(before)
            await before.ask(reading())
        async with calling(service) as caller:
            if message.HasField("reading"):
                await opened(caller)
            tracemalloc.start()
            await caller.ask(message)
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()

    assert held < 30_000 < message.ByteSize()


async def test_a_stream_ends_when_its_key_is_revoked_and_the_others_go_on(tmp_path):
    file = tmp_path / "keys.toml"
    kept, lost = (add_key(file, name, ["ingest"]) for name in ("kept", "lost"))
    async with (
        in_process(keys_file=str(file)) as service,
        calling(service, metadata=[("x-api-key", kept)]) as staying,
        calling(service, metadata=[("x-api-key", lost)]) as leaving,
    ):
        await opened(staying)
        await opened(leaving)

        revoke_key(file, "lost")
        service.desk.credentials.look()
        service.desk.credentials.look()  # two equal looks: the file is whole

        assert await leaving.rest() == []  # though it was silent
        assert leaving.code is grpc.StatusCode.UNAUTHENTICATED
        assert (await staying.ask(reading())).prediction.rul == 40.0
