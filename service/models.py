"""Join a model to all that serves it, at start and while the service runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Final
from weakref import WeakSet, finalize

from export.bundle import Manifest
from model.decision import costs_of
from service.core.batcher import MicroBatcher
from service.core.canary import SUMS, Canary
from service.core.changes import Action, Change
from service.core.cores import Cores
from service.core.ports import BatchObserver, Tracer
from service.core.predictor import LoadedModel
from service.core.providers import CPU, ON_GPU
from service.core.rules import WindowRules
from service.core.runtime import Runtime
from service.core.shadow import Shadow, Uncounted
from service.edge.admission import Admission
from service.metrics.board import Board
from service.metrics.metrics import Metrics
from service.metrics.models import ModelMetrics
from service.settings import Settings
from service.store.async_store import AsyncStore
from service.store.rows import ModelVersion

FEW_WINDOWS: Final = 2
"""Most windows of a batch on the loop of a worker with several cores: waking a thread takes longer."""
READING_BYTES: Final = 20
"""A reading as JSON, with 15 digits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Joints:
    """Joins a model to all that serves it, and parts it from that again."""

    settings: Settings
    executor: Executor
    cores: Cores
    workers: int
    board: Board
    metrics: Metrics
    store: AsyncStore
    admission: Admission
    tracer: Tracer | None
    batchers: WeakSet[MicroBatcher] = field(default_factory=WeakSet)

    def serve(self, runtime: Runtime) -> LoadedModel:
        """Count, store and batch for a model, in the place of an older version."""
        manifest = runtime.manifest
        observer = self.metrics.add_model(runtime)
        self.admission.fit(READING_BYTES * manifest.context * len(manifest.columns))
        self.store.add_model(_version(manifest))
        return self._loaded(runtime, observer)

    def beside(
        self, serving: LoadedModel, runtime: Runtime, change: Change, give_back: Callable[[str], None]
    ) -> LoadedModel:
        """Let a candidate stand beside a model: a shadow on threads alone, or a canary."""
        name = serving.name.name
        observer = self.metrics.models[name]
        if change.action is Action.SHADOW:
            batcher = self._batcher(runtime, Uncounted(), on_loop=False)
            self.batchers.add(batcher)
            shadow = Shadow(serving.batcher, batcher, share=change.share, observer=observer)
            return replace(serving, batcher=shadow)
        self.store.add_version(_version(runtime.manifest))
        canary = Canary(
            self._loaded(runtime, self.metrics.add_canary(runtime)),
            serving.batcher,
            share=change.share,
            bounds=change.bounds,
            sums=self.board.slots(f"canary of {name}", SUMS),
            observer=observer,
            give_back=give_back,
        )
        return replace(serving, canary=canary)

    def _loaded(self, runtime: Runtime, observer: ModelMetrics) -> LoadedModel:
        batcher = self._batcher(runtime, observer)
        finalize(batcher, observer.release)
        self.batchers.add(batcher)
        return LoadedModel.of(
            runtime,
            batcher,
            max_window_cycles=self.settings.max_window_cycles,
            costs=costs_of(self.settings.costs, runtime.manifest.name),
        )

    def returned(self, name: str) -> None:
        """Count a canary that passed a bound."""
        self.metrics.models[name].canary_returned()

    def retire(self, name: str) -> None:
        """Show no metrics of a model and count no outcomes of it."""
        self.metrics.remove_model(name)
        self.store.remove_model(name)

    def _batcher(self, runtime: Runtime, observer: BatchObserver, *, on_loop: bool = True) -> MicroBatcher:
        settings, on_cpu = self.settings, runtime.provider == CPU
        windows, has_one_core = settings.max_batch_windows, settings.threads() <= self.workers
        most_on_loop = windows if has_one_core else FEW_WINDOWS
        return MicroBatcher(
            runtime,
            WindowRules.of(runtime.manifest, max_window_cycles=settings.max_window_cycles),
            executor=self.executor,
            threads=batches_at_once(settings, runtime.provider),
            max_batch_windows=windows,
            max_pending_windows=settings.max_pending_windows,
            observer=observer,
            loop_windows=most_on_loop if on_loop and on_cpu else 0,
            cores=self.cores,
            tracer=self.tracer,
        )


def batches_at_once(settings: Settings, provider: str) -> int:
    """Return how many batches run at the same time: on a GPU one, because two would each be smaller."""
    return settings.inference_threads or 1 if provider in ON_GPU else settings.threads()


def _version(manifest: Manifest) -> ModelVersion:
    return ModelVersion(manifest.name, manifest.version, manifest.cap, manifest.nominal_coverage)
