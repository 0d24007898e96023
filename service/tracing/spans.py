"""Requests and batches as OpenTelemetry's spans; imported only when they are wanted.

Attributes are those of the semantic conventions 1.40 (HTTP stable, RPC as `rpc.system.name`,
`rpc.method`, `rpc.response.status_code`), and our own under `rul.`. Neither paths nor error texts are
among them: those may name a unit or quote a reading.

Nothing here can delay a request by more than the making of its spans: where they go from here is
`service.tracing.otlp`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import Token
from time import perf_counter, perf_counter_ns, time_ns
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    set_span_in_context,
)
from opentelemetry.trace import Tracer as OtelTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from service import logs
from service.labels import Route, Stage, Transport
from service.tracing.hooks import UNTRACED, RequestTrace, Submission, Waited, current

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
SERVERS_FAULT: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""gRPC codes that are errors of a server's span, as the conventions have it; HTTP's are 500 and above."""

SET_NANOSECONDS: Final = 100_000_000
"""Clocks that part by more than this were not read between two breaths: one of them was set."""

Attributes = dict[str, AttributeValue]


class Clock:
    """Says which time of day, in nanoseconds, `perf_counter` calls 0.

    One answer for everything of a moment, or a part could seem to begin before its whole; a clock that
    was set is followed.
    """

    def __init__(self) -> None:
        self._zero = time_ns() - perf_counter_ns()

    def zero(self) -> int:
        """The time of day of `perf_counter`'s 0."""
        zero = time_ns() - perf_counter_ns()
        if abs(zero - self._zero) > SET_NANOSECONDS:
            self._zero = zero
        return self._zero


class SpanTracer:
    """Begins traces; what it makes goes to the provider's processors."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider: Final = provider
        self._tracer: Final = provider.get_tracer("rulserve")
        self._clock: Final = Clock()
        self._propagator: Final = TraceContextTextMapPropagator()

    def request(
        self, transport: Transport, route: Route, carrier: Mapping[str, Any] | None
    ) -> RequestSpan | None:
        """A request, as part of its caller's trace where it names one."""
        if route in UNTRACED:
            return None
        context, kind = Context(), SpanKind.SERVER
        if carrier is None:
            above, kind = current.get(), SpanKind.INTERNAL
            context = above.context if isinstance(above, RequestSpan) else context
        else:
            getter = _HTTP if transport is Transport.HTTP else _GRPC
            context = self._propagator.extract(carrier, context, getter)
        http = transport is Transport.HTTP
        name, attributes = _http(route, carrier or {}) if http else _grpc(route)
        zero = self._clock.zero()
        span = self._tracer.start_span(name, context, kind, attributes, start_time=zero + perf_counter_ns())
        return RequestSpan(self._tracer, transport, span, zero=zero)

    def batch(
        self, submissions: Iterable[Submission | None], *, model: str, windows: int
    ) -> BatchSpan | None:
        """A batch, linked to the requests that it serves."""
        served = [given for given in submissions if isinstance(given, SubmittedWindows)]
        if not served:
            return None
        requests = dict.fromkeys(given.request for given in served)
        zero = self._clock.zero()
        span = self._tracer.start_span(
            "batch",
            context=Context(),
            links=[Link(request.span.get_span_context()) for request in requests],
            attributes={"rul.model": model, "rul.windows": windows},
            start_time=zero + perf_counter_ns(),
        )
        for given in served:
            given.batches.append(Link(span.get_span_context()))
        return BatchSpan(span, zero=zero)

    def close(self) -> None:
        """Send what is still held."""
        self._provider.shutdown()


