"""Perform a recorded case against a running service.

A case is a list of steps. A step is JSON: an HTTP request, or a gRPC call with its messages. This module
knows the wire formats and the generated messages; it must not know the service's internals.
"""

from __future__ import annotations

import base64
import json
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import numpy as np
from google.protobuf import descriptor_pool
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2  # noqa: F401 - its import makes the messages known by name
from grpc_reflection.v1alpha import reflection_pb2  # noqa: F401
from grpc_status import rpc_status

from service.proto import open_inference_pb2, rul_v1_pb2  # noqa: F401
from tests.golden.comparison import ANY, normalised
from tests.integration.conftest import ANSWER_SECONDS, Server, running

Step = dict[str, Any]
Answer = dict[str, Any]

FLEET: Final = "fd001,fd002,fd003,fd004"
ONE_SILENT_STREAM: Final = {"max_streams": "1", "stream_idle_seconds": "5"}
"""A stream must not be idle between two steps of a case, on a busy machine too."""
SERVICES: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "fleet": (FLEET, {"max_pending_windows": "64", "max_window_cycles": "100"}),
    "strict": ("fd001", {"api_keys": "another, a-key", "max_body_bytes": "4000", "max_request_windows": "4"}),
    "hurried": ("fd001", {"request_timeout_seconds": "0.000001", "store": "false", **ONE_SILENT_STREAM}),
}
"""The services that answer: bundles and settings. The last case of `strict` stops it."""

DTYPES: Final = {"FP32": "<f4", "INT64": "<i8"}
HEADERS: Final = ("content-type", "allow", "www-authenticate", "location")
SIZE: Final = "inference-header-content-length"
NO_BODY: Final = {"/metrics", "/openapi.json", "/docs"}


@contextmanager
def started(name: str, folder: Path, front_end: str = "envoy") -> Iterator[Player]:
    """The player of one of `SERVICES`, which runs for as long."""
    bundles, settings = SERVICES[name]
    with running(folder, bundles, front_end=front_end, provider="cpu", **settings) as server:
        yield Player(server)


class Player:
    """Performs the steps of cases, each after the one before.

    Paths may hold `{next}` and `{version}`: the page that follows, and the model version, of an earlier step.
    """

    def __init__(self, server: Server) -> None:
        self._server: Final = server
        self._seen: Final[dict[str, str]] = {}

    def play(self, steps: list[Step]) -> list[Answer]:
        """The normalised answers to the steps of one case."""
        with grpc.insecure_channel(self._server.grpc) as channel:
            return [self._perform(step, channel) for step in steps]

    def _perform(self, step: Step, channel: grpc.Channel) -> Answer:
        if "http" in step:
            return self._http(step)
        if "grpc" in step:
            return self._grpc(step, channel)
        self._server.process.send_signal(signal.Signals[step["signal"]])
        return {}

    def _http(self, step: Step) -> Answer:
        method, path = step["http"].split(" ")
        for name, value in self._seen.items():
            path = path.replace(f"{{{name}}}", value)
        headers = {"content-type": "application/json"} if "json" in step else {}
        headers |= step.get("headers", {})
        reply = httpx.request(
            method,
            self._server.http + path,
            content=_content(step),
            headers=headers,
            timeout=ANSWER_SECONDS,
            trust_env=False,
            verify=False,
        )
        answer: Answer = {"status": reply.status_code}
        answer |= {name: reply.headers[name] for name in HEADERS if name in reply.headers}
        if "allow" in answer:
            answer["allow"] = sorted(answer["allow"].split(", "))
        answer |= {name: ANY for name in ("retry-after", SIZE) if name in reply.headers}
        echoed = reply.headers.get("x-request-id")
        answer["x-request-id"] = echoed if echoed in {None, headers.get("x-request-id")} else ANY
        if path not in NO_BODY and reply.content:
            answer["body"] = normalised(self._remembered(_body(reply)))
        return answer

    def _remembered(self, body: Any) -> Any:
        if isinstance(body, dict):
            if isinstance(body.get("next"), str):
                self._seen["next"] = body["next"]
            if "versions" in body:
                self._seen["version"] = body["versions"][0]
        return body

    def _grpc(self, step: Step, channel: grpc.Channel) -> Answer:
        sent: queue.Queue[bytes | None] = queue.Queue()
        asked, answered, streaming = _method(step["grpc"])
        call = channel.stream_stream("/" + step["grpc"], None, answered.FromString)(
            iter(sent.get, None),
            metadata=list(step.get("metadata", {}).items()),
            timeout=step.get("timeout", ANSWER_SECONDS),
            compression=grpc.Compression.Gzip if step.get("compression") else None,
        )
        answer: Answer = {"code": "OK", "replies": []}
        try:
            for message in _messages(step, asked):
                sent.put(message)
                if not streaming:
                    sent.put(None)
                answer["replies"].append(normalised(_fields(next(call))))
            if "meanwhile" in step:
                answer["meanwhile"] = self._perform(step["meanwhile"], channel)
            if not step.get("linger"):
                sent.put(None)
            if not step.get("leave"):
                answer["replies"] += [normalised(_fields(message)) for message in call]
                answer |= _request_id(call)
        except grpc.RpcError as error:
            answer |= {"code": error.code().name, "violations": _violations(error), **_request_id(error)}
        except StopIteration:
            answer["code"] = "ended early"
        finally:
            sent.put(None)
            call.cancel()
        return answer


