"""Load and swap bundles that appear or change in a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from export.bundle import BundleFolder, InvalidBundle
from export.seal import SIGNATURE, SUMS, read_bundle
from service.core.changes import Action, Change, Changed
from service.core.predictor import LoadedModel
from service.errors import ServiceError

LOOK_SECONDS: Final = 2.0
"""Time between two looks; a bundle is taken when it is the same in both, so that it is written to its end."""

Stamp = tuple[tuple[int, int], ...]
"""Time of change and size of a bundle's files."""


class Watch:
    """Follows a folder with a bundle in each subfolder, named as its model.

    Args:
        folder: The folder.
        models: The models that serve.
        change: Makes a change of them.
        log: Takes refused candidates.
    """

    def __init__(
        self,
        folder: Path,
        models: Mapping[str, LoadedModel],
        change: Callable[[Change], Awaitable[Changed]],
        log: FilteringBoundLogger,
    ) -> None:
        self._folder: Final = folder
        self._models: Final = models
        self._change: Final = change
        self._log: Final = log
        self._seen: dict[str, Stamp] = {}
        self._tried: Final[dict[str, Stamp]] = {}

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Take the bundles that have not changed since the last look and were not tried yet."""
        seen = await asyncio.to_thread(self._stamps)
        settled = [name for name, stamp in seen.items() if self._seen.get(name) == stamp]
        self._seen = seen
        for name in settled:
            if self._tried.get(name) != seen[name]:
                self._tried[name] = seen[name]
                await self._take(name)

    def _stamps(self) -> dict[str, Stamp]:
        stamps: dict[str, Stamp] = {}
        for path in sorted(self._folder.glob("*/")):
            with suppress(OSError, InvalidBundle):  # not complete: a later look may find the rest
                found = BundleFolder(path)
                files = [found.model, found.golden, path / SUMS]
                files += [path / SIGNATURE] if (path / SIGNATURE).exists() else []
                stamps[path.name] = tuple((s.st_mtime_ns, s.st_size) for s in [f.stat() for f in files])
        return stamps

    async def _take(self, name: str) -> None:
        folder, serving = self._folder / name, self._models.get(name)
        try:
            if serving is not None:
                contents = await asyncio.to_thread(read_bundle, BundleFolder(folder))
                if contents.sha256 == serving.name.sha256:
                    return
            action = Action.LOAD if serving is None else Action.SWAP
            await self._change(Change(action, name, str(folder)))
        except (OSError, InvalidBundle, ServiceError) as error:
            self._log.error("candidate refused", bundle=str(folder), reason=str(error))
