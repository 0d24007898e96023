"""Handover of a finished run as a bundle: graph, manifest, golden windows, model card.

This module must not know training or serving.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from export.ageing import drift_reference
from export.bundle import CARD, GOLDEN, MODEL, BundleFolder, InvalidBundle, Manifest, Parity
from export.card import model_card
from export.drift_reference import DriftReference
from export.golden import Golden, rounded
from export.parity import measure_parity
from export.probes import simulated_windows
from export.seal import SIGNATURE, read_bundle, write_sums
from export.session import Session
from export.to_onnx import to_onnx, write_metadata
from model.checkpoint import Checkpoint
from model.domain import FloatArray
from model.networks import network_class
from model.outputs import writing

GOLDEN_WINDOWS: Final = 16
GOLDEN_SEED: Final = 7
SENSOR_BITS: Final = 14
"""Four significant digits."""
MOST_ROUNDED: Final = 0.5
"""Maximum rounding of a simulated reading, as a share of the range of its column in training."""


def export_bundle(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    version: str | None = None,
    with_map: bool = False,
    signing_key: Path | None = None,
) -> Manifest:
    """Write the bundle `folder` after every check passes; write nothing otherwise.

    The version is by default the code's, with a digest of the weights. `with_map` adds the output `MAP`.
    `signing_key` signs the bundle.
    """
    net = checkpoint.network()
    if with_map and not net.has_self_attention:
        raise InvalidBundle(f"network {checkpoint.config.network!r} has no self-attention: there is no map")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with writing(folder), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as work:
        made = Path(work)
        model = made / MODEL
        to_onnx(net, model, with_map=with_map)
        version = version or _version(checkpoint)
        manifest = _draft_manifest(checkpoint, version=version)
        manifest = manifest.model_copy(update={"parity": measure_parity(net, Session(model), manifest)})
        write_metadata(model, metadata_of(manifest))
        session = _reopened(model, manifest)
        golden_windows(session, manifest).save(made / GOLDEN)
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        (made / CARD).write_text(model_card(manifest, sha256=digest), encoding="utf-8")
        write_sums(made, signing_key=signing_key)
        folder.mkdir(exist_ok=True)
        (folder / SIGNATURE).unlink(missing_ok=True)
        for file in sorted(made.iterdir()):
            shutil.move(file, folder / file.name)
    read_bundle(BundleFolder(folder))
    return manifest


def _draft_manifest(checkpoint: Checkpoint, *, version: str) -> Manifest:
    """Build the manifest of a run, without its parity."""
    fields: dict[str, Any] = {
        **shortened(checkpoint.facts),
        "name": checkpoint.name,
        "version": version,
        "network": checkpoint.config.network,
        "heads": checkpoint.config.heads,
        "explains_readings": network_class(checkpoint.config.network).explains_readings,
        "reads_settings": checkpoint.config.reads_settings,
        "parity": Parity(rul_cycles=0.0, attention=0.0),
    }
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        raise InvalidBundle(f"run {checkpoint.name!r} makes no valid manifest: {error}") from error


def shortened(value: Any) -> Any:  # noqa: ANN401 any JSON value
    """Shorten the numbers of a JSON value to nine significant digits, which tell every float32 apart.

    >>> shortened({"high": [42.007999420166016, 100.0]})
    {'high': [42.0079994, 100.0]}
    """
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in value.items()}
    return [shortened(each) for each in value] if isinstance(value, (list, tuple)) else value


def metadata_of(manifest: Manifest) -> dict[str, str]:
    """Return the metadata of a bundle's ONNX file: the manifest and its drift reference."""
    return manifest.to_metadata() | drift_reference(manifest).to_metadata()


def golden_windows(session: Session, manifest: Manifest) -> Golden:
    """Simulate windows, some with missing readings, and record the graph's answers."""
    windows = simulated_windows(manifest, count=GOLDEN_WINDOWS, seed=GOLDEN_SEED)
    widths = np.array([column.high - column.low for column in manifest.columns])
    readings, last_cycle = _to_digits_of_sensors(windows.readings, widths), windows.last_cycle
    rng = np.random.default_rng(GOLDEN_SEED)
    readings[3, :, -1] = np.nan
    readings[7][rng.random(readings[7].shape) < 0.1] = np.nan
    last_cycle[[5, 8]] = np.nan
    expected = session.answer(readings, windows.lengths, last_cycle)
    return Golden(readings, windows.lengths, last_cycle, rounded(expected, cap=manifest.cap))


def _to_digits_of_sensors(readings: FloatArray, widths: FloatArray) -> FloatArray:
    """Round simulated readings to `SENSOR_BITS` binary digits, as many as a sensor gives.

    Readings of a column whose training range [F] is narrow beside that rounding stay as they are.
    """
    mantissa, exponent = np.frexp(readings)
    few = np.ldexp(np.rint(np.ldexp(mantissa, SENSOR_BITS)), exponent - SENSOR_BITS)
    return np.where(np.abs(few - readings) <= MOST_ROUNDED * widths, few, readings)


def _reopened(model: Path, manifest: Manifest) -> Session:
    """Open the written graph as a server does, and compare its manifest."""
    session = Session(model)
    found = Manifest.from_metadata(session.metadata, origin=model)
    DriftReference.from_metadata(session.metadata, found, origin=model)
    if found != manifest:
        raise InvalidBundle("the manifest read back from the file differs: this is a bug of the exporter")
    return session


def _version(checkpoint: Checkpoint) -> str:
    """Return the code's version with a digest of the weights, unique to the model."""
    return f"{checkpoint.facts['training']['code_version']}+{checkpoint.digest()[:8]}"
