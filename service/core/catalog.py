"""The models that serve, and their change while requests run.

    prepare (a thread opens, checks and warms the candidate) -> commit (event loop) | abort

A request ends with the model that it began with: it holds that model, whose session is freed with its last
request or stream. Several workers prepare first and commit when all have: `service.processes` asks them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from export.bundle import BundleFolder, InvalidBundle, find_bundle
from service.core.changes import Action, Change, Changed
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import ModelName
from service.core.runtime import Runtime
from service.core.shadow import without_shadow
from service.errors import InvalidCandidate, ModelConflict


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
        shadow: Lets an open model answer beside one that serves, on this share of its requests.
    """

    def __init__(
        self,
        predictor: Predictor,
        bundles: Mapping[str, str],
        *,
        open_: Callable[[BundleFolder], Runtime],
        serve: Callable[[Runtime], LoadedModel],
        retire: Callable[[str], None],
        shadow: Callable[[LoadedModel, Runtime, float], LoadedModel],
    ) -> None:
        self._predictor: Final = predictor
        self._bundles = dict(bundles)
        self._open: Final = open_
        self._serve: Final = serve
        self._retire: Final = retire
        self._shadow: Final = shadow
        self._shadows: Final[dict[str, ModelName]] = {}
        self._prepared: _Prepared | None = None
        self._changing: Final = asyncio.Lock()

    async def change(self, change: Change) -> Changed:
        """Make a change in this worker alone.

        Raises:
            UnknownModel, ModelConflict, InvalidCandidate: it is refused, and nothing has changed.
        """
        async with self._changing:
            await self.prepare(change)
            return self.commit()

    async def prepare(self, change: Change) -> Changed:
        """Get ready for a change without making it.

        Raises:
            UnknownModel, ModelConflict, InvalidCandidate: it is refused.
        """
        self.abort()
        models = self._predictor.models
        if change.action is not Action.LOAD:
            self._predictor.model(change.model)
        if change.action is Action.UNSHADOW and change.model not in self._shadows:
            raise ModelConflict(f"{change.model} has no shadow")
        if change.action is Action.UNLOAD and len(models) == 1:
            raise ModelConflict(f"{change.model} is the only model: load another one first")
        name, runtime, bundles = change.model, None, dict(self._bundles)
        digests = {known: model.name.sha256 for known, model in models.items()}
        if change.action is Action.UNSHADOW:
            of = self._shadows[name]
        elif change.action is Action.UNLOAD:
            of = models[name].name
            bundles.pop(name, None)
            del digests[name]
        else:
            runtime, path = await self._candidate(change)
            manifest = runtime.manifest
            name, of = manifest.name, ModelName(manifest.name, manifest.version, runtime.sha256)
            if change.action is not Action.SHADOW:
                bundles[name], digests[name] = path, of.sha256
        self._prepared = _Prepared(change, name, runtime, Changed(of, bundles, digests))
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
        serving = self._predictor.models.get(name)
        if change.action is Action.SHADOW and serving is not None:
            columns = tuple(column.name for column in runtime.manifest.columns)
            if (columns, runtime.manifest.context) != (serving.rules.names, serving.rules.context):
                raise InvalidCandidate(
                    f"{change.bundle} reads other columns or cycles than {name}: swap it without a shadow"
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
        if name in self._shadows:
            del self._shadows[name]
            models[name] = without_shadow(models[name])
        if runtime is not None and change.action is Action.SHADOW and prepared.changed.model is not None:
            models[name] = self._shadow(models[name], runtime, change.share)
            self._shadows[name] = prepared.changed.model
        elif runtime is not None:
            models[name] = self._serve(runtime)
        elif change.action is Action.UNLOAD:
            del models[name]
            self._retire(name)
        self._bundles = prepared.changed.bundles
        self._predictor.serve(models)
        return prepared.changed

    def abort(self) -> None:
        """Forget the change that was prepared."""
        self._prepared = None
