"""`rul train` to `rul evaluate`, as a user goes through them."""

import json
import re
import shlex
import shutil
from dataclasses import replace

import numpy as np
import pytest

from export.bundle import BUNDLED, InvalidBundle
from export.pictures import CannotDraw
from model.cli import RunExists
from model.domain import InvalidData, cycles_left
from model.fleet import FailureRule, fleet_toml
from model.networks import InvalidOption
from model.outputs import CannotWrite
from model.replay import load_held_out
from model.training import InvalidState
from model.writers import csv_text
from tests.commands import rul
from tests.fleets import PUMPS, worn_pumps

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def files(files, tmp_path_factory):
    """The files, in a folder whose name a shell has to quote."""
    return shutil.copytree(files, tmp_path_factory.mktemp("my data"), dirs_exist_ok=True)


def of(files, *, units="pumps.csv"):
    """The options that name the data and its fleet."""
    return ("--data", files / units, "--fleet", files / "pumps.toml")


def train(files, out, *options):
    return rul("train", *of(files), "--name", "pumps", "--output", out, "--steps", 6, "--folds", 2, *options)


def words(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "pumps"
    result = train(files, out, "--seed", 2, "--set", "hidden=4", "--set", "weight_decay=0.02")
    assert result.exit_code == 0, result.exception
    return out, result


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("bundles") / "pumps"
    rul("export", trained[0], "--output", out)
    return out


def test_rul_train_leaves_a_run_with_its_curve_and_says_what_is_next(trained):
    out, result = trained

    shown = words(result.output)
    assert {file.name for file in out.iterdir()} == {
        "network.pt", "run.json", "held_out.npz", "curve.csv", "curve.png",
    }  # fmt: skip
    for said in (
        "cross-validation on truncated windows of held-out units",
        "attention on held-out units, first check .. last check",
        "gradient norm before clipping",
        "rul export",
        "training: 18 of 18 updates",
    ):
        assert said in shown


def test_every_unit_is_held_out_once_at_each_cycle_of_its_life(trained):
    out, _ = trained

    held = load_held_out(out)

    lives = {unit.unit: unit for unit in worn_pumps(units=12, seed=4)}
    assert {life.unit: len(life.cycle) for life in held.lives} == {name: len(u) for name, u in lives.items()}
    for life in held.lives:
        assert life.truth.tolist() == cycles_left(lives[life.unit]).tolist()
        assert (life.lower <= life.rul).all()
        assert (life.rul <= life.upper).all()
        assert (np.diff(life.failure_probability, axis=1) >= -1e-6).all()


def test_units_of_a_group_are_held_out_from_one_network_and_the_run_says_so(files, tmp_path):
    header, *rows = (files / "pumps.csv").read_text().splitlines()
    plants = {row: f"plant {int(row.partition(',')[0]) % 3}" for row in rows}
    data, fleet = tmp_path / "plants.csv", tmp_path / "plants.toml"
    data.write_text("\n".join([f"{header},plant", *(f"{row},{plant}" for row, plant in plants.items())]))
    fleet.write_text(f'group = "plant"\n{(files / "pumps.toml").read_text()}')
    small = ("--name", "pumps", "--output", tmp_path / "run", "--steps", 1, "--folds", 3, "--set", "hidden=4")

    result = rul("train", "--data", data, "--fleet", fleet, *small)

    assert result.exit_code == 0, result.exception
    with np.load(tmp_path / "run" / "held_out.npz", allow_pickle=False) as held:
        found = {(int(unit) % 3, fold) for unit, fold in zip(held["unit"], held["fold"], strict=True)}
    assert sorted(fold for _, fold in found) == [0, 1, 2]
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert stored["facts"]["training"]["config"]["group"] == "plant"


def test_rul_decide_compares_policies_on_the_held_out_units_of_a_run(trained):
    out, _ = trained

    result = rul("decide", out, "--costs", "800:12000")

    shown = words(result.output)
    assert result.exit_code == 0, result.exception
    assert "pumps: 12 units, planned stop 800, failure 12000" in shown
    for policy in ("ours", "fixed age", "run to failure", "foresight", "saved by ours"):
        assert policy in shown


def test_rul_decide_replays_a_bundle_on_the_units_that_it_is_given(files, exported):
    without, given = rul("decide", exported), rul("decide", exported, *of(files), "--costs", "1:5")

    assert without.exit_code == 2
    assert "expected units that did not train the bundle" in words(without.stderr)
    assert given.exit_code == 0, given.exception
    assert "12 units, planned stop 1, failure 5" in words(given.output)
    assert "this data trained the network" in words(given.stderr)


def test_rul_decide_names_a_source_that_is_not_there_before_options():
    result = rul("decide", "nosuch")

    assert isinstance(result.exception, InvalidBundle)
    assert "no bundle 'nosuch'" in str(result.exception)


def test_rul_decide_asks_for_units_that_failed_by_an_option_that_it_has(exported, files, tmp_path):
    units = [replace(u, cycles=u.cycles[:9], readings=u.readings[:9]) for u in worn_pumps(units=5, seed=4)]
    by_rule = replace(PUMPS, failure=FailureRule("vibration", at_least=99.0))
    (tmp_path / "young.csv").write_bytes(csv_text(units, PUMPS.schema))
    (tmp_path / "pumps.toml").write_text(fleet_toml(by_rule), encoding="utf-8")

    result = rul("decide", exported, *of(tmp_path, units="young.csv"))

    assert str(result.exception) == "none of 5 units failed: give --data of units that failed"


def test_rul_train_says_first_what_is_unusual_about_the_data(trained, files):
    first, _, last = trained[1].stderr.splitlines()[:3]

    assert first == "warning: only 12 units with a known failure: expect wide bounds on every figure"
    inspect = ["rul", "inspect", str(files / "pumps.toml"), str(files / "pumps.csv")]
    assert last.endswith(f"findings in all: {shlex.join(inspect)}")


def test_data_that_would_ruin_a_training_end_it_before_it_begins(files, tmp_path):
    result = train(files, tmp_path / "run", "--folds", 13)

    assert isinstance(result.exception, InvalidData)
    assert str(result.exception).startswith(
        "--folds 13: expected at least 13 units with a known failure, got 12"
    )
    assert not (tmp_path / "run").exists()


def test_rul_train_compares_the_network_with_gradient_boosting(trained):
    out, result = trained

    shown = words(result.output)
    metrics = json.loads((out / "run.json").read_text())["facts"]["metrics"]
    assert "RMSE below the cap" in shown
    assert f"RMSE of gradient boosting, cycles │ {metrics['boosting_rmse']:.2f} │" in shown
    assert metrics["boosting_difference"] == pytest.approx(
        metrics["crossvalidation_rmse"] - metrics["boosting_rmse"]
    )
    # Six updates learn nothing.
    assert metrics["boosting_difference_low"] > 0
    assert "do not rely on this model until more data or other options close the gap" in shown


def test_rul_evaluate_says_that_training_units_flatter(exported, files):
    result = rul("evaluate", exported, *of(files))

    assert result.exit_code == 0
    assert "these errors are too low" in result.stderr


def test_rul_evaluate_judges_units_that_did_not_train(exported, files, tmp_path):
    (tmp_path / "other.csv").write_bytes(csv_text(worn_pumps(units=3, seed=9), PUMPS.schema))

    result = rul("evaluate", exported, "--data", tmp_path / "other.csv", "--fleet", files / "pumps.toml")

    assert re.search(r"RMSE, cycles\W+(\d+\.\d+)", result.output)
    assert result.stderr.startswith("warning: only 3 units with a known failure")
    assert "too low" not in result.stderr


def test_rul_evaluate_cuts_no_window_before_the_shortest_of_the_fleet(exported, files, tmp_path):
    (tmp_path / "pumps.toml").write_text(fleet_toml(replace(PUMPS, shortest=15)), encoding="utf-8")
    data = ("--data", files / "pumps.csv", "--fleet", tmp_path / "pumps.toml", "--truncations", 1000)

    result = rul("evaluate", exported, *data)

    windows = sum(len(unit) - 15 for unit in worn_pumps(units=12, seed=4))
    assert f"{windows} windows of 12 units" in words(result.output)


@pytest.mark.parametrize(("options", "said"), [([], "--overwrite"), (["--resume"], "it is finished")])
def test_a_finished_run_is_neither_overwritten_unasked_nor_resumed(trained, files, options, said):
    result = train(files, trained[0], *options)

    assert isinstance(result.exception, RunExists)
    assert said in str(result.exception)


def test_a_folder_that_cannot_be_made_is_refused_before_the_updates_are_chosen(files, tmp_path):
    (tmp_path / "file").touch()
    run = tmp_path / "file" / "run"

    result = rul("train", *of(files), "--name", "pumps", "--output", run)

    assert isinstance(result.exception, CannotWrite)
    assert str(result.exception) == f"{run}: cannot be written: Not a directory"
    assert "trying" not in result.output


def test_a_run_is_refused_where_a_file_has_the_name_of_its_folder(files):
    result = train(files, files / "pumps.csv")

    assert isinstance(result.exception, CannotWrite)
    assert str(result.exception) == f"{files / 'pumps.csv'}: cannot be written: a file, expected a folder"


def test_an_interrupted_run_is_not_overwritten_unasked(files, tmp_path):
    (tmp_path / "state.pt").write_bytes(b"")

    assert "use --resume" in str(train(files, tmp_path).exception)


def test_a_damaged_state_is_refused(files, tmp_path):
    (tmp_path / "state.pt").write_bytes(b"not a state")

    result = train(files, tmp_path, "--resume")

    assert "cannot be read" in str(result.exception)
    assert not isinstance(result.exception, InvalidState)


def test_rul_plot_draws_the_curve_again_in_a_folder_that_it_makes(trained, tmp_path):
    result = rul("plot", trained[0], "--output", tmp_path / "new" / "curve.svg")

    assert result.exit_code == 0, result.exception
    assert "<svg" in (tmp_path / "new" / "curve.svg").read_text()
    assert "first check .. last check" in result.output


def test_a_picture_of_an_unknown_kind_is_refused_with_the_known_ones(trained, tmp_path):
    result = rul("plot", trained[0], "--output", tmp_path / "curve.foo")

    assert isinstance(result.exception, CannotDraw)
    assert "curve.foo: the picture cannot be written: Format 'foo' is not supported" in str(result.exception)


def test_the_command_sets_network_and_options(files, tmp_path):
    small = ("hidden=4", "convolution=4", "heads=2", "head_width=4", "causal=true", "entropy_weight=0.01")
    options = [word for setting in small for word in ("--set", setting)]

    result = train(files, tmp_path / "run", "--steps", 1, "--network", "selfattention", *options)

    assert result.exit_code == 0, result.exception
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert stored["config"]["network"] == "selfattention"
    assert (stored["config"]["heads"], stored["config"]["causal"]) == (2, True)
    assert stored["facts"]["training"]["config"]["entropy_weight"] == 0.01
    assert [each["head"] for each in stored["facts"]["entropy"]] == ["mean", "0", "1"]


def test_an_option_that_a_network_does_not_go_by_is_refused_before_data_is_read(files, tmp_path):
    result = train(files, tmp_path / "run", "--data", tmp_path / "missing.csv", "--set", "causal=true")

    assert isinstance(result.exception, InvalidOption)
    assert not (tmp_path / "run").exists()


RUN = object()  # stands for the folder of a finished run
MISSING = ("train", "--data", "missing.csv", "--output", "run")
USAGE = [
    (["train"], "Missing option '--data'"),
    (["export"], "Missing argument 'run'"),
    (["train", "--steps", "x"], "'--steps': Input should be a valid integer"),
    ([*MISSING, "--name", "pumps", "--threads", 257], "--threads"),
    ([*MISSING, "--name", "pumps", "--seed", 2**64], "--seed"),
    *[([*MISSING, "--name", name], "'--name': expected 1 to 63 lower-case letters")
      for name in ("Bad Name", "", "-pumps", "pumps\n", 64 * "x")],
    *[(["decide", RUN, "--costs", costs], "--costs: ") for costs in ("5", "5:1", "0:1")],
    *[(["decide", RUN, option, "pumps.toml"], f"{option}: a run brings its own")
      for option in ("--data", "--fleet")],
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), USAGE)
def test_wrong_usage_exits_with_2_and_says_what_was_expected_before_data_is_read(trained, arguments, said):
    result = rul(*(trained[0] if each is RUN else each for each in arguments))

    assert result.exit_code == 2
    assert said in words(result.stderr)


def commands_of_card(bundle):
    """The commands of a bundle's card, as a shell splits them."""
    block = (bundle / "MODEL_CARD.md").read_text(encoding="utf-8").split("```")[1]
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()[1:]]


def test_the_commands_of_a_card_make_its_bundle_again(exported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    commands = commands_of_card(exported)
    results = [rul(*command[1:]) for command in commands]

    assert [command[:2] for command in commands] == [["rul", "train"], ["rul", "export"], ["rul", "check"]]
    assert [result.exit_code for result in results] == [0, 0, 0]
    again = (tmp_path / "bundles" / "pumps" / "model.onnx").read_bytes()
    assert again == (exported / "model.onnx").read_bytes()


@pytest.mark.parametrize("name", ["fd001", "fd002", "fd003", "fd004"])
def test_the_card_of_a_shipped_bundle_names_no_folder_of_a_machine(name):
    named = [word for command in commands_of_card(BUNDLED / name) for word in command]

    assert f"train_{name.upper()}.txt" in named
    assert not any(word.startswith("/") for word in named)
