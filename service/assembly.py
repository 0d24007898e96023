"""The one assembly: settings in, a service out. Only `service.app` and tests call it.

Only this module knows all the parts. Tests pass fake runtimes; everything else is what ships.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

from prometheus_client import CollectorRegistry

from export.bundle import BundleFolder, Golden
from service import logs
from service.core.batcher import MicroBatcher
from service.core.bundles import load_bundles
from service.core.cores import Cores
from service.core.lifecycle import Lifecycle, Phase
from service.core.ports import Tracer
from service.core.predictor import LoadedModel, Predictor
from service.core.providers import CPU
from service.core.rules import WindowRules
from service.core.runtime import OnnxRuntime, Runtime, replay_golden
from service.edge.access import Credentials
from service.edge.exchange import Desk
from service.metrics.board import Board
from service.metrics.metrics import Metrics
from service.parts import Parts
from service.processes.control import WorkerSpec
from service.settings import Settings
from service.store.async_store import AsyncStore
from service.store.recorder import FLUSH_SECONDS
from service.store.rows import ModelVersion
from service.store.url import store_url

FEW_WINDOWS = 2
"""Most windows of a batch on the loop of a worker with several cores: waking a thread takes longer."""


def build(
    settings: Settings,
    *,
    worker: WorkerSpec | None = None,
    runtimes: Sequence[Runtime] | None = None,
    tracer: Tracer | None = None,
    flush_seconds: float = FLUSH_SECONDS,
) -> Parts:
    """Assemble the service.

    Args:
        settings: The operator's settings.
        worker: This worker behind Envoy; None: the process is alone and serves gRPC on its own port.
        runtimes: The models to serve; None: load the settings' bundles.
        tracer: Traces requests; None: as the settings say.
        flush_seconds: How often the store writes.

    Raises:
        InvalidBundle: a bundle is damaged or does not fit.
    """
    spec, registry = worker or WorkerSpec(), CollectorRegistry()
    loaded = load_bundles(settings) if runtimes is None else []
    models = [runtime for _, runtime in loaded] if runtimes is None else runtimes
    board = Board(spec.board, worker=spec.index, workers=spec.count)
    cores = Cores(board, settings.threads())
    metrics = Metrics(registry, models, board)
    board.seal()
    tracer = tracer or _tracer(settings)
    executor = ThreadPoolExecutor(settings.threads(), "inference")
    batcher = partial(
        _batcher, settings, executor=executor, cores=cores, workers=spec.count, metrics=metrics, tracer=tracer
    )
    batchers = {runtime.manifest.name: batcher(runtime) for runtime in models}
    lifecycle = Lifecycle(lambda: all(batcher.healthy for batcher in batchers.values()))
    metrics.watch_ready(lambda: lifecycle.phase is Phase.READY)
    store = _store(settings, models, metrics, flush_seconds)
    desk = Desk(
        predictor=_predictor(settings, models, batchers, store),
        metrics=metrics,
        lifecycle=lifecycle,
        log=logs.logger(),
        log_sample=settings.log_sample,
        credentials=Credentials(settings.keys()),
        max_body_bytes=settings.max_body_bytes,
        request_timeout_seconds=settings.request_timeout_seconds,
        max_streams=settings.max_streams,
        stream_idle_seconds=settings.stream_idle_seconds,
        tracer=tracer,
    )
    proofs = [partial(_replay, folder, runtime) for folder, runtime in loaded]
    return Parts(settings, worker, models, proofs, registry, batchers, store, desk, executor)


def _tracer(settings: Settings) -> Tracer | None:
    if not settings.tracing:
        return None
    from service.tracing.otlp import otlp_tracer  # noqa: PLC0415 OpenTelemetry's SDK, which only tracing needs

    return otlp_tracer(settings.otlp_endpoint, sample=settings.trace_sample)


def _replay(folder: BundleFolder, runtime: OnnxRuntime) -> None:
    replay_golden(runtime, Golden.load(folder.golden))


def _batcher(
    settings: Settings,
    runtime: Runtime,
    *,
    executor: Executor,
    cores: Cores,
    workers: int,
    metrics: Metrics,
    tracer: Tracer | None,
) -> MicroBatcher:
    windows, has_one_core = settings.max_batch_windows, settings.threads() <= workers
    on_loop = 0 if runtime.provider != CPU else windows if has_one_core else FEW_WINDOWS
    batcher = MicroBatcher(
        runtime,
        WindowRules.of(runtime.manifest, max_window_cycles=settings.max_window_cycles),
        executor=executor,
        threads=settings.threads(),
        max_batch_windows=windows,
        max_pending_windows=settings.max_pending_windows,
        observer=metrics.models[runtime.manifest.name],
        loop_windows=on_loop,
        cores=cores,
        tracer=tracer,
    )
    metrics.watch_pending(lambda: batcher.pending_windows)
    return batcher


def _store(
    settings: Settings, models: Sequence[Runtime], metrics: Metrics, flush_seconds: float
) -> AsyncStore:
    manifests = [runtime.manifest for runtime in models]
    store = AsyncStore(
        store_url(settings.store_url.get_secret_value()) if settings.store else None,
        [ModelVersion(m.name, m.version, m.cap, m.nominal_coverage) for m in manifests],
        most_rows=settings.store_queue_rows,
        retention_days=settings.store_retention_days,
        timeout_seconds=settings.request_timeout_seconds,
        observer=metrics.store,
        log=logs.logger(),
        flush_seconds=flush_seconds,
    )
    recorder = store.recorder
    if recorder is not None:
        metrics.store.watch_pending(lambda: recorder.pending_rows)
    return store


def _predictor(
    settings: Settings, models: Sequence[Runtime], batchers: Mapping[str, MicroBatcher], store: AsyncStore
) -> Predictor:
    load = partial(LoadedModel.of, max_window_cycles=settings.max_window_cycles)
    return Predictor(
        {name: load(runtime, batchers[name]) for runtime in models for name in [runtime.manifest.name]},
        max_request_windows=settings.max_request_windows,
        recorder=store.recorder,
    )
