"""Requests and batches as OpenTelemetry spans; imported only if tracing is on.

    request ─┬ decode                       batch ── linked to every request in it
             ├ queue
             ├ infer ── linked to its batches
             ├ explain
             └ encode

Attributes are those of the semantic conventions 1.40 (HTTP stable, RPC as `rpc.system.name`, `rpc.method`,
`rpc.response.status_code`), and our own under `rul.`. Paths and error texts are left out, because they may
name a unit or quote a reading. A request only creates its spans; `service.tracing.otlp` sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from http import HTTPMethod
from time import perf_counter, perf_counter_ns, time_ns
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as OtelTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from service import logs
from service.core.ports import Caller, Submission
from service.labels import Route, Stage, Transport

UNTRACED: Final = frozenset(
    {
        Route.LIVEZ, Route.READYZ, Route.METRICS, Route.V2_LIVE, Route.V2_READY, Route.V2_MODEL_READY,
        Route.GRPC_INFERENCE,
    }
)  # fmt: skip
"""Probes and scrapes; of the Open Inference Protocol by gRPC, all but inference."""
SERVERS_FAULT: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""gRPC codes that the conventions count as errors of server spans; for HTTP, 500 and above."""
SET_NANOSECONDS: Final = 100_000_000
"""If the time of day and `perf_counter` diverge by more than this, the clock was set."""

Attributes = dict[str, AttributeValue]

_current: Final[ContextVar[RequestSpan | None]] = ContextVar("request_span", default=None)


class SpanTracer:
    """Begins traces: a `service.core.ports.Tracer`. Finished spans go to the provider's processors."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider: Final = provider
        self._tracer: Final = provider.get_tracer("rulserve")
        self._set_zero = time_ns() - perf_counter_ns()
        self._propagator: Final = TraceContextTextMapPropagator()

    def request(
        self, transport: Transport, route: Route, carrier: Mapping[str, Any] | None
    ) -> RequestSpan | None:
        """Begin the span of a request, in its caller's trace if the carrier names one."""
        if route in UNTRACED:
            return None
        context, kind, is_http = Context(), SpanKind.SERVER, transport is Transport.HTTP
        if carrier is None:
            above, kind = _current.get(), SpanKind.INTERNAL
            context = context if above is None else above.context
        else:
            context = self._propagator.extract(_headers(carrier) if is_http else carrier, context)
        name, attributes = _http(route, carrier or {}) if is_http else _grpc(route)
        zero = self._zero()
        span = self._tracer.start_span(name, context, kind, attributes, start_time=zero + perf_counter_ns())
        return RequestSpan(self._tracer, span, zero, is_http)

    def submitted(self) -> SubmittedWindows | None:
        """Note that the current request submits windows to the batcher."""
        request = _current.get()
        return None if request is None or not request.is_recording else SubmittedWindows(request)

    def batch(
        self, submissions: Iterable[Submission | None], *, model: str, windows: int
    ) -> BatchSpan | None:
        """Begin the span of a batch, linked to the requests in it."""
        served = [given for given in submissions if isinstance(given, SubmittedWindows)]
        if not served:
            return None
        requests = dict.fromkeys(given.request for given in served)
        zero = self._zero()
        span = self._tracer.start_span(
            "batch",
            context=Context(),
            links=[Link(request.span.get_span_context()) for request in requests],
            attributes={"rul.model": model, "rul.windows": windows},
            start_time=zero + perf_counter_ns(),
        )
        for given in served:
            given.batches.append(Link(span.get_span_context()))
        return BatchSpan(span, zero)

    def _zero(self) -> int:
        """Return the time of day at which `perf_counter` was 0, in nanoseconds.

        It changes only when the clock is set: if it were read anew for each span, a child could seem to begin
        before its parent.
        """
        zero = time_ns() - perf_counter_ns()
        if abs(zero - self._set_zero) > SET_NANOSECONDS:
            self._set_zero = zero
        return self._set_zero

    def close(self) -> None:
        """Send all buffered spans."""
        self._provider.shutdown()


