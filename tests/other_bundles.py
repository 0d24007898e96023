"""Bundles made of shipped ones: under another name or version, or broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx

from export.bundle import METADATA_KEY, BundleFolder, find_bundle
from export.seal import write_sums


def renamed(folder: Path, source: str, *, name: str, version: str) -> BundleFolder:
    """A copy of a shipped bundle whose manifest has this name and version."""
    shipped = find_bundle(source)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(shipped.golden, folder)
    net = onnx.load(shipped.model)
    for entry in net.metadata_props:
        if entry.key == METADATA_KEY:
            entry.value = json.dumps({**json.loads(entry.value), "name": name, "version": version})
    onnx.save(net, folder / "model.onnx")
    write_sums(folder)
    return BundleFolder(folder)
