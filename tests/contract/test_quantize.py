"""`rul export --quantize`: smaller files that keep every promise, and a refusal where answers suffer."""

import dataclasses
import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.bundle import METADATA_KEY, BundleFolder
from export.handover import export_bundle
from export.probes import simulated_windows
from export.promises import measure_promises
from export.quantization import quantize_weights, rounded
from export.session import Session, open_bundle
from model.checkpoint import Checkpoint
from model.domain import RulError
from service.choices import ProviderChoice
from service.core.runtime import OnnxRuntime
from tests.commands import rul, write_pumps
from tests.tiny_bundle import make_tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_tiny_run(tmp_path_factory.mktemp("run"), network="amnl", convolution=32, hidden=32)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Options that name pumps which the run has not seen."""
    file, fleet = write_pumps(tmp_path_factory.mktemp("data"), units=6, seed=12)
    return "--data", file, "--fleet", fleet


@pytest.fixture(scope="module")
def quantized(run, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("bundles") / "small"
    result = rul("export", run, "--out", out, "--quantize", *data)
    assert result.exit_code == 0, result.exception
    return BundleFolder(out)


def fragile(run, folder):
    """The same network, where an input that is always zero has an enormous weight: int8 loses the others."""
    checkpoint = Checkpoint.load(run)
    weights = {name: weight.clone() for name, weight in checkpoint.weights.items()}
    convolution, lstm = "frontend.second.convolution", "frontend.recurrent.lstm"
    weights[f"{convolution}.weight"][0], weights[f"{convolution}.bias"][0] = 0.0, -1.0
    weights[f"{lstm}.weight_ih_l0"][:, 0] = 1e6
    dataclasses.replace(checkpoint, weights=weights).save(folder)
    return folder


def product(weight, *, operator="MatMul", **attributes):
    """A graph of one node that multiplies by a weight, in a file's worth of protobuf."""
    node = helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", None])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_quantized_bundle_is_smaller_and_passes_its_check(run, quantized, tmp_path):
    export_bundle(Checkpoint.load(run), tmp_path / "exact")
    checked = rul("check", quantized.path)

    assert checked.exit_code == 0, checked.exception
    assert "int8 weights" in checked.output
    assert quantized.model.stat().st_size < 0.8 * BundleFolder(tmp_path / "exact").model.stat().st_size


def test_the_manifest_and_the_card_say_that_weights_are_quantized(quantized, data):
    _, manifest = open_bundle(quantized)
    card = (quantized.path / "MODEL_CARD.md").read_text(encoding="utf-8")

    found = manifest.quantized
    assert found is not None
    assert (found.weights, found.data_name, found.windows) == ("int8", "pumps.csv", 120)
    assert found.rmse - found.rmse_float <= 0.1
    assert 0 < found.farthest < 5
    assert manifest.version.endswith(".int8")
    assert OnnxRuntime.load(quantized, provider=ProviderChoice.CPU).manifest == manifest
    assert "quantized to int8" in card
    assert "--quantize --data pumps.csv" in card


def test_the_manifest_of_a_float_bundle_does_not_speak_of_quantization(tiny_bundle):
    session, manifest = open_bundle(tiny_bundle)

    assert manifest.quantized is None
    assert "quantized" not in json.loads(session.metadata[METADATA_KEY])


def test_it_is_refused_where_accuracy_falls_and_nothing_is_written(run, data, tmp_path):
    source = fragile(run, tmp_path / "run")

    result = rul("export", source, "--out", tmp_path / "out" / "tiny", "--quantize", *data)

    assert isinstance(result.exception, RulError)
    assert "expected an increase of at most 0.1: export it without --quantize" in str(result.exception)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("options", [["--quantize"], ["--data", "pumps.csv"]])
def test_quantize_and_data_go_together(run, tmp_path, options):
    result = rul("export", run, "--out", tmp_path / "tiny", *options)

    assert result.exit_code == 2
    assert not (tmp_path / "tiny").exists()


def test_without_a_fleet_the_one_that_trained_is_sought(run, data, tmp_path):
    result = rul("export", run, "--out", tmp_path / "tiny", "--quantize", *data[:2])

    assert "no fleet 'pumps'" in str(result.exception)


@pytest.mark.parametrize("network", ["amnl", "selfattention"])
def test_the_networks_of_the_texts_keep_every_promise_too(network, tiny_bundles, tmp_path):
    _, manifest = open_bundle(tiny_bundles(network))

    count = quantize_weights(tiny_bundles(network).model, tmp_path / "model.onnx")

    assert count > 0
    assert [f for f in measure_promises(Session(tmp_path / "model.onnx"), manifest) if not f.kept] == []


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (1, 2)])
def test_no_weight_moves_by_more_than_half_a_step_of_its_channel(axes):
    values = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    values[0] *= 1000

    whole, scale = rounded(values, axes)

    assert whole.dtype == np.int8
    assert (np.abs(whole * scale - values) <= scale * 0.5001).all()


def test_a_channel_of_zeros_stays_zero():
    whole, scale = rounded(np.zeros((2, 3), np.float32), (1,))

    np.testing.assert_array_equal(whole * scale, 0.0)


@pytest.mark.parametrize(
    ("node", "shape", "channels"),
    [
        ({"operator": "MatMul"}, (32, 16), (1, 16)),
        ({"operator": "Gemm"}, (32, 16), (1, 16)),
        ({"operator": "Gemm", "transB": 1}, (16, 32), (16, 1)),
    ],
)
def test_each_output_channel_has_its_own_scale(tmp_path, node, shape, channels):
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    onnx.save(product(weight, **node), tmp_path / "float.onnx")

    count = quantize_weights(tmp_path / "float.onnx", tmp_path / "int8.onnx")

    stored = {each.name: each for each in onnx.load(tmp_path / "int8.onnx").graph.initializer}
    assert count == 1
    assert tuple(stored["w_scale"].dims) == channels
    assert stored["w_int8"].data_type == TensorProto.INT8


def test_a_small_weight_stays_as_it_is(tmp_path):
    onnx.save(product(np.ones((32, 2), np.float32)), tmp_path / "float.onnx")

    assert quantize_weights(tmp_path / "float.onnx", tmp_path / "int8.onnx") == 0


def test_onnx_runtime_opens_the_file_with_the_weights_already_multiplied(quantized, tmp_path):
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "opened.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(str(quantized.model), options, providers=["CPUExecutionProvider"])

    opened = onnx.load(tmp_path / "opened.onnx").graph
    assert not [each.name for each in opened.initializer if each.data_type == TensorProto.INT8]


def test_distances_of_novelty_are_not_rounded(tiny_bundles, tmp_path):
    tiny_bundle = tiny_bundles("amnl")
    session, manifest = open_bundle(tiny_bundle)
    quantize_weights(tiny_bundle.model, tmp_path / "model.onnx")
    windows = simulated_windows(manifest, count=32, seed=1)
    asked = (windows.readings, windows.lengths, windows.last_cycle)

    exact, whole = session.answer(*asked), Session(tmp_path / "model.onnx").answer(*asked)

    np.testing.assert_array_equal(whole["novelty"], exact["novelty"])
    assert np.abs(whole["rul"] - exact["rul"]).max() > 0
