import csv
import json
import os
import shutil
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from model.calibration import (
    AGELESS_SHARE,
    GAP_SHARE,
    SHORT_SHARE,
    at_cap,
    cut_windows,
    fit_scale,
    interval_bounds,
    last_cycles,
    normalised_error,
    read_windows,
    rescaled,
    tensors,
    with_lacking,
)
from model.checkpoint import Checkpoint, InvalidCheckpoint
from model.crossfit import (
    fewest_cycles_that_hold,
    held_out_fold,
    held_out_lives,
    joined,
    scaled_by_rul,
)
from model.curve import curve_table, picture, read_curve, write_curve
from model.dataset import join_windows, split_fold, train_all
from model.domain import InvalidData, Trajectory
from model.gaps import MOST_LOST
from model.layers import set_buffer
from model.reference import fit_reference
from model.run import Plan, Source, choose, prepare, train_run
from model.screen import save_picture
from model.stages import Diverged, stored_choice
from model.training import Check, InvalidState, TrainConfig, attention_figures
from tests import tiny_bundle
from tests.fleets import PUMPS, worn_pumps

CONFIG = TrainConfig(seed=5, steps=12, batch=16, check_every=4, truncations=4)
FLEET = replace(PUMPS, context=10)
FOLDS = 2
SOURCE = Source("pumps.csv", "0" * 64)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def units():
    return worn_pumps(units=8, seed=2)


def split(units, fold, folds):
    return split_fold(units, FLEET, fold=fold, folds=folds, seed=CONFIG.seed, truncations=CONFIG.truncations)


@pytest.fixture(scope="module")
def parts(units):
    return split(units, 0, 3)


def every(windows):
    """Cut all windows."""
    return windows.take(np.arange(len(windows)))


def trainer(parts, config=CONFIG):
    return prepare(parts, FLEET, network="flagship", config=config)[0]


def normalised(read, windows):
    """The normalised errors of answers, and whether each is at the cap."""
    return normalised_error(read, windows, cap=FLEET.cap), at_cap(read.unclipped, cap=FLEET.cap)


def bounds_of(read, windows):
    error, group = normalised(read, windows)
    return interval_bounds(error, group, windows.unit, windows.weight, coverage=FLEET.nominal_coverage)


def fold_of(parts, net):
    return held_out_fold(net, parts, fit_reference(parts.trained, FLEET.schema))


PLAN = {"fleet": FLEET, "network": "flagship", "config": CONFIG, "folds": FOLDS}


def run(
    units,
    folder,
    *,
    plan=Plan,
    watch=lambda *_: None,
    keep=lambda _: None,
    source=SOURCE,
    resume=False,
    cluster=None,
    **change,
):
    plan = plan(units, **PLAN | change)
    given = {"watch": watch, "keep": keep, "source": source, "resume": resume, "cluster": cluster}
    return train_run(plan, name="pumps", folder=folder, **given)


class PowerCut(Exception):
    pass


@pytest.fixture(scope="module")
def alive():
    """At the begin of each stage of the finished run: how many earlier stages have their training windows."""
    return []


@pytest.fixture(scope="module")
def finished(units, alive, tmp_path_factory):
    """One finished run: its folder, checkpoint and curve."""
    folder, made = tmp_path_factory.mktemp("finished"), []

    class Watched(Plan):
        __slots__ = ()

        def stage(self, number):
            alive.append(sum(windows() is not None for windows in made))
            split, trainer, reference = super().stage(number)
            made.append(weakref.ref(split.training))
            return split, trainer, reference

    return folder, *run(units, folder, plan=Watched)


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)


def cut_at(units, folder, step, **options):
    """Run until the power is cut at this update; return the updates that were told."""
    told = []

    def watch(now, loss, check):
        told.append(now)
        if now == step:
            raise PowerCut

    with pytest.raises(PowerCut):
        run(units, folder, watch=watch, **options)
    return told


