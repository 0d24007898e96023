"""`rul evaluate` on a real bundle: what it says and what it draws."""

import re
import sys
import tracemalloc
from dataclasses import replace
from functools import partial
from io import StringIO

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from export import evaluate_cli
from export.comparison import compare, verdict
from export.evaluate_cli import bands_table
from export.evaluation_pictures import reliability_picture, residual_picture, trajectory_picture
from export.evaluation_windows import answer_lives, life_windows
from export.pictures import CannotDraw
from export.session import open_bundle
from model.dataset import answerable, truncated_windows
from model.domain import InvalidData, Trajectory
from model.evaluation import Figure
from model.fleet import FailureRule, fleet_toml
from model.outputs import CannotWrite
from model.prognostics import Band, by_rul, join_lives
from model.writers import csv_text
from tests.commands import rul, write_pumps
from tests.fleets import write_fleet
from tests.tiny_bundle import FLEET, pumps


@pytest.fixture
def evaluate(tiny_bundle, tmp_path):
    """The command for pumps that the tiny bundle has not seen."""
    data, fleet = write_pumps(tmp_path, units=7, seed=21)
    return partial(rul, "evaluate", tiny_bundle.path, "--data", data, "--fleet", fleet)


@pytest.fixture
def opened(tiny_bundle):
    return open_bundle(tiny_bundle)


@pytest.fixture
def unit():
    return pumps(units=1, seed=21)[0]


def test_every_figure_of_windows_lives_and_rul_fits_a_plain_terminal(evaluate):
    result = evaluate("--truncations", 5)

    assert result.exit_code == 0, result.exception
    said = " ".join(result.stdout.split())
    for words in (
        "35 windows of 7 units", "RMSE", "NASA score", "Brier score at 15", "7 units, every cycle",
        "alpha-lambda accuracy", "prognostic horizon, lasting", "cumulative relative accuracy",
        "monotonicity", "32 to 40", "from 40", "width",
        "windows by predicted RUL", "│ 0 to 13.33 │", "│ 13.33 to 26.67 │", "│ 26.67 to 40 │",
    ):  # fmt: skip
        assert words in said
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_units_of_one_group_have_no_interval(tiny_bundle, tmp_path):
    header, *lines = csv_text(pumps(units=2, seed=21), FLEET.schema).decode().splitlines()
    data = tmp_path / "pumps.csv"
    data.write_text("\n".join([f"{header},plant", *(f"{line},A" for line in lines)]))
    (tmp_path / "pumps.toml").write_text(fleet_toml(replace(FLEET, group_column="plant")))

    result = rul("evaluate", tiny_bundle.path, "--data", data, "--fleet", tmp_path / "pumps.toml")

    assert result.exit_code == 0, result.exception
    of_windows, by_answer, of_lives, *_ = re.findall("┏.*?┘", result.stdout, re.DOTALL)
    for table in (of_windows, of_lives):
        assert all(line.split("│")[3].strip() == "none" for line in table.splitlines()[3:-1])
    assert "none" in by_answer


def test_figures_of_thousands_of_cycles_fit_a_plain_terminal():
    wide = Figure(1234.56, -345.67, 2345.67)
    figures = dict.fromkeys(("rmse", "bias", "width"), wide) | {"coverage": Figure(0.9, 0.85, 0.95)}
    screen = Console(width=80, file=StringIO())

    screen.print(bands_table("a title", [Band(20_000, 30_000, 10_000, 9, figures)]))

    said = screen.file.getvalue()
    assert said.count("-346..2346") == 3
    assert "0.85..0.95" in said
    assert "20000 to" in said


LEFT = {"pump-1": 14, "pump-2": 21, "pump-3": 17, "pump-4": 25, "pump-5": 19}
"""Cycles that each pump is stopped before its failure."""


@pytest.fixture
def stopped(tmp_path):
    """Pumps that stopped before their failure: pumps.csv, with the fleet pumps.toml."""
    units = [
        replace(unit, cycles=unit.cycles[: -LEFT[unit.unit]], readings=unit.readings[: -LEFT[unit.unit]])
        for unit in pumps(units=5, seed=21)
    ]
    data, fleet = write_fleet(tmp_path, units, FLEET)
    return "--data", data, "--fleet", fleet


