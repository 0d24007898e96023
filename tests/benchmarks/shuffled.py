"""A bundle with an untrained network: the weights of its layers are shuffled within their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from export.bundle import BundleFolder, Manifest
from export.handover import golden_windows
from export.seal import write_sums
from export.session import Session
from model.domain import FloatArray

LAYERS: Final = {"Conv", "Gemm", "LSTM", "MatMul"}


def shuffled_bundle(source: BundleFolder, folder: Path, *, seed: int) -> BundleFolder:
    """Write a bundle with shuffled weights and matching golden windows."""
    graph = onnx.load(str(source.model))
    rng = np.random.default_rng(seed)
    tensors = {each.name: numpy_helper.to_array(each) for each in graph.graph.initializer}
    chosen = layer_weights(graph, tensors)
    for weights in graph.graph.initializer:
        if weights.name in chosen:
            values = tensors[weights.name]
            mixed = rng.permutation(values.ravel()).reshape(values.shape)
            weights.CopyFrom(numpy_helper.from_array(mixed, weights.name))
    folder.mkdir(parents=True)
    onnx.save(graph, str(folder / "model.onnx"))
    session = Session(folder / "model.onnx")
    golden_windows(session, Manifest.from_metadata(session.metadata, origin=folder)).save(
        folder / "golden.npz"
    )
    write_sums(folder)
    return BundleFolder(folder)


def layer_weights(graph: onnx.ModelProto, tensors: Mapping[str, FloatArray]) -> set[str]:
    """Name the weights of convolution, LSTM, attention and the layers of the read-out, but not of its head.

    The graph has the head and the mix of pools twice; if they were shuffled, contributions would not add up,
    and the service would refuse the bundle. Novelty is not changed.
    """
    nodes = graph.graph.node
    used = {name for node in nodes if node.op_type in LAYERS for name in node.input}
    used |= {node.input[0] for node in nodes if node.op_type == "Cast" and node.output[0] in used}
    found = {name: tensors[name] for name in used & tensors.keys() if "novelty" not in name}
    return {name for name, values in found.items() if values.ndim > 1 and not _has_twin(name, tensors)}


def _has_twin(name: str, tensors: Mapping[str, FloatArray]) -> bool:
    turned = _scaled(tensors[name].T)
    return any(
        other != name and twin.size == turned.size and np.allclose(_scaled(twin), turned)
        for other, twin in tensors.items()
    )


def _scaled(weights: FloatArray) -> FloatArray:
    """Divide by the largest weight, because a copy may be multiplied by the cap."""
    return weights.ravel() / np.abs(weights).max(initial=1e-30)