def test_every_failed_unit_and_no_censored_one_trains_or_is_held_out(units):
    censored = [Trajectory(f"c{u.unit}", u.cycles, u.readings, failed=False) for u in units[:3]]

    dealt = split([*units, *censored], 0, 3)
    whole = train_all([*units, *censored], FLEET)

    names = {unit.unit for unit in units}
    assert {*dealt.training.unit, *dealt.held_out.unit} == set(whole.training.unit) == names
    assert not {*dealt.training.unit} & {*dealt.held_out.unit}
    assert {trajectory.unit for trajectory in dealt.trained} == set(dealt.training.unit)
    assert whole.held_out is None


def test_a_run_counts_failed_units_for_censored_ones(units, finished, tmp_path):
    middle = sorted(len(unit) for unit in units)[len(units) // 2]
    censored = [
        Trajectory(f"c{u.unit}", u.cycles[:middle], u.readings[:middle], failed=False)
        for u in units
        if len(u) > middle
    ]
    _, alone, _ = finished

    made, _ = run([*units, *censored], tmp_path)

    found = [[each.facts["training"][name] for name in ("units", "censored")] for each in (alone, made)]
    assert found == [[len(units), 0], [len(units), len(censored)]]
    lives, counted = (each.facts["degradation"]["life_quantiles"] for each in (alone, made))
    assert sum(counted) > sum(lives)
    assert made.facts["metrics"]["boosting_rmse"] != alone.facts["metrics"]["boosting_rmse"]


def test_nothing_is_judged_where_no_unit_is_held_out(units):
    whole = train_all(units, FLEET)

    with pytest.raises(InvalidData, match="no unit is held out"):
        fold_of(whole, trainer(whole).net)


def test_training_lowers_the_error_on_units_that_it_does_not_see(parts):
    learner = trainer(parts, replace(CONFIG, steps=60, check_every=5, batch=64))

    learner.learn(lambda *_: None)

    assert learner.curve[-1].held_out_rmse < 0.7 * learner.curve[0].held_out_rmse


@pytest.mark.parametrize("steps", [1, 5, 6])
def test_a_training_of_a_few_updates_ends(parts, steps):
    learner = trainer(parts, replace(CONFIG, steps=steps))

    learner.learn(lambda *_: None)

    assert learner.done


def test_held_out_windows_draw_the_curve_and_touch_no_weight(parts):
    blind = replace(parts, held_out=None)

    seen, unseen = [trainer(each).learn(lambda *_: None).state_dict() for each in (parts, blind)]

    assert all(torch.equal(seen[name], unseen[name]) for name in seen)


@pytest.fixture(scope="module")
def resumed(units, tmp_path_factory):
    """A run cut in the first fold, at its end, in the network that is kept, and before its curve is stored.

    The checkpoints and curves after the third cut and after the last; the updates since each; the folder.
    """
    folder, curves, told, since = tmp_path_factory.mktemp("cut"), [], [], []

    def cut(curve):
        curves.append(curve)
        raise PowerCut

    for step in (7, 12, 31):
        cut_at(units, folder, step, resume=step > 7)
    with pytest.raises(PowerCut):
        run(units, folder, resume=True, keep=cut, watch=lambda step, *_: told.append(step))
    made = Checkpoint.load(folder)
    last, _ = run(units, folder, resume=True, keep=curves.append, watch=lambda step, *_: since.append(step))
    return (made, last), curves, (told, since), folder


def test_an_interrupted_run_with_dropout_goes_on_to_the_same_bits(finished, resumed):
    _, whole, whole_curve = finished
    checkpoints, curves, _, folder = resumed

    assert whole.network().config.recurrent_dropout > 0
    assert [check.step for check in whole_curve] == [4, 8, 12]
    assert curves == [whole_curve, whole_curve]
    for made in checkpoints:
        assert (made.digest(), made.facts) == (whole.digest(), whole.facts)
    assert not (folder / "state.pt").exists()


def test_finished_networks_of_an_interrupted_run_are_not_trained_again(resumed):
    _, _, (told, since), _ = resumed

    assert told == list(range(29, 12 * (FOLDS + 1) + 1))  # the last check was at update 28
    assert since == []


class HereAsCluster:
    """A cluster of one node: this process."""

    map = staticmethod(map)


def test_networks_that_a_cluster_trained_before_an_interruption_are_kept_and_make_the_same_run(
    finished, units, tmp_path
):
    since = []

    told = cut_at(units, tmp_path, 36, cluster=HereAsCluster())
    made, curve = run(units, tmp_path, resume=True, watch=lambda step, *_: since.append(step))

    _, whole, whole_curve = finished
    assert (made.digest(), made.facts, curve) == (whole.digest(), whole.facts, whole_curve)
    assert (told, since) == ([12, 24, 36], [])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"config": replace(CONFIG, noise=0.5)}, rf"noise \({CONFIG.noise}, now 0.5\): start over"),
        ({"config": replace(CONFIG, steps=16)}, r"steps \(12, now 16\): start over"),
        ({"source": Source("other.csv", "1" * 64)}, "data_sha256"),
        ({"folds": 3}, "folds"),
        ({"fleet": replace(FLEET, sources=FLEET.sources[::-1])}, "fleet"),
    ],
)
def test_a_run_does_not_go_on_from_the_state_of_another(units, tmp_path, change, named):
    cut_at(units, tmp_path, 5)

    with pytest.raises(InvalidState, match=f"another {named}"):
        run(units, tmp_path, resume=True, **change)