@dataclass(slots=True, eq=False)
class RequestSpan:
    """The span of a request, and its children.

    Children are created when they end, from the same times as the metrics, so spans and histograms agree and
    nothing is measured twice. `zero` is the time of day, in nanoseconds, at which `perf_counter` was 0.
    """

    tracer: OtelTracer
    span: Span
    zero: int
    is_http: bool
    context: Context = field(init=False)
    is_recording: bool = field(init=False)
    tokens: tuple[Token[RequestSpan | None], Token[Mapping[str, str] | None]] | None = None

    def __post_init__(self) -> None:
        """Prepare the context of children."""
        self.context = set_span_in_context(self.span, Context())
        self.is_recording = self.span.is_recording()

    def begin(self, request_id: str) -> None:
        """Make this request the current one, and add its trace to its log lines."""
        if self.is_recording:
            self.span.set_attribute("rul.request_id", request_id)
        own = self.span.get_span_context()
        fields = {
            "trace_id": f"{own.trace_id:032x}",
            "span_id": f"{own.span_id:016x}",
            "trace_flags": f"{own.trace_flags:02x}",
        }
        self.tokens = _current.set(self), logs.trace_fields.set(fields)

    def stage(self, stage: Stage, start: float, end: float) -> None:
        """Record a stage of the request, in seconds of `perf_counter`."""
        if self.is_recording:
            self.child(stage.value, self.at(start), self.at(end))

    def end(self, *, code: str, error: BaseException | None, windows: int) -> None:
        """Record that the request has ended with this code label."""
        if self.tokens is not None:
            _current.reset(self.tokens[0])
            logs.trace_fields.reset(self.tokens[1])
        if self.is_recording:
            attributes: Attributes = {"rul.windows": windows}
            if self.is_http:
                attributes["http.response.status_code"] = int(code)
            else:
                attributes["rpc.response.status_code"] = code
            if error is not None:
                attributes["error.type"] = type(error).__name__
            self.span.set_attributes(attributes)
            if int(code) >= 500 if self.is_http else code in SERVERS_FAULT:
                self.span.set_status(Status(StatusCode.ERROR))
        self.span.end(self.at(perf_counter()))

    def at(self, seconds: float) -> int:
        """Convert a time of `perf_counter` to the time of day in nanoseconds."""
        return self.zero + int(seconds * 1e9)

    def child(
        self,
        name: str,
        start: int,
        end: int,
        *,
        links: Sequence[Link] = (),
        error: BaseException | None = None,
    ) -> None:
        """Record a child span; start and end are times of day in nanoseconds."""
        span = self.tracer.start_span(name, self.context, links=links, start_time=start)
        _fail(span, error)
        span.end(max(start, end))


@dataclass(slots=True, eq=False)
class SubmittedWindows:
    """Windows that a request submitted; their batches add links here."""

    request: RequestSpan
    batches: list[Link] = field(default_factory=list[Link])

    def ended(self, caller: Caller) -> None:
        """Record the time in the queue and in batches, once the windows are answered, failed or cancelled."""
        request, future = self.request, caller.future
        arrived, end = request.at(caller.arrived), request.at(caller.done_at or perf_counter())
        error = future.exception() if future.done() and not future.cancelled() else None
        batches = list(self.batches)
        if not batches:  # no window got that far
            request.child("queue", arrived, end, error=error)
            return
        taken_at = request.at(caller.taken_at)
        request.child("queue", arrived, taken_at)
        request.child("infer", taken_at, end, links=batches, error=error)


@dataclass(slots=True)
class BatchSpan:
    """The span of a batch, on the thread that runs it; `zero` as in `RequestSpan`."""

    span: Span
    zero: int

    def end(self, error: BaseException | None) -> None:
        """Record that the batch has run or failed."""
        _fail(self.span, error)
        self.span.end(self.zero + perf_counter_ns())


def _headers(scope: Mapping[str, Any]) -> dict[str, list[str]]:
    """The headers of an ASGI scope that may name the caller's trace."""
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        if name in {b"traceparent", b"tracestate"}:
            found.setdefault(name.decode(), []).append(value.decode("latin-1"))
    return found


def _http(route: Route, scope: Mapping[str, Any]) -> tuple[str, Attributes]:
    given = scope.get("method", "")
    method = given if given in HTTPMethod.__members__ else "_OTHER"
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
    """Mark a span as failed; a cancellation by the caller is not an error."""
    if isinstance(error, Exception):
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
