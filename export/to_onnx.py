"""A trained network becomes one ONNX graph, with its manifest inside.

Everything from raw readings to answers is in the graph. This module must not know bundles'
folders, training or how the graph is served.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import onnx
import torch
from onnx import helper
from torch import Tensor, nn

from export.bundle import INPUTS, OUTPUTS
from model.network import RulNetwork

OPSET: Final = 17
SEQUENCE_LENS: Final = 4
"""Where ONNX' LSTM takes the lengths: its fifth input."""


def outputs_of(net: RulNetwork) -> tuple[str, ...]:
    """The outputs that this network's graph has, in order."""
    return tuple(name for name in OUTPUTS if name != "head_attention" or net.config.heads > 0)


def to_onnx(net: RulNetwork, path: Path) -> None:
    """Write the graph; batch and cycles stay dynamic."""
    net.eval()
    columns = net.config.columns
    readings = torch.zeros(3, min(net.config.context, 7), columns)
    lengths = torch.tensor([1, readings.shape[1], 2])
    last_cycle = torch.tensor([1.0, torch.nan, 40.0])
    names = outputs_of(net)
    per_cycle = {"attention": {0: "B", 1: "T"}, "contribution": {0: "B", 1: "T"}}
    per_cycle["head_attention"] = {0: "B", 2: "T"}
    axes: dict[str, dict[int, str]] = {
        "readings": {0: "B", 1: "T"},
        "lengths": {0: "B"},
        "last_cycle": {0: "B"},
        **{name: per_cycle.get(name, {0: "B"}) for name in names},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shapes that vary are what the dynamic axes declare
        torch.onnx.export(
            _Served(net).eval(),  # torch puts back the mode it finds here, in every part of it
            (readings, lengths, last_cycle),
            str(path),
            input_names=list(INPUTS),
            output_names=list(names),
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )
    graph = onnx.load(str(path))
    _declare_every_input(graph, columns)
    _give_lstms_the_lengths(graph)
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, str(path))


def write_metadata(path: Path, metadata: dict[str, str]) -> None:
    """Put texts into the ONNX file's metadata, in place of those that have the same keys."""
    graph = onnx.load(str(path))
    helper.set_model_props(graph, metadata)
    onnx.save(graph, str(path))


class _Served(nn.Module):
    """The network with a plain tuple of outputs, which is what the exporter names."""

    def __init__(self, net: RulNetwork) -> None:
        super().__init__()
        self.net = net

    def forward(self, readings: Tensor, lengths: Tensor, last_cycle: Tensor) -> tuple[Tensor, ...]:
        answers = self.net(readings, lengths, last_cycle)
        return tuple(getattr(answers, name) for name in outputs_of(self.net))


def _declare_every_input(graph: onnx.ModelProto, columns: int) -> None:
    """A network need not read every input; the contract has all of them, and the tracer drops some."""
    shapes = {"readings": ("B", "T", columns), "lengths": ("B",), "last_cycle": ("B",)}
    kinds = {"lengths": onnx.TensorProto.INT64}
    traced = {each.name: each for each in graph.graph.input}
    inputs = [
        traced.get(name)
        or helper.make_tensor_value_info(name, kinds.get(name, onnx.TensorProto.FLOAT), shapes[name])
        for name in INPUTS
    ]
    del graph.graph.input[:]
    graph.graph.input.extend(inputs)


def _give_lstms_the_lengths(graph: onnx.ModelProto) -> None:
    """Hand `lengths` to every LSTM, so that its backward direction starts at the last valid cycle.

    With that the plain layer answers as PyTorch's packed one does, and stays one fused node.
    """
    lstms = [node for node in graph.graph.node if node.op_type == "LSTM"]
    if not lstms:
        return
    cast = helper.make_node("Cast", ["lengths"], ["lengths_int32"], to=onnx.TensorProto.INT32)
    graph.graph.node.insert(0, cast)
    for node in lstms:
        node.input.extend([""] * (SEQUENCE_LENS + 1 - len(node.input)))
        node.input[SEQUENCE_LENS] = cast.output[0]