def test_a_run_does_not_go_on_from_the_state_of_another_version(units, tmp_path, monkeypatch):
    cut_at(units, tmp_path, 5)
    monkeypatch.setattr("model.run.FORMAT", 9)

    with pytest.raises(InvalidState, match=r"another format \(\d+, now 9\): start over"):
        run(units, tmp_path, resume=True)


def test_a_run_that_replaces_another_and_is_cut_leaves_no_finished_run(copied, units):
    cut_at(units, copied, 5)

    with pytest.raises(InvalidCheckpoint, match="the run is unfinished, use `rul train --resume`"):
        Checkpoint.load(copied)
    assert not (copied / "held_out.npz").exists()


@pytest.mark.parametrize("cluster", [None, HereAsCluster()])
def test_a_training_that_diverges_stops_and_leaves_no_finished_run(units, tmp_path, cluster):
    wild = replace(CONFIG, learning_rate=1e30)

    with pytest.raises(Diverged, match=r"loss is (nan|inf): start over below learning_rate=1e\+30"):
        run(units, tmp_path, config=wild, cluster=cluster)

    assert not (tmp_path / "run.json").exists()


def test_resuming_without_a_run_is_an_error(units, tmp_path):
    with pytest.raises(InvalidCheckpoint, match=r"state\.pt: cannot be read"):
        run(units, tmp_path, resume=True)


def test_a_checkpoint_comes_back_as_it_was(finished):
    folder, made, _ = finished

    loaded = Checkpoint.load(folder)

    assert (loaded.config, loaded.facts, loaded.digest()) == (made.config, made.facts, made.digest())


@pytest.mark.parametrize("damage", ["network.pt", "run.json"])
def test_a_damaged_checkpoint_is_refused(copied, damage):
    file = copied / damage
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    with pytest.raises(InvalidCheckpoint, match="train again"):
        Checkpoint.load(copied)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: {"config": None}, "cannot be read, train again"),
        (lambda run: {"config": run["config"] | {"settings": [99]}}, "cannot be read, train again"),
        (lambda run: {"format": 1}, "run format 1, this version reads 5: train again"),
        (lambda run: {"format": 9}, "run format 9, this version reads 5: train again"),
    ],
)
def test_a_checkpoint_of_no_network_or_another_format_is_refused(copied, change, message):
    stored = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(stored | change(stored)))

    with pytest.raises(InvalidCheckpoint, match=message):
        Checkpoint.load(copied)


def test_the_learning_curve_is_a_table_and_a_picture(finished, tmp_path):
    _, _, curve = finished

    write_curve(curve, tmp_path)
    figure = picture(curve, "pumps")

    assert read_curve(tmp_path) == curve
    title = f"pumps: learning curve, {len(curve)} checks in {curve[-1].step:,} updates"
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert figure.get_suptitle() == title
    assert legend == ["RMSE on held-out units (left)", "training loss (right)"]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "curve.csv").open() as file:
        assert next(csv.reader(file)) == [
            *("step", "loss", "held_out_rmse", "learning_rate", "gradient_norm"),
            *(f"{figure}_{head}" for head in ("mean", *range(5)) for figure in ("entropy", "first", "last")),
        ]


