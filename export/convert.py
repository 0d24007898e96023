"""A bundle of format 1 becomes one of this version's format: the same graph, so the same answers.

Format 2 keeps the drift reference in the metadata. It follows from the manifest alone.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from export.ageing import drift_reference
from export.bundle import FORMAT, METADATA_KEY, BundleFolder, Golden, InvalidBundle, Manifest
from export.promises import replay_golden
from export.session import Session, open_bundle


def convert_bundle(folder: BundleFolder) -> Manifest:
    """Rewrite the metadata of a bundle's ONNX file in place; all else stays as it is."""
    metadata = Session(folder.model).metadata
    golden = Golden.load(folder.golden)
    manifest = _raised(metadata.get(METADATA_KEY, "{}"), folder)
    graph = onnx.load(str(folder.model))
    helper.set_model_props(graph, metadata | manifest.to_metadata() | drift_reference(manifest).to_metadata())
    with tempfile.TemporaryDirectory(dir=folder.path, prefix=".convert-") as work:
        made = Path(work)
        onnx.save(graph, str(made / folder.model.name))
        golden.save(made / folder.golden.name)
        session, _ = open_bundle(BundleFolder(made))
        broken = [each.promise for each in replay_golden(session, golden) if not each.kept]
        if broken:
            raise InvalidBundle(f"{folder.path}: does not keep: {'; '.join(broken)}; export it again")
        (made / folder.model.name).replace(folder.model)
    return manifest


def _raised(text: str, folder: BundleFolder) -> Manifest:
    """Read the manifest, with this version's format in it."""
    try:
        fields: dict[str, Any] = dict(json.loads(text))
        found = fields.get("format")
        if found != FORMAT - 1:
            raise InvalidBundle(f"{folder.path}: bundle format {found}, only {FORMAT - 1} can be converted")
        return Manifest.model_validate({**fields, "format": FORMAT})
    except (ValueError, TypeError) as error:
        raise InvalidBundle(f"{folder.path}: the manifest is not valid, export it again: {error}") from error
