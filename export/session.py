"""In-process session of an exported graph, with the options of the service.

Export and evaluation use it; the service has its own runtime. This module must not know training
or torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from export.arrays import one_line
from export.bundle import BundleFolder, InvalidBundle, Manifest
from export.golden import Golden, replay
from export.onnx_runtime import ort, session_options
from export.outputs import INPUTS, MAP, output_names
from export.seal import Contents, read_bundle, read_file
from model.dataset import AnyWindows
from model.domain import FloatArray, IntArray, WindowSet

AT_ONCE: Final = 64


class Session:
    """ONNX Runtime session with one thread and without spinning."""

    def __init__(self, path: Path, stored: bytes | None = None) -> None:
        """Open a graph; `stored` is the content of the file, if it is already read."""
        self._path: Final = path
        stored = read_file(path) if stored is None else stored
        try:
            self._session: Any = ort.InferenceSession(
                stored, session_options(), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors share no other root
            raise InvalidBundle(
                f"{path}: ONNX Runtime cannot open it, export it again: {one_line(error)}"
            ) from error
        self.inputs: Final = tuple(each.name for each in self._session.get_inputs())
        every = tuple(each.name for each in self._session.get_outputs())
        self.outputs: Final = tuple(name for name in every if name != MAP)
        self.has_map: Final = MAP in every
        self.metadata: Final[dict[str, str]] = self._session.get_modelmeta().custom_metadata_map

    def answer(
        self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray
    ) -> dict[str, FloatArray]:
        """Run one batch: float32 [B, T, F], int64 [B], float32 [B] -> outputs by name.

        Raises:
            InvalidBundle: the graph fails.
        """
        return self._run(self.outputs, readings, lengths, last_cycle)

    def self_attention(self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> FloatArray:
        """Return where each cycle looks, [B, H, T, T]: query, then key.

        Raises:
            InvalidBundle: the graph has no such output, or fails.
        """
        if not self.has_map:
            raise InvalidBundle(
                "this bundle has no map of its cycles: train --network selfattention, export --with-map"
            )
        return self._run([MAP], readings, lengths, last_cycle)[MAP]

    def answer_all(self, windows: WindowSet) -> dict[str, FloatArray]:
        """Run any number of windows in batches."""
        return self.answer_some(windows, np.arange(len(windows)), self.outputs)

    def answer_some(
        self, windows: AnyWindows, which: IntArray, names: Sequence[str]
    ) -> dict[str, FloatArray]:
        """Run the windows of these indices in batches, and keep these outputs."""
        parts: list[dict[str, FloatArray]] = []
        for start in range(0, len(which), AT_ONCE):
            part = windows.take(which[start : start + AT_ONCE])
            answers = self.answer(part.readings, part.lengths, part.last_cycle)
            parts.append({name: answers[name] for name in names})
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def _run(
        self, names: Sequence[str], readings: FloatArray, lengths: IntArray, last_cycle: FloatArray
    ) -> dict[str, FloatArray]:
        feed = {"readings": readings, "lengths": lengths, "last_cycle": last_cycle}
        try:
            answers = self._session.run([*names], feed)
        except Exception as error:
            raise InvalidBundle(
                f"{self._path}: the graph fails, export it again: {one_line(error)}"
            ) from error
        return dict(zip(names, answers, strict=True))


def open_bundle(folder: BundleFolder, contents: Contents | None = None) -> tuple[Session, Manifest]:
    """Open a bundle's graph, read its manifest and replay its golden windows.

    `contents` is what was read from the bundle's files, if they are already read.

    Raises:
        InvalidBundle: as `read_bundle` and `open_contents`, or an answer differs from the exporter's.
    """
    session, manifest, golden = open_contents(folder, contents or read_bundle(folder))
    got = session.answer(golden.readings, golden.lengths, golden.last_cycle)
    for finding in replay(golden, got, manifest):
        if not finding.kept:
            raise InvalidBundle(f"{folder.golden}: {finding}: export the model again")
    return session, manifest


def open_contents(folder: BundleFolder, contents: Contents) -> tuple[Session, Manifest, Golden]:
    """Open what was read from a bundle's files, and check that graph, manifest and golden windows fit.

    Raises:
        InvalidBundle: they do not, or the graph cannot be opened.
    """
    session = Session(folder.model, contents.model)
    manifest = Manifest.from_metadata(session.metadata, origin=folder.model)
    outputs = output_names(heads=manifest.heads, explains_readings=manifest.explains_readings)
    for kind, got, expected in (("inputs", session.inputs, INPUTS), ("outputs", session.outputs, outputs)):
        if {*got} != {*expected}:
            raise InvalidBundle(
                f"{folder.model}: graph {kind}: expected {', '.join(expected)}, got "
                f"{one_line(ValueError(', '.join(got)))}, export it again"
            )
    contents.golden.check(manifest, origin=folder.golden)
    return session, manifest, contents.golden
