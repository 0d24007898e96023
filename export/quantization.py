"""Quantization of learnt weights to int8, with a scale for each output channel.

The graph multiplies the weights by their scales before use. ONNX Runtime does this once, when it
opens the file, and computes in float32. So a window gets the same answer in every batch; quantized
readings would share one scale per batch (docs/performance.md). The quantized graph is checked against the
float graph on data that the user names. This module must not know torch or how a graph was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export.bundle import InvalidBundle, Manifest, Quantization
from export.evaluation_windows import labelled_windows, matching_fleet
from export.promises import measure_promises
from export.session import Session
from model.domain import FloatArray, WindowSet, capped_rul
from model.evaluation import root_mean_square_error

FEWEST_NUMBERS: Final = 256
"""Minimum size of a quantized weight; for smaller ones the scales and nodes need more space."""
LARGEST: Final = 127
"""Symmetric, without -128, so zero stays zero and no offset is needed."""
NOT_LEARNT: Final = "net.novelty."
"""Prefix of fitted statistics: novelty squares distances from them, so rounding would bias it."""

EXACT: Final = "/net/read_out/"
"""Prefix of the nodes that answer and divide the answer: all their copies of a weight must be the same."""
MOST_CYCLES_LOST: Final = 0.1
"""Of RMSE, by quantization, on data that the user names."""


@dataclass(frozen=True, slots=True, eq=False)
class _Weight:
    """A constant of the graph and the axes of one output channel."""

    constant: onnx.TensorProto
    values: FloatArray
    axes: tuple[int, ...]


def quantize_weights(source: Path, target: Path) -> int:
    """Write the graph with its larger weights quantized, and return their number.

    Inputs, outputs and metadata stay the same.
    """
    graph = onnx.load(str(source))
    found = list(_weights(graph.graph))
    nodes = [node for weight in found for node in _replace(graph.graph, weight)]
    kept = list(graph.graph.node)
    del graph.graph.node[:]
    graph.graph.node.extend([*nodes, *kept])
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, str(target))
    return len(found)


def rounded(values: FloatArray, axes: tuple[int, ...]) -> tuple[np.ndarray, FloatArray]:
    """Quantize values to int8 and return them with their float32 scales along `axes`.

    >>> whole, scale = rounded(np.array([[1.0, 127.0], [0.5, 0.0]], np.float32), (1,))
    >>> whole.tolist(), [round(float(s), 4) for s in scale.ravel()]
    ([[1, 127], [127, 0]], [1.0, 0.0039])
    """
    scale = (np.abs(values).max(axis=axes, keepdims=True) / LARGEST).astype(np.float32)
    scale[scale == 0] = 1.0
    return np.clip(np.round(values / scale), -LARGEST, LARGEST).astype(np.int8), scale


def _weights(graph: onnx.GraphProto) -> Iterator[_Weight]:
    """Yield the large learnt weights that a single node reads."""
    constants = {each.name: each for each in graph.initializer}
    readers = Counter(name for node in graph.node for name in node.input)
    for node in graph.node:
        if node.name.startswith(EXACT):
            continue
        for place in _places(node):
            constant = constants.get(node.input[place])
            if constant is None or readers[constant.name] > 1 or constant.name.startswith(NOT_LEARNT):
                continue
            values = numpy_helper.to_array(constant)
            if values.dtype == np.float32 and values.size >= FEWEST_NUMBERS:
                yield _Weight(constant, values, _channel(node, values.ndim))


def _places(node: onnx.NodeProto) -> tuple[int, ...]:
    """Return the indices of a node's weight inputs; an LSTM has input and recurrent weights."""
    return {"LSTM": (1, 2), "MatMul": (1,), "Gemm": (1,), "Conv": (1,)}.get(node.op_type, ())


def _channel(node: onnx.NodeProto, dimensions: int) -> tuple[int, ...]:
    """Return the axes that are summed over; each remaining index has its own scale."""
    if node.op_type == "LSTM":  # [directions, 4 * hidden, read]
        return (2,)
    if node.op_type == "Conv":  # [out, in, kernel]
        return tuple(range(1, dimensions))
    transposed = any(each.name == "transB" and each.i for each in node.attribute)
    return (dimensions - 1,) if transposed else (dimensions - 2,)


def _replace(graph: onnx.GraphProto, weight: _Weight) -> list[onnx.NodeProto]:
    """Replace a weight by int8 numbers and scales; return the nodes that restore it."""
    name = weight.constant.name
    whole, scale = rounded(weight.values, weight.axes)
    graph.initializer.remove(weight.constant)
    graph.initializer.append(numpy_helper.from_array(whole, f"{name}_int8"))
    graph.initializer.append(numpy_helper.from_array(scale, f"{name}_scale"))
    # Not DequantizeLinear: ONNX Runtime would run that node in each call.
    return [
        helper.make_node("Cast", [f"{name}_int8"], [f"{name}_whole"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{name}_whole", f"{name}_scale"], [name]),
    ]


@dataclass(frozen=True, slots=True, eq=False)
class CheckData:
    """Labelled windows and the files they come from."""

    windows: WindowSet
    data_name: str
    data_sha256: str


def read_check_data(manifest: Manifest, data: Sequence[Path], fleet: str | None) -> CheckData:
    """Read labelled windows from files; `fleet` defaults to the training fleet."""
    from model.readers import data_files, data_sha256, read_trajectories  # noqa: PLC0415 with PyArrow

    kind = matching_fleet(manifest, fleet or manifest.training.config["fleet"])
    files = data_files(data, kind)
    windows = labelled_windows(read_trajectories(data, kind), manifest)
    return CheckData(windows, ", ".join(file.name for file in files), data_sha256(files))


def measure_quantization(
    exact: Session, quantized: Session, manifest: Manifest, on: CheckData
) -> Quantization:
    """Measure the effect of quantization, for the manifest."""
    broken = [finding.promise for finding in measure_promises(quantized, manifest) if not finding.kept]
    if broken:
        raise InvalidBundle(
            f"{manifest.name} with int8 weights breaks: {'; '.join(broken)}; export it without --quantize"
        )
    before, after = (_rul(session, on.windows) for session in (exact, quantized))
    truth = capped_rul(on.windows.rul, cap=manifest.cap)
    found = Quantization(
        weights="int8",
        rmse=root_mean_square_error(after - truth),
        rmse_float=root_mean_square_error(before - truth),
        farthest=float(np.abs(after - before).max()),
        windows=len(on.windows),
        data_name=on.data_name,
        data_sha256=on.data_sha256,
    )
    if not found.rmse - found.rmse_float <= MOST_CYCLES_LOST:
        raise InvalidBundle(
            f"{manifest.name} with int8 weights has RMSE {found.rmse:.3f} cycles on {found.windows} windows "
            f"of {found.data_name}, {found.rmse_float:.3f} without; expected an increase of at most "
            f"{MOST_CYCLES_LOST:g}: export it without --quantize"
        )
    return found


def _rul(session: Session, windows: WindowSet) -> FloatArray:
    answers = session.answer_all(windows.readings, windows.lengths, windows.last_cycle)
    return answers["rul"].astype(np.float64)
