import dataclasses
from itertools import count

import numpy as np
import onnx
import pytest
import torch

from export.bundle import BundleFolder, InvalidBundle
from export.card import model_card
from export.golden import ROUNDING, Finding, replay
from export.handover import export_bundle
from export.outputs import OUTPUTS
from export.parity import measure_parity
from export.probes import probe_windows
from export.promises import check_shapes, measure_promises
from export.seal import SUMS, read_bundle
from export.session import open_bundle
from model.checkpoint import Checkpoint
from model.outputs import CannotWrite
from tests.commands import rul
from tests.tiny_bundle import CONFIG, make_tiny_bundle, pumps

pytestmark = pytest.mark.usefixtures("one_thread")

PROBABILITIES = "probabilities: in 0..1, sum to 1, rise with the horizon"
CALLS = count()
HASTY = dataclasses.replace(CONFIG, steps=6)
"""For bundles whose promises count, not their answers."""


@pytest.fixture(scope="module")
def checkpoint(tiny_bundle):
    return Checkpoint.load(tiny_bundle.path.parent / "tiny-run")


@pytest.fixture
def manifest(tiny_bundle):
    return open_bundle(tiny_bundle)[1]


def replayed(bundle):
    """Replay a bundle's golden windows; return the findings."""
    session, manifest = open_bundle(bundle)
    golden = read_bundle(bundle).golden
    answers = session.answer(golden.readings, golden.lengths, golden.last_cycle)
    return [*replay(golden, answers, manifest)]


def findings(bundle):
    """Replay the golden windows and measure every promise; return the findings."""
    return [*replayed(bundle), *measure_promises(*open_bundle(bundle))]


def broken(session, manifest):
    return [finding.promise for finding in measure_promises(session, manifest) if not finding.kept]


def test_a_bundle_holds_a_graph_golden_windows_and_a_card(tiny_bundle):
    files = {file.name: file.stat().st_size for file in tiny_bundle.path.iterdir()}

    assert set(files) == {"model.onnx", "golden.npz", "MODEL_CARD.md", "SHA256SUMS"}
    assert sum(files.values()) < 5e6


def test_the_manifest_in_the_graph_is_what_training_recorded(manifest, checkpoint):
    assert manifest.training.config["steps"] == checkpoint.facts["training"]["config"]["steps"]
    assert manifest.schema_of_columns.names[0] == "load"
    assert manifest.baseline == pytest.approx(float(checkpoint.weights["baseline"]))
    assert len(manifest.regimes) == 2


def test_the_graph_holds_no_matrix_twice(tiny_bundle):
    graph = onnx.load(tiny_bundle.path / "model.onnx").graph
    matrices = [onnx.numpy_helper.to_array(each) for each in graph.initializer if len(each.dims) == 2]

    contents = [np.sort(matrix, axis=None).tobytes() for matrix in matrices if matrix.size > 500]

    assert len(contents) >= 2
    assert len(set(contents)) == len(contents)


def test_the_graph_holds_no_constant_twice(tiny_bundle):
    nodes = onnx.load(tiny_bundle.path / "model.onnx").graph.node
    constants = [node.attribute[0].t.SerializeToString() for node in nodes if node.op_type == "Constant"]

    assert len(constants) > 10
    assert len(set(constants)) == len(constants)


def test_an_export_that_fails_leaves_nothing(checkpoint, tmp_path):
    nameless = dataclasses.replace(checkpoint, name="Not A Name")

    with pytest.raises(InvalidBundle, match="makes no valid manifest"):
        export_bundle(nameless, tmp_path / "out")

    assert list(tmp_path.iterdir()) == []


