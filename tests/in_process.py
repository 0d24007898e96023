"""The whole application with a fake runtime, in this process and without a socket.

Tests use it for events that the real process cannot produce on demand (a runtime that fails, hangs or
is slow), by HTTP through httpx's ASGI transport and by gRPC through `ask_grpc`.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc
import httpx
from google.rpc import error_details_pb2, status_pb2
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from model.domain import FloatArray, IntArray
from service.assembly import Parts, build
from service.core.batcher import MicroBatcher
from service.core.lifecycle import Lifecycle
from service.core.ports import Tracer
from service.core.runtime import Outputs
from service.edge.exchange import Desk
from service.grpc.health import Health
from service.grpc.over_asgi import PREFIX, GrpcOverAsgi
from service.processes.control import WorkerSpec
from service.proto import rul_v1_pb2 as pb
from service.settings import Settings
from tests.fakes import FakeRuntime, window_input

PREDICT = "/rul.v1.RulService/Predict"
CODES = {code.value[0]: code for code in grpc.StatusCode}


OPEN_SECONDS = 30  # a busy machine takes longer than the service waits
SLOW_SECONDS = 0.05
SMALL = {
    "inference_threads": 1,
    "max_batch_windows": 8,
    "max_pending_windows": 64,
    "max_request_windows": 128,
    "max_body_bytes": 100_000,
    "max_window_cycles": 1000,
    "max_streams": 100,
    "request_timeout_seconds": 60.0,
    "log_sample": 0.0,
}
"""Low limits that a test can reach, and more time for a request than a busy machine needs to open a store."""


class SlowRuntime(FakeRuntime):
    """A runtime that takes 50 ms to answer or fail."""

    def run(self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> Outputs:
        """Answer or fail after 50 ms."""
        threading.Event().wait(SLOW_SECONDS)
        return super().run(readings, lengths, last_cycle)


@dataclass
class Answer:
    """Reply of a gRPC call over ASGI."""

    messages: list[bytes]
    code: grpc.StatusCode
    detail: str
    metadata: dict[str, str]
    trailer_bytes: int

    def violations(self) -> dict[str, str]:
        """Return the fields of google.rpc.BadRequest and their descriptions."""
        status = status_pb2.Status.FromString(_unpadded(self.metadata["grpc-status-details-bin"]))
        (detail,) = status.details
        bad = error_details_pb2.BadRequest()
        assert detail.Unpack(bad)
        return {violation.field: violation.description for violation in bad.field_violations}


@dataclass
class InProcess:
    """A running application.

    Attributes:
        http: Sends it HTTP requests.
        grpc: The ASGI application that speaks gRPC.
    """

    runtime: FakeRuntime
    parts: Parts = field(repr=False)
    http: httpx.AsyncClient

    @property
    def registry(self) -> CollectorRegistry:
        return self.parts.desk.metrics.registry

    @property
    def lifecycle(self) -> Lifecycle:
        return self.parts.lifecycle

    @property
    def batcher(self) -> MicroBatcher:
        batcher = self.desk.predictor.models[self.runtime.manifest.name].batcher
        assert isinstance(batcher, MicroBatcher)
        return batcher

    @property
    def grpc(self) -> GrpcOverAsgi:
        return self.parts.grpc

    @property
    def health(self) -> Health:
        return self.parts.health

    @property
    def desk(self) -> Desk:
        return self.parts.desk

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Keep the runtime busy with one window; other requests wait until the block ends."""
        self.runtime.gate.clear()
        running = asyncio.create_task(self.predict_http())
        await until(self.runtime.entered.is_set)
        yield
        self.runtime.gate.set()
        assert (await running).status_code == 200

    async def waiting(self, windows: int) -> None:
        """Wait until this number of windows is queued."""
        await until(lambda: self.batcher.pending_windows == windows)

    async def predict_http(self, **options: Any) -> httpx.Response:
        """POST the given windows, by default one."""
        windows = options.pop("windows", [json_window()])
        headers = options.pop("headers", {})
        return await self.http.post("/v1/predict", json={"windows": windows, **options}, headers=headers)

    async def predict_grpc(self, *, metadata: Sequence[tuple[str, str]] = (), **options: Any) -> Answer:
        """Predict the given windows by gRPC, by default one."""
        request = pb.PredictRequest(windows=options.pop("windows", [message_window()]), **options)
        return await ask_grpc(self.grpc, PREDICT, framed(request.SerializeToString()), metadata=metadata)

    def value(self, name: str, **labels: str) -> float:
        """Return a sample of the metrics."""
        value = self.registry.get_sample_value(name, labels)
        assert value is not None, (name, labels)
        return value


