"""A bundle is opened, proved on this machine and run; a damaged one says what to do."""

import json
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from export.bundle import METADATA_KEY, InvalidBundle, Manifest
from export.golden import Golden
from export.outputs import output_shapes
from export.seal import read_bundle
from service.choices import ProviderChoice
from service.core.providers import CUDA
from service.core.runtime import OnnxRuntime, replay_golden
from tests.broken_bundles import field, manifest_with, sealed
from tests.fakes import FakeRuntime, fake_outputs, make_manifest


@pytest.fixture(scope="module")
def runtime(tiny_bundle):
    return OnnxRuntime.load(tiny_bundle, provider=ProviderChoice.CPU)


@pytest.mark.parametrize("name", ["rul", "attention", "novelty"])
def test_a_golden_answer_that_differs_is_named_with_both_values(runtime, tiny_bundle, name):
    golden = read_bundle(tiny_bundle).golden
    wrong = golden.expected[name].copy()
    wrong.flat[-1] += 0.5
    golden = replace(golden, expected={**golden.expected, name: wrong})

    with pytest.raises(InvalidBundle, match=rf"golden {name}\[.*\] is .* answers .*, at most"):
        replay_golden(runtime, golden, origin=tiny_bundle.golden)


def test_an_answer_that_is_no_number_does_not_agree():
    manifest = make_manifest()
    readings = np.ones((2, 4, 3), dtype=np.float32)
    lengths, last_cycle = np.array([4, 4]), np.array([4, 4], dtype=np.float32)
    outputs = fake_outputs(readings, lengths, manifest)
    expected = {name: getattr(outputs, name) for name in output_shapes(manifest, windows=2, cycles=4)}
    broken = FakeRuntime(manifest)
    broken.run = lambda *_: replace(outputs, novelty=np.array([np.nan, 0.5]))

    with pytest.raises(InvalidBundle, match="novelty"):
        replay_golden(broken, Golden(readings, lengths, last_cycle, expected), origin=Path("golden.npz"))


def without_the_last_column(fields):
    """Leave the last column out of all that a manifest says of columns."""
    degradation = fields["degradation"]
    of_regimes = [
        regime[name]
        for regime in fields["regimes"]
        for name in ("mean", "standard_deviation", "histogram_edges")
    ]
    of_units = [row for unit in degradation["units"] for row in unit["z"]]
    of_lives = (*degradation["z"], *degradation["spread"], degradation["noise"], *of_units)
    for of_columns in (fields["columns"], *of_regimes, *of_lives):
        of_columns.pop()


def test_a_graph_with_other_columns_than_its_manifest_is_refused(copied):
    sealed(manifest_with(without_the_last_column), copied.path)

    with pytest.raises(InvalidBundle, match=r"expected input readings to be .* do not belong together"):
        OnnxRuntime.load(copied, provider=ProviderChoice.CPU)


def test_a_graph_without_an_output_that_its_manifest_promises_is_refused(copied, runtime):
    sealed(field("heads", 0 if runtime.manifest.heads else 4), copied.path)

    with pytest.raises(InvalidBundle, match="expected the outputs"):
        OnnxRuntime.load(copied, provider=ProviderChoice.CPU)


@pytest.mark.skipif(CUDA in ort.get_available_providers(), reason="this ONNX Runtime has CUDA")
def test_a_gpu_that_is_requested_and_missing_is_an_error(tiny_bundle):
    with pytest.raises(InvalidBundle, match="RUL_PROVIDER=auto"):
        OnnxRuntime.load(tiny_bundle, provider=ProviderChoice.CUDA)


@pytest.mark.parametrize(
    "path",
    [
        *(("degradation", name) for name in ("life_quantiles", "noise", "rul", "z", "spread")),
        *(("degradation", name, 0) for name in ("z", "spread")),
        ("degradation", "units", 0, "z"),
        ("degradation", "units", 0, "z", 0),
        *(("regimes", 0, name) for name in ("centre", "mean", "standard_deviation", "histogram_edges")),
        ("regimes", 0, "histogram_edges", 0),
    ],
)
def test_a_manifest_with_a_list_that_is_too_long_is_refused(path):
    manifest = json.loads(make_manifest().to_metadata()[METADATA_KEY])
    values = reduce(getitem, path, manifest)
    values.append(values[-1] if values else 0.0)

    with pytest.raises(InvalidBundle, match="lists of regimes or degradation do not fit the columns"):
        Manifest.from_metadata({METADATA_KEY: json.dumps(manifest)}, origin=Path("model.onnx"))


def test_the_refusal_of_a_manifest_shows_no_control_character_of_a_name_in_it():
    manifest = json.loads(make_manifest().to_metadata()[METADATA_KEY])
    manifest["metrics"] = {"rmse\x1b[2J": None}

    with pytest.raises(InvalidBundle, match=r"metrics\.rmse\?\[2J: Input should be") as refusal:
        Manifest.from_metadata({METADATA_KEY: json.dumps(manifest)}, origin=Path("model.onnx"))

    assert str(refusal.value).isprintable()