def test_an_export_that_cannot_be_written_is_one_clear_line(checkpoint, tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(CannotWrite, match=r"file: cannot be written: File exists"):
        export_bundle(checkpoint, tmp_path / "file" / "out")


def test_an_export_without_a_version_replaces_an_older_bundle_and_is_named_by_its_weights(checkpoint, copied):
    export_bundle(checkpoint, copied.path)

    assert open_bundle(copied)[1].version.endswith(f"+{checkpoint.digest()[:8]}")


def test_a_graph_two_ten_thousandths_of_a_cycle_from_its_network_fails_parity(tiny_bundle, checkpoint):
    session, manifest = open_bundle(tiny_bundle)
    net = checkpoint.network()
    with torch.no_grad():
        net.head.bias.add_(2e-4 / manifest.cap)

    with pytest.raises(InvalidBundle, match=r"graph differs from the network: rul by 0\.0002"):
        measure_parity(net, session, manifest)


def test_a_network_that_answers_nan_where_its_graph_does_not_fails_parity(tiny_bundle, checkpoint):
    session, manifest = open_bundle(tiny_bundle)
    net = checkpoint.network()
    with torch.no_grad():
        net.head.bias.fill_(torch.nan)

    with pytest.raises(InvalidBundle, match="graph differs from the network: rul by inf"):
        measure_parity(net, session, manifest)


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_graph_of_which_any_output_differs_from_its_network_fails_parity(tiny_bundle, checkpoint, output):
    session, manifest = open_bundle(tiny_bundle)
    other = Meddler(session, output, lambda values, _: values + 0.02)

    with pytest.raises(InvalidBundle, match=f"graph differs from the network: {output} by"):
        measure_parity(checkpoint.network(), other, manifest)


def test_units_that_last_thousands_of_cycles_have_a_bundle_that_keeps_its_promises(checkpoint, tmp_path):
    config = dataclasses.replace(checkpoint.config, cap=5000.0)
    long_lived = dataclasses.replace(checkpoint, config=config, facts=checkpoint.facts | {"cap": 5000.0})

    export_bundle(long_lived, tmp_path / "long", version="1")

    assert [each for each in findings(BundleFolder(tmp_path / "long")) if not each.kept] == []


def test_a_fleet_whose_counters_rarely_jump_has_a_bundle_that_keeps_its_promises(checkpoint, tmp_path):
    name = next(name for name in checkpoint.weights if name.endswith("novelty.quantile"))
    weights = checkpoint.weights | {name: checkpoint.weights[name] / 1e4}  # novelties are huge
    rare = dataclasses.replace(checkpoint, weights=weights)

    export_bundle(rare, tmp_path / "rare", version="1")

    assert [each for each in findings(BundleFolder(tmp_path / "rare")) if not each.kept] == []


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """A bundle that reads settings, and three of whose columns are nearly constant."""
    units = pumps(units=40, seed=11)
    for column, (often, once) in enumerate([(1.1, 1.1), (3.0, 4.0), (5e9, 5e9 + 512.0)], start=3):
        for unit in units:
            unit.readings[:, column] = often
        units[0].readings[9, column] = once
    folder = tmp_path_factory.mktemp("odd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.tiny_bundle.pumps", lambda **_: units)
        return BundleFolder(make_tiny_bundle(folder, config=HASTY, reads_settings=True))


def test_nearly_constant_columns_leave_a_bundle_that_opens(odd):
    assert [each for each in findings(odd) if not each.kept] == []


def test_probe_windows_are_of_every_kind(manifest):
    windows = probe_windows(manifest)

    assert windows.readings.shape == (64, manifest.context, len(manifest.columns))
    assert {1, manifest.context} <= set(windows.lengths.tolist())
    assert np.isnan(windows.last_cycle).any()
    assert np.isinf(windows.readings).any()


def test_probe_windows_are_made_where_simulated_lives_are_shorter_than_the_context(manifest):
    context = int(manifest.degradation.life_quantiles[-1])

    windows = probe_windows(manifest.model_copy(update={"context": context}))

    assert windows.lengths[:48].max() < context == windows.lengths[-1]
    assert np.isfinite(windows.readings[-1]).any()


def test_golden_windows_replay_to_the_rounding_of_stored_answers(tiny_bundle):
    expected = read_bundle(tiny_bundle).golden.expected

    found = replayed(tiny_bundle)

    of_outputs, of_manifest = found[: len(expected)], found[len(expected) :]
    assert [finding.promise for finding in of_manifest] == [
        "golden baseline + contributions = RUL, cycles",
        "golden 0 <= lower <= RUL <= upper <= cap, cycles beyond",
    ]
    assert [finding.promise for finding in of_outputs] == [f"golden {name}" for name in expected]
    assert all(finding.worst <= ROUNDING * finding.allowed for finding in of_outputs)
    assert all(finding.kept for finding in found)


def test_golden_windows_cover_short_long_fresh_worn_and_missing(tiny_bundle):
    golden = read_bundle(tiny_bundle).golden

    assert len(golden.lengths) == 16
    assert golden.lengths.min() < 6
    assert golden.lengths.max() == 12
    assert np.isnan(golden.last_cycle).any()
    assert np.isnan(golden.readings[7, : golden.lengths[7]]).any()
    assert golden.expected["rul"].min() < 15
    assert golden.expected["rul"].max() > 30


def test_golden_readings_are_refused_if_more_than_half_of_a_column_are_outside_its_range(
    tiny_bundle, manifest
):
    golden = read_bundle(tiny_bundle).golden
    golden.readings[:, :, 2:4] = np.nan  # vibration has 16 readings, oil pressure none
    golden.readings[:, 0, 2] = np.repeat([1e6, manifest.columns[2].high], 8)

    golden.check(manifest, origin=tiny_bundle.golden)

    golden.readings[8, 0, 2] = 1e6
    with pytest.raises(InvalidBundle, match="readings of vibration lie outside its range"):
        golden.check(manifest, origin=tiny_bundle.golden)


def test_a_promise_that_gives_nan_is_broken():
    assert not Finding("p", float("nan"), 1.0).kept


class Meddler:
    """A session that changes one output, given the readings."""

    def __init__(self, session, output, change):
        self.session, self.output, self.change = session, output, change
        self.inputs, self.outputs, self.has_map = session.inputs, session.outputs, session.has_map

    def answer(self, readings, lengths, last_cycle):
        answers = dict(self.session.answer(readings, lengths, last_cycle))
        changed = self.change(answers[self.output], readings)
        return answers | {self.output: changed.astype(np.float32)}


@pytest.mark.parametrize(
    ("output", "change", "promise"),
    [
        ("attention", lambda a, r: a * 0.9, "attention sums to 1"),
        ("head_attention", lambda a, r: a * 0.9, "attention sums to 1"),
        ("evidence", lambda a, r: a * 1.1, "attention sums to 1"),
        ("attention", lambda a, r: a + 1e-3, "attention and contribution on padding"),
        ("head_attention", lambda a, r: a + 1e-3, "attention and contribution on padding"),
        ("rul", lambda a, r: a + 0.5, "baseline + contributions = RUL, cycles"),
        ("novelty", lambda a, r: a * np.nan, "answers that are not finite"),
        (
            "failure_probability",
            lambda a, r: a * (1 - 1e-3 * len(r)),
            "alone or in a batch, cycles over the cap",
        ),
        ("rul_interval", lambda a, r: a[:, ::-1], "0 <= lower <= RUL <= upper <= cap, cycles beyond"),
        (
            "rul_interval",
            lambda a, r: np.subtract(a, [1, 0]),
            "0 <= lower <= RUL <= upper <= cap, cycles beyond",
        ),
        ("rul_interval", lambda a, r: np.add(a, [0, 1]), "0 <= lower <= RUL <= upper <= cap, cycles beyond"),
        ("failure_probability", lambda a, r: a[:, ::-1], PROBABILITIES),
        ("failure_probability", lambda a, r: a - 1e-3, PROBABILITIES),
        ("failure_probability", lambda a, r: a + 1e-3, PROBABILITIES),
        ("health_state", lambda a, r: a * 0.99, PROBABILITIES),
        ("health_state", lambda a, r: np.add(a, [1, 0, -1]), PROBABILITIES),
        ("evidence", lambda a, r: a**2, "evidence is the share of each cycle's readings"),
        ("novelty", lambda a, r: a + next(CALLS), "same windows twice, differing numbers"),
        ("rul", lambda a, r: a + (r[:, -1, 0] == -1e30), "any values on padding"),
        (
            "rul",
            lambda a, r: np.where(np.isnan(r[:, :, 3]).all(axis=1), np.nan, a),
            "missing columns or last cycle: answers that are not finite",
        ),
    ],
)
def test_a_broken_promise_is_found(tiny_bundle, output, change, promise):
    session, manifest = open_bundle(tiny_bundle)

    assert promise in broken(Meddler(session, output, change), manifest)


def test_every_promise_has_a_name_of_its_own(tiny_bundle):
    names = [finding.promise for finding in findings(tiny_bundle)]

    assert len(set(names)) == len(names)


def test_wrong_contributions_of_missing_and_typical_readings_are_found(tiny_bundles):
    session, manifest = open_bundle(tiny_bundles("flagship"))
    more = Meddler(session, "sensor_contribution", lambda a, r: a + 0.01)

    found = broken(more, manifest)

    assert "contribution of readings that are missing or not read, cycles" in found
    assert "contribution of typical readings, cycles" in found


def test_a_model_that_reads_settings_keeps_every_promise_and_its_manifest_says_that_it_does(odd):
    session, manifest = open_bundle(odd)
    silent = manifest.model_copy(update={"reads_settings": False})

    assert manifest.reads_settings
    assert broken(session, manifest) == []
    assert broken(session, silent) == ["contribution of readings that are missing or not read, cycles"]


def test_outputs_of_another_shape_are_named(tiny_bundle):
    session, manifest = open_bundle(tiny_bundle)
    more_horizons = manifest.model_copy(update={"horizons": [5, 10, 15]})

    with pytest.raises(
        InvalidBundle, match=r"failure_probability: expected float32 \(2, 3\), got float32 \(2, 2\)"
    ):
        check_shapes(session, more_horizons)


def test_rul_export_writes_the_same_bytes_for_the_same_run_and_rul_check_accepts_them(
    tiny_bundle, checkpoint, tmp_path
):
    checkpoint.save(tmp_path / "run")
    torch.set_num_threads(2)

    result = rul("export", tmp_path / "run", "--output", tmp_path / "bundle", "--version", "1.0.0")

    assert result.exit_code == 0, result.exception
    assert "tiny 1.0.0" in result.output
    assert torch.get_num_threads() == 1
    assert (tmp_path / "bundle" / SUMS).read_bytes() == (tiny_bundle.path / SUMS).read_bytes()
    checked = rul("check", tmp_path / "bundle")
    assert checked.exit_code == 0
    assert "BROKEN" not in checked.output


def test_rul_evaluate_refuses_a_fleet_with_other_columns(tiny_bundle, tmp_path):
    result = rul("evaluate", tiny_bundle.path, "--data", tmp_path, "--fleet", "cmapss")

    assert "fleet 'cmapss' has the columns" in str(result.exception)
    assert str(result.exception).endswith(": give the fleet file of its training, --fleet FILE")


def test_the_card_holds_the_manifests_figures(tiny_bundle, manifest):
    card = model_card(manifest, sha256=read_bundle(tiny_bundle).sha256)

    assert card == (tiny_bundle.path / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert f"{manifest.metrics['crossvalidation_rmse']:.2f}" in card
    assert "vibration" in card
    assert "rul export" in card


def test_the_card_has_gradient_boosting_and_thirds_where_the_run_has_them(manifest):
    added = ("boosting_", "third_", "crossvalidation_rmse_below_cap", "crossvalidation_coverage_below")
    older = {name: value for name, value in manifest.metrics.items() if not name.startswith(added)}

    card, without = (
        model_card(manifest.model_copy(update={"metrics": m}), sha256="") for m in (manifest.metrics, older)
    )

    assert f"| RMSE of gradient boosting, cycles | {manifest.metrics['boosting_rmse']:.2f} [" in card
    assert f"| 26.67 to 40 | {manifest.metrics['third_3_windows']:.0f} | " in card
    assert (
        f"| RMSE below the cap, cycles | {manifest.metrics['crossvalidation_rmse_below_cap']:.2f} [" in card
    )
    for said in ("boosting", "predicted RUL", "below the cap"):
        assert said not in without
    assert f"| RMSE, cycles | {manifest.metrics['crossvalidation_rmse']:.2f} [" in without


def card_of(manifest, **training):
    """The card of a model that reads settings, with other facts of its training."""
    facts = manifest.training.model_copy(update=training)
    return model_card(manifest.model_copy(update={"training": facts, "reads_settings": True}), sha256="")


def test_the_card_says_that_units_of_a_group_are_in_one_fold(manifest):
    grouped = card_of(manifest, config=manifest.training.config | {"group": "plant"})

    assert " folds, those of one `plant`, a group, in one fold. A network trained" in " ".join(
        grouped.split()
    )
    assert "by bootstrap over groups." in grouped
    assert "with the\ngroup's own errors left out." in grouped
    alone = card_of(manifest)
    assert "in one fold" not in alone
    assert "by bootstrap over units." in alone


@pytest.mark.parametrize("given", [[], ["reads_settings=true"]])
def test_the_cards_command_repeats_the_choice_to_read_settings(manifest, given):
    card = card_of(manifest, config=manifest.training.config | {"given": {"set": given}})

    assert card.count("--set reads_settings=true") == 1
    assert "The network reads them" in card


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (1, "- Data `1.csv`, SHA"),
        (3, "`1.csv`, `2.csv`, `3.csv`, SHA"),
        (55, "`3.csv` and 52 more files, SHA"),
    ],
)
def test_the_card_names_a_few_files_of_the_data(manifest, files, said):
    names = ", ".join(f"{n}.csv" for n in range(1, files + 1))

    assert said in card_of(manifest, data_name=names)