@asynccontextmanager
async def in_process(
    runtime: FakeRuntime | None = None,
    *,
    ready: bool = True,
    keys: Sequence[str] = (),
    store: str = "",
    tracer: Tracer | None = None,
    **settings: Any,
) -> AsyncIterator[InProcess]:
    """Run the shipped application with a fake runtime until the block ends."""
    runtime = runtime or FakeRuntime()
    assert settings.keys() <= Settings.model_fields.keys()
    chosen = Settings.model_construct(
        **SMALL | settings,
        store=bool(store),
        store_url=SecretStr(store),
        api_keys=SecretStr(",".join(keys)),
    )
    parts = build(chosen, worker=WorkerSpec(), runtimes=[runtime], tracer=tracer, flush_seconds=0.001)
    if ready:
        await parts.become_ready(settle=lambda **_: None)
    if ready and parts.store.recorder is not None:
        await asyncio.to_thread(parts.store.recorder.opened, OPEN_SECONDS)
    transport = httpx.ASGITransport(parts.handle)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        try:
            yield InProcess(runtime, parts, client)
        finally:
            runtime.gate.set()
            await parts.stop()


def keeping(folder: Path, **options: Any) -> AbstractAsyncContextManager[InProcess]:
    """Run the application with a store in a file of this folder."""
    return in_process(**{"store": f"sqlite:///{folder}/rul.db", **options})


def json_window(rul: float = 40.0, **options: Any) -> dict[str, Any]:
    """Make the JSON of a window that `FakeRuntime` answers with this RUL."""
    given = window_input(rul, **options)
    return {"unit": given.unit, "last_cycle": given.last_cycle, "columns": given.columns}


def message_window(rul: float = 40.0, **options: Any) -> pb.Window:
    """Make the message of a window that `FakeRuntime` answers with this RUL."""
    given = window_input(rul, **options)
    columns = {name: pb.Series(values=values) for name, values in (given.columns or {}).items()}
    return pb.Window(unit=given.unit, last_cycle=given.last_cycle, columns=pb.Columns(columns=columns))


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    """Prefix a message as gRPC does in a body."""
    return PREFIX.pack(compressed, len(message)) + message


def unframed(body: bytes) -> list[bytes]:
    """Split a body into its messages; all must be complete."""
    messages = []
    while body:
        _, length = PREFIX.unpack_from(body)
        assert len(body) >= PREFIX.size + length
        messages.append(body[PREFIX.size : PREFIX.size + length])
        body = body[PREFIX.size + length :]
    return messages


async def ask_grpc(
    app: GrpcOverAsgi,
    path: str,
    *parts: bytes,
    metadata: Sequence[tuple[str, str]] = (),
    leaves: asyncio.Event | None = None,
    at_once: bool = False,
    ended: bool = True,
) -> Answer:
    """Call a method; each of `parts` is one ASGI event, and the caller disconnects on demand.

    The body ends with a separate event, or `at_once` with the last part, or never if `ended` is false.
    """
    headers = [(b"content-type", b"application/grpc")]
    headers += [(key.encode("latin-1"), value.encode("latin-1")) for key, value in metadata]
    scope = {"type": "http", "http_version": "2", "method": "POST", "path": path, "headers": headers}
    events = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if at_once:
        events[-1]["more_body"] = False
    elif ended:
        events.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[dict[str, Any]] = []
    done = leaves or asyncio.Event()

    async def receive() -> dict[str, Any]:
        if events:
            return events.pop(0)
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    done.set()
    await asyncio.sleep(0)  # the task that waits for the disconnect gets it
    body = b"".join(event["body"] for event in sent if event["type"] == "http.response.body")
    trailers = {
        key.decode(): value.decode("latin-1")
        for event in sent
        if event["type"] == "http.response.trailers"
        for key, value in event["headers"]
    }
    size = sum(len(key) + len(value) for key, value in trailers.items())
    code = CODES[int(trailers.pop("grpc-status"))] if trailers else grpc.StatusCode.CANCELLED
    return Answer(unframed(body), code, unquote(trailers.pop("grpc-message", "")), trailers, size)


async def until(happened: Callable[[], bool]) -> None:
    """Run the event loop until a condition holds that no event signals, but not without end."""
    async with asyncio.timeout(OPEN_SECONDS):
        while not happened():  # noqa: ASYNC110 there is no event to wait for
            await asyncio.sleep(0)


def _unpadded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4))
