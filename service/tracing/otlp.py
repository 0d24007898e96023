"""Sets up OpenTelemetry's SDK: which requests are traced, and where spans are sent.

Spans wait in the SDK's batch processor, which is bounded and has its own thread; spans without room are
dropped. A slow or missing collector delays or fails no request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import uuid4

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import AttributeValue

from model.version import VERSION
from service.tracing.spans import SpanTracer

TRACES_PATH: Final = "/v1/traces"
MAX_LINKS: Final = 1024  # requests per batch: the SDK's default, 128, is fewer than a GPU takes at once
FLUSH_SECONDS: Final = 3.0
"""Maximum seconds to wait at shutdown for a collector that may be down."""


class _RatioOrLinked(TraceIdRatioBased):
    """Samples root spans: a share of the traces, and spans that link to a recorded one."""

    def should_sample(  # noqa: PLR0917 the SDK's own signature
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        if any(link.context.trace_flags.sampled for link in links or ()):
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)
        return super().should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)


def otlp_tracer(endpoint: str, *, sample: float) -> SpanTracer:
    """Make a tracer that sends to a collector; the SDK's variables (OTEL_...) set the rest.

    `endpoint` is the collector's base URL or its URL for traces; `sample` is the share of recorded traces.
    """
    url = endpoint.rstrip("/")
    exporter = OTLPSpanExporter(url if url.endswith(TRACES_PATH) else url + TRACES_PATH)
    provider = tracer_provider(sample)
    provider.add_span_processor(_Patient(exporter))
    return SpanTracer(provider)


def tracer_provider(sample: float) -> TracerProvider:
    """Make the SDK's provider with our sampler and this process's attributes, without a processor."""
    about = {"service.name": "rulserve", "service.version": VERSION, "service.instance.id": str(uuid4())}
    return TracerProvider(
        sampler=ParentBased(_RatioOrLinked(sample)),
        resource=Resource.create(about),
        span_limits=SpanLimits(max_links=MAX_LINKS),
        shutdown_on_exit=False,
    )


class _Patient(BatchSpanProcessor):
    """Waits `FLUSH_SECONDS` at shutdown; the SDK's own processor waits half a minute."""

    def shutdown(self) -> None:
        self._batch_processor.shutdown(timeout_millis=int(1000 * FLUSH_SECONDS))
