"""The models that serve, and their change while requests run.

    prepare (a thread opens, checks and warms the candidate) -> commit (event loop) | abort

A request ends with the model that it began with: it holds that model, whose session is freed with its last
request or stream. Several workers prepare first and commit when all have: `service.processes` asks them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from export.bundle import BundleFolder, InvalidBundle, Manifest, find_bundle
from service import logs
from service.core.changes import BESIDE, ENDS, Action, Candidate, Change, Changed
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import ModelName
from service.core.runtime import Runtime
from service.core.shadow import without_candidate
from service.errors import InvalidCandidate, ModelConflict, ServiceError


@dataclass(frozen=True, slots=True)
class _Prepared:
    change: Change
    name: str
    runtime: Runtime | None
    changed: Changed


class Catalog:
    """The models of one worker.

    Args:
        predictor: Answers with them.
        bundles: The folder of each model's bundle, by the model's name.
        open_: Opens, checks and warms a bundle; blocks.
        serve: Joins an open model to everything that serves.
        retire: Parts everything that serves from the model of this name.
        beside: Lets an open model stand beside one that serves, as a change says; it may be given back.
        returned: Counts a canary of the model of this name that passed a bound.

    Attributes:
        everywhere: Makes a change in all workers.
    """

    def __init__(
        self,
        predictor: Predictor,
        bundles: Mapping[str, str],
        *,
        open_: Callable[[BundleFolder], Runtime],
        serve: Callable[[Runtime], LoadedModel],
        retire: Callable[[str], None],
        beside: Callable[[LoadedModel, Runtime, Change, Callable[[str], None]], LoadedModel],
        returned: Callable[[str], None],
    ) -> None:
        self._predictor: Final = predictor
        self._bundles = dict(bundles)
        self._open: Final = open_
        self._serve: Final = serve
        self._retire: Final = retire
        self._beside: Final = beside
        self._returned: Final = returned
        self._candidates: dict[str, Candidate] = {}
        self._returning: Final[set[asyncio.Task[None]]] = set()
        self.everywhere: Callable[[Change], Awaitable[Changed]] = self.change
        self._prepared: _Prepared | None = None
        self._changing: Final = asyncio.Lock()

    async def change(self, change: Change) -> Changed:
        """Make a change in this worker alone.

        Raises:
            UnknownModel, ModelConflict, InvalidCandidate: it is refused, and nothing has changed.
        """
        async with self._changing:
            await self._prepare(change)
            return self.commit()

    async def restore(self, candidates: Iterable[Candidate]) -> None:
        """Bring back the candidates of a worker that ended; one that cannot serve any more is left out."""
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
        """Get ready for a change without making it.

        Raises:
            UnknownModel, ModelConflict, InvalidCandidate: it is refused.
        """
        async with self._changing:
            return await self._prepare(change)

    async def _prepare(self, change: Change) -> Changed:
        self.abort()
        models = self._predictor.models
        if change.action is not Action.LOAD:
            self._predictor.model(change.model)
        candidates = dict(self._candidates)
        beside, ends = candidates.pop(change.model, None), ENDS.get(change.action)
        if ends is not None and (beside is None or beside.change.action is not ends):
            raise ModelConflict(f"{change.model} has no {ends}")
        if change.action is Action.UNLOAD and len(models) == 1:
            raise ModelConflict(f"{change.model} is the only model: load another one first")
        name, runtime, bundles = change.model, None, dict(self._bundles)
        digests = {known: model.name.sha256 for known, model in models.items()}
        if ends is not None and beside is not None:
            of = beside.model
            if change.reason:
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
        self._prepared = _Prepared(change, name, runtime, Changed(of, bundles, digests, candidates))
        return self._prepared.changed

    async def _candidate(self, change: Change) -> tuple[Runtime, str]:
        try:
            folder = find_bundle(change.bundle)
            runtime = await asyncio.to_thread(self._open, folder)
        except InvalidBundle as error:
            raise InvalidCandidate(str(error)) from error
        except Exception as error:  # whatever the checks of a damaged bundle may raise
            raise InvalidCandidate(f"{change.bundle}: {type(error).__name__}: {error}") from error
        name, path = runtime.manifest.name, str(folder.path.resolve())
        if "," in path:  # it separates the bundles of a worker that restarts
            raise InvalidCandidate(f"{path}: expected a path without a comma")
        if change.model and name != change.model:
            raise InvalidCandidate(f"expected a bundle of model {change.model}, {change.bundle} is of {name}")
        if change.sha256 not in {"", runtime.sha256}:
            raise InvalidCandidate(f"{change.bundle}: the bundle changed")
        serving = self._predictor.models.get(name)
        if change.action in BESIDE and serving is not None:
            differs = _differs(runtime.manifest, serving.manifest, canary=change.action is Action.CANARY)
            if differs:
                raise InvalidCandidate(
                    f"{change.bundle} has another {differs} than {name}: swap it without a {change.action}"
                )
        if change.action is Action.LOAD and name in self._predictor.models:
            raise ModelConflict(f"model {name} is loaded; swap it")
        return runtime, path

    def commit(self) -> Changed:
        """Make the change that was prepared; requests that begin from now on see it."""
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return Changed()
        models = dict(self._predictor.models)
        name, runtime, change = prepared.name, prepared.runtime, prepared.change
        if name in models:
            models[name] = without_candidate(models[name])
        if runtime is not None and change.action in BESIDE:
            models[name] = self._beside(models[name], runtime, change, partial(self._give_back, name))
        elif runtime is not None:
            models[name] = self._serve(runtime)
        elif change.action is Action.UNLOAD:
            del models[name]
            self._retire(name)
        self._bundles, self._candidates = prepared.changed.bundles, prepared.changed.candidates
        self._show(models)
        return prepared.changed

    def _show(self, models: Mapping[str, LoadedModel]) -> None:
        """Answer with these models, each with the candidate beside it."""
        self._predictor.serve(
            {name: replace(model, candidate=self._candidates.get(name)) for name, model in models.items()}
        )

    def _give_back(self, name: str, reason: str) -> None:
        """End a canary in all workers; this one has ended it already."""
        task = asyncio.ensure_future(self._return(name, reason))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, name: str, reason: str) -> None:
        try:
            changed = await self.everywhere(Change(Action.UNCANARY, name, reason=reason))
        except ServiceError:  # another worker, or somebody, has ended it
            return
        self._returned(name)
        version = "" if changed.model is None else changed.model.version
        logs.logger().warning("canary returned", model=name, version=version, reason=reason)

    def abort(self) -> None:
        """Forget the change that was prepared."""
        self._prepared = None


def _differs(candidate: Manifest, serving: Manifest, *, canary: bool) -> str:
    """Name a property in which a candidate must equal the model that serves, and does not; empty: none."""
    names = [[column.name for column in manifest.columns] for manifest in (candidate, serving)]
    differences = {
        "order of columns": names[0] != names[1],
        "context": candidate.context != serving.context,
        "list of horizons": canary and candidate.horizons != serving.horizons,
        "set of outputs": canary and candidate.explains_readings != serving.explains_readings,
    }
    return next((name for name, differs in differences.items() if differs), "")