HEADLESS = [Check(step, 1.0 / step, 20.0, 0.001) for step in (4, 8)]


def test_a_run_whose_name_is_not_utf_8_has_a_picture(tmp_path):
    save_picture(picture(HEADLESS, os.fsdecode(b"caf\xe9")), tmp_path / "curve.png")

    assert (tmp_path / "curve.png").is_file()


def test_a_curve_without_heads_is_read_and_drawn(tmp_path):
    write_curve(HEADLESS, tmp_path)

    assert read_curve(tmp_path) == HEADLESS
    assert len(picture(HEADLESS, "demo").axes) == 2  # error and loss
    assert curve_table(HEADLESS) is None


@pytest.mark.parametrize("cell", ["x", "", "1" * 200_000], ids=["word", "empty", "long"])
def test_a_damaged_curve_is_refused_with_its_file(tmp_path, cell):
    write_curve(HEADLESS, tmp_path)
    with (tmp_path / "curve.csv").open("a") as file:
        file.write(f"12,0.1,20.0,{cell}\n")

    with pytest.raises(InvalidCheckpoint, match=r"curve\.csv: cannot be read"):
        read_curve(tmp_path)


def test_each_check_has_the_mean_gradient_norm_before_clipping(parts):
    learner = trainer(parts, replace(CONFIG, clip=1e-6))

    learner.update()
    clipped = sum(p.grad.square().sum() for p in learner.net.parameters() if p.grad is not None).sqrt()
    learner.update()
    both = learner.check(0.1)
    learner.update()
    alone = learner.check(0.1)

    assert clipped <= 1.01e-6
    assert both.figures["gradient_norm"] > 1e-3
    assert alone.figures["gradient_norm"] > 1e-3
    assert alone.figures["gradient_norm"] != both.figures["gradient_norm"]


def test_each_check_has_entropy_and_sinks_of_each_head_on_held_out_windows(parts):
    options = {"heads": 2, "head_width": 4, "hidden": 4, "convolution": 4}
    learner, _ = prepare(parts, FLEET, network="selfattention", config=CONFIG, options=options)
    learner.learn(lambda *_: None)

    figures = learner.curve[-1].figures

    read, lengths = read_windows(learner.net, parts.held_out), parts.held_out.lengths
    assert figures | attention_figures(read, lengths) == figures
    some = lengths > 1
    for head in range(2):
        weights = [w[:n] for w, n in zip(read.head_attention[some, head], lengths[some], strict=True)]
        ratio = [-(w * np.log(w)).sum() / np.log(len(w)) for w in weights]
        assert figures[f"entropy_{head}"] == pytest.approx(np.mean(ratio), abs=1e-5)
        assert figures[f"first_{head}"] == pytest.approx(np.mean([w[0] for w in weights]))
        assert figures[f"last_{head}"] == pytest.approx(np.mean([w[-1] for w in weights]))


def test_a_training_without_held_out_units_logs_only_the_gradient(units):
    learner = trainer(train_all(units, FLEET))

    learner.learn(lambda *_: None)

    assert set(learner.curve[-1].figures) == {"gradient_norm"}


@pytest.mark.parametrize(("entropy", "verdict"), [(0.99, "even"), (0.05, "collapsed"), (0.5, "")])
def test_the_table_of_a_training_names_degenerate_heads(entropy, verdict):
    def check(step, ratio):
        figures = {"gradient_norm": 2.5 / step, "entropy_0": ratio, "first_0": 0.25, "last_0": 0.125}
        return Check(step, 0.1, 20.0, 0.001, figures)

    table = curve_table([check(1, 0.75), check(2, entropy)])

    rows = [list(column.cells) for column in table.columns]
    assert rows == [["0"], [f"0.75 .. {entropy:.2f}"], ["0.25 .. 0.25"], ["0.12 .. 0.12"], [verdict]]
    assert "2.5 .. 1.2" in table.caption


