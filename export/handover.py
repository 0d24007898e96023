"""A finished run becomes a bundle: graph, manifest, golden windows, model card.

This module must not know training or serving.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from export.ageing import drift_reference
from export.bundle import BundleFolder, Golden, InvalidBundle, Manifest, Parity
from export.card import model_card
from export.drift_reference import DriftReference
from export.judge import Judged, judge
from export.parity import measure_parity
from export.probes import simulated_windows
from export.quantize import quantize_weights
from export.session import Session, open_bundle
from export.to_onnx import to_onnx, write_metadata
from model.checkpoint import Checkpoint

GOLDEN_WINDOWS: Final = 16
GOLDEN_SEED: Final = 7


def export_bundle(
    checkpoint: Checkpoint, folder: Path, *, version: str | None = None, quantize_on: Judged | None = None
) -> Manifest:
    """Write the bundle `folder`; nothing is left there unless every check holds.

    Args:
        checkpoint: The finished run.
        folder: Where the bundle goes.
        version: None: the code's and a digest of the weights.
        quantize_on: Keep weights as whole numbers if answers to these windows stay as good. Parity is
            then that of the graph before.

    Raises:
        InvalidBundle: the graph does not answer what the network does, the folder's name cannot be a
            model's, or rounded weights cost too much.
    """
    net = checkpoint.network()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as work:
        made = Path(work)
        model = made / "model.onnx"
        to_onnx(net, model)
        version = version or _version(checkpoint, quantized=quantize_on is not None)
        manifest = draft_manifest(checkpoint, version=version)
        manifest = manifest.model_copy(update={"parity": measure_parity(net, Session(model), manifest)})
        if quantize_on is not None:
            manifest = _quantized(model, manifest, quantize_on)
        write_metadata(model, metadata_of(manifest))
        session, manifest = _reopened(made, manifest)
        golden_windows(session, manifest).save(made / "golden.npz")
        (made / "MODEL_CARD.md").write_text(model_card(manifest), encoding="utf-8")
        folder.mkdir(exist_ok=True)
        for file in sorted(made.iterdir()):
            shutil.move(file, folder / file.name)
    BundleFolder(folder)
    return manifest


def draft_manifest(checkpoint: Checkpoint, *, version: str) -> Manifest:
    """The manifest without its parity.

    Raises:
        InvalidBundle: what the run recorded makes no valid manifest.
    """
    fields: dict[str, Any] = {
        **checkpoint.facts,
        "name": checkpoint.name,
        "version": version,
        "network": checkpoint.config.network,
        "heads": checkpoint.config.heads,
        "parity": Parity(rul_cycles=0.0, attention=0.0),
    }
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        raise InvalidBundle(f"run {checkpoint.name!r} makes no valid manifest: {error}") from error


def metadata_of(manifest: Manifest) -> dict[str, str]:
    """Return the texts that a bundle's ONNX file carries: the manifest, and the drift reference of it."""
    return manifest.to_metadata() | drift_reference(manifest).to_metadata()


def golden_windows(session: Session, manifest: Manifest) -> Golden:
    """Simulated windows with the graph's own answers: short, long, fresh, worn, with readings missing."""
    windows = simulated_windows(manifest, count=GOLDEN_WINDOWS, seed=GOLDEN_SEED)
    readings, last_cycle = windows.readings, windows.last_cycle
    rng = np.random.default_rng(GOLDEN_SEED)
    readings[3, :, -1] = np.nan
    readings[7][rng.random(readings[7].shape) < 0.1] = np.nan
    last_cycle[[5, 8]] = np.nan
    expected = session.answer(readings, windows.lengths, last_cycle)
    return Golden(readings, windows.lengths, last_cycle, expected)


def _reopened(made: Path, manifest: Manifest) -> tuple[Session, Manifest]:
    """What a server will find in the files, not what is still in memory."""
    (made / "golden.npz").touch()
    session, found = open_bundle(BundleFolder(made))
    DriftReference.from_metadata(session.metadata, found, origin=made)
    if found != manifest:
        raise InvalidBundle("the manifest does not survive being written: this is a fault of the exporter")
    return session, found


def _quantized(model: Path, manifest: Manifest, on: Judged) -> Manifest:
    """Round the graph's weights where it lies; the manifest that says so."""
    exact = Session(model)
    quantize_weights(model, model)
    return manifest.model_copy(update={"quantized": judge(exact, Session(model), manifest, on)})


def _version(checkpoint: Checkpoint, *, quantized: bool) -> str:
    """The code's version and a digest of the weights: equal only for the same model."""
    digest = checkpoint.digest()
    version = f"{checkpoint.facts['training']['code_version']}+{digest[:8]}"
    return f"{version}.int8" if quantized else version
