"""Conversion of a bundle of an earlier version to this version's format: the same graph, so the same answers.

Format 2 added the drift reference to the metadata, computed from the manifest. Later, without a new format
number, came the digests in `SHA256SUMS` and the graph's digest in the model card. Format 3 added profiles of
some units; an earlier bundle gets one unit that ages like the average.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from export.ageing import drift_reference
from export.arrays import one_line
from export.bundle import CARD, FORMAT, METADATA_KEY, BundleFolder, InvalidBundle, Manifest
from export.card import model_card
from export.seal import SIGNATURE, SUMS, read_bundle, write_sums
from export.session import Session, open_bundle


def convert_bundle(folder: BundleFolder) -> Manifest:
    """Convert a bundle's metadata, model card and digests to this version, in place; its signature goes.

    Raises:
        InvalidBundle: the bundle needs no conversion, is damaged, or breaks a promise of its golden windows.
    """
    if (folder.path / SUMS).exists():
        read_bundle(folder)  # a damaged file would get a valid digest
    metadata = Session(folder.model).metadata
    found = _fields(metadata.get(METADATA_KEY, "{}"), folder)
    if found["format"] == FORMAT and (folder.path / SUMS).exists():
        raise InvalidBundle(f"{folder.path}: bundle format {FORMAT} with {SUMS}: there is nothing to convert")
    manifest = _raised(found, folder)
    with tempfile.TemporaryDirectory(dir=folder.path, prefix=".convert-") as work:
        copied = Path(work) / folder.path.name
        shutil.copytree(folder.path, copied, ignore=shutil.ignore_patterns(".*"))
        made = BundleFolder(copied)
        if found["format"] < FORMAT:
            graph = onnx.load(str(folder.model))
            added = manifest.to_metadata() | drift_reference(manifest).to_metadata()
            helper.set_model_props(graph, metadata | added)
            onnx.save(graph, str(made.model))
        digest = hashlib.sha256(made.model.read_bytes()).hexdigest()
        (made.path / CARD).write_text(_card(manifest, digest, folder), encoding="utf-8")
        write_sums(made.path)
        open_bundle(folder, read_bundle(made))
        for name in (SUMS, SIGNATURE):  # a bundle without digests, converted in part or not, can be converted
            (folder.path / name).unlink(missing_ok=True)
        for name in (folder.model.name, CARD, SUMS):
            (made.path / name).replace(folder.path / name)
    return manifest


def _card(manifest: Manifest, digest: str, folder: BundleFolder) -> str:
    try:
        return model_card(manifest, sha256=digest)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidBundle(
            f"{folder.path}: the manifest's training has no valid {one_line(error)}, export it again"
        ) from error


def _fields(text: str, folder: BundleFolder) -> dict[str, Any]:
    """Read the manifest as it is, of this format or an earlier one."""
    try:
        fields: dict[str, Any] = dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidBundle(f"{folder.path}: the manifest is not valid, export it again: {error}") from error
    found = fields.get("format")
    if found not in range(1, FORMAT + 1):
        raise InvalidBundle(f"{folder.path}: bundle format {found}, expected 1 to {FORMAT}")
    return fields


def _raised(fields: dict[str, Any], folder: BundleFolder) -> Manifest:
    """Read the manifest, with this version's format in it."""
    try:
        if fields["format"] < FORMAT:
            fields["degradation"]["units"] = [_typical_unit(fields["degradation"])]
        text = json.dumps({**fields, "format": FORMAT})
    except (KeyError, TypeError, IndexError, ValueError, OverflowError) as error:
        raise InvalidBundle(
            f"{folder.path}: the manifest has no valid degradation, export it again: {one_line(error)}"
        ) from error
    return Manifest.from_metadata({METADATA_KEY: text}, origin=folder.model)


def _typical_unit(degradation: dict[str, Any]) -> dict[str, Any]:
    """Return a unit of median life that ages like the average unit."""
    life, z = max(1, round(degradation["life_quantiles"][5])), degradation["z"]
    return {"life": life, "z": z[: max(1, sum(rul < life for rul in degradation["rul"]))]}
