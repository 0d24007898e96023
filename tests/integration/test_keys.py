"""API keys with scopes, by every protocol, in the real process; and docs/keys.md, command by command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.edge.keys import add_key, revoke_key
from service.proto import open_inference_pb2, rul_v1_pb2, rul_v1_pb2_grpc
from tests.integration.conftest import ANSWER_SECONDS, FRONT_ENDS, Server, rul, running
from tests.programs import ROOT, bash_blocks, pasted
from tests.waiting import wait_until

MAKE, SERVE, USE, CHANGE = bash_blocks(ROOT / "docs" / "keys.md")
DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture(scope="module", params=FRONT_ENDS)
def guarded(request, tiny_bundle, tmp_path_factory) -> Iterator[tuple[Server, Path]]:
    """A service of two workers that follows a key file, and the file."""
    folder = tmp_path_factory.mktemp(f"guarded-{request.param}")
    file = folder / "keys.toml"
    file.touch()
    options = {"keys_file": str(file), "workers": "2", "log_format": "json"}
    with running(folder, str(tiny_bundle.path), front_end=request.param, **options) as started:
        yield started, file


def code(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def statuses(server: Server, key: str) -> set[int]:
    """The statuses with which the workers answer the key: connections are dealt out among them."""
    return {server.ask("GET", "/v1/models", key=key).status_code for _ in range(20)}


def test_a_key_does_by_grpc_what_its_scope_says(guarded):
    server, file = guarded
    planner = add_key(file, "planner", ["outcomes"])
    wait_until(lambda: statuses(server, planner) == {200}, ANSWER_SECONDS, what="the new key")
    with grpc.insecure_channel(server.grpc) as channel:
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel)
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=open_inference_pb2.ModelInferRequest.SerializeToString,
        )
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        calls = {
            "models": lambda **o: stub.ListModels(rul_v1_pb2.ListModelsRequest(), **o),
            "predict": lambda **o: stub.Predict(rul_v1_pb2.PredictRequest(), **o),
            "infer": lambda **o: infer(open_inference_pb2.ModelInferRequest(), **o),
            "stream": lambda **o: list(stub.PredictStream(iter([rul_v1_pb2.StreamRequest()]), **o)),
            "reflection": lambda **o: list(reflection.ServerReflectionInfo(iter([listing]), **o)),
            "health": lambda **o: health.Check(health_pb2.HealthCheckRequest(), **o),
        }

        without = {name: code(call) for name, call in calls.items()}
        metadata = [("x-api-key", planner)]
        answers = {name: code(partial(call, metadata=metadata)) for name, call in calls.items()}

    ok = grpc.StatusCode.OK
    assert without == dict.fromkeys(calls, UNKNOWN) | {"health": ok}
    assert answers == dict.fromkeys(calls, ok) | dict.fromkeys(["predict", "infer", "stream"], DENIED)


def test_a_revoked_key_ends_its_streams_and_a_bad_file_changes_nothing(guarded):
    server, file = guarded
    kept = add_key(file, "kept", ["ingest"])
    lost = add_key(file, "lost", ["ingest"])
    wait_until(lambda: statuses(server, lost) == {200}, ANSWER_SECONDS, what="the new key")
    opening = rul_v1_pb2.StreamRequest(open=rul_v1_pb2.StreamOpen(unit="7"))
    with grpc.insecure_channel(server.grpc) as channel:
        sent = iter([opening])
        stream = channel.stream_stream(
            "/rul.v1.RulService/PredictStream",
            request_serializer=rul_v1_pb2.StreamRequest.SerializeToString,
            response_deserializer=rul_v1_pb2.StreamReply.FromString,
        )(endless(sent), metadata=[("x-api-key", lost)], timeout=ANSWER_SECONDS)
        assert next(stream).WhichOneof("reply") == "opened"

        revoke_key(file, "lost")

        assert code(lambda: next(stream)) is UNKNOWN
    wait_until(lambda: statuses(server, lost) == {401}, ANSWER_SECONDS, what="the end of the key")
    damaged = file.with_name("damaged.toml")
    damaged.write_text("[keys", encoding="utf-8")
    damaged.replace(file)  # writing in place empties the file first, and an empty key file is a good one
    wait_until(lambda: "key file refused" in server.output(), ANSWER_SECONDS, what="the event")
    assert statuses(server, kept) == {200}
    assert server.output().count("key file refused") == 1
    assert not any(key in server.output() for key in (kept, lost))


def endless(messages: Iterator[object]) -> Iterator[object]:
    """These messages on a stream that its caller never ends."""
    yield from messages
    threading.Event().wait(ANSWER_SECONDS)


def test_a_bad_key_file_ends_the_start_with_one_line(tmp_path):
    done = rul("serve", "--port", "0", RUL_KEYS_FILE=str(tmp_path / "none.toml"))

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "none.toml: No such file" in done.stderr


def test_the_commands_of_the_document_do_what_it_says(tiny_bundle, tmp_path):
    listed = pasted(MAKE, tmp_path)
    assert SERVE == "RUL_KEYS_FILE=keys.toml rul serve --bundle fd001\n"
    with running(tmp_path, str(tiny_bundle.path), keys_file="keys.toml") as server:
        use, change = (text.replace("http://localhost:3000", server.http) for text in (USE, CHANGE))
        assert "rul_" in pasted(use, tmp_path) + (tmp_path / "metrics.txt").read_text("utf-8")
        line = (tmp_path / "line-1.key").read_text("utf-8").strip()
        pasted(change, tmp_path)
        wait_until(lambda: statuses(server, line) == {401}, ANSWER_SECONDS, what="the end of the key")

    assert [row.split("\t")[:3] for row in listed.splitlines()] == [
        ["line-1", "predict,ingest", "plant-a"],
        ["planner", "outcomes", "plant-a"],
        ["prometheus", "metrics", "-"],
    ]
    assert (tmp_path / "line-1.key").stat().st_mode & 0o777 == 0o600
