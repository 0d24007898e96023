"""Bundles made from shipped ones, with another name and version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx

from export.bundle import METADATA_KEY, BundleFolder, find_bundle
from export.seal import write_sums


def renamed(folder: Path, source: str, *, name: str, version: str) -> BundleFolder:
    """Copy a shipped bundle, with this name and version in the manifest."""
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