def test_true_ruls_judge_units_that_stopped_earlier(tiny_bundle, stopped, tmp_path):
    (tmp_path / "RUL.txt").write_text("\n".join(map(str, LEFT.values())))
    (tmp_path / "rul.csv").write_text("unit,rul\n" + "\n".join(f"{u},{r}" for u, r in sorted(LEFT.items())))

    by_line, by_name = (
        rul("evaluate", tiny_bundle.path, *stopped, "--rul", tmp_path / file)
        for file in ("RUL.txt", "rul.csv")
    )

    assert by_line.exit_code == 0, by_line.exception
    assert by_line.stdout == by_name.stdout
    assert "5 windows of 5 units" in by_line.stdout
    session, manifest = open_bundle(tiny_bundle)
    lives = answer_lives(session, manifest, pumps(units=5, seed=21))
    error = [float(life.rul[-1 - LEFT[life.unit]]) - LEFT[life.unit] for life in lives]
    assert f"│ RMSE, cycles │ {np.sqrt(np.mean(np.square(error))):.3f} │" in " ".join(by_line.stdout.split())


def test_units_that_only_seem_to_have_failed_are_refused_in_one_line(tiny_bundle, stopped):
    result = rul("evaluate", tiny_bundle.path, *stopped)

    assert isinstance(result.exception, InvalidData)
    assert "of 5 units are far from failure at their last reading" in str(result.exception)
    assert "--rul FILE" in str(result.exception)
    assert "\n" not in str(result.exception)
    assert result.stdout == ""


def test_units_without_a_failure_are_judged_only_by_their_true_ruls(tiny_bundle, stopped, tmp_path):
    by_rule = replace(FLEET, failure=FailureRule("vibration", at_least=99.0))
    (tmp_path / "pumps.toml").write_text(fleet_toml(by_rule), encoding="utf-8")
    (tmp_path / "RUL.txt").write_text("\n".join(map(str, LEFT.values())))

    without = rul("evaluate", tiny_bundle.path, *stopped)
    judged = rul("evaluate", tiny_bundle.path, *stopped, "--rul", tmp_path / "RUL.txt")

    assert "none of 5 units failed: give their true RULs with --rul FILE" in str(without.exception)
    assert judged.exit_code == 0, judged.exception
    assert "warning" not in judged.stderr


def test_true_ruls_need_no_column_that_says_which_units_have_failed(tiny_bundle, stopped, tmp_path):
    by_rule = replace(FLEET, failure=FailureRule("failed", at_least=1.0))
    (tmp_path / "pumps.toml").write_text(fleet_toml(by_rule), encoding="utf-8")
    (tmp_path / "RUL.txt").write_text("\n".join(map(str, LEFT.values())))

    judged = rul("evaluate", tiny_bundle.path, *stopped, "--rul", tmp_path / "RUL.txt")

    assert judged.exit_code == 0, judged.exception
    assert "5 windows of 5 units" in judged.stdout


def test_units_without_a_failure_are_counted_where_others_are_judged(tiny_bundle, tmp_path):
    data, fleet = write_pumps(tmp_path, units=5, seed=21)
    bound = sorted(float(unit.readings[-1, 2]) for unit in pumps(units=5, seed=21))[1]
    by_rule = replace(FLEET, failure=FailureRule("vibration", at_least=bound + 1e-3))
    fleet.write_text(fleet_toml(by_rule), encoding="utf-8")

    result = rul("evaluate", tiny_bundle.path, "--data", data, "--fleet", fleet)

    assert "of 3 units" in result.stdout
    assert "2 of 5 units did not fail and are left out" in result.stderr


def test_windows_that_all_miss_too_many_readings_are_one_line(tiny_bundle, tmp_path):
    empty = [replace(unit, readings=unit.readings.copy()) for unit in pumps(units=3, seed=21)]
    for unit in empty:
        unit.readings[:, :-1] = np.nan
    data, fleet = write_fleet(tmp_path, empty, FLEET)

    result = rul("evaluate", tiny_bundle.path, "--data", data, "--fleet", fleet)

    assert isinstance(result.exception, InvalidData)
    assert "expected windows with at most 50% of their readings missing" in str(result.exception)