def test_the_interval_that_is_kept_is_set_on_held_out_errors(units, finished):
    """Made again from the parts: folds' networks, their held-out answers, and nothing else."""
    made = finished[1]
    behind = []
    for fold in range(FOLDS):
        parts = split(units, fold, FOLDS)
        behind.append(fold_of(parts, trainer(parts).learn(lambda *_: None)))
    behind, _ = scaled_by_rul(behind)

    expected = bounds_of(*joined(behind))

    interval = made.network().distribution.get_buffer("interval")
    np.testing.assert_allclose(interval.numpy(), expected, rtol=1e-5)


def test_one_training_window_in_two_hundred_is_novel(units, finished):
    made = finished[1]
    parts = train_all(units, FLEET)

    with torch.no_grad():
        novelty = made.network()(*tensors(every(parts.training))).novelty

    assert (novelty > 1).float().mean() == pytest.approx(0.005, abs=0.003)


def test_the_baseline_of_a_cycle_network_is_the_mean_answer_in_training(tiny_bundles):
    made = Checkpoint.load(tiny_bundles("amnl").path.parent / "tiny-run")
    parts = train_all(tiny_bundle.pumps(units=16, seed=11), tiny_bundle.FLEET)

    read = read_windows(made.network(), parts.training)

    assert made.facts["baseline"] == pytest.approx(read.unclipped.mean(), rel=1e-5)


def test_an_update_keeps_the_data_as_it_is(parts):
    learner = trainer(parts)
    before = every(parts.training).readings

    learner.update()

    np.testing.assert_array_equal(every(parts.training).readings, before)


