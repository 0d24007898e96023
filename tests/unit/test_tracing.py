"""A request's trace, from its caller through the batcher to the model; held in memory, as the SDK made it."""

import asyncio
import json

import grpc.aio
import numpy as np
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from service.grpc.server import Handlers
from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from service.tracing.otlp import tracer_provider
from service.tracing.spans import SpanTracer
from tests.fakes import FakeRuntime
from tests.in_process import PREDICT, ask_grpc, framed, in_process, json_window, message_window
from tests.oip import json_request

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=7"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
PARTS = ["decode", "queue", "infer", "explain", "encode"]
UNIT = "unit-that-nobody-should-see"


class Traced:
    """A tracer and what it has finished."""

    def __init__(self, sample=1.0):
        self.exporter = InMemorySpanExporter()
        provider = tracer_provider(sample)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = SpanTracer(provider)

    @property
    def spans(self):
        return self.exporter.get_finished_spans()

    def named(self, name):
        return [span for span in self.spans if span.name == name]

    def only(self, name):
        (span,) = self.named(name)
        return span

    def children(self, span):
        found = [one for one in self.spans if one.parent and one.parent.span_id == span.context.span_id]
        return sorted(found, key=lambda one: (one.start_time, one.end_time))


@pytest.fixture
def traced():
    return Traced()


def linked(span):
    return {link.context.span_id for link in span.links}


def assert_a_whole_trace(traced, request):
    """The request with its parts in order, and the batch that answered it beside them."""
    parts = traced.children(request)
    assert [part.name for part in parts] == PARTS
    assert {part.context.trace_id for part in parts} == {request.context.trace_id}
    assert all(part.end_time >= part.start_time for part in traced.spans)
    assert parts[0].start_time >= request.start_time
    assert parts[-1].end_time <= request.end_time
    batch = traced.only("batch")
    assert batch.parent is None
    assert batch.context.trace_id != request.context.trace_id
    assert linked(batch) == {request.context.span_id}
    assert linked(parts[2]) == {batch.context.span_id}
    assert parts[2].start_time <= batch.start_time <= batch.end_time <= parts[2].end_time
    assert batch.attributes == {"rul.model": "fake", "rul.windows": 1}


async def by_http(service):
    await service.predict_http(headers=SAMPLED)


async def by_inference(service):
    request = json_request({"readings": np.ones((1, 2, 3), np.float32)})
    await service.http.post("/v2/models/fake/infer", json=request, headers=SAMPLED)


async def by_grpc(service):
    await service.predict_grpc(metadata=list(SAMPLED.items()))


async def by_grpc_aio(service):
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handlers(service.parts.methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        query = pb.PredictRequest(windows=[message_window()])
        await stub.Predict(query, metadata=tuple(SAMPLED.items()))
    await server.stop(None)


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (by_http, "POST /v1/predict"),
        (by_inference, "POST /v2/models/{name}/infer"),
        (by_grpc, "rul.v1.RulService/Predict"),
        (by_grpc_aio, "rul.v1.RulService/Predict"),
    ],
)
async def test_a_trace_goes_from_a_client_through_the_batcher_to_the_model(traced, ask, name):
    async with in_process(tracer=traced.tracer) as service:
        await ask(service)

    request = traced.only(name)
    assert request.kind is SpanKind.SERVER
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == CALLER
    assert request.context.trace_state["vendor"] == "7"
    assert request.status.status_code is StatusCode.UNSET
    assert_a_whole_trace(traced, request)


async def test_a_reading_of_a_stream_is_a_part_of_the_streams_trace(traced):
    opening = pb.StreamRequest(open=pb.StreamOpen(unit=UNIT))
    reading = pb.StreamRequest(reading=pb.Reading(values=[1.0, 2.0, 3.0]))
    async with in_process(tracer=traced.tracer) as service:
        messages = [framed(message.SerializeToString()) for message in (opening, reading)]
        path = PREDICT + "Stream"
        answer = await ask_grpc(service.grpc, path, *messages, metadata=list(SAMPLED.items()))

    assert len(answer.messages) == 2
    stream = traced.only("rul.v1.RulService/PredictStream")
    read = traced.only("rul.v1.RulService/PredictStream/reading")
    assert stream.attributes["rul.windows"] == read.attributes["rul.windows"] == 1
    assert f"{stream.context.trace_id:032x}" == TRACE
    assert read.parent.span_id == stream.context.span_id
    assert read.kind is SpanKind.INTERNAL
    assert read.attributes["rpc.method"] == "rul.v1.RulService/PredictStream"
    assert_a_whole_trace(traced, read)


async def test_a_batch_is_linked_to_every_request_that_it_serves(traced):
    async with in_process(tracer=traced.tracer) as service:
        async with service.busy():
            others = [asyncio.create_task(service.predict_http()) for _ in range(3)]
            await service.waiting(3)
        await asyncio.gather(*others)

    alone, together = sorted(traced.named("batch"), key=lambda span: span.start_time)
    assert service.runtime.batches == [1, 3]
    assert len(linked(alone)) == 1
    assert len(linked(together)) == 3
    assert linked(alone) | linked(together) == {
        span.context.span_id for span in traced.named("POST /v1/predict")
    }


async def test_a_request_of_several_batches_is_linked_to_each(traced):
    async with in_process(tracer=traced.tracer) as service:
        await service.predict_http(windows=[json_window()] * 20)

    batches = traced.named("batch")
    assert sum(batch.attributes["rul.windows"] for batch in batches) == 20
    assert len(batches) == 3
    assert linked(traced.only("infer")) == {batch.context.span_id for batch in batches}
    assert traced.only("POST /v1/predict").attributes["rul.windows"] == 20


