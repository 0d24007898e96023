"""The serving models: connects each to batcher, metrics and store, at start and at run time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from weakref import WeakSet, finalize

import msgspec

from export.bundle import InvalidBundle, Manifest, find_bundle
from model.decision import costs_of
from service import logs
from service.core.batcher import MicroBatcher
from service.core.bundles import open_candidate
from service.core.candidates import SUMS, Canary, Shadow, Uncounted, difference, without_candidate
from service.core.changes import BESIDE, ENDS, Action, Candidate, Change, Changed
from service.core.cores import Cores
from service.core.ports import BatchObserver, Tracer
from service.core.predictor import LoadedModel, Predictor
from service.core.providers import CPU, ON_GPU
from service.core.queries import ModelName
from service.core.rules import WindowRules
from service.core.runtime import Runtime
from service.edge.admission import Admission
from service.errors import (
    FrontEndFailed,
    InvalidCandidate,
    ModelConflict,
    NotReady,
    ServiceError,
    UnknownModel,
)
from service.metrics.board import Board
from service.metrics.metrics import Metrics
from service.metrics.models import ModelMetrics
from service.settings import Settings
from service.store.async_store import AsyncStore
from service.store.rows import ModelVersion

FEW_WINDOWS: Final = 2
"""Maximum windows of a batch on the loop of a worker with several cores: waking a thread takes longer."""
READING_BYTES: Final = 20
"""Bytes of one value as JSON with 15 digits."""
RETURN_AGAIN_SECONDS: Final = 5.0
"""Seconds between attempts to end a canary in all workers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Joints:
    """Connects a model to batcher, metrics and store, and disconnects it."""

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
        """Connect a model, in place of an older version."""
        manifest = runtime.manifest
        observer = self.metrics.add_model(runtime)
        self.admission.fit(READING_BYTES * manifest.context * len(manifest.columns))
        self.store.add_model(_version(manifest))
        return self._loaded(runtime, observer)

    def reserve(self, runtime: Runtime, action: Action) -> None:
        """Reserve the board's places for a model or a candidate, so that a commit cannot fail.

        Raises:
            ModelConflict: the board or the file system is full.
        """
        is_canary = action is Action.CANARY
        places = self.metrics.places(runtime, canary=is_canary)
        if is_canary:
            places.slots(*_sums(runtime))
        try:
            self.board.reserve(places)
        except FrontEndFailed as error:
            raise ModelConflict(str(error)) from error

    def beside(
        self, serving: LoadedModel, runtime: Runtime, change: Change, give_back: Callable[[str], None]
    ) -> LoadedModel:
        """Add a candidate beside a model: a shadow (on threads only) or a canary."""
        name = serving.name.name
        observer = self.metrics.models[name]
        if change.action is Action.SHADOW:
            batcher = self._batcher(runtime, Uncounted(), on_loop=False)
            self.batchers.add(batcher)
            compared, failed = observer.compared, observer.shadow_failed
            shadow = Shadow(serving.batcher, batcher, share=change.share, compared=compared, failed=failed)
            return replace(serving, batcher=shadow)
        self.store.add_version(_version(runtime.manifest))
        canary = Canary(
            self._loaded(runtime, self.metrics.add_canary(runtime)),
            serving.batcher,
            share=change.share,
            bounds=change.bounds,
            sums=self.board.slots(*_sums(runtime)),
            count_asked=observer.canary_asked,
            count_failed=observer.canary_failed,
            count_compared=observer.compared,
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

    def retire(self, name: str) -> None:
        """Disconnect a model: remove its metrics and count no outcomes of it."""
        self.store.remove_model(name)  # first, because it counts into the metrics
        self.metrics.remove_model(name)

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
    """Return how many batches run at the same time: one on a GPU, because two would be smaller."""
    return 1 if provider in ON_GPU else settings.threads()


def _sums(canary: Runtime) -> tuple[str, int]:
    return f"canary {canary.sha256}", SUMS  # requests that an earlier canary still has do not count


def _version(manifest: Manifest) -> ModelVersion:
    return ModelVersion(manifest.name, manifest.version, manifest.cap, manifest.nominal_coverage)


@dataclass(frozen=True, slots=True)
class _Prepared:
    change: Change
    name: str
    runtime: Runtime | None
    changed: Changed


class Catalog:
    """The models of one worker, and their changes while requests run.

        prepare (a thread opens, checks and warms the candidate) -> commit (event loop) | abort

    A request keeps the model that it began with; a model's session is freed after its last request or stream.
    Several workers all prepare before they commit, as `service.processes` tells them.

    Attributes:
        bundles: Folder of each model's bundle, by name.
        everywhere: Makes a change in all workers.
    """

    def __init__(self, joints: Joints, predictor: Predictor, bundles: Mapping[str, str]) -> None:
        """Manage these models; `bundles` has the folder of each one's bundle, by name."""
        self._joints: Final = joints
        self._predictor: Final = predictor
        self.bundles = dict(bundles)
        self._candidates: dict[str, Candidate] = {}
        self._returning: Final[set[asyncio.Task[None]]] = set()
        self.everywhere: Callable[[Change], Awaitable[Changed]] = self.change
        self._prepared: _Prepared | None = None
        self._aborts = 0
        self._changing: Final = asyncio.Lock()

    async def change(self, change: Change) -> Changed:
        """Make a change in this worker only.

        Raises:
            UnknownModel, ModelConflict, InvalidCandidate: it is refused, and nothing has changed.
        """
        async with self._changing:
            await self._prepare(change)
            return self.commit()

    async def restore(self, candidates: Iterable[Candidate]) -> None:
        """Restore the candidates of a worker that ended, except those that cannot serve any more."""
        async with self._changing:
            for candidate in candidates:
                name, returned = candidate.model.name, candidate.returned
                try:
                    if not returned:
                        await self._prepare(candidate.change)
                        self.commit()
                        continue
                except ServiceError as error:
                    returned = str(error)
                    logs.logger().warning("candidate lost", model=name, reason=returned)
                self._candidates[name] = msgspec.structs.replace(candidate, returned=returned)
                self._show(dict(self._predictor.models))

    async def prepare(self, change: Change) -> Changed:
        """Prepare a change without making it.

        Raises:
            UnknownModel, ModelConflict, InvalidCandidate: it is refused.
            NotReady: it was aborted meanwhile.
        """
        async with self._changing:
            return await self._prepare(change)

    async def _prepare(self, change: Change) -> Changed:
        self.abort()
        aborts, models = self._aborts, self._predictor.models
        if change.action is not Action.LOAD:
            self._predictor.model(change.model)
        candidates = dict(self._candidates)
        beside, ends = candidates.pop(change.model, None), ENDS.get(change.action)
        if ends is not None and (beside is None or beside.change.action is not ends):
            raise ModelConflict(f"{change.model} has no {ends}")
        if change.action is Action.UNLOAD and len(models) == 1:
            raise ModelConflict(f"{change.model} is the only model: load another one first")
        name, runtime, bundles = change.model, None, dict(self.bundles)
        digests = {known: model.name.sha256 for known, model in models.items()}
        if ends is not None and beside is not None:
            of = beside.model
            if change.reason:
                begun = msgspec.structs.replace(change, action=Action.CANARY, reason="")
                # A worker that has restarted has its bundle in another folder.
                same = msgspec.structs.replace(beside.change, bundle=begun.bundle) == begun
                if beside.returned or not same:  # another worker, or an admin, was first
                    raise ModelConflict(f"the canary of {change.model} was given back or replaced")
                candidates[name] = msgspec.structs.replace(beside, returned=change.reason)
        elif change.action is Action.UNLOAD:
            of = models[name].name
            bundles.pop(name, None)
            del digests[name]
        else:
            runtime, path = await self._candidate(change)
            manifest = runtime.manifest
            name, of = manifest.name, ModelName(manifest.name, manifest.version, runtime.sha256)
            if change.action in BESIDE:
                again = msgspec.structs.replace(change, bundle=path, sha256=of.sha256)
                candidates[name] = Candidate(again, of)
            else:
                bundles[name], digests[name] = path, of.sha256
        if self._aborts > aborts:  # the supervisor waits no longer, and other workers may have refused
            raise NotReady("the change was aborted before this worker was ready for it; try again")
        self._prepared = _Prepared(change, name, runtime, Changed(of, bundles, digests, candidates))
        return self._prepared.changed

    async def _candidate(self, change: Change) -> tuple[Runtime, str]:
        try:
            folder = find_bundle(change.bundle)
            runtime = await asyncio.to_thread(open_candidate, folder, self._joints.settings)
        except InvalidBundle as error:
            raise InvalidCandidate(str(error)) from error
        except Exception as error:  # checks of a damaged bundle may raise anything
            raise InvalidCandidate(f"{change.bundle}: {type(error).__name__}: {error}") from error
        name, path = runtime.manifest.name, str(folder.path.resolve())
        if change.model and name != change.model:
            raise InvalidCandidate(f"expected a bundle of model {change.model}, {change.bundle} is of {name}")
        if change.sha256 not in {"", runtime.sha256}:
            raise InvalidCandidate(f"{change.bundle}: the bundle changed")
        serving = self._predictor.models.get(name)
        if change.action in BESIDE and serving is not None:
            differs = difference(runtime.manifest, serving.manifest, canary=change.action is Action.CANARY)
            if differs:
                raise InvalidCandidate(f"{change.bundle}: a {change.action} of {name} must have {differs}")
        if change.action is Action.LOAD and name in self._predictor.models:
            raise ModelConflict(f"model {name} is loaded; swap it")
        if change.action is not Action.SHADOW:  # its answers are counted in the model's places on the board
            await asyncio.to_thread(self._joints.reserve, runtime, change.action)
        return runtime, path

    def commit(self) -> Changed:
        """Make the prepared change; it applies to requests that begin from now on."""
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return Changed()
        models = dict(self._predictor.models)
        name, runtime, change = prepared.name, prepared.runtime, prepared.change
        if name in models:
            models[name] = without_candidate(models[name])
        if runtime is not None and change.action in BESIDE:
            begun = prepared.changed.candidates[name].change
            models[name] = self._joints.beside(models[name], runtime, change, partial(self._give_back, begun))
        elif runtime is not None:
            models[name] = self._joints.serve(runtime)
        elif change.action is Action.UNLOAD:
            del models[name]
            self._joints.retire(name)
        self.bundles, self._candidates = prepared.changed.bundles, prepared.changed.candidates
        self._show(models)
        return prepared.changed

    def _show(self, models: Mapping[str, LoadedModel]) -> None:
        """Answer with these models, each with the candidate beside it."""
        self._predictor.serve(
            {name: replace(model, candidate=self._candidates.get(name)) for name, model in models.items()}
        )

    def _give_back(self, begun: Change, reason: str) -> None:
        """End the canary of a change in all workers; in this one it has stopped answering already."""
        task = asyncio.ensure_future(self._return(begun, reason))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, begun: Change, reason: str) -> None:
        name, ends = begun.model, msgspec.structs.replace(begun, action=Action.UNCANARY, reason=reason)
        while True:
            try:
                changed = await self.everywhere(ends)
                break
            except (UnknownModel, ModelConflict):  # another worker or a request has ended it
                return
            except ServiceError as error:  # other workers may still use the canary
                logs.logger().error("canary not returned yet", model=name, reason=reason, error=str(error))
                await asyncio.sleep(RETURN_AGAIN_SECONDS)
        if (counted := self._joints.metrics.models.get(name)) is not None:  # else unloaded meanwhile
            counted.canary_returned()
        version = "" if changed.model is None else changed.model.version
        logs.logger().warning("canary returned", model=name, version=version, reason=reason)

    def abort(self) -> None:
        """Discard the prepared change, or the one that is being prepared."""
        self._prepared = None
        self._aborts += 1
