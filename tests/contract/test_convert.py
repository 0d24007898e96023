"""The drift reference in a bundle, and bundles of earlier formats."""

import base64
import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from export.ageing import drift_reference
from export.bundle import FORMAT, METADATA_KEY, InvalidBundle
from export.drift_reference import REFERENCE_KEY, DriftReference
from export.handover import metadata_of
from export.seal import SIGNATURE, SUMS, read_bundle, write_sums
from export.session import Session, open_bundle
from model.simulation import simulate
from service.choices import ProviderChoice
from service.core.runtime import OnnxRuntime
from tests.commands import rul

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=[1, 2])
def older(copied, request):
    """The same bundle in an earlier format."""
    kept = {METADATA_KEY: json.dumps({**manifest_but_units(copied), "format": request.param})}
    if request.param == 2:  # it wrote the reference in base64
        reference = base64.b85decode(Session(copied.model).metadata[REFERENCE_KEY])
        kept[REFERENCE_KEY] = base64.b64encode(reference).decode()
    return with_metadata(copied, kept)


def graph_of(folder):
    graph = onnx.load(folder.model)
    del graph.metadata_props[:]
    return graph


def with_metadata(folder, metadata):
    graph = graph_of(folder)
    helper.set_model_props(graph, metadata)
    onnx.save(graph, folder.model)
    write_sums(folder.path)
    return folder


def manifest_but_units(folder):
    manifest = json.loads(Session(folder.model).metadata[METADATA_KEY])
    del manifest["degradation"]["units"]
    return manifest


def test_the_reference_in_a_bundle_is_the_one_that_follows_from_its_manifest(tiny_bundle):
    session, manifest = open_bundle(tiny_bundle)

    kept = DriftReference.from_metadata(session.metadata, manifest, origin=tiny_bundle.model)

    for name, value in dataclasses.asdict(drift_reference(manifest)).items():
        np.testing.assert_array_equal(getattr(kept, name), value, err_msg=name)


def test_a_bundle_of_an_earlier_format_is_refused_with_the_command_that_converts_it(older):
    with pytest.raises(
        InvalidBundle, match=f"bundle format [12], this version reads {FORMAT}: run `rul convert"
    ) as raised:
        OnnxRuntime.load(older, provider=ProviderChoice.CPU)

    assert f"`rul convert {older.path}`" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_converted_bundle_has_the_same_graph_manifest_and_golden_windows(older, tiny_bundle):
    golden = older.golden.read_bytes()

    result = rul("convert", older.path)

    assert result.exit_code == 0, result.exception
    assert f"bundle format {FORMAT}" in result.output
    assert graph_of(older) == graph_of(tiny_bundle)
    assert manifest_but_units(older) == manifest_but_units(tiny_bundle)
    OnnxRuntime.load(older, provider=ProviderChoice.CPU)
    for folder in (older, tiny_bundle):
        _, manifest = open_bundle(folder)
        assert Session(folder.model).metadata == metadata_of(manifest)
    assert older.golden.read_bytes() == golden
    assert sorted(file.name for file in older.path.iterdir()) == [
        "MODEL_CARD.md", "SHA256SUMS", "golden.npz", "model.onnx",
    ]  # fmt: skip


def test_simulated_units_of_a_converted_bundle_age_as_all_its_units_do_in_the_mean(older):
    rul("convert", older.path)

    _, manifest = open_bundle(older)
    (unit,) = manifest.degradation.units
    assert unit.life == round(manifest.degradation.life_quantiles[5])
    assert unit.z == manifest.degradation.z[: len(unit.z)]
    assert len(simulate(manifest, manifest.schema_of_columns, units=3, seed=0)) == 3


def test_a_bundle_of_this_format_is_not_converted(copied):
    before = copied.model.read_bytes()

    result = rul("convert", copied.path)

    assert isinstance(result.exception, InvalidBundle)
    assert "there is nothing to convert" in str(result.exception)
    assert copied.model.read_bytes() == before


def test_a_bundle_without_digests_is_refused_with_the_command_that_writes_them(copied, tiny_bundle):
    (copied.path / SUMS).unlink()

    with pytest.raises(InvalidBundle, match=f"SHA256SUMS is missing; .* `rul convert {copied.path}`"):
        read_bundle(copied)
    result = rul("convert", copied.path)

    assert result.exit_code == 0, result.exception
    assert (copied.path / SUMS).read_bytes() == (tiny_bundle.path / SUMS).read_bytes()


def test_a_bundle_whose_golden_windows_do_not_agree_is_not_converted(older):
    before, golden = older.model.read_bytes(), read_bundle(older).golden
    golden.expected["rul"] += 1
    golden.save(older.golden)
    write_sums(older.path)

    result = rul("convert", older.path)

    assert f"{older.golden}: golden rul" in str(result.exception)
    assert older.model.read_bytes() == before


@pytest.mark.parametrize("name", ["MODEL_CARD.md", "golden.npz", "model.onnx"])
def test_a_damaged_bundle_is_not_sealed_anew(older, name):
    with (older.path / name).open("ab") as file:
        file.write(b" ")
    before = (older.path / SUMS).read_bytes()

    result = rul("convert", older.path)

    assert f"{name}: its SHA-256 is not the one in {SUMS}" in str(result.exception)
    assert (older.path / SUMS).read_bytes() == before


def test_a_signature_of_the_files_before_does_not_stay(older):
    (older.path / SIGNATURE).write_bytes(b"0" * 64)

    result = rul("convert", older.path)

    assert "sign it again" in " ".join(result.output.split())
    assert not (older.path / SIGNATURE).exists()


def test_a_conversion_that_ends_between_two_files_can_be_repeated(older, monkeypatch):
    def stop(path, target):
        path.rename(target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", stop)
        rul("convert", older.path)
    with pytest.raises(InvalidBundle, match=f"run `rul convert {older.path}`"):
        read_bundle(older)

    assert rul("convert", older.path).exit_code == 0
    OnnxRuntime.load(older, provider=ProviderChoice.CPU)


@pytest.mark.parametrize(("name", "value"), [("noise", 1e308), ("life_quantiles", 0.0)])
def test_a_manifest_with_numbers_out_of_range_is_not_converted(older, name, value):
    manifest = json.loads(Session(older.model).metadata[METADATA_KEY])
    aged = manifest["degradation"]
    aged[name] = [value] * len(aged[name])

    result = rul("convert", with_metadata(older, {METADATA_KEY: json.dumps(manifest)}).path)

    assert isinstance(result.exception, InvalidBundle)
    assert f"degradation.{name}" in str(result.exception)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"format": 1}', '{"format": 2, "degradation": {"life_quantiles": [0, 0, 0, 0, 0, 1e999]}}'],
    ids=["no JSON", "no object", "no fields", "an endless life"],
)
def test_a_manifest_that_cannot_be_read_is_not_converted(copied, text):
    result = rul("convert", with_metadata(copied, {METADATA_KEY: text}).path)

    assert isinstance(result.exception, InvalidBundle)