def _method(name: str) -> tuple[Any, Any, bool]:
    """The messages of a method, and whether its caller may send several; of an unknown one, empty ones."""
    try:
        method = descriptor_pool.Default().FindMethodByName(name.replace("/", "."))
    except KeyError:
        return Empty, Empty, False
    return GetMessageClass(method.input_type), GetMessageClass(method.output_type), method.client_streaming


def _messages(step: Step, kind: Any) -> Iterator[bytes]:
    if "raw" in step:
        yield base64.b64decode(step["raw"])
    for message in step.get("messages", ()):
        yield ParseDict(message, kind()).SerializeToString()


def _content(step: Step) -> bytes | Iterator[bytes] | None:
    if "json" in step:
        text = json.dumps(step["json"], allow_nan=False).encode()
        return iter([text[:100], text[100:]]) if step.get("in parts") else text
    if "base64" in step:
        return base64.b64decode(step["base64"])
    return step["text"].encode() if "text" in step else None


def _body(reply: httpx.Response) -> Any:
    size = reply.headers.get(SIZE)
    if size is None:
        return reply.json() if "json" in reply.headers["content-type"] else ANY
    head, behind = json.loads(reply.content[: int(size)]), reply.content[int(size) :]
    for output in head["outputs"]:
        if "data" not in output:
            length = output["parameters"]["binary_data_size"]
            output["data"] = np.frombuffer(behind[:length], DTYPES[output["datatype"]]).tolist()
            behind = behind[length:]
    return head | {"left over": len(behind)}


def _fields(message: Any) -> dict[str, Any]:
    fields = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    if fields.get("raw_output_contents"):
        fields["raw_output_contents"] = {
            output.name: np.frombuffer(raw, DTYPES[output.datatype]).tolist()
            for output, raw in zip(message.outputs, message.raw_output_contents, strict=True)
        }
    for prediction in fields.get("predictions", [fields.get("prediction", {})]):
        attention = prediction.get("attention", {})
        if attention.get("evidence") == []:  # a list has no presence: empty is left out, as in JSON
            del attention["evidence"]
    return fields


def _request_id(call: Any) -> dict[str, str]:
    return {name: ANY for name, _ in call.trailing_metadata() or () if name == "x-request-id"}


def _violations(error: grpc.RpcError) -> list[list[str]]:
    """Where the request is wrong, and how, of google.rpc.BadRequest in the error's details."""
    status = rpc_status.from_call(error)
    found = []
    for detail in status.details if status is not None else ():
        bad = error_details_pb2.BadRequest()
        assert detail.Unpack(bad), detail.type_url
        found += [[violation.field, violation.reason] for violation in bad.field_violations]
    return found
