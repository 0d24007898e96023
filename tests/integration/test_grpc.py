"""What stock gRPC clients expect of a server beside its own methods, behind both front ends."""

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc


def test_reflection_gives_a_file_by_its_name(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(file_by_filename="service/proto/rul_v1.proto")

    (reply,) = stub.ServerReflectionInfo(iter([asked]))

    files = [
        descriptor_pb2.FileDescriptorProto.FromString(raw)
        for raw in reply.file_descriptor_response.file_descriptor_proto
    ]
    assert "PredictRequest" in [message.name for file in files for message in file.message_type]


def test_a_request_id_is_echoed_with_the_status(stub):
    _, call = stub.ListModels.with_call(pb.ListModelsRequest(), metadata=[("x-request-id", "a-1")])

    assert ("x-request-id", "a-1") in call.trailing_metadata()


def test_a_detail_may_hold_any_character(stub):
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetModel(pb.GetModelRequest(name="größe %41 \u2603"))

    assert "größe %41 \u2603" in caught.value.details()


def test_many_calls_share_one_connection(stub, windows):
    calls = [stub.Predict.future(pb.PredictRequest(windows=[window.message()])) for window in windows * 4]

    units = [call.result().predictions[0].unit for call in calls]

    assert units == [window.unit for window in windows * 4]


async def test_the_asyncio_client_is_answered_too(server, windows):
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        reply = await stub.Predict(pb.PredictRequest(windows=[windows[0].message()]))

    assert reply.predictions[0].unit == windows[0].unit
