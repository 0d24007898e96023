"""The exporter makes its graph smaller, and the answers stay as they are."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, checker, helper, numpy_helper

from export.to_onnx import STORED_SINGLE, _store_single

EXACT = np.arange(STORED_SINGLE) / 8


def graph_of(**constants):
    """A graph that gives each of these constants; those of float32 as they are, others in float64."""
    nodes = [helper.make_node("Identity", [name], [f"{name}.out"]) for name in constants]
    weights = [numpy_helper.from_array(values, name) for name, values in constants.items()]
    outputs = [
        helper.make_tensor_value_info(f"{each.name}.out", each.data_type, each.dims) for each in weights
    ]
    graph = helper.make_graph(nodes, "constants", [], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def answers(graph):
    return onnxruntime.InferenceSession(graph.SerializeToString()).run(None, {})


@pytest.mark.parametrize(
    ("constants", "stored"),
    [
        ({"a": EXACT}, {"a.single": TensorProto.FLOAT}),
        ({"a": EXACT / 3}, {"a": TensorProto.DOUBLE}),  # float32 would round it
        ({"a": EXACT[1:]}, {"a": TensorProto.DOUBLE}),  # a Cast takes more than it saves
        ({"a": EXACT.astype(np.int64)}, {"a": TensorProto.INT64}),
        ({"a": EXACT, "b": EXACT.astype(np.float32)}, {"b": TensorProto.FLOAT}),  # stored once
        (
            {"a": 0 * EXACT, "b": (0 * EXACT).astype(np.int32)},
            {"b": TensorProto.INT32, "a.single": TensorProto.FLOAT},
        ),
        (
            {"a": EXACT, "b": EXACT.astype(np.float32).reshape(2, -1)},
            {"b": TensorProto.FLOAT, "a.single": TensorProto.FLOAT},
        ),
    ],
)
def test_a_large_constant_that_float32_holds_is_stored_as_one_and_gives_the_same(constants, stored):
    graph = graph_of(**constants)
    before = answers(graph)

    _store_single(graph)

    checker.check_model(graph, full_check=True)
    assert {each.name: each.data_type for each in graph.graph.initializer} == stored
    for got, expected in zip(answers(graph), before, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
