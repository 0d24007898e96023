"""Bodies that come slowly or together: a deadline, a budget, and no byte before the key."""

import asyncio
import gc
import gzip
import sys
from contextlib import suppress

import grpc
import pytest
from google.rpc.code_pb2 import Code
from structlog.testing import capture_logs

from service.core.turns import LARGE_BYTES
from service.edge import exchange
from service.errors import MalformedBody
from service.grpc import health
from service.grpc.call import Aborted
from service.grpc.server import Handlers
from service.http import shell
from tests.in_process import PREDICT, ask_grpc, framed, in_process, until

STREAM = "/rul.v1.RulService/PredictStream"
METHODS = (
    PREDICT,
    STREAM,
    "/rul.v1.RulService/GetModel",
    "/rul.v1.RulService/ListModels",
    "/inference.GRPCInferenceService/ModelInfer",
    "/inference.GRPCInferenceService/ModelMetadata",
)
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
PATHS = ("/v1/predict", "/v1/units/7/outcomes", "/v2/models/fake/infer")
SHORT = {"body_timeout_seconds": 0.01}
TYPE = {"content-type": "application/json"}
PART = framed(b"0" * 3000)[:2000]
"""The begin of a message."""


class Slow:
    """A body that stops after its first part."""

    def __init__(self, part=b"0" * 2000):
        self.part = part
        self.asked = 0
        self.release = asyncio.Event()

    async def __aiter__(self):
        self.asked += 1
        if self.part:
            yield self.part
        await self.release.wait()


@pytest.mark.parametrize("part", [b"", b"{"], ids=["nothing", "a part"])
@pytest.mark.parametrize("path", PATHS)
async def test_an_http_body_that_comes_too_slowly_gets_408(path, part):
    async with in_process(**SHORT) as service:
        answer = await service.http.post(path, content=Slow(part), headers=TYPE)

        assert answer.status_code == 408
        assert service.desk.intake.held == 0


CALLS = [(method, [PART]) for method in (*METHODS, CHECK)]
CALLS += [(method, []) for method in (*METHODS, CHECK) if method != STREAM]  # a stream may be silent


@pytest.mark.parametrize(("method", "parts"), CALLS)
async def test_a_message_that_comes_too_slowly_gets_deadline_exceeded(method, parts):
    async with in_process(**SHORT) as service:
        answer = await ask_grpc(service.grpc, method, *parts, ended=False)

        assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert service.desk.intake.held == 0


async def test_bodies_above_the_budget_get_429_and_those_within_it_go_on():
    async with in_process(max_reading_bytes=3000) as service:
        first = Slow()
        reading = asyncio.create_task(service.http.post("/v1/predict", content=first, headers=TYPE))
        await until(lambda: service.desk.intake.held == 2000)

        refused = await service.http.post("/v1/predict", content=Slow(), headers=TYPE)
        by_grpc = await ask_grpc(service.grpc, PREDICT, PART, ended=False)
        streamed = await ask_grpc(service.grpc, STREAM, PART, ended=False)
        first.release.set()

        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert by_grpc.code is streamed.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await reading).status_code == 400
        assert service.desk.intake.held == 0


async def test_bodies_that_inflate_above_the_budget_get_429_and_small_ones_are_read():
    large, small = (gzip.compress(b" " * size, mtime=0) for size in (2 * LARGE_BYTES, 2000))
    packed = TYPE | {"content-encoding": "gzip"}
    async with in_process(max_reading_bytes=3000, max_body_bytes=4 * LARGE_BYTES) as service:
        first = Slow()
        reading = asyncio.create_task(service.http.post("/v1/predict", content=first, headers=TYPE))
        await until(lambda: service.desk.intake.held == 2000)

        refused = await service.http.post("/v1/predict", content=large, headers=packed)
        message = framed(large, compressed=True)
        by_grpc = await ask_grpc(service.grpc, PREDICT, message, metadata=[("grpc-encoding", "gzip")])
        read = await service.http.post("/v1/predict", content=small, headers=packed)
        first.release.set()
        await reading
        alone = await service.http.post("/v1/predict", content=large, headers=packed)

        assert refused.status_code == 429
        assert by_grpc.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert read.status_code == alone.status_code == 400
        assert service.desk.intake.held == 0


