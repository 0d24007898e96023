"""The Open Inference Protocol of the real process, behind both front ends, asked without anybody's client."""

from types import SimpleNamespace

import numpy as np
import pytest
from google.protobuf.message_factory import GetMessageClass

from service.proto import open_inference_pb2 as pb
from tests.integration.conftest import ANSWER_SECONDS, metrics_of
from tests.oip import HEADER, arrays_of, binary_request, json_request

INFER = "/v2/models/tiny/infer"


@pytest.fixture
def asked(golden):
    return {"readings": golden.readings, "lengths": golden.lengths, "last_cycle": golden.last_cycle}


@pytest.fixture
def inference(channel):
    """Every method of the service, as a generated stub has it."""
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    methods = {
        method.name: channel.unary_unary(
            f"/{service.full_name}/{method.name}",
            GetMessageClass(method.input_type).SerializeToString,
            GetMessageClass(method.output_type).FromString,
        )
        for method in service.methods
    }
    return SimpleNamespace(**methods)


def message(arrays, **options):
    names = {"<f4": "FP32", "<i8": "INT64"}
    given = [
        pb.ModelInferRequest.InferInputTensor(name=n, datatype=names[a.dtype.str], shape=a.shape)
        for n, a in arrays.items()
    ]
    raw = [array.tobytes() for array in arrays.values()]
    return pb.ModelInferRequest(model_name="tiny", inputs=given, raw_input_contents=raw, **options)


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
