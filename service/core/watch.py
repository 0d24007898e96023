"""Load and swap bundles that appear or change in a folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from export.bundle import GOLDEN, MODEL, BundleFolder, InvalidBundle
from export.seal import SIGNATURE, SUMS, read_bundle
from service.core.changes import Action, Change, Changed
from service.core.predictor import LoadedModel
from service.errors import NotReady, ServiceError

LOOK_SECONDS: Final = 2.0
"""Seconds between polls; a bundle must be the same in two, so that it is written completely."""

Stamp = tuple[tuple[int, int, int], ...]
"""Change times (also of permissions) and sizes of a bundle's files."""


class Watch:
    """Follows a folder with a bundle in each subfolder, named as its model.

    Args:
        folder: The folder.
        models: The serving models.
        change: Makes a change of the models.
        log: Logs changes and refused candidates.
        memory: File with the bundles that were tried and the one that is being tried, for restarted workers;
            None: workers do not restart.
    """

    def __init__(
        self,
        folder: Path,
        models: Mapping[str, LoadedModel],
        change: Callable[[Change], Awaitable[Changed]],
        log: FilteringBoundLogger,
        memory: Path | None = None,
    ) -> None:
        self._folder: Final = folder
        self._models: Final = models
        self._change: Final = change
        self._log: Final = log
        self._seen: dict[str, Stamp] = {}
        self._unread = ""
        self._memory: Final = memory
        known = memory.read_bytes() if memory is not None and memory.exists() else b'[{}, ""]'
        self._tried, ended = msgspec.json.decode(known, type=tuple[dict[str, Stamp], str])
        self._ended: Final = {ended: self._tried.pop(ended)} if ended else {}

    async def run(self) -> None:
        """Poll the folder until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self, *, at_start: bool = False) -> None:
        """Try the bundles that have not changed since the last poll and were not tried yet.

        At the start there is no last poll: every bundle is tried as it is, and again when it changes.
        """
        try:
            seen = await asyncio.to_thread(self._stamps)
        except OSError as error:
            if str(error) != self._unread:
                self._log.error("watched folder not read", folder=str(self._folder), reason=str(error))
            self._unread = str(error)
            return
        self._unread = ""
        settled = [name for name, stamp in seen.items() if at_start or self._seen.get(name) == stamp]
        self._seen = seen
        for name in settled:
            if self._tried.get(name) != seen[name]:
                # Before the change: a bundle that crashes the worker must not be tried again by the next one.
                self._tried[name] = seen[name]
                self._remember(trying=name)
                if not await self._take(name):
                    del self._tried[name]
                self._remember()

    def _remember(self, trying: str = "") -> None:
        if self._memory is None:
            return
        new = self._memory.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode((self._tried, trying)))
            new.replace(self._memory)  # whole, whenever the worker ends
        except OSError as error:
            self._log.error("watched bundles not remembered", file=str(new), reason=str(error))

    def _stamps(self) -> dict[str, Stamp]:
        try:
            folders = sorted(Path(entry) for entry in os.scandir(self._folder) if _may_be_a_bundle(entry))
        except (FileNotFoundError, NotADirectoryError):  # warned of at start, or removed: nothing is unloaded
            folders = []
        return {path.name: _stamp(path) for path in folders}

    async def _take(self, name: str) -> bool:
        """Load or swap in a bundle; return whether it was taken or refused for good."""
        folder, serving = self._folder / name, self._models.get(name)
        try:
            found = BundleFolder(folder)
            if serving is not None:
                contents = await asyncio.to_thread(read_bundle, found)
                if contents.sha256 == serving.name.sha256:
                    return True
            if self._ended.pop(name, None) == self._seen[name]:
                reason = "the worker ended while it checked it; change a file to try it again"
                self._log.error("candidate refused", bundle=str(folder), reason=reason)
                return True
            action = Action.LOAD if serving is None else Action.SWAP
            await self._change(Change(action, name, str(folder)))
        except NotReady as error:
            self._log.warning("candidate not taken yet", bundle=str(folder), reason=str(error))
            return False
        except (OSError, InvalidBundle, ServiceError) as error:
            self._log.error("candidate refused", bundle=str(folder), reason=str(error))
        else:
            self._log.info("candidate taken", bundle=str(folder), action=action.value)
        return True


def _may_be_a_bundle(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder that is not hidden, as `..data` of Kubernetes volumes is.

    A name that is not printable may not be UTF-8, and is no model's.
    """
    return entry.name.isprintable() and not entry.name.startswith(".") and entry.is_dir()


def _stamp(path: Path) -> Stamp:
    """Return the stamp of a bundle's existing files: an incomplete one is refused, not ignored."""
    stats: list[os.stat_result] = []
    for name in (MODEL, GOLDEN, SUMS, SIGNATURE):
        with suppress(OSError):
            stats.append((path / name).stat())
    return tuple((s.st_mtime_ns, s.st_ctime_ns, s.st_size) for s in stats)