class RequestSpan(RequestTrace):
    """The span of a request, and its children.

    Children are made when they have ended, from the seconds that the metrics count: the spans and the
    histograms agree, and nothing is measured twice.
    """

    __slots__ = ("_fields", "_recording", "_tokens", "_tracer", "_transport", "_zero", "context", "span")

    def __init__(self, tracer: OtelTracer, transport: Transport, span: Span, *, zero: int) -> None:
        """`zero` is the time of day, in nanoseconds, at which `perf_counter` was 0."""
        self._tracer = tracer
        self._transport: Transport = transport
        self._zero = zero
        self.span = span
        self.context = set_span_in_context(self.span, Context())
        self._recording = self.span.is_recording()
        self._tokens: tuple[Token[RequestTrace | None], Token[Mapping[str, str] | None]] | None = None
        own = self.span.get_span_context()
        self._fields = {
            "trace_id": f"{own.trace_id:032x}",
            "span_id": f"{own.span_id:016x}",
            "trace_flags": f"{own.trace_flags:02x}",
        }

    def begin(self, request_id: str) -> None:
        """The request has begun."""
        if self._recording:
            self.span.set_attribute("rul.request_id", request_id)
        self._tokens = current.set(self), logs.trace_fields.set(self._fields)

    def stage(self, stage: Stage, seconds: float) -> None:
        """A part of the work has just ended."""
        if self._recording:
            now = self._zero + perf_counter_ns()
            self._child(stage.value, now - int(seconds * 1e9), now)

    def submitted(self) -> SubmittedWindows | None:
        """It has given windows to the batcher."""
        return SubmittedWindows(self) if self._recording else None

    def end(self, *, code: str, error: BaseException | None, windows: int) -> None:
        """It has ended."""
        if self._tokens is not None:
            current.reset(self._tokens[0])
            logs.trace_fields.reset(self._tokens[1])
        if self._recording:
            http = self._transport is Transport.HTTP
            attributes: Attributes = {"rul.windows": windows}
            if http:
                attributes["http.response.status_code"] = int(code)
            else:
                attributes["rpc.response.status_code"] = code
            if error is not None:
                attributes["error.type"] = type(error).__name__
            self.span.set_attributes(attributes)
            if int(code) >= 500 if http else code in SERVERS_FAULT:
                self.span.set_status(Status(StatusCode.ERROR))
        self.span.end(self._zero + perf_counter_ns())

    def waited(self, waited: Waited, batches: Sequence[Link]) -> None:
        """The time in the queue and in batches; without `batches` no window got that far."""
        future, end = waited.future, waited.done_at or perf_counter()
        error = future.exception() if future.done() and not future.cancelled() else None
        if not batches:
            self._child("queue", self._at(waited.arrived), self._at(end), error=error)
            return
        taken_at = self._at(waited.taken_at)
        self._child("queue", self._at(waited.arrived), taken_at)
        self._child("infer", taken_at, self._at(end), links=batches, error=error)

    def _at(self, seconds: float) -> int:
        return self._zero + int(seconds * 1e9)

    def _child(
        self,
        name: str,
        start: int,
        end: int,
        *,
        links: Sequence[Link] = (),
        error: BaseException | None = None,
    ) -> None:
        span = self._tracer.start_span(name, self.context, links=links, start_time=start)
        _fail(span, error)
        span.end(max(start, end))


class SubmittedWindows(Submission):
    """What a request has given to the batcher; the batches that took it link themselves here."""

    __slots__ = ("batches", "request")

    def __init__(self, request: RequestSpan) -> None:
        self.request = request
        self.batches: list[Link] = []

    def ended(self, waited: Waited) -> None:
        """They were answered, failed, or given up."""
        self.request.waited(waited, list(self.batches))


class BatchSpan:
    """The span of a batch, on its inference thread."""

    __slots__ = ("_span", "_zero")

    def __init__(self, span: Span, *, zero: int) -> None:
        self._span = span
        self._zero = zero

    def end(self, error: BaseException | None) -> None:
        """It has been run, or has failed."""
        _fail(self._span, error)
        self._span.end(self._zero + perf_counter_ns())


class _HttpHeaders(Getter[Mapping[str, Any]]):
    """The headers of an ASGI scope."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        """Every value of a header."""
        wanted = key.encode()
        found = [value.decode("latin-1") for name, value in carrier["headers"] if name == wanted]
        return found or None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        """The headers' names."""
        return [name.decode("latin-1") for name, _ in carrier["headers"]]


class _GrpcMetadata(Getter[Mapping[str, Any]]):
    """gRPC's metadata."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        """The value of a key."""
        value = carrier.get(key)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        """The metadata's keys."""
        return list(carrier)


_HTTP: Final = _HttpHeaders()
_GRPC: Final = _GrpcMetadata()


def _http(route: Route, scope: Mapping[str, Any]) -> tuple[str, Attributes]:
    given = scope.get("method", "")
    method = given if given in METHODS else "_OTHER"
    attributes: Attributes = {
        "http.request.method": method,
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
    }
    name = "HTTP" if method == "_OTHER" else method
    if route is Route.OTHER:
        return name, attributes
    return f"{name} {route.value}", attributes | {"http.route": route.value}


def _grpc(route: Route) -> tuple[str, Attributes]:
    method = Route.GRPC_STREAM if route is Route.GRPC_READING else route
    return route.value, {"rpc.system.name": "grpc", "rpc.method": method.value}


def _fail(span: Span, error: BaseException | None) -> None:
    """A caller who leaves, which cancels, is no error of what was done for it."""
    if isinstance(error, Exception):
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
