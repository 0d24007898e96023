import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.baselines import BASELINES, BINS, coarse, window_statistics
from model.dataset import split_fold
from model.domain import InvalidData
from model.evaluation import rmse_difference
from model.experiments import ROWS, UnknownRow, Wanted, row_named, run_rows, updates
from model.layers import Standardise, spread_age
from model.networks import InvalidOption, network_class
from model.reference import fit_reference
from model.run import prepare
from model.training import TrainConfig, Trainer
from tests.commands import rul
from tests.fleets import PUMPS, worn_pumps

CONFIG = TrainConfig(seed=5, steps=4, batch=16, check_every=4, truncations=4)
FLEET = replace(PUMPS, context=10)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def units():
    return worn_pumps(units=12, seed=2)


@pytest.fixture(scope="module")
def parts(units):
    return split_fold(units, FLEET, fold=0, folds=3, seed=5, truncations=4)


@pytest.fixture(scope="module")
def standardise(parts):
    reference = fit_reference(parts.trained, FLEET.schema)
    layer = Standardise(
        columns=len(FLEET.schema), settings=FLEET.schema.indices("setting"), regimes=len(reference.regimes)
    )
    layer.fit(reference)
    return layer


@pytest.fixture
def ensemble():
    return pytest.importorskip("sklearn.ensemble", reason="scikit-learn is not installed")


@pytest.fixture
def boosted(ensemble, parts, standardise):
    """Fit gradient boosting to windows, by default those of training; `before` sees each fit's statistics."""
    fit = ensemble.HistGradientBoostingRegressor.fit

    def boosted(windows=parts.training, before=lambda statistics: None):
        def watched(trees, statistics, *given, **options):
            before(statistics)
            return fit(trees, statistics, *given, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ensemble.HistGradientBoostingRegressor, "fit", watched)
            return BASELINES["gradient_boosting"](windows, standardise, FLEET.cap)

    return boosted


def error(answers, windows):
    return float(np.sqrt(np.mean((answers - np.minimum(windows.rul, FLEET.cap)) ** 2)))


def test_statistics_of_a_window_do_not_see_its_padding(parts, standardise):
    windows = parts.held_out
    other = replace(windows, readings=np.where(np.isnan(windows.readings), 1e6, windows.readings))

    found = window_statistics(windows, standardise)

    assert found.shape == (len(windows), 8 * len(FLEET.schema) + 2 + len(FLEET.schema.indices("setting")))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(window_statistics(other, standardise), found, atol=1e-6)


@pytest.mark.parametrize("name", ["ridge", "gradient_boosting"])
def test_a_baseline_that_looks_beats_the_mean(name, parts, standardise):
    if name == "gradient_boosting":
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    mean = BASELINES["mean"](parts.training, standardise, FLEET.cap)
    looking = BASELINES[name](parts.training, standardise, FLEET.cap)

    windows = parts.held_out

    assert error(looking(windows), windows) < 0.9 * error(mean(windows), windows)


def test_gradient_boosting_takes_as_many_threads_as_torch(boosted):
    threadpoolctl = pytest.importorskip("threadpoolctl", reason="scikit-learn is not installed")
    pools = []

    with threadpoolctl.threadpool_limits(3):
        torch.set_num_threads(1)
        boosted(before=lambda _: pools.extend(threadpoolctl.threadpool_info()))

    assert {pool["num_threads"] for pool in pools} == {1}


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=BINS), st.integers(0, 5000))
def test_values_up_to_the_number_of_bins_stay_as_they_are_however_rare(different, more):
    values = np.float32(different + different[:1] * more)

    np.testing.assert_array_equal(coarse(values), values)


def test_more_values_than_bins_rise_to_the_next_quantile():
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)

    raised = coarse(values)

    order = np.argsort(values)
    assert len(np.unique(raised)) <= BINS
    assert (raised >= values).all()
    assert (np.diff(raised[order]) >= 0).all()
    assert set(raised.tolist()) <= set(values.tolist())
    assert np.bincount(np.unique(raised, return_inverse=True)[1]).max() <= 5000 // (BINS - 1) + 1


def test_gradient_boosting_gets_no_more_values_than_bins_where_weights_differ(boosted, parts, monkeypatch):
    monkeypatch.setattr("model.baselines.BINS", 9)
    weights = np.where(np.arange(len(parts.training)) % 2, 1.0, 2.0).astype(np.float32)
    seen = []

    for windows in (parts.training, replace(parts.training, weight=weights)):
        boosted(windows, lambda given: seen.append(max(len(np.unique(column)) for column in given.T)))

    assert seen[0] > 9 >= seen[1]


