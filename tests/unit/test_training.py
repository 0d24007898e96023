import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from model.calibration import fit_scale, read_windows, tensors
from model.checkpoint import Checkpoint, InvalidCheckpoint, load_tensors
from model.curve import read_curve, write_curve
from model.domain import InvalidData, Trajectory
from model.parts import deal, deal_fold
from model.run import Source, cross_validate, prepare, train_run
from model.training import InvalidState, TrainConfig, Trainer, cut_history
from tests.fleets import PUMPS, worn_pumps

CONFIG = TrainConfig(seed=5, steps=12, batch=16, check_every=4, truncations=4)
FLEET = replace(PUMPS, context=10)
SOURCE = Source("pumps.csv", "0" * 64)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def units():
    return worn_pumps(units=12, seed=2)


@pytest.fixture(scope="module")
def parts(units):
    return deal(units, FLEET, seed=5, truncations=4)


def trainer(parts, config=CONFIG):
    return prepare(parts, FLEET, network="flagship", config=config)[0]


def run(units, folder, *, config=CONFIG, watch=lambda step, loss, check: None, **options):
    return train_run(
        units,
        FLEET,
        name="pumps",
        network="flagship",
        config=config,
        source=SOURCE,
        folder=folder,
        watch=watch,
        **options,
    )


class PowerCut(Exception):
    pass


def power_cut_at(step):
    def watch(now, loss, check):
        if now == step:
            raise PowerCut

    return watch


def test_no_unit_is_in_two_parts(units, parts):
    trained = {trajectory.unit for trajectory in parts.trained}
    names = [trained, set(parts.training.unit), set(parts.validation.unit), set(parts.calibration.unit)]

    assert names[0] == names[1]
    assert not names[0] & names[2]
    assert not names[0] & names[3]
    assert not names[2] & names[3]
    assert names[0] | names[2] | names[3] == {unit.unit for unit in units}


def test_over_all_folds_every_unit_is_held_out_once(units):
    held_out = [
        set(deal_fold(units, FLEET, fold=k, folds=4, seed=0, truncations=2).calibration.unit)
        for k in range(4)
    ]

    assert sorted(name for fold in held_out for name in fold) == sorted(unit.unit for unit in units)


def test_censored_units_neither_train_nor_judge(units):
    censored = [Trajectory(f"c{u.unit}", u.cycles, u.readings, failed=False) for u in units[:3]]

    dealt = deal([*units, *censored], FLEET, seed=5, truncations=4)

    assert not {u.unit for u in censored} & {
        *dealt.training.unit,
        *dealt.validation.unit,
        *dealt.calibration.unit,
    }


def test_too_few_units_are_refused():
    with pytest.raises(InvalidData, match="2 units cannot be split into 3 parts"):
        deal(worn_pumps(units=2, seed=0), FLEET, seed=0, truncations=2)


def test_training_lowers_the_error_on_units_that_it_does_not_see(parts):
    learned = trainer(parts, replace(CONFIG, steps=60, check_every=20, batch=64)).learn(lambda *_: None)

    assert learned.curve[-1].validation_rmse < 0.7 * learned.curve[0].validation_rmse


def test_the_same_seed_learns_the_same_bits(parts):
    first, second = (trainer(parts).learn(lambda *_: None) for _ in range(2))

    assert first.curve == second.curve
    for name, weight in first.weights.items():
        assert torch.equal(weight, second.weights[name]), name


def test_the_best_weights_are_kept_and_not_the_last(parts):
    learned = trainer(parts).learn(lambda *_: None)

    best = min(learned.curve, key=lambda check: check.validation_rmse)
    assert learned.best_step == best.step
    assert learned.best_rmse == best.validation_rmse


def test_training_stops_when_patience_is_at_its_end(parts):
    learned = trainer(
        parts, replace(CONFIG, steps=400, check_every=2, patience=2, learning_rate=1e-12)
    ).learn(lambda *_: None)

    assert learned.curve[-1].step < 400


def test_an_interrupted_run_goes_on_to_the_same_bits(units, tmp_path):
    whole, _ = run(units, tmp_path / "whole")
    with pytest.raises(PowerCut):
        run(units, tmp_path / "cut", watch=power_cut_at(7))

    resumed, learned = run(units, tmp_path / "cut", resume=True)

    assert [check.step for check in learned.curve] == [4, 8, 12]
    assert resumed.digest() == whole.digest()
    assert resumed.facts == whole.facts
    assert not (tmp_path / "cut" / "state.pt").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"config": replace(CONFIG, noise=0.5)}, "noise"),
        ({"source": Source("other.csv", "1" * 64)}, "data_sha256"),
    ],
)
def test_a_run_does_not_go_on_from_the_state_of_another(units, tmp_path, change, named):
    with pytest.raises(PowerCut):
        run(units, tmp_path, watch=power_cut_at(5))
    options = {"name": "pumps", "network": "flagship", "config": CONFIG, "source": SOURCE, **change}

    with pytest.raises(InvalidState, match=f"another {named}"):
        train_run(units, FLEET, folder=tmp_path, watch=lambda *_: None, resume=True, **options)