@pytest.mark.parametrize("method", METHODS)
async def test_a_message_without_a_key_is_not_read(method):
    async with in_process(keys=["a-key"]) as service:
        answer = await ask_grpc(service.grpc, method, ended=False)

        assert answer.code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_without_a_key_is_not_read(path):
    async with in_process(keys=["a-key"]) as service:
        body = Slow()

        answer = await service.http.post(path, content=body, headers=TYPE)

        assert answer.status_code == 401
        assert body.asked == 0


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (REFLECTION, grpc.StatusCode.UNAUTHENTICATED),
        ("/rul.v1.RulService/Nope", grpc.StatusCode.UNIMPLEMENTED),
    ],
    ids=["reflection without a key", "an unknown method"],
)
async def test_a_refusal_of_any_method_is_counted_and_logged_once(method, code):
    async with in_process(keys=["a-key"]) as service:
        with capture_logs() as said:
            answer = await ask_grpc(service.grpc, method, framed(b""))

        assert answer.code is code
        labels = {"protocol": "grpc", "route": "other", "code": code.name}
        assert service.value("rul_requests_total", **labels) == 1
        assert [line["event"] for line in said] == ["request refused"]


async def test_the_time_in_which_a_body_arrives_is_not_the_services(monkeypatch):
    now = [0.0]
    for module in (exchange, shell):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])

    async def body():
        yield b"{"
        now[0] = 1.0
        yield b"}"

    async with in_process() as service:
        await service.http.post("/v1/predict", content=body(), headers=TYPE)

        labels = {"protocol": "http", "route": "/v1/predict"}
        assert service.value("rul_request_duration_seconds_count", **labels) == 1
        assert service.value("rul_request_duration_seconds_sum", **labels) == 0


@pytest.mark.parametrize("path", [CHECK, WATCH])
async def test_a_health_message_of_a_caller_without_a_key_takes_no_room(path):
    async with in_process() as service:
        answer = await ask_grpc(service.grpc, path, framed(b"0" * 5000)[:100], ended=False)

        assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "5000 bytes" in answer.detail


@pytest.mark.parametrize("error", [None, MalformedBody("no"), Aborted(Code.NOT_FOUND, "no")], ids=type)
async def test_a_call_on_grpc_aio_leaves_its_message_to_nobody(error):
    kept = []

    async def answer(messages, _context):
        kept.append(message := await anext(messages))
        if error is not None:
            raise error
        return message

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handlers({CHECK: answer}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gc.disable()  # reference counting alone frees it
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with suppress(grpc.aio.AioRpcError):
                await channel.unary_unary(CHECK)(b"0" * 5000)
        await server.stop(None)
        references = sys.getrefcount(kept[0])
        assert references == 2  # the list and the argument
    finally:
        gc.enable()


async def test_a_silent_reflection_stream_ends():
    async with in_process(**SHORT) as service:
        answer = await ask_grpc(service.grpc, REFLECTION, ended=False)

        assert answer.code is grpc.StatusCode.OK
        assert answer.messages == []


async def test_callers_without_a_key_may_watch_only_so_many(monkeypatch):
    monkeypatch.setattr(health, "MOST_WATCHERS", 1)
    leave = asyncio.Event()
    async with in_process(keys=["a-key"]) as service:
        first = asyncio.create_task(ask_grpc(service.grpc, WATCH, framed(b""), leaves=leave))
        await until(lambda: service.health._watchers == 1)

        second = await ask_grpc(service.grpc, WATCH, framed(b""))
        leave.set()
        await first
        await until(lambda: service.health._watchers == 0)

        assert second.code is grpc.StatusCode.RESOURCE_EXHAUSTED
