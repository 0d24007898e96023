"""rul.v1.RulService: connections, and calls that answer in the JSON form or raise `RemoteFailed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio
from google.protobuf.message import Message

from rul_client.address import Tls, is_loopback
from rul_client.errors import KEY_HINT, Rejected, RemoteFailed, Retryable, Unreachable
from rul_client.http import TIMEOUT_SECONDS, ssl_context
from rul_client.readings import Unit, Window, name_of
from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc

PORTS: Final = {"grpc": 3000, "grpcs": 443, "http": 80, "https": 443}
TEMPORARY: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,  # a proxy resets a call that was refused before its message had come
)
KEYS: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
REJECTED: Final = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED)
MAX_DETAIL: Final = 300


class Rpc:
    """RulService of one server."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        *,
        tls: Tls = Tls(),  # noqa: B008 frozen
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._url: Final = url
        self._tls: Final = tls
        self._metadata: Final = [("x-api-key", api_key)] if api_key else []
        self._timeout: Final = timeout_seconds
        self._channel: grpc.aio.Channel | None = None
        self.stub: Any = None  # generated code

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()

    async def models(self) -> list[dict[str, Any]]:
        """List the loaded models."""
        reply = await self._call("ListModels", pb.ListModelsRequest())
        return [plain(each.reference) | {"provider": each.provider} for each in reply.models]

    async def manifest(self, model: str) -> str:
        """Return the manifest of a model, JSON."""
        return (await self._call("GetModel", pb.GetModelRequest(name=model))).manifest_json

    async def append(
        self, unit: Unit, cycles: Sequence[int] | None, readings: Window, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Store readings of a unit; the options are those of POST /v1/units/{unit}/cycles."""
        rows = zip(cycles or repeat(None), readings.readings.tolist(), strict=False)
        given = [
            pb.Reading(cycle=cycle, columns=dict(zip(readings.columns, row, strict=True)))
            for cycle, row in rows
        ]
        request = pb.AppendCyclesRequest(unit=name_of(unit), readings=given, **_options(options))
        return plain(await self._call("AppendCycles", request))

    async def predict(self, windows: Sequence[Window], options: Mapping[str, Any]) -> dict[str, Any]:
        """Answer windows; the options are those of POST /v1/predict."""
        given = [_message(window) for window in windows]
        return plain(await self._call("Predict", pb.PredictRequest(windows=given, **_options(options))))

    async def _call(self, method: str, request: object) -> Any:  # noqa: ANN401 generated code
        channel = self._channel
        if channel is None:  # a channel belongs to the loop that it is opened on
            channel = self._channel = grpc_channel(self._url, tls=self._tls)
            self.stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        try:
            return await getattr(self.stub, method)(request, metadata=self._metadata, timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            code = error.code()
            # One line, without the addresses and counters that gRPC adds.
            detail = " ".join((error.details() or "no reason given").split())[:MAX_DETAIL]
            trailing = dict(error.trailing_metadata() or ())
            ours = "x-request-id" in trailing
            is_lost = code is grpc.StatusCode.UNAVAILABLE and not ours
            if is_lost and channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                raise Unreachable(f"{self._url} cannot be reached: {detail}") from error
            message = f"{self._url} answered {code.name}: {detail}" + KEY_HINT * (code in KEYS)
            if is_lost:
                raise Retryable(message, may_be_done=True) from error
            after = str(trailing.get("grpc-retry-pushback-ms", ""))
            # A full queue has a pause.
            is_too_large = code is grpc.StatusCode.RESOURCE_EXHAUSTED and not after
            if ours and code in TEMPORARY and not is_too_large:
                raise Retryable(message, float(after) / 1000 if after.isdecimal() else None) from error
            is_rejected = ours and (is_too_large or code in REJECTED)
            raise (Rejected if is_rejected else RemoteFailed)(message) from error


def plain(message: Message) -> dict[str, Any]:
    """Return a message in its JSON form; fields without a value are None."""
    return {
        field.name: _plain_value(getattr(message, field.name))
        if not field.has_presence or message.HasField(field.name)
        else None
        for field in message.DESCRIPTOR.fields
    }


def _plain_value(value: Any) -> Any:  # noqa: ANN401 any value of protobuf
    if isinstance(value, pb.Series):
        return list(value.values)
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, str | float | int):
        return value
    if hasattr(value, "items"):
        return {str(key): _plain_value(value[key]) for key in sorted(value)}
    return [_plain_value(each) for each in value]


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    return {**given, "explain": f"EXPLAIN_{given.get('explain', 'unspecified').upper()}"}


def _message(window: Window) -> pb.Window:
    given = pb.Window(unit=window.unit, last_cycle=window.last_cycle)
    for name, values in window.by_column().items():
        given.columns.columns[name].values.extend(values)
    if not window.columns:
        given.readings.values.extend(window.readings.ravel().tolist())
    return given


def http_beside(url: str) -> str:
    """Return the URL of HTTP on the port of a grpc or grpcs URL."""
    return f"{'https' if urlsplit(url).scheme == 'grpcs' else 'http'}://{_target(url)}"


def _target(url: str) -> str:
    """Return HOST:PORT of a URL, with the default port of its scheme."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or PORTS[parts.scheme]}"


def grpc_channel(url: str, *options: tuple[str, int], tls: Tls = Tls()) -> grpc.aio.Channel:  # noqa: B008 frozen
    """Open a channel to SCHEME://HOST:PORT, with TLS for grpcs and https."""
    parts, target = urlsplit(url), _target(url)
    proxy = ("grpc.enable_http_proxy", 0 if is_loopback(parts.hostname) else 1)
    given = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), proxy, *options]
    if parts.scheme in {"grpcs", "https"}:
        ssl_context(tls)  # gRPC itself names no file that it cannot use
        ca, cert, key = (None if path is None else path.read_bytes() for path in tls)
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(ca, key, cert), options=given)
    return grpc.aio.insecure_channel(target, options=given)
