"""`rul trajectories`: what a service has stored becomes the training data of the next model."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from model.fleet import FailureRule, fleet_named
from model.readers import read_trajectories
from service.store.judgement import Outcome, OutcomeKind
from service.store.rows import Append, Given, ModelVersion, UnitKey
from service.store.store import Store
from tests import commands
from tests.integration.conftest import rul
from tests.tiny_bundle import COLUMNS, FLEET, pumps

PUMPS, OTHER = ModelVersion("pumps", "1", 125.0, 0.9), ModelVersion("other", "1", 125.0, 0.9)
NAMES = ("load", "vibration")
CONTEXT = 12
NONE = np.nan


@pytest.fixture
def store(url):
    opened = Store.open(url, [PUMPS])
    yield opened
    opened.close()


def append(store, unit, cycles, values, *, names=NAMES, tenant=""):
    given = Given(list(cycles), np.asarray(values, np.float32), lambda _row, _column: "")
    store.readings.append([Append(UnitKey(tenant, "pumps", unit), names, CONTEXT, given)], at=0.0)


def end(store, unit, kind, cycle, *, tenant=""):
    store.take_outcome(Outcome("pumps", unit, kind, cycle, None, 0.0, tenant), replace=False)


def written(url, folder, *options) -> list[list[str]]:
    done = commands.rul("trajectories", "--store", url, "--output", folder / "units.csv", *options)
    assert done.exit_code == 0, done.output
    return list(csv.reader(io.StringIO((folder / "units.csv").read_text("utf-8"))))


def test_a_failed_unit_ends_with_its_failure_and_other_units_never_fail(store, url, tmp_path):
    append(store, "broken", [3, 4], [[3.1, NONE], [4.1, 0.5]])
    end(store, "broken", OutcomeKind.FAILED, 4)
    append(store, "removed", [1], [[1.1, NONE]])
    end(store, "removed", OutcomeKind.REMOVED, 1)
    append(store, "running", [7], [[7.1, NONE]])

    assert written(url, tmp_path) == [
        ["unit", "cycle", "failed", "load", "vibration"],
        ["broken", "3", "0", "3.1", ""],
        ["broken", "4", "1", "4.1", "0.5"],
        ["removed", "1", "0", "1.1", ""],
        ["running", "7", "0", "7.1", ""],
    ]


def test_a_failure_after_the_last_reading_is_a_row_without_readings(store, url, tmp_path):
    append(store, "broken", [3], [[3.1, NONE]])
    end(store, "broken", OutcomeKind.FAILED, 5)

    assert written(url, tmp_path)[1:] == [["broken", "3", "0", "3.1", ""], ["broken", "5", "1", "", ""]]


def test_readings_after_the_end_of_a_unit_are_left_out(store, url, tmp_path):
    append(store, "broken", [3, 4], [[3.1, NONE], [4.1, 0.5]])
    end(store, "broken", OutcomeKind.FAILED, 3)

    assert written(url, tmp_path)[1:] == [["broken", "3", "1", "3.1", ""]]


def test_units_of_tenants_are_apart_and_versions_of_a_model_may_read_other_columns(store, url, tmp_path):
    append(store, "1", [1], [[1.5]], names=("vibration",), tenant="plant-a")
    append(store, "1", [2], [[2.5, 3.5]], names=("pressure", "vibration"))

    assert written(url, tmp_path) == [
        ["unit", "cycle", "failed", "vibration", "pressure"],
        ["1", "2", "0", "3.5", "2.5"],
        ["plant-a/1", "1", "0", "1.5", ""],
    ]


def test_the_file_trains_as_it_is(store, url, tmp_path):
    """`rul fleet init` finds the failures, and every unit is read as it was stored."""
    lives = pumps(units=4, seed=5)
    names = tuple(column.name for column in COLUMNS)
    for life in lives:
        append(store, life.unit, life.cycles.tolist(), life.readings, names=names)
    for life in lives[:2]:
        end(store, life.unit, OutcomeKind.FAILED, int(life.cycles[-1]))
    end(store, lives[2].unit, OutcomeKind.REMOVED, int(lives[2].cycles[-1]))

    written(url, tmp_path)
    done = commands.rul("fleet", "init", tmp_path / "units.csv", "--output", tmp_path / "pumps.toml")

    assert done.exit_code == 0, done.output
    fleet = fleet_named(str(tmp_path / "pumps.toml"))
    found = {unit.unit: unit for unit in read_trajectories(tmp_path / "units.csv", fleet)}
    order = [names.index(column.name) for column in fleet.schema.columns]
    for life, has_failed in zip(lives, (True, True, False, False), strict=True):
        assert found[life.unit].failed == has_failed
        np.testing.assert_array_equal(found[life.unit].cycles, life.cycles)
        np.testing.assert_array_equal(found[life.unit].readings, life.readings[:, order])


def test_the_fleet_file_has_the_columns_and_bounds_of_the_bundle_and_reads_the_output(
    store, url, tiny_bundle, tmp_path
):
    (life,) = pumps(units=1, seed=5)
    names = tuple(column.name for column in COLUMNS)
    append(store, life.unit, life.cycles.tolist(), life.readings, names=names)
    end(store, life.unit, OutcomeKind.FAILED, int(life.cycles[-1]))

    fleet_file = tmp_path / "next" / "pumps.toml"
    written(url, tmp_path, "--bundle", tiny_bundle.path, "--model", "pumps", "--fleet", fleet_file)

    fleet = fleet_named(fleet_file)
    assert fleet == replace(FLEET, name="tiny", failure=FailureRule("failed", at_least=1.0))
    (found,) = read_trajectories(tmp_path / "units.csv", fleet)
    assert found.failed
    np.testing.assert_array_equal(found.readings, life.readings)


@pytest.mark.parametrize("option", ["--bundle", "--fleet"])
def test_a_bundle_without_a_fleet_file_is_refused_and_the_other_way_round(url, tmp_path, option):
    done = commands.rul("trajectories", "--store", url, option, tmp_path)

    assert done.exit_code == 2
    assert "Invalid value for --bundle and --fleet: expected both or neither" in done.stderr


def test_a_store_of_several_models_asks_for_one(url, tmp_path):
    Store.open(url, [PUMPS, OTHER]).close()

    done = commands.rul("trajectories", "--store", url, "--output", tmp_path / "units.csv", "--model", "fans")

    assert done.exit_code == 2
    assert "Invalid value for --model: expected a model of the store: other, pumps" in done.stderr
    assert not (tmp_path / "units.csv").exists()


def test_a_model_without_stored_readings_writes_no_file(store, url, tmp_path):
    done = rul("trajectories", "--store", url, "--output", tmp_path / "units.csv")

    assert (done.returncode, done.stderr) == (
        1,
        "rul: the store has no readings of pumps: it keeps those sent to a unit's cycles\n",
    )
    assert not (tmp_path / "units.csv").exists()


def test_without_a_file_the_rows_go_to_standard_output(store, url):
    append(store, "broken", [3], [[3.1, NONE]])

    done = rul("trajectories", "--store", url)

    assert done.stdout == "unit,cycle,failed,load,vibration\nbroken,3,0,3.1,\n"
    assert done.stderr == "standard output: 1 unit, 0 failed, 1 reading\n"
