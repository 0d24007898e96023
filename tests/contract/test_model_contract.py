"""Every promise of the model contract, on served graphs: tiny ones of every network and the shipped ones."""

import numpy as np
import pytest

from export.bundle import BUNDLED, BundleFolder
from export.golden import replay
from export.outputs import EXPLAINING, INPUTS, output_shapes
from export.probes import probe_windows
from export.promises import EXPLANATION_PROMISES, PROMISES, Probe, check_shapes, promises_of
from export.seal import read_bundle
from export.session import open_bundle
from model.domain import attention_entropy_ratio

SHIPPED = sorted(folder.name for folder in BUNDLED.iterdir() if (folder / "model.onnx").is_file())


TINY = [f"tiny {network}" for network in ("flagship", "amnl", "selfattention")]


@pytest.fixture(scope="module", params=[*TINY, *SHIPPED])
def folder(request, tiny_bundles):
    if request.param in TINY:
        return tiny_bundles(request.param.removeprefix("tiny "))
    return BundleFolder(BUNDLED / request.param)


@pytest.fixture(scope="module")
def opened(folder):
    return open_bundle(folder)


@pytest.fixture(scope="module")
def probe(opened):
    return Probe.of(*opened)


def test_fd001_ships():
    assert "fd001" in SHIPPED


def test_a_bundle_of_every_network_is_held_to_the_contract():
    from model.networks import NETWORKS

    assert [f"tiny {name}" for name in NETWORKS] == TINY


def test_entropy_has_a_reference_for_the_attention_and_for_each_head(opened):
    _, manifest = opened

    assert [each.head for each in manifest.entropy] == ["mean", *map(str, range(manifest.heads))]


def test_only_a_network_with_heads_answers_what_they_attend_to(probe):
    assert ("head_attention" in probe.answers) is (probe.manifest.heads > 0)


def test_a_graph_explains_readings_where_its_manifest_says_so(probe):
    from model.networks import network_class

    explains = network_class(probe.manifest.network).explains_readings

    assert probe.manifest.explains_readings is explains
    assert set(probe.answers) & EXPLAINING == (EXPLAINING if explains else set())


@pytest.mark.parametrize("promise", PROMISES + EXPLANATION_PROMISES, ids=lambda promise: promise.__name__)
def test_the_served_graph_keeps_its_promise(probe, promise):
    if promise not in promises_of(probe.manifest):
        pytest.skip("the network does not explain readings")

    finding = promise(probe)

    assert finding.kept, finding


def test_inputs_outputs_and_shapes_are_those_of_the_contract(opened):
    session, manifest = opened

    check_shapes(session, manifest)

    assert session.inputs == INPUTS
    assert session.outputs == tuple(output_shapes(manifest, windows=1, cycles=1))


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
@pytest.mark.parametrize("share", ["one cycle", "half the context", "the context"])
def test_batch_and_cycles_are_dynamic(opened, batch, share):
    session, manifest = opened
    cycles = {"one cycle": 1, "half the context": manifest.context // 2, "the context": manifest.context}[
        share
    ]
    windows = probe_windows(manifest)

    answers = session.answer(
        windows.readings[:batch, :cycles],
        np.minimum(windows.lengths[:batch], cycles),
        windows.last_cycle[:batch],
    )

    shapes = {name: answer.shape for name, answer in answers.items()}
    assert shapes == output_shapes(manifest, windows=batch, cycles=cycles)


def test_parity_that_was_measured_at_export_is_within_the_contract(opened):
    _, manifest = opened

    assert manifest.parity.rul_cycles <= 1e-4
    assert manifest.parity.attention <= 1e-5


def test_golden_windows_answer_as_when_they_were_exported(folder, opened):
    session, manifest = opened
    golden = read_bundle(folder).golden

    findings = replay(golden, session.answer(golden.readings, golden.lengths, golden.last_cycle), manifest)

    assert [finding for finding in findings if not finding.kept] == []


def test_novelty_tells_training_like_windows_from_broken_ones(probe):
    plausible = probe.answers["novelty"][:48]
    stuck = probe.windows.readings[:1].copy()
    stuck[:] = 1e6

    broken = probe.session.answer(stuck, probe.windows.lengths[:1], probe.windows.last_cycle[:1])["novelty"]

    assert np.median(plausible) < 2
    assert broken[0] > 3 * np.median(plausible)


def test_each_column_may_be_missing_and_the_answer_stays_near(probe):
    """Trained for, so no single column decides: on plausible windows the answer moves, not jumps."""
    whole = probe.windows.take(np.arange(8))
    expected = probe.session.answer(whole.readings, whole.lengths, whole.last_cycle)["rul"]
    moved = []
    for column in range(whole.readings.shape[2]):
        readings = whole.readings.copy()
        readings[:, :, column] = np.nan

        got = probe.session.answer(readings, whole.lengths, whole.last_cycle)["rul"]

        moved.append(np.abs(got - expected).mean())
    assert max(moved) < 0.3 * probe.manifest.cap


def test_the_median_entropy_of_plausible_windows_lies_in_the_reference_band(probe):
    reference = probe.manifest.entropy[0]
    long = probe.windows.lengths[:48] > 5

    ratio = attention_entropy_ratio(probe.answers["attention"][:48], probe.windows.lengths[:48])[long]

    assert reference.low < reference.median < reference.high
    assert reference.low <= np.median(ratio) <= reference.high


def test_a_bundle_is_small_enough_for_the_repository(folder):
    assert sum(file.stat().st_size for file in folder.path.iterdir()) < 5e6
