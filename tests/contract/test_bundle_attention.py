"""A bundle's attention is measured on its graph: by bands, against typical readings, and for its card."""

import base64
import io

import numpy as np
import onnx
import pytest

from export.attention import asked, bundle_sensitivity, report_heads
from export.card import model_card
from export.drift_reference import REFERENCE_KEY, DriftReference
from export.evaluation_windows import spread_windows
from export.handover import shortened
from export.onnx_runtime import ort
from export.regime_readings import Typical, regimes_of
from export.session import open_bundle
from export.to_onnx import to_onnx
from model.calibration import length_bands, read_windows
from model.checkpoint import Checkpoint
from model.crossfit import Fold, attention_worth
from model.dataset import split_fold
from model.domain import Trajectory
from model.faithfulness import faithfulness_figures, measure_faithfulness
from model.networks import build_network, network_config
from model.reference import Regime, fit_reference
from model.regimes import find_regimes
from model.sensitivity import sensitivity_figures
from tests.tiny_bundle import CONFIG, FLEET, FOLDS, SMALL, pumps

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_regimes_in_a_manifest_are_those_that_training_found(tiny_bundle):
    _, manifest = open_bundle(tiny_bundle)
    units = pumps(units=8, seed=2)
    settings = np.concatenate([unit.readings for unit in units])[:, [0, 1]]
    trained = find_regimes(pumps(units=16, seed=11), FLEET.schema)

    found = regimes_of(manifest)

    np.testing.assert_allclose(found.scale, trained.scale, rtol=0.05)
    np.testing.assert_array_equal(found.of(settings), trained.of(settings))
    assert len(fit_reference(units, FLEET.schema).regimes) == len(found)