@pytest.fixture
def rival(tiny_bundles):
    """Another model of the same pumps."""
    return tiny_bundles("amnl")


def row(result, title):
    """The numbers of the last row of a table with this title."""
    [*_, line] = [line for line in result.stdout.splitlines() if title in line]
    return [
        float(number) for number in re.findall(r"-?[0-9]+\.[0-9]+", line.partition("│")[2].partition("│")[2])
    ]


def test_two_bundles_are_compared_on_the_windows_that_the_first_is_judged_by(
    tiny_bundle, rival, tmp_path, monkeypatch
):
    data, fleet = write_pumps(tmp_path, units=7, seed=21)
    for name, bundle in {"[new]": tiny_bundle, "old": rival}.items():
        (tmp_path / name).symlink_to(bundle.path)
    monkeypatch.chdir(tmp_path)

    result = rul(
        "evaluate", "[new]", "--against", "old", "--data", data, "--fleet", fleet, "--truncations", 5
    )

    assert result.exit_code == 0, result.exception
    assert "RMSE of 35 windows, cycles, RUL capped at 40" in result.stdout
    (new, *_), (old, *_) = row(result, "│ [new] "), row(result, "│ old ")
    difference, low, high = row(result, "difference, in pairs")
    assert new == pytest.approx(row(result, "│ RMSE, cycles")[0], abs=6e-3)
    assert difference == pytest.approx(new - old, abs=0.011)
    assert low <= difference <= high < 0
    assert "\n[new] has the smaller error.\n" in result.stdout


def test_a_bundle_of_other_columns_is_no_rival(evaluate):
    result = evaluate("--against", "fd001")

    assert isinstance(result.exception, InvalidData)
    assert "'fd001' reads setting_1" in str(result.exception)
    assert result.stdout == ""


def test_a_rival_that_was_trained_on_the_data_has_too_low_an_error(evaluate, rival, monkeypatch):
    monkeypatch.setattr(evaluate_cli, "is_training_data", lambda manifest, *_: manifest.network == "amnl")

    result = evaluate("--truncations", 2, "--against", rival.path)

    assert f"Warning: this data trained {rival.path}, so its error is too low." in result.stderr


def test_models_of_other_lengths_and_caps_are_compared_at_the_same_cycles_up_to_the_lower_cap(opened):
    session, manifest = opened
    units, ends = pumps(units=4, seed=21), []

    def cut(*, context):
        rng = np.random.default_rng(0)
        windows = truncated_windows(units, length=context, per_unit=6, rng=rng)
        ends.append(windows.last_cycle.tolist())
        return windows

    found = compare(opened, (session, manifest.model_copy(update={"context": 4, "cap": 20.0})), cut)

    assert ends[0] == ends[1]
    assert (found.cap, found.windows) == (20.0, 24)
    assert found.rmse[0].value != found.rmse[1].value
    assert found.difference.value == pytest.approx(found.rmse[0].value - found.rmse[1].value)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.2, 0.1, "The difference may be chance: its 95 % interval includes 0."),
        (-0.2, -0.1, "new has the smaller error."),
        (0.1, 0.2, "old has the smaller error."),
        (
            np.nan,
            np.nan,
            "One unit, or one group of units, does not tell which bundle has the smaller error.",
        ),
    ],
)
def test_a_difference_says_which_bundle_has_the_smaller_error(low, high, said):
    assert verdict(("new", "old"), Figure((low + high) / 2, low, high)) == said


def test_pictures_of_lives_and_true_ruls_exclude_each_other(evaluate, tmp_path):
    assert evaluate("--rul", tmp_path / "RUL.txt", "--plot", tmp_path).exit_code == 2


def test_the_same_seed_gives_the_same_figures(evaluate):
    assert evaluate("--seed", 3).stdout == evaluate("--seed", 3).stdout != evaluate("--seed", 4).stdout


def test_pictures_are_drawn_into_the_folder_and_named(evaluate, tmp_path):
    result = evaluate("--plot", tmp_path / "new" / "pictures")

    drawn = sorted(file.name for file in (tmp_path / "new" / "pictures").iterdir())
    assert drawn == ["reliability.png", "residuals.png", "trajectories.png"]
    for name in drawn:
        assert name in result.stdout
        assert imread(tmp_path / "new" / "pictures" / name).std() > 0.05


