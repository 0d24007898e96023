"""Readers, regimes and simulation on C-MAPSS and XJTU files, where they are (RUL_DATA)."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model.dataset import held_out_windows, split_fold
from model.domain import Trajectory
from model.findings import findings
from model.fleet import FailureRule, fleet_named
from model.fleet_draft import draft_fleet
from model.inspection import inspect_rows
from model.readers import read_rows, read_trajectories, read_with_report
from model.reference import fit_reference
from model.regimes import find_regimes
from model.simulation import simulate

DATA = Path(os.environ.get("RUL_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
CMAPSS = fleet_named("cmapss")
BATTERY = fleet_named("battery_xjtu")
SUBSETS = {
    "FD001": (20631, 100, 1),
    "FD002": (53759, 260, 6),
    "FD003": (24720, 100, 1),
    "FD004": (61249, 249, 6),
}

pytestmark = pytest.mark.data


def real(*parts: str) -> Path:
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no real data: {path} is missing (set RUL_DATA)")
    return path


@pytest.mark.parametrize(("subset", "rows", "units", "count"), [(name, *of) for name, of in SUBSETS.items()])
def test_all_rows_and_units_of_cmapss_are_read_and_have_one_regime_or_six(subset, rows, units, count):
    trajectories, report = read_with_report(real("cmapss", f"train_{subset}.txt"), CMAPSS)
    regimes = find_regimes(trajectories, CMAPSS.schema)

    assert (report.rows, len(trajectories)) == (rows, units)
    assert all(trajectory.failed for trajectory in trajectories)
    assert report.missing == report.infinite == {}
    assert all(unit.cycles.tolist() == list(range(1, len(unit) + 1)) for unit in trajectories)
    assert len(regimes) == count
    if count == 6:
        altitude_mach = [[0, 0], [10, 0.25], [20, 0.7], [25, 0.62], [35, 0.84], [42, 0.84]]
        np.testing.assert_allclose(regimes.centre[:, :2], altitude_mach, atol=0.01)


def test_numbers_are_those_of_the_file():
    path = real("cmapss", "test_FD002.txt")
    expected = np.loadtxt(path, dtype=np.float32, max_rows=50)

    first = read_trajectories(path, CMAPSS, run_to_failure=False)[0]

    columns = [2, 3, 4, *(4 + int(name.removeprefix("sensor_")) for name in CMAPSS.schema.names[3:])]
    own = expected[expected[:, 0] == 1]
    np.testing.assert_array_equal(first.readings[: len(own)], own[:, columns])
    assert not first.failed


def test_batteries_hold_infinite_values_and_cells_that_stopped_early():
    cells, report = read_with_report(real("battery_xjtu"), BATTERY)

    assert (len(cells), sum(not cell.failed for cell in cells)) == (55, 4)
    assert report.infinite == {"voltage_entropy": 151}
    assert not any(np.isinf(cell.readings).any() for cell in cells)
    assert all((cell.readings[-1, -1] <= 1.66) == cell.failed for cell in cells)


def test_cells_that_stopped_early_neither_train_nor_are_held_out():
    cells = read_trajectories(real("battery_xjtu"), BATTERY)
    failed = {cell.unit for cell in cells if cell.failed}

    parts = [split_fold(cells, BATTERY, fold=k, folds=5, seed=0, truncations=2) for k in range(5)]

    assert len(failed) == 51
    for each in parts:
        held_out = set(held_out_windows(each).unit)
        assert set(each.training.unit) == failed - held_out
    assert sorted(unit for each in parts for unit in set(held_out_windows(each).unit)) == sorted(failed)


def test_hust_cells_just_miss_a_bound_and_reach_the_next():
    draft = draft_fleet(sorted(real("battery_hust").glob("*.csv")))
    assert draft.failure == FailureRule("capacity", at_most=0.89)
    cells = replace(
        BATTERY, cap=600.0, horizons=(50, 150, 300), failure=FailureRule("capacity", at_most=0.88)
    )

    rows, _ = read_rows(real("battery_hust"), cells)
    found = [finding.text for finding in findings(inspect_rows(rows, cells), cells, folds=5)]

    assert found[0] == "[failure] capacity <= 0.88: 71 of 77 units never reach it; 74 reach 0.89"


def healthy_and_final(units: list[Trajectory]) -> tuple[np.ndarray, np.ndarray]:
    """Mean reading of each unit's first 20 and last 5 cycles, [U, F] each."""
    return (
        np.array([unit.readings[:20].mean(axis=0) for unit in units]),
        np.array([unit.readings[-5:].mean(axis=0) for unit in units]),
    )


def test_simulated_fd001_units_are_hard_to_tell_from_real_ones_by_their_statistics():
    units = read_trajectories(real("cmapss", "train_FD001.txt"), CMAPSS)
    made = simulate(fit_reference(units, CMAPSS.schema), CMAPSS.schema, units=400, seed=0)
    sensors = list(CMAPSS.schema.indices("sensor"))

    (early, late), (made_early, made_late) = healthy_and_final(units), healthy_and_final(made)

    spread = np.concatenate([unit.readings for unit in units]).std(axis=0)[sensors]
    trend, made_trend = (
        (b - a).mean(axis=0)[sensors] / spread for a, b in ((early, late), (made_early, made_late))
    )
    np.testing.assert_allclose(made_trend, trend, atol=0.25)
    ends, made_ends = (x.std(axis=0)[sensors] / spread for x in (late, made_late))
    np.testing.assert_allclose(made_ends, ends, atol=0.25)
    lives, made_lives = (np.quantile([len(unit) for unit in x], [0, 0.5, 1]) for x in (units, made))
    np.testing.assert_allclose(made_lives, lives, atol=5)