def test_the_regimes_in_a_manifest_are_those_of_the_graph_where_a_setting_is_a_code(tiny_bundle, tmp_path):
    rng, units = np.random.default_rng(3), pumps(units=12, seed=2)
    for unit in units:
        unit.readings[:, 0], unit.readings[:, 1] = (
            rng.integers(2, size=len(unit)),
            rng.uniform(0, 1000, len(unit)),
        )
        unit.readings[:, 2:] += unit.readings[:, :2] @ np.float32([[3.0], [1 / 300]])
    reference = fit_reference(units, FLEET.schema)
    config = network_config(
        FLEET, network="amnl", regimes=len(reference.regimes), units=len(units), options=SMALL["amnl"]
    )
    net = build_network(config)
    net.standardise.fit(reference)
    to_onnx(net, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx")
    (nearest,) = [node.output[0] for node in graph.graph.node if node.op_type == "ArgMin"]
    graph.graph.output.append(onnx.ValueInfoProto(name=nearest))
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    readings = np.concatenate([unit.readings for unit in units])[:, None]
    ones = np.ones(len(readings))
    feed = {"readings": readings, "lengths": ones.astype(np.int64), "last_cycle": ones.astype(np.float32)}
    regimes = [Regime(**shortened(regime.model_dump())) for regime in reference.regimes]
    manifest = open_bundle(tiny_bundle)[1].model_copy(update={"regimes": regimes})

    found = regimes_of(manifest).of_readings(readings, [0, 1])

    (used,) = session.run([nearest], feed)
    assert len(set(used.ravel())) == len(regimes) > 2
    np.testing.assert_array_equal(found, used)


def test_windows_are_spread_over_each_life_and_its_end_is_among_them(tiny_bundle):
    _, manifest = open_bundle(tiny_bundle)
    failed, running = pumps(units=2, seed=1)
    running = Trajectory(running.unit, running.cycles, running.readings, failed=False)

    windows = spread_windows([failed, running], manifest, per_unit=5)

    assert windows.unit.tolist() == [failed.unit] * 5 + [running.unit] * 5
    assert windows.last_cycle[[0, 4]].tolist() == [1.0, float(len(failed))]
    assert windows.rul[4] == 0.0
    assert np.isnan(windows.rul[5:]).all()
    np.testing.assert_array_equal(windows.readings[4], failed.readings[-manifest.context :])
    assert windows.lengths.tolist()[0] == 1


def test_a_bundle_is_held_against_its_own_bands(tiny_bundles):
    session, manifest = open_bundle(tiny_bundles("amnl"))
    windows = spread_windows(pumps(units=6, seed=5), manifest, per_unit=10)
    answers = session.answer_all(windows)

    (report,) = report_heads(answers, windows.lengths, manifest)

    band = manifest.entropy[0].bands[-1]
    assert report.band == pytest.approx((band.low, band.high), abs=1e-4)
    assert 0 <= report.collapsed + report.uniform < 0.5
    assert report.entropy_low <= report.entropy_ratio <= report.entropy_high


def test_a_bundles_answer_moves_more_where_more_attended_cycles_become_typical(tiny_bundle):
    session, manifest = open_bundle(tiny_bundle)
    units = pumps(units=6, seed=5)
    windows = spread_windows(units, manifest, per_unit=4)

    typical = Typical(manifest).of(windows.readings)
    found = measure_faithfulness(asked(session, manifest), windows, typical, draws=2)

    assert set(found.group) == {unit.unit for unit in units}
    assert all(np.isfinite(moves).all() for moves in found.hidden.values())
    assert found.hidden["attended"][-1].mean() > found.hidden["attended"][0].mean()
    assert (np.abs(found.agreement) <= 1).all()


def test_a_network_is_measured_as_its_graph_is(tiny_bundles):
    tiny_bundle = tiny_bundles("amnl")
    session, manifest = open_bundle(tiny_bundle)
    checkpoint = Checkpoint.load(tiny_bundle.path.parent / "tiny-run")
    units = pumps(units=16, seed=11)
    parts = split_fold(units, FLEET, fold=0, folds=FOLDS, seed=CONFIG.seed, truncations=CONFIG.truncations)
    net, windows = checkpoint.network(), parts.held_out

    measured = attention_worth(
        [Fold(net, windows, read_windows(net, windows), fit_reference(units, FLEET.schema))]
    )

    ask, typical = asked(session, manifest), Typical(manifest).of(windows.readings)
    found = faithfulness_figures(measure_faithfulness(ask, windows, typical, shares=(0.2,)))
    found |= sensitivity_figures(bundle_sensitivity(session, manifest, windows))
    assert set(found) - set(measured) == {"sensors"}  # this network has no contributions of sensors
    for name, figure in measured.items():
        assert figure.value == pytest.approx(found[name].value, abs=1e-4), name


def test_the_card_says_what_the_attention_is_worth_where_it_was_measured(tiny_bundles):
    tiny_bundle = tiny_bundles("amnl")
    _, manifest = open_bundle(tiny_bundle)
    without = manifest.model_copy(
        update={"metrics": {k: v for k, v in manifest.metrics.items() if not k.startswith("attention_")}}
    )

    card = model_card(manifest, sha256="")

    assert "Faithfulness of the attention" in card
    for title in ("agreement beyond place", "leak", "sudden wear", "moved by one cycle"):
        assert f"| {title} | " in card
    assert "| agreement of sensors |" not in card  # this network has no contributions of sensors
    assert f"{manifest.metrics['attention_hidden_20_over_last']:.2f} [" in card
    assert "Faithfulness of the attention" not in model_card(without, sha256="")


def test_a_trained_bundle_has_bands_for_the_attention_and_each_head(tiny_bundles):
    _, manifest = open_bundle(tiny_bundles("flagship"))

    assert len(manifest.entropy) == 1 + manifest.heads
    for reference in manifest.entropy:
        assert [band.shortest for band in reference.bands] == [
            low for low, _ in length_bands(manifest.context)
        ]
        assert all(band.low <= band.high for band in reference.bands)
    assert all(band.low < band.high for band in manifest.entropy[0].bands)


def test_the_drift_reference_of_a_bundle_without_bands_is_read(tiny_bundles):
    tiny_bundle = tiny_bundles("amnl")
    session, manifest = open_bundle(tiny_bundle)
    with np.load(io.BytesIO(base64.b85decode(session.metadata[REFERENCE_KEY]))) as arrays:
        stored = {name: arrays[name] for name in arrays.files}
    stored["entropy_edges"] = np.array([[0.4, 0.9]])
    older = io.BytesIO()
    np.savez_compressed(older, **stored)
    metadata = {REFERENCE_KEY: base64.b85encode(older.getvalue()).decode()}

    reference = DriftReference.from_metadata(metadata, manifest, origin=tiny_bundle.model)

    assert reference.entropy_edges.tolist() == [[[0.4, 0.9]]]
