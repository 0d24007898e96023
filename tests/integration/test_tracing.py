"""Traces of the real process, as a collector receives them by OTLP."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.integration.conftest import ANSWER_SECONDS, FRONT_ENDS, free_port, running

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
TRACEPARENT = ("traceparent", f"00-{TRACE}-{CALLER}-01")
PARTS = {"decode", "queue", "infer", "explain", "encode"}


class Collector:
    """Takes spans by OTLP over HTTP, and keeps them.

    Attributes:
        spans: What came, in its order.
        resources: The attributes of whoever sent it.
    """

    def __init__(self, port: int) -> None:
        self.spans = []
        self.resources = []
        self.endpoint = f"http://127.0.0.1:{port}"

    def take(self, path: str, body: bytes) -> bytes:
        assert path == "/v1/traces"
        for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append({a.key: a.value.string_value for a in sent.resource.attributes})
            self.spans += [span for scope in sent.scope_spans for span in scope.spans]
        return ExportTraceServiceResponse().SerializeToString()


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            answer = collector.take(self.path, body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_args):
            """Nothing to say."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        collector = Collector(listening.server_port)
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            listening.shutdown()
            thread.join()


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_collector_receives_the_traces_of_both_protocols(front_end, tiny_bundle, tmp_path, windows):
    settings = {"tracing": "true", "trace_sample": "0", "log_sample": "1", "log_format": "json"}
    with (
        collecting() as collector,
        running(
            tmp_path, str(tiny_bundle.path), front_end=front_end, otlp_endpoint=collector.endpoint, **settings
        ) as server,
    ):
        body = {"windows": [windows[0].json()]}
        answer = server.ask("POST", "/v1/predict", json=body, headers=[TRACEPARENT])
        with grpc.insecure_channel(server.grpc) as channel:
            stub = rul_v1_pb2_grpc.RulServiceStub(channel)
            stub.Predict(pb.PredictRequest(windows=[windows[0].message()]), metadata=[TRACEPARENT])
            stub.Predict(pb.PredictRequest(windows=[windows[0].message()]))
        ended = server.stop()

    assert answer.status_code == 200
    assert ended == 0
    assert {resource["service.name"] for resource in collector.resources} == {"rulserve"}
    requests = [span for span in collector.spans if span.parent_span_id.hex() == CALLER]
    assert {span.name for span in requests} == {"POST /v1/predict", "rul.v1.RulService/Predict"}
    assert {span.trace_id.hex() for span in requests} == {TRACE}
    for request in requests:
        below = [span for span in collector.spans if span.parent_span_id == request.span_id]
        assert {span.name for span in below} == PARTS
        (infer,) = [span for span in below if span.name == "infer"]
        (batch,) = [span for span in collector.spans if span.span_id == infer.links[0].span_id]
        assert batch.name == "batch"
        assert request.span_id in {link.span_id for link in batch.links}
    assert len(collector.spans) == 2 * 6 + 2  # of the third request, which nobody sampled, there is none
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in collector.spans)
    lines = [json.loads(line) for line in server.output().splitlines() if '"request answered"' in line]
    logged = {line["span_id"] for line in lines if line.get("trace_id") == TRACE}
    assert logged == {span.span_id.hex() for span in requests}


def test_a_collector_that_is_not_there_fails_no_request_and_holds_up_no_shutdown(
    tiny_bundle, tmp_path, windows
):
    nowhere = f"http://127.0.0.1:{free_port()}"
    settings = {"tracing": "true", "trace_sample": "1", "otlp_endpoint": nowhere}
    with running(tmp_path, str(tiny_bundle.path), **settings) as server:
        with server.client() as client:
            body = {"windows": [windows[0].json()]}
            codes = {client.post("/v1/predict", json=body).status_code for _ in range(50)}
        ended = server.stop()

    assert codes == {200}
    assert ended == 0


def test_an_invalid_endpoint_ends_the_start_with_its_name(tiny_bundle, tmp_path):
    settings = {"tracing": "true", "otlp_endpoint": "localhost:4318"}
    with running(tmp_path, str(tiny_bundle.path), ready=False, **settings) as server:
        assert server.process.wait(ANSWER_SECONDS) == 1

    assert "RUL_OTLP_ENDPOINT" in server.output()
