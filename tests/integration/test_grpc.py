"""What stock gRPC clients expect of a server beside its own methods, behind both front ends."""

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.proto import rul_v1_pb2 as pb


def test_reflection_gives_a_file_by_its_name(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(file_by_filename="service/proto/rul_v1.proto")

    (reply,) = stub.ServerReflectionInfo(iter([asked]))

    files = [
        descriptor_pb2.FileDescriptorProto.FromString(raw)
        for raw in reply.file_descriptor_response.file_descriptor_proto
    ]
    assert "PredictRequest" in [message.name for file in files for message in file.message_type]


def test_a_request_id_is_echoed_and_a_detail_may_hold_any_character(stub):
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetModel(pb.GetModelRequest(name="größe %41 \u2603"), metadata=[("x-request-id", "a-1")])

    assert "größe %41 \u2603" in caught.value.details()
    assert ("x-request-id", "a-1") in caught.value.trailing_metadata()
