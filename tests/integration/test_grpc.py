"""What stock gRPC clients expect of a server beside its own methods, behind both front ends."""

import gzip
import re

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.integration.conftest import ANSWER_SECONDS

SERVING = health_pb2.HealthCheckResponse.SERVING
SERVICES = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
    "rul.v1.RulService",
]


@pytest.fixture
def health(channel):
    return health_pb2_grpc.HealthStub(channel)


@pytest.fixture
def reflection(channel):
    return ProtoReflectionDescriptorDatabase(channel)


@pytest.mark.parametrize("service", ["", "rul.v1.RulService"])
def test_health_is_serving(health, service):
    assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING


def test_the_health_of_an_unknown_service_is_not_found(health):
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="nobody"))

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_who_watches_is_told_at_once(health):
    watched = health.Watch(health_pb2.HealthCheckRequest(service="rul.v1.RulService"), timeout=ANSWER_SECONDS)

    assert next(watched).status == SERVING
    watched.cancel()


def test_who_watches_an_unknown_service_is_told_that_it_is_unknown(health):
    watched = health.Watch(health_pb2.HealthCheckRequest(service="nobody"), timeout=ANSWER_SECONDS)

    assert next(watched).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watched.cancel()


def test_reflection_lists_every_service(reflection):
    assert sorted(reflection.get_services()) == SERVICES


def test_reflection_gives_the_file_that_defines_a_symbol(reflection):
    found = reflection.FindFileContainingSymbol("rul.v1.RulService")

    assert found.package == "rul.v1"
    assert [m.name for m in found.service[0].method] == ["Predict", "PredictStream", "GetModel", "ListModels"]


def test_reflection_gives_a_file_by_its_name(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(file_by_filename="service/proto/rul_v1.proto")

    (reply,) = stub.ServerReflectionInfo(iter([asked]))

    files = [
        descriptor_pb2.FileDescriptorProto.FromString(raw)
        for raw in reply.file_descriptor_response.file_descriptor_proto
    ]
    assert "PredictRequest" in [message.name for file in files for message in file.message_type]


def test_several_questions_of_one_reflection_stream_are_answered_in_turn(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.Such"),
    ]

    first, second = stub.ServerReflectionInfo(iter(asked))

    assert sorted(service.name for service in first.list_services_response.service) == SERVICES
    assert second.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.NoCompression])
def test_a_compressed_request_is_answered_as_a_plain_one_is(server, windows, compression):
    request = pb.PredictRequest(windows=[windows[0].message()])
    with grpc.insecure_channel(server.grpc, compression=compression) as channel:
        compressed = rul_v1_pb2_grpc.RulServiceStub(channel).Predict(request)
    with grpc.insecure_channel(server.grpc) as channel:
        plain = rul_v1_pb2_grpc.RulServiceStub(channel).Predict(request)

    assert MessageToDict(compressed) == MessageToDict(plain)


@pytest.mark.parametrize("method", ["/rul.v1.RulService/Nothing", "/no.Service/Predict"])
def test_an_unknown_method_is_unimplemented(channel, method):
    call = channel.unary_unary(method, lambda raw: raw, lambda raw: raw)

    with pytest.raises(grpc.RpcError) as caught:
        call(gzip.compress(b""))

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_request_id_is_echoed_with_the_status(stub):
    _, call = stub.ListModels.with_call(pb.ListModelsRequest(), metadata=[("x-request-id", "a-1")])

    assert ("x-request-id", "a-1") in call.trailing_metadata()


def test_every_answer_and_every_refusal_has_a_request_id(stub):
    _, call = stub.ListModels.with_call(pb.ListModelsRequest())
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetModel(pb.GetModelRequest(name="none"))

    for metadata in (call.trailing_metadata(), caught.value.trailing_metadata()):
        assert re.fullmatch("[0-9a-f]{32}", dict(metadata)["x-request-id"])


def test_a_detail_may_hold_any_character(stub):
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetModel(pb.GetModelRequest(name="größe %41 \u2603"))

    assert "größe %41 \u2603" in caught.value.details()


def test_a_deadline_that_leaves_time_is_kept(stub, windows):
    reply = stub.Predict(pb.PredictRequest(windows=[windows[0].message()]), timeout=ANSWER_SECONDS)

    assert len(reply.predictions) == 1


def test_many_calls_share_one_connection(stub, windows):
    calls = [stub.Predict.future(pb.PredictRequest(windows=[window.message()])) for window in windows * 4]

    units = [call.result().predictions[0].unit for call in calls]

    assert units == [window.unit for window in windows * 4]


async def test_the_asyncio_client_is_answered_too(server, windows):
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        reply = await stub.Predict(pb.PredictRequest(windows=[windows[0].message()]))

    assert reply.predictions[0].unit == windows[0].unit
