"""`rul evaluate` on a real bundle: what it says and what it draws."""

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from matplotlib.image import imread

from export.bundle import find_bundle
from export.evaluation_pictures import trajectory_picture
from export.evaluation_windows import answer_life
from export.pictures import CannotDraw
from export.session import open_bundle
from tests.commands import rul, write_pumps
from tests.tiny_bundle import pumps


@pytest.fixture
def evaluate(tiny_bundle, tmp_path):
    """The command for pumps that the tiny bundle has not seen."""
    data, fleet = write_pumps(tmp_path, units=7, seed=21)
    return partial(rul, "evaluate", tiny_bundle.path, "--data", data, "--fleet", fleet)


def test_every_figure_of_windows_lives_and_rul_fits_a_plain_terminal(evaluate):
    result = evaluate("--truncations", 5)

    assert result.exit_code == 0, result.exception
    for said in (
        "35 windows of 7 units", "RMSE", "NASA score", "Brier score at 15", "7 lives",
        "alpha-lambda accuracy", "prognostic horizon, lasting", "cumulative relative accuracy",
        "monotonicity", "32 to 40", "from 40", "width",
    ):  # fmt: skip
        assert said in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


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
def test_trajectories_of_any_number_of_units_fit_their_picture(tiny_bundle, count, panels):
    session, manifest = open_bundle(find_bundle(str(tiny_bundle.path)))
    lives = [answer_life(session, manifest, unit) for unit in pumps(units=count, seed=21)]

    figure = trajectory_picture(lives, manifest)

    assert sum(axes.get_visible() for axes in figure.axes) == panels
    assert all(axes.get_xlabel() for axes in figure.axes[-min(count, 3) :] if axes.get_visible())


def test_pictures_without_matplotlib_are_refused_before_the_work_is_done(evaluate, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    result = evaluate("--plot", tmp_path / "pictures")

    assert isinstance(result.exception, CannotDraw)
    assert "pip install 'rulserve[train]'" in str(result.exception)
    assert result.stdout == ""


def test_a_folder_that_cannot_be_written_is_named(evaluate, tmp_path):
    (tmp_path / "taken").write_text("a file")

    result = evaluate("--plot", tmp_path / "taken")

    assert isinstance(result.exception, CannotDraw)
    assert "taken" in str(result.exception)


def test_a_life_is_answered_at_every_cycle_as_a_window_alone_would_be(tiny_bundle):
    session, manifest = open_bundle(find_bundle(str(tiny_bundle.path)))
    unit = pumps(units=1, seed=21)[0]

    life = answer_life(session, manifest, unit)

    alone = session.answer(
        unit.readings[None, -manifest.context :], np.array([manifest.context]), life.cycle[-1:]
    )
    assert len(life.rul) == len(unit)
    assert life.truth[0] == len(unit) - 1
    assert life.rul[-1] == pytest.approx(float(alone["rul"][0]), abs=1e-4)


def test_a_life_that_has_not_ended_has_no_truth(tiny_bundle):
    session, manifest = open_bundle(find_bundle(str(tiny_bundle.path)))
    running = replace(pumps(units=1, seed=21)[0], failed=False)

    life = answer_life(session, manifest, running)

    assert (life.truth != life.truth).all()