@pytest.mark.parametrize(("count", "panels"), [(1, 1), (2, 2), (4, 4), (7, 6)])
def test_trajectories_of_any_number_of_units_fit_their_picture(opened, count, panels):
    figure = trajectory_picture(answer_lives(*opened, pumps(units=count, seed=21)), opened[1])

    assert sum(axes.get_visible() for axes in figure.axes) == panels
    assert all(axes.get_xlabel() for axes in figure.axes[-min(count, 3) :] if axes.get_visible())


def test_each_horizon_has_its_own_mark_in_the_reliability_diagram(opened):
    session, manifest = opened
    lives = [
        replace(life, failure_probability=np.repeat(life.failure_probability[:, :1], 8, axis=1))
        for life in answer_lives(session, manifest, pumps(units=2, seed=21))
    ]
    bands = by_rul(join_lives(lives), cap=manifest.cap)

    figure = reliability_picture(lives, bands, manifest.model_copy(update={"horizons": [*range(1, 9)]}))

    lines = figure.axes[0].get_lines()[1:]
    assert [line.get_label() for line in lines] == [f"within {horizon} cycles" for horizon in range(1, 9)]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 8


def test_the_picture_of_errors_names_the_cycles_that_it_shows(opened, unit):
    lives = answer_lives(*opened, [unit])

    figure = residual_picture(lives, opened[1])

    assert figure.get_suptitle() == "tiny: error at every cycle with a true RUL below 40, 1 unit"
    assert (
        len(figure.axes[0].collections[0].get_offsets()) == (lives[0].truth < 40).sum() < len(lives[0].truth)
    )


def test_pictures_without_matplotlib_are_refused_before_the_work_is_done(evaluate, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    result = evaluate("--plot", tmp_path / "pictures")

    assert isinstance(result.exception, CannotDraw)
    assert "pip install 'rulserve[train]'" in str(result.exception)
    assert result.stdout == ""


def test_a_folder_that_cannot_be_written_is_named(evaluate, tmp_path):
    (tmp_path / "taken").write_text("a file")

    result = evaluate("--plot", tmp_path / "taken")

    assert isinstance(result.exception, CannotWrite)
    assert "taken" in str(result.exception)


def test_a_life_is_answered_at_every_cycle_as_a_window_alone_would_be(opened, unit):
    session, manifest = opened

    [life] = answer_lives(session, manifest, [unit])

    alone = session.answer(
        unit.readings[None, -manifest.context :], np.array([manifest.context]), life.cycle[-1:]
    )
    assert len(life.rul) == len(unit)
    assert life.truth[0] == len(unit) - 1
    assert life.rul[-1] == pytest.approx(float(alone["rul"][0]), abs=1e-4)


def test_a_long_life_needs_less_memory_than_its_windows(opened, unit):
    cycles = 5000
    long = Trajectory(unit.unit, np.arange(1, cycles + 1), np.resize(unit.readings, (cycles, 6)), failed=True)
    windows = cycles * opened[1].context * long.readings[0].nbytes

    tracemalloc.start()
    [life] = answer_lives(*opened, [long])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(life.rul) == cycles
    assert peak < windows


def test_a_life_that_has_not_ended_has_no_truth(opened, unit):
    [life] = answer_lives(*opened, [replace(unit, failed=False)])

    assert (life.truth != life.truth).all()


def test_a_cycle_that_the_service_would_not_answer_is_no_part_of_a_life(opened, unit):
    last = np.arange(len(unit)) >= len(unit) - 15
    unit.readings[last] = np.nan

    [life] = answer_lives(*opened, [unit])

    windows = life_windows(unit, opened[1])
    assert life.cycle.tolist() == windows.last_cycle[answerable(windows, 0.5)].tolist()
    assert life.cycle[-1] < life.end == len(unit)


def test_units_without_a_cycle_that_can_be_answered_are_refused(opened, unit):
    empty = replace(unit, readings=unit.readings * np.nan)

    with pytest.raises(InvalidData, match="at most 50% of their readings missing; no unit has one"):
        answer_lives(*opened, [empty])
    assert [life.unit for life in answer_lives(*opened, [empty, unit])] == [unit.unit]