def test_history_is_cut_from_its_beginning():
    readings = torch.tensor([[[1.0], [2.0], [3.0], [torch.nan]], [[1.0], [2.0], [3.0], [4.0]]])

    cut, lengths = last_cycles(readings, torch.tensor([3, 4]), torch.tensor([2, 9]))

    assert lengths.tolist() == [2, 4]
    assert cut[0, :2, 0].tolist() == [2.0, 3.0]
    assert cut[0, 2:].isnan().all()
    assert cut[1, :, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_short_histories_gaps_and_unknown_ages_are_added_and_the_windows_stay(parts):
    windows, some = len(parts.training), int(SHORT_SHARE * len(parts.training))
    all_ = join_windows([*with_lacking(every(parts.training))])
    short = all_.take(np.arange(windows, windows + some))
    gapped = all_.take(windows + some + np.arange(int(GAP_SHARE * windows)))
    ageless = all_.take(np.arange(windows + some + len(gapped), len(all_)))

    np.testing.assert_array_equal(all_.readings[:windows], every(parts.training).readings)
    assert len(ageless) == int(AGELESS_SHARE * windows)
    assert np.isnan(ageless.last_cycle).all()
    assert not np.isnan(all_.last_cycle[: windows + some + len(gapped)]).any()
    within = np.arange(FLEET.context) < gapped.lengths[:, None]
    lost = np.isnan(gapped.readings).all(axis=2) & within
    assert 0.1 < lost.sum() / within.sum() < MOST_LOST
    assert (short.lengths < FLEET.context).mean() > 0
    valid = np.arange(FLEET.context) < short.lengths[:, None]
    assert np.isfinite(short.readings[valid]).all()
    assert np.isnan(short.readings[~valid]).all()


@pytest.mark.parametrize("heavy", ["2", "3", None])
def test_a_history_is_long_enough_from_where_the_interval_holds(parts, heavy):
    net = trainer(parts).learn(lambda *_: None)
    fold = fold_of(parts, net)
    weight = np.where(fold.windows.unit == heavy, 10, 1).astype(np.float32)
    fold = replace(fold, windows=replace(fold.windows, weight=weight))

    found = fewest_cycles_that_hold([fold])

    longer = fold.windows.take(fold.windows.lengths > found)
    assert 1 <= found <= FLEET.context
    if found < FLEET.context:
        cut = cut_windows(longer, np.full(len(longer), found))
        errors, group = normalised(read_windows(net, cut), cut)
        low, high = bounds_of(fold.read, fold.windows)[group].T
        covered = (low <= errors) & (errors <= high)
        assert np.average(covered, weights=longer.weight) >= 0.8


def test_the_scale_is_fitted_to_the_error_and_moves_nothing_else(parts):
    net = trainer(parts).net
    before = {name: p.clone() for name, p in net.named_parameters() if not name.startswith("scale")}
    read = read_windows(net, parts.training)
    windows = replace(parts.training, rul=np.clip(read.unclipped, 0, 100) + np.float32(0.0))
    exact = np.arange(len(windows)) % 2 == 0
    windows.rul[~exact] += 12.0

    fit_scale(net, [windows])

    assert read_windows(net, windows).scale.mean() == pytest.approx(6.0, rel=0.2)
    for name, p in net.named_parameters():
        assert name.startswith("scale") or torch.equal(p, before[name])


def test_a_fold_of_many_windows_reads_a_sample_of_them_to_fit_the_scale(parts, monkeypatch):
    monkeypatch.setattr("model.dataset.MOST_FITTED", 20)
    net, read = trainer(parts).net, []
    net.standardise.register_forward_hook(lambda _module, _given, scaled: read.append(len(scaled.z)))

    fold_of(parts, net)

    lacking = sum(int(share * 20) for share in (SHORT_SHARE, GAP_SHARE, AGELESS_SHARE))
    assert sum(read) == 20 + lacking + len(parts.held_out)


def test_of_many_short_lives_some_are_predicted_at_each_cycle(units, monkeypatch):
    monkeypatch.setattr("model.crossfit.MOST_WINDOWS", sum(map(len, units)) // 4)
    monkeypatch.setattr("model.crossfit.FEWEST_ON_A_LIFE", max(map(len, units)))
    dealt = [split(units, fold, 2) for fold in range(2)]
    folds = [fold_of(each, trainer(each).net) for each in dealt]

    lives, which = held_out_lives(folds, units, most_missing=1.0)

    length = {unit.unit: len(unit) for unit in units}
    assert 0 < len(lives) <= len(units) // 4 + 2
    assert [len(life.cycle) for life in lives] == [length[life.unit] for life in lives]
    assert set(which) == {0, 1}


def test_the_scale_is_fitted_to_windows_too_few_to_repeat(parts):
    net, few = trainer(parts).net, parts.training.take(np.arange(3))

    fit_scale(net, with_lacking(few))

    assert np.isfinite(read_windows(net, few).scale).all()


def test_the_scale_of_a_network_has_the_factors_of_held_out_errors(parts):
    net = trainer(parts).learn(lambda *_: None)
    fit_scale(net, [parts.training])
    before = read_windows(net, parts.training)
    factors = np.array([3.0, 1.0, 1.0, 2.0, 1.0, 1.0])

    set_buffer(net, "scale_factors", factors)

    after = read_windows(net, parts.training)
    np.testing.assert_allclose(after.scale, rescaled(before, factors, cap=FLEET.cap).scale, rtol=1e-6)
    assert (after.scale > 1.5 * before.scale).any()


@pytest.mark.parametrize(
    ("gain", "last", "tried", "longest"),
    [
        pytest.param(0.02, 0.1, 3, 60, id="enough"),
        pytest.param(0.02, 0.99, 2, 60, id="enough, but less than the next must"),
        pytest.param(0.99, 0.1, 2, 1, id="less than it costs"),
    ],
)
def test_lengths_are_tried_until_held_out_units_stop_gaining(monkeypatch, gain, last, tried, longest):
    monkeypatch.setattr("model.run.LENGTHS", {1: 0.0, 60: gain, 61: 0.1, 400: last})
    monkeypatch.setattr("model.run.JUDGES", 3)
    config = TrainConfig(batch=32, truncations=3, learning_rate=1e-2)
    options = {"hidden": 4, "reads_settings": False}
    plan = Plan(worn_pumps(units=9, seed=1), PUMPS, "flagship", config, 3, options)
    told = []

    chosen = choose(plan, tell=lambda tried, rmse: told.append((tried.config.steps, rmse)))

    assert [steps for steps, _ in told] == [1, 60, 61][:tried]
    assert chosen.config.steps == longest
    assert chosen.options == options
    assert told[1][1] < 0.98 * told[0][1]


@pytest.mark.parametrize("rmse", [0.0, float("nan")])
def test_without_a_gain_to_compare_no_longer_training_is_tried(monkeypatch, units, rmse):
    told, plan = [], Plan(units, **PLAN, options={"reads_settings": False})
    monkeypatch.setattr(Plan, "judged", lambda _: ([], rmse))

    choose(plan, tell=lambda tried, _: told.append(tried.config.steps))

    assert told == [125, 250, 500, 1000]


@pytest.mark.parametrize(("units", "folds"), [(9, [0, 1, 2]), (80, [0, 1])])
def test_as_many_folds_judge_as_hold_45_units_out(monkeypatch, units, folds):
    prepared, stage = [], Plan.stage
    monkeypatch.setattr(Plan, "stage", lambda plan, fold: prepared.append(fold) or stage(plan, fold))
    config = replace(CONFIG, steps=1)

    stages, rmse = Plan(worn_pumps(units=units, seed=1), PUMPS, "flagship", config, 3).judged()

    assert prepared == folds
    assert rmse > 0
    assert len(stages) == len(folds)


def test_folds_that_judged_are_not_trained_again_and_the_run_is_the_same(
    monkeypatch, finished, units, tmp_path
):
    monkeypatch.setattr("model.run.LENGTHS", {CONFIG.steps: 0.0})
    monkeypatch.setattr("model.run.JUDGES", 1)
    told = []

    plan = choose(Plan(units, **PLAN, options={"reads_settings": False}), tell=lambda *_: None)
    found, curve = train_run(
        plan, name="pumps", source=SOURCE, folder=tmp_path, watch=lambda step, *_: told.append(step)
    )

    _, whole, whole_curve = finished
    assert (found.digest(), found.facts, curve) == (whole.digest(), whole.facts, whole_curve)
    assert told == list(range(CONFIG.steps, 3 * CONFIG.steps + 1))


def hard_run_pumps(*, units, seed, decides):
    """Pumps of one load each; where it decides, one that is run twice as hard lasts half as long."""
    rng = np.random.default_rng(seed)
    made = []
    for n in range(units):
        load = rng.uniform(1.0, 3.0)
        life = round(90 / load) if decides else int(rng.integers(30, 91))
        sensors = rng.normal(0, 1, (life, 2))
        readings = np.column_stack((np.full(life, load), sensors)).astype(np.float32)
        made.append(Trajectory(f"p{n}", np.arange(1, life + 1), readings, failed=True))
    return made


@pytest.mark.usefixtures("finished")
def test_the_training_windows_of_one_fold_are_gone_before_the_next(alive):
    assert alive == [0] * (FOLDS + 1)


@pytest.mark.parametrize("decides", [True, False])
def test_settings_are_read_where_they_decide_how_long_units_last(monkeypatch, decides):
    monkeypatch.setattr("model.run.LENGTHS", {100: 0.0})
    monkeypatch.setattr("model.run.JUDGES", 8)
    config = TrainConfig(batch=32, truncations=5, learning_rate=1e-2)
    plan = Plan(hard_run_pumps(units=24, seed=1, decides=decides), PUMPS, "flagship", config, 3)
    told = []

    chosen = choose(plan, tell=lambda tried, rmse: told.append((dict(tried.options), rmse)))

    assert [options for options, _ in told] == [{}, {"reads_settings": True}]
    assert chosen.options == ({"reads_settings": True} if decides else {})


def test_a_network_without_the_option_is_not_tried_with_settings():
    plan = Plan(worn_pumps(units=9, seed=1), PUMPS, "amnl", CONFIG, 3)

    assert not plan.may_read_settings


def test_the_state_of_an_interrupted_run_tells_what_was_chosen(units, tmp_path):
    options = {"reads_settings": True}
    cut_at(units, tmp_path, 7, options=options)

    steps, network = stored_choice(tmp_path / "state.pt")

    assert (steps, network["reads_settings"]) == (CONFIG.steps, True)
