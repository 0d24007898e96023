"""The Open Inference Protocol of the real process, behind both front ends, asked without anybody's client."""

import gzip
import json

import grpc
import httpx
import numpy as np
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from service.proto import open_inference_pb2 as pb
from service.proto import open_inference_pb2_grpc
from tests.integration.conftest import ANSWER_SECONDS, KEY, QUEUE_WINDOWS, STRICT_BODY_BYTES, metrics_of
from tests.oip import HEADER, arrays_of, binary_request, json_request

INFER = "/v2/models/tiny/infer"


@pytest.fixture
def asked(golden):
    return {"readings": golden.readings, "lengths": golden.lengths, "last_cycle": golden.last_cycle}


@pytest.fixture
def inference(channel):
    return open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)


def message(arrays, **options):
    names = {"<f4": "FP32", "<i8": "INT64"}
    given = [
        pb.ModelInferRequest.InferInputTensor(name=n, datatype=names[a.dtype.str], shape=a.shape)
        for n, a in arrays.items()
    ]
    raw = [array.tobytes() for array in arrays.values()]
    return pb.ModelInferRequest(model_name="tiny", inputs=given, raw_input_contents=raw, **options)


def refused(call, *arguments, **options):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **options)
    return caught.value


def error(reply, status):
    assert reply.status_code == status, reply.text
    assert list(reply.json()) == ["error"]
    assert reply.headers["x-request-id"]
    return reply.json()["error"]


def test_the_graphs_own_golden_answers_come_back(http, asked, golden):
    body, size = binary_request(asked, parameters={"binary_data_output": True})

    reply = http.post(INFER, content=body, headers={HEADER: str(size)})

    answered = arrays_of(reply.content, int(reply.headers[HEADER]))
    for name in (
        "rul_interval",
        "failure_probability",
        "health_state",
        "attention",
        "contribution",
        "novelty",
    ):
        np.testing.assert_allclose(answered[name], golden.expected[name], atol=1e-3)


def test_http_and_grpc_give_the_same_bits_to_the_same_batch(http, inference, asked):
    few = {name: array[:4] for name, array in asked.items()}
    body, size = binary_request(few, parameters={"binary_data_output": True})

    by_http = http.post(INFER, content=body, headers={HEADER: str(size)})
    by_grpc = inference.ModelInfer(message(few))

    arrays = arrays_of(by_http.content, int(by_http.headers[HEADER]))
    for output, raw in zip(by_grpc.outputs, by_grpc.raw_output_contents, strict=True):
        np.testing.assert_allclose(arrays[output.name].ravel(), np.frombuffer(raw, "<f4"), atol=1e-5)


def test_a_compressed_body_is_answered(http, asked):
    body = gzip.compress(json.dumps(json_request(asked)).encode())

    reply = http.post(INFER, content=body, headers={"content-encoding": "gzip"})

    assert len(reply.raise_for_status().json()["outputs"]) == 7


def test_reflection_describes_the_protocol(channel):
    found = ProtoReflectionDescriptorDatabase(channel).FindFileContainingSymbol(
        "inference.GRPCInferenceService"
    )

    assert [method.name for method in found.service[0].method] == [
        "ServerLive",
        "ServerReady",
        "ModelReady",
        "ServerMetadata",
        "ModelMetadata",
        "ModelInfer",
        "RepositoryIndex",
    ]


@pytest.mark.parametrize(
    "path", ["/v2/models/none", "/v2/models/tiny/versions/2", "/v2/%2e%2e/x", "/v2//models/tiny"]
)
def test_what_is_not_there_is_not_found(http, path):
    error(http.get(path), 404)


def test_another_method_is_not_allowed(http):
    assert http.get(INFER).headers["allow"] == "POST"


@pytest.mark.parametrize("header", ["x", "-1", "999999999999", "10"])
def test_a_header_that_lies_is_400_and_the_connection_lives(http, asked, header):
    body, _ = binary_request(asked)

    error(http.post(INFER, content=body, headers={HEADER: header}), 400)
    assert http.get("/v2/health/ready").json() == {"ready": True}


def test_a_full_queue_says_when_to_come_back(http, inference, asked):
    many = {"readings": np.repeat(asked["readings"][:1, :1], QUEUE_WINDOWS + 1, axis=0)}
    many["readings"][:] = 1.0
    body, size = binary_request(many)

    reply = http.post(INFER, content=body, headers={HEADER: str(size)})
    by_grpc = refused(inference.ModelInfer, message(many))

    assert "may wait" in error(reply, 429)
    assert int(reply.headers["retry-after"]) >= 1
    assert by_grpc.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_key_is_asked_for(strict):
    with httpx.Client(base_url=strict.http, trust_env=False) as client:
        error(client.post(INFER), 401)
        error(client.get("/v2/models/tiny", headers={"x-api-key": "wrong"}), 403)
        assert client.get("/v2/models/tiny", headers={"x-api-key": KEY}).json()["name"] == "tiny"
        assert client.get("/v2/health/ready").json() == {"ready": True}
    with grpc.insecure_channel(strict.grpc) as channel:
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert refused(stub.ModelInfer, pb.ModelInferRequest()).code() is grpc.StatusCode.UNAUTHENTICATED
        assert stub.ServerReady(pb.ServerReadyRequest()).ready


def test_too_large_and_too_late_are_said(strict, asked):
    headers = {"x-api-key": KEY}
    body = b" " * (STRICT_BODY_BYTES + 1)
    five = json_request({name: array[:5] for name, array in asked.items()})
    one = {name: array[9:10] for name, array in asked.items()}
    with httpx.Client(base_url=strict.http, trust_env=False, headers=headers) as client:
        error(client.post(INFER, content=body), 413)
        assert "at most 4 windows" in error(client.post(INFER, json=five), 413)
        error(client.post(INFER, json=json_request(one)), 504)
    with grpc.insecure_channel(strict.grpc) as channel:
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        late = refused(stub.ModelInfer, message(one), metadata=list(headers.items()))
        large = refused(
            stub.ModelInfer,
            message({"readings": np.ones((1, 9000, 6), np.float32)}),
            metadata=list(headers.items()),
        )

    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert large.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_both_transports_are_counted_beside_the_native_api(server, http, inference, asked):
    def count(protocol, route, code):
        return metrics_of(server).get(
            ("rul_requests_total", (("code", code), ("protocol", protocol), ("route", route))), 0
        )

    routes = [
        ("http", "/v2/models/{name}/infer", "200"),
        ("grpc", "inference.GRPCInferenceService/ModelInfer", "OK"),
    ]
    before = [count(*route) for route in routes]
    http.post(INFER, json=json_request(asked), timeout=ANSWER_SECONDS).raise_for_status()
    inference.ModelInfer(message(asked))

    assert [count(*route) for route in routes] == [number + 1 for number in before]