async def test_requests_are_described_as_the_semantic_conventions_say(traced):
    async with in_process(tracer=traced.tracer) as service:
        await service.predict_http(headers={"x-request-id": "mine"})
        await service.predict_grpc(metadata=[("x-request-id", "mine-too")])

    assert traced.only("POST /v1/predict").attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/predict",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "rul.request_id": "mine",
        "rul.windows": 1,
    }
    assert traced.only("rul.v1.RulService/Predict").attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": "rul.v1.RulService/Predict",
        "rpc.response.status_code": "OK",
        "rul.request_id": "mine-too",
        "rul.windows": 1,
    }


async def test_a_failed_batch_marks_itself_and_the_requests_that_it_failed(traced):
    runtime = FakeRuntime()
    runtime.failures = 2

    async with in_process(runtime, tracer=traced.tracer) as service:
        await service.predict_http()
        await service.predict_grpc()

    for name in ("POST /v1/predict", "rul.v1.RulService/Predict"):
        assert traced.only(name).status.status_code is StatusCode.ERROR
        assert traced.only(name).attributes["error.type"] == "RuntimeFailed"
    assert [span.status.status_code for span in traced.named("infer")] == [StatusCode.ERROR] * 2
    assert [span.attributes["error.type"] for span in traced.named("batch")] == ["ValueError"] * 2
    assert "secret" not in "".join(span.to_json() for span in traced.spans)


async def test_what_a_caller_did_wrong_is_named_and_is_no_error_of_the_service(traced):
    async with in_process(tracer=traced.tracer) as service:
        await service.predict_http(windows=[])

    request = traced.only("POST /v1/predict")
    assert request.status.status_code is StatusCode.UNSET
    assert request.attributes["http.response.status_code"] == 422
    assert request.attributes["error.type"] == "InvalidRequest"


async def test_a_deadline_that_passes_in_the_queue_is_seen_there(traced):
    async with in_process(tracer=traced.tracer) as service, service.busy():
        late = await service.predict_http(headers={"request-timeout": "0.001", **SAMPLED})

    (request,) = [span for span in traced.named("POST /v1/predict") if span.parent]
    assert late.status_code == 504
    assert request.status.status_code is StatusCode.ERROR
    assert [part.name for part in traced.children(request)] == ["decode", "queue"]


async def test_neither_units_nor_readings_are_in_a_span(traced):
    async with in_process(tracer=traced.tracer) as service:
        window = json_window(40.0) | {"unit": UNIT, "last_cycle": 98765}
        window["columns"] = {name: [12345.678] * 3 for name in window["columns"]}
        await service.predict_http(windows=[window], explain="full")
        window["columns"]["sensor_1"] = ["12345.678"]
        await service.predict_http(windows=[window])
        await service.http.get(f"/v1/units/{UNIT}")
        await service.http.get(f"/nowhere/{UNIT}")

    told = "".join(span.to_json() for span in traced.spans)
    assert {span.name for span in traced.spans} >= {"GET /v1/units/{unit}", "GET"}
    for secret in (UNIT, "12345", "98765", "sensor_1"):
        assert secret not in told


async def test_an_unsampled_request_makes_no_span(traced):
    async with in_process(tracer=traced.tracer) as service:
        await service.predict_http(headers=UNSAMPLED)
        await service.predict_grpc(metadata=list(UNSAMPLED.items()))

    assert traced.spans == ()


async def test_a_sampled_request_in_a_batch_with_unsampled_ones_is_traced_with_its_batch_and_alone():
    traced = Traced(sample=0)

    async with in_process(tracer=traced.tracer) as service:
        async with service.busy():
            others = [
                asyncio.create_task(service.predict_http(headers=given)) for given in (SAMPLED, UNSAMPLED, {})
            ]
            await service.waiting(3)
        await asyncio.gather(*others)

    assert linked(traced.only("batch")) == {traced.only("POST /v1/predict").context.span_id}
    assert traced.only("batch").attributes["rul.windows"] == 3


@pytest.mark.parametrize("given", ["", "00-zz-zz-01", f"00-{'0' * 32}-{CALLER}-01", "ff", "é" * 60])
async def test_a_traceparent_that_is_none_begins_a_trace_of_its_own(traced, given):
    async with in_process(tracer=traced.tracer) as service:
        headers = [(b"traceparent", given.encode())]
        reply = await service.http.post("/v1/predict", json={"windows": [json_window()]}, headers=headers)

    assert reply.status_code == 200
    assert traced.only("POST /v1/predict").parent is None


async def test_probes_and_scrapes_are_not_traced(traced):
    async with in_process(tracer=traced.tracer) as service:
        for path in ("/livez", "/readyz", "/metrics", "/v2/health/ready", "/v2/models/fake/ready"):
            assert (await service.http.get(path)).status_code == 200

    assert traced.spans == ()


def refused(stream):
    """The only line about a refused request."""
    (line,) = (
        line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == "request refused"
    )
    return line


async def test_a_log_line_names_the_trace_of_its_request(traced, stream):
    async with in_process(tracer=traced.tracer) as service:
        await service.predict_http(windows=[], headers=SAMPLED | {"x-request-id": "mine"})

    line = refused(stream)
    request = traced.only("POST /v1/predict")
    assert (line["request_id"], line["trace_id"], line["trace_flags"]) == ("mine", TRACE, "01")
    assert line["span_id"] == f"{request.context.span_id:016x}"


async def test_a_log_line_names_no_trace_where_there_is_none(stream):
    async with in_process() as service:
        await service.predict_http(windows=[], headers=SAMPLED)

    line = refused(stream)
    assert "request_id" in line
    assert line.keys().isdisjoint({"trace_id", "span_id", "trace_flags"})