def test_resuming_where_nothing_is_says_so(units, tmp_path):
    with pytest.raises(InvalidCheckpoint, match=r"state\.pt: cannot be read"):
        run(units, tmp_path, resume=True)


def test_a_checkpoint_comes_back_as_it_was(units, tmp_path):
    made, _ = run(units, tmp_path)

    loaded = Checkpoint.load(tmp_path)

    assert loaded.config == made.config
    assert loaded.facts == made.facts
    assert loaded.digest() == made.digest()


def test_an_unfinished_run_is_no_checkpoint(units, tmp_path):
    with pytest.raises(PowerCut):
        run(units, tmp_path, watch=power_cut_at(5))

    with pytest.raises(InvalidCheckpoint, match="unfinished, go on with `rul train --resume`"):
        Checkpoint.load(tmp_path)


@pytest.mark.parametrize("damage", ["network.pt", "run.json"])
def test_a_damaged_checkpoint_is_refused(units, tmp_path, damage):
    run(units, tmp_path)
    file = tmp_path / damage
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    with pytest.raises(InvalidCheckpoint, match="train again"):
        Checkpoint.load(tmp_path)


def test_a_checkpoint_of_another_format_is_refused(units, tmp_path):
    run(units, tmp_path)
    stored = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**stored, "format": 9}))

    with pytest.raises(InvalidCheckpoint, match="run format 9, this version reads 1"):
        Checkpoint.load(tmp_path)


def test_the_state_is_tensors_and_plain_values(units, tmp_path):
    with pytest.raises(PowerCut):
        run(units, tmp_path, watch=power_cut_at(5))

    state = load_tensors(tmp_path / "state.pt")  # weights_only: anything else would not load

    assert state["step"] == 4


def test_the_learning_curve_is_a_table_and_a_picture(units, tmp_path):
    _, learned = run(units, tmp_path)

    write_curve(learned.curve, tmp_path)

    assert read_curve(tmp_path) == learned.curve
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "curve.csv").open() as file:
        assert next(csv.reader(file)) == ["step", "loss", "validation_rmse", "learning_rate", "best"]


def test_cross_validation_answers_every_unit_by_a_network_that_has_not_seen_it(units):
    steps = []

    found = cross_validate(
        units,
        FLEET,
        folds=3,
        network="flagship",
        config=replace(CONFIG, steps=4),
        watch=lambda step, loss, check: steps.append(step),
    )

    assert steps == list(range(1, 13))
    assert (
        found["crossvalidation_rmse_low"]
        <= found["crossvalidation_rmse"]
        <= found["crossvalidation_rmse_high"]
    )


def test_one_training_window_in_two_hundred_is_novel(units, parts, tmp_path):
    made, _ = run(units, tmp_path)

    with torch.no_grad():
        novelty = made.network()(*tensors(parts.training)).novelty

    assert (novelty > 1).float().mean() == pytest.approx(0.005, abs=0.003)


def test_the_baseline_is_the_mean_answer_in_training(units, parts, tmp_path):
    made, _ = run(units, tmp_path)

    read = read_windows(made.network(), parts.training)

    assert made.facts["baseline"] == pytest.approx(read.unclipped.mean(), rel=1e-5)


def test_wear_keeps_the_data_as_it_is(parts):
    learner = trainer(parts)
    before = parts.training.readings.copy()

    learner.update()

    np.testing.assert_array_equal(parts.training.readings, before)


def test_history_is_cut_from_its_beginning():
    readings = torch.tensor([[[1.0], [2.0], [3.0], [torch.nan]], [[1.0], [2.0], [3.0], [4.0]]])

    cut, lengths = cut_history(
        readings, torch.tensor([3, 4]), hit=torch.tensor([True, False]), keep=torch.tensor([0.4, 0.4])
    )

    assert lengths.tolist() == [2, 4]
    assert cut[0, :2, 0].tolist() == [2.0, 3.0]
    assert cut[0, 2:].isnan().all()
    assert cut[1, :, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_the_scale_is_fitted_to_the_error_and_moves_nothing_else(parts):
    net = trainer(parts).net
    before = {name: p.clone() for name, p in net.named_parameters() if not name.startswith("scale")}
    read = read_windows(net, parts.training)
    windows = replace(parts.training, rul=np.clip(read.unclipped, 0, 100) + np.float32(0.0))
    exact = np.arange(len(windows)) % 2 == 0
    windows.rul[~exact] += 12.0

    fit_scale(net, read, windows)

    assert read_windows(net, windows).scale.mean() == pytest.approx(6.0, rel=0.2)
    for name, p in net.named_parameters():
        assert name.startswith("scale") or torch.equal(p, before[name])


def test_a_trainer_is_told_of_every_update_and_every_check(parts):
    told = []

    trainer(parts).learn(lambda step, loss, check: told.append((step, check is not None)))

    assert told == [(step, step % 4 == 0) for step in range(1, 13)]
    assert isinstance(trainer(parts), Trainer)
