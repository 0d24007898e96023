"""Conversion of a trained network to one ONNX graph, from raw readings to answers.

This module must not know the folders of bundles, training or serving.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from export.outputs import AXES, INPUTS, MAP, output_names
from model.network import RulNetwork

OPSET: Final = 17
FIRST_STATE: Final = 5
"""Index of the input of ONNX' LSTM that takes the first state."""
MODULE: Final = "/net/"
"""The exporter's prefix of node names."""
FIRST_OUTPUT: Final = "_output_0"
"""The exporter's suffix of a node's first output."""
STORED_SINGLE: Final = 1000
"""Minimum size of a constant for a Cast."""


def to_onnx(net: RulNetwork, path: Path, *, with_map: bool = False) -> None:
    """Write the graph of a network, with dynamic batch and cycles; `with_map` adds `MAP`."""
    readings = torch.zeros(3, min(net.config.context, 7), net.config.columns)
    lengths = torch.tensor([1, readings.shape[1], 2])
    last_cycle = torch.tensor([1.0, torch.nan, 40.0])
    names = output_names(heads=net.config.heads, explains_readings=net.explains_readings)
    names += (MAP,) if with_map else ()
    every = AXES | {MAP: "BHTT"}
    axes = {name: {at: a for at, a in enumerate(every[name]) if a in "BT"} for name in names}
    axes |= {"readings": {0: "B", 1: "T"}, "lengths": {0: "B"}, "last_cycle": {0: "B"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of the shapes that the dynamic axes declare
        torch.onnx.export(
            _Served(net, names).eval(),  # the exporter restores the mode of this module in every part
            (readings, lengths, last_cycle),
            str(path),
            input_names=list(INPUTS),
            output_names=list(names),
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )
    graph = onnx.load(str(path))
    _declare_last_cycle(graph)
    _start_lstms_at_zero(graph)
    _transpose_lstms_once(graph)
    _drop_unused(graph)
    _share_constants(graph)
    _shorten_names(graph)
    _store_single(graph)
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, str(path))


def write_metadata(path: Path, metadata: dict[str, str]) -> None:
    """Set keys of an ONNX file's metadata."""
    graph = onnx.load(str(path))
    helper.set_model_props(graph, metadata)
    onnx.save(graph, str(path))


class _Served(nn.Module):
    """Network with a plain tuple of outputs, as the exporter expects."""

    def __init__(self, net: RulNetwork, names: tuple[str, ...]) -> None:
        super().__init__()
        self.net, self.names = net, names

    def forward(self, readings: Tensor, lengths: Tensor, last_cycle: Tensor) -> tuple[Tensor, ...]:
        answers = self.net(readings, lengths, last_cycle)
        return tuple(getattr(answers, name) for name in self.names)


def _declare_last_cycle(graph: onnx.ModelProto) -> None:
    """Declare the input `last_cycle` of a network that ignores it: the tracer drops it."""
    name = "last_cycle"
    if name not in {each.name for each in graph.graph.input}:
        graph.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ("B",)))


def _start_lstms_at_zero(graph: onnx.ModelProto) -> None:
    """Remove the first states of LSTMs, which are 0 by default; `_drop_unused` drops what makes them."""
    for node in graph.graph.node:
        if node.op_type == "LSTM":
            del node.input[FIRST_STATE - 1 :]  # with the lengths, which are empty


def _transpose_lstms_once(graph: onnx.ModelProto) -> None:
    """Order batch and directions of each LSTM's output by one Transpose instead of two.

    The exporter writes [T, D, B, H] -> [T, B, D, H] -> [T, B, DH] -> [B, T, DH]; between layers of a stack
    without the last step.
    """
    reader = {node.input[0]: node for node in graph.graph.node if node.input}
    for lstm in [node for node in graph.graph.node if node.op_type == "LSTM"]:
        first = reader[lstm.output[0]]
        joined = reader[first.output[0]]
        last = reader[joined.output[0]]
        if last.op_type != "Transpose":
            continue
        first.attribute[0].ints[:] = [2, 0, 1, 3]
        joined.output[:] = last.output
        graph.graph.node.remove(last)


def _drop_unused(graph: onnx.ModelProto) -> None:
    """Drop nodes with unused results, such as first states of LSTMs: ONNX Runtime would compute them."""
    read = {each.name for each in graph.graph.output}
    for node in reversed(graph.graph.node):
        if read.isdisjoint(node.output):
            graph.graph.node.remove(node)
        else:
            read.update(node.input)


def _share_constants(graph: onnx.ModelProto) -> None:
    """Keep one of the constants that are equal: the exporter writes one for every use."""
    first: dict[bytes, str] = {}
    same: dict[str, str] = {}
    for node in graph.graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        if node.op_type == "Constant":
            same[node.output[0]] = first.setdefault(node.attribute[0].SerializeToString(), node.output[0])
    kept = [node for node in graph.graph.node if same.get(node.output[0], node.output[0]) == node.output[0]]
    del graph.graph.node[:]
    graph.graph.node.extend(kept)


def _shorten_names(graph: onnx.ModelProto) -> None:
    """Give a node and its first output the same name, as in the network: saves 16 kB."""

    def short(name: str) -> str:
        return name.removesuffix(FIRST_OUTPUT).removeprefix(MODULE)

    for node in graph.graph.node:
        node.name = short(node.name)
        node.input[:] = map(short, node.input)
        node.output[:] = map(short, node.output)


def _store_single(graph: onnx.ModelProto) -> None:
    """Store float64 constants that float32 holds exactly as float32, under a Cast: half of the bytes.

    Those that the graph has in float32 too are stored once. ONNX Runtime computes such a Cast once, when it
    loads the graph.
    """
    stored = {_content(each): each.name for each in graph.graph.initializer}
    for weight in list(graph.graph.initializer):
        values = numpy_helper.to_array(weight)
        single = numpy_helper.from_array(values.astype(np.float32), f"{weight.name}.single")
        is_single = (numpy_helper.to_array(single) == values).all()
        if values.dtype != np.float64 or values.size < STORED_SINGLE or not is_single:
            continue
        name = stored.get(_content(single), single.name)
        cast = helper.make_node("Cast", [name], [weight.name], to=onnx.TensorProto.DOUBLE)
        graph.graph.node.insert(0, cast)
        graph.graph.initializer.remove(weight)
        if name == single.name:
            graph.graph.initializer.append(single)


def _content(constant: onnx.TensorProto) -> tuple[int, tuple[int, ...], bytes]:
    return constant.data_type, tuple(constant.dims), constant.raw_data
