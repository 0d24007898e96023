"""The map of self-attention between cycles: an optional output of the graph, drawn."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from export.attention import map_of
from export.attention_picture import map_picture
from export.bundle import BundleFolder, InvalidBundle
from export.handover import export_bundle
from export.outputs import MAP
from export.probes import simulated_windows
from export.session import Session, open_bundle
from model.calibration import tensors
from model.checkpoint import Checkpoint
from model.domain import InvalidData
from service.choices import ProviderChoice
from service.core.runtime import OnnxRuntime
from tests.commands import rul, write_pumps
from tests.tiny_bundle import pumps

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def run(tiny_bundles):
    return tiny_bundles("selfattention").path.parent / "tiny-run"


@pytest.fixture(scope="module")
def mapped(run, tmp_path_factory):
    """The tiny bundle of `selfattention`, exported with its map."""
    folder = tmp_path_factory.mktemp("mapped") / "tiny"
    exported = rul("export", run, "--output", folder, "--with-map")
    assert exported.exit_code == 0, exported.exception
    return BundleFolder(folder)


def test_the_map_is_the_networks_and_makes_up_what_heads_attend_to(mapped, run):
    session, manifest = open_bundle(mapped)
    windows = simulated_windows(manifest, count=12, seed=1)
    given = windows.readings, windows.lengths, windows.last_cycle

    found = session.self_attention(*given)

    with torch.no_grad():
        expected = Checkpoint.load(run).network().eval()(*tensors(windows)).self_attention
    answers = session.answer(*given)
    valid = np.arange(found.shape[-1]) < windows.lengths[:, None]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    np.testing.assert_allclose(found.sum(-1)[:, 0][valid], 1.0, atol=1e-5)
    assert (found.transpose(0, 3, 1, 2)[~valid] == 0).all()
    np.testing.assert_allclose(
        np.einsum("bt,bhtk->bhk", answers["attention"], found), answers["head_attention"], atol=1e-5
    )


def test_the_map_is_only_in_graphs_that_were_asked_for_it_and_no_service_asks(mapped, tiny_bundles):
    plain = tiny_bundles("selfattention")
    runtime = OnnxRuntime.load(mapped, provider=ProviderChoice.CPU)
    windows = simulated_windows(runtime.manifest, count=2, seed=1)
    session, asked = runtime.session, []

    def watched(names, given):
        asked.extend(names)
        return session.run(names, given)

    runtime.session = SimpleNamespace(run=watched)
    runtime.run(windows.readings, windows.lengths, windows.last_cycle)

    assert "rul" in asked
    assert MAP not in asked
    assert Session(mapped.model).outputs == Session(plain.model).outputs
    assert not Session(plain.model).has_map
    with pytest.raises(InvalidBundle, match="export --with-map"):
        Session(plain.model).self_attention(windows.readings, windows.lengths, windows.last_cycle)


def test_a_graph_that_fails_in_its_map_is_an_invalid_bundle(mapped):
    session, manifest = open_bundle(mapped)
    windows = simulated_windows(manifest, count=2, seed=1)

    with pytest.raises(InvalidBundle, match="the graph fails, export it again"):
        session.self_attention(windows.readings[..., :1], windows.lengths, windows.last_cycle)


def test_a_network_without_self_attention_has_no_map_to_export(tiny_bundle, tmp_path):
    checkpoint = Checkpoint.load(tiny_bundle.path.parent / "tiny-run")

    with pytest.raises(InvalidBundle, match="'flagship' has no self-attention"):
        export_bundle(checkpoint, tmp_path / "tiny", with_map=True)


def test_a_picked_cycle_looks_where_its_row_says(mapped):
    session, manifest = open_bundle(mapped)
    unit = replace(pumps(units=1, seed=2)[0], failed=False)
    cycle = int(unit.cycles[-3])

    found = map_of(session, manifest, unit)

    looks = found.looks(cycle)
    assert list(looks) == ["mean", *map(str, range(manifest.heads))]
    np.testing.assert_array_equal(looks["1"], found.weights[1, -3])
    np.testing.assert_allclose(looks["mean"], found.weights[:, -3].mean(0))
    every, one, *_ = map_picture(manifest, found, cycle).axes
    np.testing.assert_allclose(every.images[0].get_array(), found.weights.mean(0))
    np.testing.assert_allclose([bar.get_height() for bar in one.patches], looks["mean"], rtol=1e-6)
    with pytest.raises(InvalidData, match="no cycle 1 in its last window"):
        found.looks(1)


def test_cycles_without_a_reading_have_their_place_in_the_map(mapped):
    session, manifest = open_bundle(mapped)
    unit = replace(pumps(units=1, seed=2)[0], failed=False)
    kept = np.delete(np.arange(len(unit)), [-3, -2])

    found = map_of(session, manifest, replace(unit, cycles=unit.cycles[kept], readings=unit.readings[kept]))

    assert found.cycles.tolist() == unit.cycles[-manifest.context :].tolist()
    assert found.weights.shape[1:] == (manifest.context, manifest.context)
    (image, *_), *_ = (axes.images for axes in map_picture(manifest, found, int(unit.cycles[-2])).axes)
    assert image.get_extent()[:2] == [unit.cycles[-manifest.context] - 0.5, unit.cycles[-1] + 0.5]


def test_the_picture_has_the_map_of_each_head_in_the_colours_of_their_mean(mapped):
    session, manifest = open_bundle(mapped)
    found = map_of(session, manifest, replace(pumps(units=1, seed=2)[0], failed=False))

    panels = {axes.get_title(): axes for axes in map_picture(manifest, found, int(found.cycles[0])).axes}

    for head, weights in enumerate(found.weights):
        (image,) = panels[f"head {head}"].images
        np.testing.assert_array_equal(image.get_array(), weights)
        assert image.get_clim() == panels["mean of heads"].images[0].get_clim() == (0.0, found.weights.max())


def test_the_command_prints_and_draws_it(mapped, tmp_path):
    data, _ = write_pumps(tmp_path, units=2, seed=21)
    asked = ("--input", data, "--unit", "pump-1", "--cycle", "40")
    out = tmp_path / "map.png"

    shown = rul("attention", mapped.path, *asked, "--output", out)

    assert shown.exit_code == 0, shown.exception
    assert "where cycle 40 of unit pump-1 looks" in shown.stdout.replace("\n", " ")
    assert imread(out).std() > 0.05
