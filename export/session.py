"""In-process session of an exported graph, with the options of the service.

Export and evaluation use it; the service has its own runtime. This module must not know training
or torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from export.bundle import BundleFolder, InvalidBundle, Manifest
from export.outputs import MAP
from model.domain import FloatArray, IntArray

AT_ONCE: Final = 64


class Session:
    """ONNX Runtime session with one thread and without spinning."""

    def __init__(self, path: Path) -> None:
        """Open a graph."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session: Any = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors share no other root
            raise InvalidBundle(f"{path}: ONNX Runtime cannot open it, export it again: {error}") from error
        self.inputs: Final = tuple(each.name for each in self._session.get_inputs())
        every = tuple(each.name for each in self._session.get_outputs())
        self.outputs: Final = tuple(name for name in every if name != MAP)
        self.has_map: Final = MAP in every
        self.metadata: Final[dict[str, str]] = self._session.get_modelmeta().custom_metadata_map

    def answer(
        self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray
    ) -> dict[str, FloatArray]:
        """Run one batch: float32 [B, T, F], int64 [B], float32 [B] -> outputs by name."""
        answers = self._session.run(
            list(self.outputs), {"readings": readings, "lengths": lengths, "last_cycle": last_cycle}
        )
        return dict(zip(self.outputs, answers, strict=True))

    def self_attention(self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> FloatArray:
        """Return where each cycle looks, [B, H, T, T]: query, then key.

        Raises:
            InvalidBundle: the graph has no such output.
        """
        if not self.has_map:
            raise InvalidBundle(
                "this bundle has no map of its cycles: train --network selfattention, export --with-map"
            )
        feed = {"readings": readings, "lengths": lengths, "last_cycle": last_cycle}
        return self._session.run([MAP], feed)[0]

    def answer_all(
        self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray
    ) -> dict[str, FloatArray]:
        """Run any number of windows in batches."""
        parts = [
            self.answer(readings[rows], lengths[rows], last_cycle[rows])
            for rows in (slice(start, start + AT_ONCE) for start in range(0, len(lengths), AT_ONCE))
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.outputs}


def open_bundle(folder: BundleFolder) -> tuple[Session, Manifest]:
    """Open a bundle's graph and read its manifest."""
    session = Session(folder.model)
    return session, Manifest.from_metadata(session.metadata, origin=folder.model)
