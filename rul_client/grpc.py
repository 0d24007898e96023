"""Asks a server by gRPC: rul.v1.RulService."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio
import numpy as np

from rul_client.address import Tls, is_loopback
from rul_client.answers import Answer, Explain, ModelName, NoAnswer, RemoteModel, Window, grounds_of, top_of
from rul_client.errors import KEY_HINT, RemoteFailed, Retryable
from rul_client.http import ssl_context
from service.proto import rul_v1_pb2 as pb

PORTS: Final = {"grpc": 3000, "grpcs": 443, "http": 80, "https": 443}
TEMPORARY: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
KEYS: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
EXPLAIN: Final[dict[Explain, pb.Explain]] = {
    "attention": pb.EXPLAIN_ATTENTION,
    "sensors": pb.EXPLAIN_SENSORS,
    "full": pb.EXPLAIN_FULL,
}
TIMEOUT_SECONDS: Final = 60.0
MAX_DETAIL: Final = 300


class GrpcTransport:
    """RulService of one server; every failure is a `RemoteFailed`."""

    bytes_per_reading: Final = 4

    def __init__(self, stub: Any, url: str, api_key: str | None) -> None:  # noqa: ANN401 generated code
        self._stub: Final = stub
        self._url: Final = url
        self._metadata: Final = [("x-api-key", api_key)] if api_key else []

    async def models(self) -> list[str]:
        """List the names of the server's models."""
        reply = await self._call(self._stub.ListModels, pb.ListModelsRequest())
        return [found.reference.name for found in reply.models]

    async def model(self, name: str) -> RemoteModel:
        """Describe one of the server's models."""
        found = await self._call(self._stub.GetModel, pb.GetModelRequest(name=name))
        of = found.reference
        return RemoteModel.parse(ModelName(of.name, of.version, of.sha256), found.manifest_json, self._url)

    async def predict(
        self, model: str, windows: Sequence[Window], explain: Explain
    ) -> list[Answer | NoAnswer]:
        """Answer each window, in order."""
        request = pb.PredictRequest(
            model=model, partial=True, windows=map(_message, windows), explain=EXPLAIN[explain]
        )
        reply = await self._call(self._stub.Predict, request)
        return [_answer(prediction) for prediction in reply.predictions]

    async def _call(self, method: Any, request: object) -> Any:  # noqa: ANN401 generated code
        try:
            return await method(request, metadata=self._metadata, timeout=TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            code = error.code()
            # One line, without the addresses and counters that gRPC adds.
            detail = " ".join((error.details() or "no reason given").split())[:MAX_DETAIL]
            ours = any(key == "x-request-id" for key, _ in error.trailing_metadata() or ())
            if not ours and code is grpc.StatusCode.UNAVAILABLE:
                raise RemoteFailed(f"{self._url} cannot be reached: {detail}") from error
            message = f"{self._url} answered {code.name}: {detail}" + KEY_HINT * (code in KEYS)
            raise (Retryable if ours and code in TEMPORARY else RemoteFailed)(message) from error


def _message(window: Window) -> pb.Window:
    values = np.asarray(window.readings, dtype=np.float32).ravel()
    return pb.Window(
        unit=window.unit, last_cycle=window.last_cycle, readings=pb.Readings(values=values.tolist())
    )


def _answer(given: pb.Prediction) -> Answer | NoAnswer:
    if given.HasField("error"):
        errors = given.error.errors
        return NoAnswer(errors[0].detail if errors else given.error.detail)
    attention = given.attention
    entropy_ratio = attention.entropy_ratio if attention.HasField("entropy_ratio") else None
    failure = given.failure_probability
    trust = given.trust if given.HasField("trust") else None
    grounds = grounds_of(given.sensor_contributions, trust, [failure[h] for h in sorted(failure)])
    return Answer(
        given.rul, given.rul_state, given.interval.lower, given.interval.upper,
        given.health_state.label, entropy_ratio, top_of(attention.evidence or attention.weights), grounds,
    )  # fmt: skip


def grpc_channel(url: str, *options: tuple[str, int], tls: Tls = Tls()) -> grpc.aio.Channel:  # noqa: B008 frozen
    """Open a channel to SCHEME://HOST:PORT, with TLS for grpcs and https."""
    parts = urlsplit(url)
    target = f"{parts.hostname}:{parts.port or PORTS[parts.scheme]}"
    proxy = ("grpc.enable_http_proxy", 0 if is_loopback(parts.hostname) else 1)
    given = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), proxy, *options]
    if parts.scheme in {"grpcs", "https"}:
        ssl_context(tls)  # gRPC itself names no file that it cannot use
        ca, cert, key = (None if path is None else path.read_bytes() for path in tls)
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(ca, key, cert), options=given)
    return grpc.aio.insecure_channel(target, options=given)
