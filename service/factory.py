"""Makes the parts of the service from settings; `service.assembly` joins them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from service import logs
from service.core.lifecycle import Lifecycle
from service.core.ports import Tracer
from service.core.predictor import Predictor
from service.edge.access import Credentials
from service.edge.admission import Admission
from service.edge.exchange import Desk
from service.edge.hosts import Hosts
from service.edge.intake import Intake
from service.metrics.board import Slots
from service.metrics.metrics import Metrics
from service.models import Joints
from service.settings import Settings, parts
from service.store.async_store import AsyncStore
from service.store.recorder import Recorder
from service.store.rows import ModelVersion
from service.store.url import SQLITE, store_url
from service.units import UnitWindows

if TYPE_CHECKING:
    from service.store.store import Store

BATCHES_IN_WORK: Final = 2
"""Batches in work for the event loop and for each thread: one runs while another is decoded."""


def desk_of(joints: Joints, predictor: Predictor, lifecycle: Lifecycle, *, logs_keys: bool) -> Desk:
    """Make the desk of both transports; only one worker of a service logs changes of the key file."""
    settings, admission = joints.settings, joints.admission
    return Desk(
        settings=settings,
        predictor=predictor,
        metrics=joints.metrics,
        lifecycle=lifecycle,
        log=logs.logger(),
        credentials=Credentials(
            settings.keys(),
            Path(settings.keys_file) if settings.keys_file else None,
            open_pages=settings.open_pages,
            log=logs.logger() if logs_keys else None,
        ),
        intake=Intake(
            most_bytes=settings.max_reading_bytes,
            seconds=settings.body_timeout_seconds,
            expected=admission.expected,
        ),
        admission=admission,
        store=joints.store,
        units=UnitWindows(predictor, joints.store),
        tracer=joints.tracer,
        hosts=hosts_of(settings),
    )


def hosts_of(settings: Settings) -> Hosts | None:
    """Make the check of host names in requests; None if keys protect the service."""
    if settings.asks_for_keys():
        return None
    names = parts(settings.allowed_hosts)
    return Hosts(names, any_name=not (names or settings.is_local()))


def admission_of(settings: Settings) -> Admission:
    """Make the admission of requests, without room: each model that serves makes its own."""
    batches = BATCHES_IN_WORK * (settings.threads() + 1)
    return Admission(
        room_windows=batches * settings.max_batch_windows,
        limit_seconds=settings.request_timeout_seconds,
    )


def tracer_of(settings: Settings) -> Tracer | None:
    """Make the configured tracer."""
    if not settings.tracing:
        return None
    from service.tracing.otlp import otlp_tracer  # noqa: PLC0415 OpenTelemetry's SDK, which only tracing needs

    return otlp_tracer(settings.otlp_endpoint, sample=settings.trace_sample)


def store_of(settings: Settings, metrics: Metrics, progress: Slots, flush_seconds: float) -> AsyncStore:
    """Make the store of predictions, without models yet."""
    url = store_url(settings.store_url.get_secret_value()) if settings.store else ""
    versions: list[ModelVersion] = []

    def connect() -> Store:
        from service.store.store import Store  # noqa: PLC0415 SQLAlchemy, loaded by the thread that opens it

        return Store.open(url, versions, readings_per_unit=settings.store_readings_per_unit)

    recorder = None
    if url:
        recorder = Recorder(
            connect,
            most_rows=settings.store_queue_rows,
            explanations=settings.store_explanations,
            observer=metrics.store,
            log=logs.logger(),
            progress=progress.own,
            flush_seconds=flush_seconds,
        )
        metrics.store.pending = lambda: recorder.pending_rows
    return AsyncStore(
        recorder,
        versions,
        progress=progress if url.startswith(SQLITE) else None,
        lag_seconds=2 * flush_seconds,
        retention_days=settings.store_retention_days,
        timeout_seconds=settings.request_timeout_seconds,
        observer=metrics.store,
    )