def test_gradient_boosting_learns_from_a_part_of_many_windows(boosted, parts, monkeypatch):
    windows = parts.held_out
    whole = boosted()(windows)
    monkeypatch.setattr("model.baselines.MOST_WINDOWS", len(parts.training) // 2)

    part, again = (boosted()(windows) for _ in range(2))

    np.testing.assert_array_equal(part, again)
    assert not np.array_equal(part, whole)


def rows(units, *names, watch=lambda *_: None, **options):
    wanted = [Wanted(name) for name in names]
    return run_rows(wanted, units, FLEET, folds=3, config=CONFIG, watch=watch, **options)


@pytest.mark.parametrize("name", ["mean", "flagship"])
def test_a_row_is_judged_on_every_unit_once(name, units):
    told = []

    (found,) = rows(units, name, watch=lambda wanted, done: told.append(done))

    assert told[-1] == 3 * updates(row_named(name), CONFIG)
    assert found.figures["rmse"].low <= found.figures["rmse"].value <= found.figures["rmse"].high
    of_intervals = {"coverage", "coverage_below_cap", "width"}
    assert of_intervals & set(found.figures) == (of_intervals if name == "flagship" else set())
    assert found.microseconds > 0


def test_a_row_is_held_against_another_on_the_same_windows(units):
    mean, ridge = rows(units, "mean", "ridge")

    apart = rmse_difference(ridge.answered, mean.answered, cap=FLEET.cap)

    assert apart.value == pytest.approx(ridge.figures["rmse"].value - mean.figures["rmse"].value)
    assert apart.low <= apart.value <= apart.high < 0


def test_rows_of_other_windows_are_not_compared(units):
    whole, part = (next(rows(units, "mean", only=only)) for only in (None, 2))

    with pytest.raises(InvalidData, match="different windows"):
        rmse_difference(whole.answered, part.answered, cap=FLEET.cap)


def test_an_unknown_row_is_refused_by_name():
    with pytest.raises(UnknownRow, match="no row 'crystal_ball', there are: mean, ridge"):
        row_named("crystal_ball")


@pytest.mark.parametrize("name", ROWS)
def test_each_row_names_options_that_exist(name):
    row = ROWS[name]

    replace(TrainConfig(), **row.recipe)

    if row.network is not None:
        assert set(row.options) <= set(network_class(row.network).options)


def test_units_are_drawn_equally_often_however_long_they_are(parts):
    config = replace(CONFIG, batch=4000)
    trainer: Trainer = prepare(parts, FLEET, network="flagship", config=config)[0]

    unit = parts.training.unit[trainer._draw().numpy()]

    _, counts = np.unique(unit, return_counts=True)
    assert len(counts) == len(parts.trained)
    assert counts.max() < 1.3 * counts.min()


def test_ages_that_are_not_known_say_nothing():
    age = spread_age(torch.tensor([0.0, 0.8, 1.0]), torch.tensor([0.0, 1.0, 1.0]))

    torch.testing.assert_close(age, torch.tensor([0.0, 0.0, 1.2]), atol=1e-6, rtol=0)


def test_a_row_takes_options_of_its_network_and_of_its_training():
    row = row_named("last_state", ["hidden=16", "noise=0.5"])

    assert row.options == {"last_state": True, "hidden": 16}
    assert row.recipe == {"noise": 0.5}
    assert ROWS["last_state"].options == {"last_state": True}


def test_options_of_a_row_add_to_its_own_recipe_and_leave_the_rest():
    assert row_named("long", ["noise=0.5"]).recipe == {**ROWS["long"].recipe, "noise": 0.5}


@pytest.fixture
def short_rows(monkeypatch):
    """Rows of a few updates; a command has no option for it, and prints the same after any number."""
    for name in ("flagship", "selfattention"):
        monkeypatch.setitem(ROWS, name, replace(ROWS[name], recipe={"steps": 20}))


def experiment(files, *options):
    return rul("experiment", "--data", files / "pumps.csv", "--fleet", files / "pumps.toml", *options)


@pytest.mark.usefixtures("short_rows")
def test_rul_experiment_prints_its_findings_the_row_its_heads_and_the_difference(files):
    small = [word for option in ("hidden=4", "convolution=4", "heads=2") for word in ("--set", option)]
    short = ("--set", "batch=8", "--folds", 2, "--only", 1)

    result = experiment(
        files, "--row", "selfattention", *small, *short, "--silence-heads", "--against", "mean"
    )

    assert result.exit_code == 0, result.exception
    assert result.stderr.startswith("warning: only 12 units with a known failure")
    shown = " ".join(result.stdout.split())
    label = "selfattention hidden=4 convolution=4 heads=2 batch=8"
    assert shown.startswith(f"| {label} |")
    assert "without one head, cycles, with 95 % intervals" in shown
    assert [line.split()[1] for line in result.stdout.splitlines() if line.startswith("│")] == ["0", "1"]
    assert f"{label} - mean: " in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--row", "mean", "--silence-heads"), "'mean' has no heads to silence"),
        (("--row", "amnl", "--set", "causal=true"), "expected NAME=VALUE with a name of network 'amnl'"),
    ],
)
def test_an_unsupported_option_of_a_row_is_refused_before_data_is_read(files, options, message):
    result = experiment(files, *options, "--data", "missing.csv")

    assert message in str(result.exception)


