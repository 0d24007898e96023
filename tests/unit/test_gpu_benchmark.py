"""What `make bench-gpu` computes from what it measures."""

import onnxruntime as ort
import pytest

from export.session import open_bundle
from service.choices import ProviderChoice
from service.core.providers import CPU, CUDA
from tests.benchmarks.gpu import Results, markdown, measure_provider, useful
from tests.benchmarks.gpu_limits import flops_of, nodes_by_provider, profiled_nodes


def node(name, given, made, provider=CPU):
    shapes = [{"float": list(shape)} for shape in given]
    return {
        "op_name": name,
        "provider": provider,
        "input_type_shape": shapes,
        "output_type_shape": [{"float": list(made)}],
    }


@pytest.mark.parametrize(
    ("name", "given", "made", "flops"),
    [
        ("MatMul", [(2, 3), (3, 4)], (2, 4), 2 * 2 * 3 * 4),
        ("FusedGemm", [(5, 3)], (5, 4), 2 * 5 * 3 * 4),
        ("Conv", [(1, 3, 10), (8, 3, 5)], (1, 8, 10), 2 * 10 * 8 * 3 * 5),
        ("LSTM", [(6, 1, 3)], (6, 2, 1, 4), 2 * 6 * 2 * 4 * 4 * (3 + 4)),
        ("Add", [(2, 3), (2, 3)], (2, 3), 0),
    ],
)
def test_a_multiply_add_counts_as_two(name, given, made, flops):
    assert flops_of([node(name, given, made)]) == flops


def test_nodes_of_the_cpu_beside_a_gpu_are_named():
    nodes = [node("LSTM", [], (1,), CUDA), node("Add", [], (1,), CUDA), node("Shape", [], (1,))]

    assert nodes_by_provider(nodes) == f"{CUDA} 2, {CPU} 1 (Shape 1)"


def test_a_bundle_tells_the_nodes_that_run(shipped):
    _, manifest = open_bundle(shipped)

    nodes = profiled_nodes(shipped.model, manifest, [CPU])

    assert nodes_by_provider(nodes) == f"{CPU} {len(nodes)}"
    assert flops_of(nodes) > 0


def test_the_largest_useful_batch_is_the_smallest_that_comes_close_to_the_fastest():
    assert useful({1: 10.0, 2: 19.5, 4: 20.0, 8: 18.0}) == 2


@pytest.mark.skipif(CUDA in ort.get_available_providers(), reason="this ONNX Runtime has CUDA")
def test_a_provider_that_is_missing_is_named_with_its_reason(shipped):
    results = Results(rates={"cpu": {1: 1234.5}})

    measure_provider(str(shipped.path), ProviderChoice.CUDA, [1], 0.1, results)

    assert "| 1 | 1,234 |" in markdown(results)
    assert "Not measured: cuda: expected provider cuda" in markdown(results)
