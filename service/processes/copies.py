"""Copies of the bundles that serve: a worker restarts from them, whatever has become of the files.

A watched folder may hold a refused candidate for weeks, and a new version may be half copied.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from export.bundle import BundleFolder, InvalidBundle, find_bundle
from export.seal import COVERED, SIGNATURE, SUMS, read_bundle
from service.core.changes import Candidate, Changed


class Copies:
    """Copies in a folder, each under its digest."""

    def __init__(self, folder: Path) -> None:
        """Copy to subfolders of this folder."""
        self._folder: Final = folder

    def of(self, changed: Changed) -> Changed:
        """Copy the bundles of models and candidates; return the same result with the copies' folders.

        Raises:
            InvalidBundle: a file has changed since the workers read it.
            OSError: a file cannot be copied.
        """
        bundles = {name: self._copy(path, changed.digests[name]) for name, path in changed.bundles.items()}
        candidates = {name: self._copied(candidate) for name, candidate in changed.candidates.items()}
        return replace(changed, bundles=bundles, candidates=candidates)

    def _copied(self, candidate: Candidate) -> Candidate:
        if candidate.returned:
            return candidate
        copy = self._copy(candidate.change.bundle, candidate.model.sha256)
        return replace(candidate, change=replace(candidate.change, bundle=copy))

    def remove_others(self, changed: Changed) -> None:
        """Remove copies that this result, as `of` returns it, does not name."""
        named = {*changed.bundles.values(), *(each.change.bundle for each in changed.candidates.values())}
        for copy in self._folder.iterdir():
            if str(copy) not in named:
                shutil.rmtree(copy, ignore_errors=True)

    def _copy(self, bundle: str, sha256: str) -> str:
        copy = self._folder / sha256
        if not copy.exists():
            source = find_bundle(bundle).path
            new = copy.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            for name in (*COVERED, SUMS, SIGNATURE):
                with suppress(FileNotFoundError):
                    shutil.copyfile(source / name, new / name)
            if _digest(new) != sha256:
                raise InvalidBundle(f"{source}: the bundle changed")
            new.rename(copy)
        return str(copy)


def _digest(bundle: Path) -> str:
    try:
        return read_bundle(BundleFolder(bundle)).sha256
    except InvalidBundle:  # files of two versions
        return ""