def test_data_that_would_ruin_an_experiment_end_it_before_it_begins(files):
    result = experiment(files, "--row", "mean", "--folds", 13)

    assert isinstance(result.exception, InvalidData)
    assert "expected at least 13 units with a known failure" in str(result.exception)


def test_a_search_tries_the_same_options_each_time(units):
    search = pytest.importorskip("model.search", reason="Optuna is not installed", exc_type=ImportError)
    space = search.read_space("amnl", ["batch=8", "noise=0.01..0.5", "hidden=2..4", "score=dot,additive"])
    run = partial(run_rows, trajectories=units, fleet=FLEET, folds=2, config=CONFIG, watch=lambda *_: None)

    first, again = (
        [
            (wanted.label, found.figures["rmse"])
            for wanted, found in search.search_rows(space, run, trials=2, seed=seed)
        ]
        for seed in (1, 1)
    )

    assert first == again
    assert len({label for label, _ in first}) == 2
    pattern = r"amnl batch=8 noise=0\.[\d.]+ hidden=[234] score=(dot|additive)"
    assert all(re.fullmatch(pattern, label) for label, _ in first)


def test_a_searched_number_stays_within_its_bounds_when_it_is_rounded():
    search = pytest.importorskip("model.search", reason="Optuna is not installed", exc_type=ImportError)
    space = search.read_space("flagship", ["average=0.99..0.9999"])

    def run(rows):
        return (SimpleNamespace(rmse=1 - row.row.recipe["average"]) for row in rows)

    tried = [found.rmse for _, found in search.search_rows(space, run, trials=20, seed=0)]

    assert min(tried) >= 1 - 0.9999
    assert max(tried) <= 1 - 0.99


@pytest.mark.usefixtures("short_rows")
def test_a_trial_that_diverges_is_not_the_one_of_lowest_rmse(files):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    options = ("--set", "batch=8", "--set", "learning_rate=1e30,0.003", "--folds", 2, "--only", 1)

    result = experiment(files, "--row", "flagship", *options, "--search", 2)

    assert result.exit_code == 0, result.exception
    *trials, last = result.stdout.splitlines()
    assert any("learning_rate=1e30 | nan" in trial for trial in trials)
    assert last.startswith("lowest RMSE: flagship batch=8 learning_rate=0.003;")


@pytest.mark.usefixtures("short_rows")
def test_rul_experiment_prints_the_trials_of_a_search_and_names_the_one_of_lowest_rmse(files):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    options = ("--set", "batch=8", "--set", "hidden=4,6", "--folds", 2, "--only", 1, "--search", 2)

    result = experiment(files, "--row", "flagship", *options)

    *trials, last = result.stdout.splitlines()
    cells = [trial.split("|") for trial in trials]
    rmse = {label.strip(): float(figures.split("[")[0]) for _, label, figures, *_ in cells}
    assert last.startswith(f"lowest RMSE: {min(rmse, key=rmse.__getitem__)};")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--row", "flagship", "--set", "noise=0.1"), "expected --set NAME=LOW..HIGH or --set NAME=A,B,C"),
        (
            ("--row", "flagship", "--set", "noise=0.5..0.1"),
            "noise: expected LOW..HIGH, numbers with LOW below",
        ),
        (("--row", "amnl", "--set", "score=additive..dot"), "score: expected LOW..HIGH"),
        (("--row", "mean", "--set", "noise=0.1..0.5"), "row 'mean' is a baseline: it has no options"),
    ],
)
def test_ranges_that_cannot_be_searched_are_refused_before_data_is_read(files, options, message):
    pytest.importorskip("optuna", reason="Optuna is not installed")

    result = experiment(files, *options, "--search", 2, "--data", "missing.csv")

    assert isinstance(result.exception, InvalidOption)
    assert message in str(result.exception)


def test_a_search_compares_no_other_row(files):
    result = experiment(files, "--row", "flagship", "--search", 2, "--against", "mean")

    assert result.exit_code == 2
    assert "excludes --silence-heads and --against" in " ".join(result.stderr.split())
