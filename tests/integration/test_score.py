"""`rul score` as a user runs it: processes, kills, and what it says."""

from __future__ import annotations

import json
import signal
import subprocess
from functools import partial

import pyarrow.parquet as pq
import pytest

from tests import commands
from tests.environments import clean_environment
from tests.integration.conftest import RUL, rul
from tests.scoring import tree, write_pumps
from tests.tiny_bundle import pumps
from tests.waiting import wait_until

rul_score = partial(rul, "score")
KILLS = 3
TRIES = 5
"""Folders to kill runs in: on a busy machine a run may end before the kill."""
SECONDS = 120


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Forty pumps in two files, one reading without a unit."""
    folder = tmp_path_factory.mktemp("fleet")
    units = pumps(units=40, seed=21)
    write_pumps(folder / "a.parquet", units[:25])
    table = write_pumps(folder / "b.parquet", units[25:])
    names = table["unit"].to_pylist()
    pq.write_table(table.set_column(0, "unit", [[None, *names[1:]]]), folder / "b.parquet")
    return folder


@pytest.fixture(scope="module")
def options(tiny_bundle, fleet):
    given = {"--bundle": tiny_bundle.path, "--input": fleet, "--windows": "all", "--part-readings": 60}
    return [str(each) for pair in given.items() for each in pair]


def begun(*arguments, stderr):
    """A run that a test ends."""
    return subprocess.Popen([RUL, "score", *arguments], env=clean_environment(), stderr=stderr)


@pytest.fixture(scope="module")
def undisturbed(options, tmp_path_factory):
    """The folder of a run that nobody disturbs, and the JSON that it said."""
    folder = tmp_path_factory.mktemp("scored") / "undisturbed"
    done = rul_score(*options, "--output", folder, "--json")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def parts_of(folder):
    return len([*folder.glob("part-*")])


def is_killed(options, folder):
    """Begin a run and kill it when it has written a part; return whether it had not ended before."""
    before = parts_of(folder)
    process = begun(*options, "--output", folder, stderr=subprocess.DEVNULL)
    wait_until(lambda: parts_of(folder) > before or process.poll() is not None, SECONDS, pause=0.001)
    process.send_signal(signal.SIGKILL)
    status = process.wait()
    assert status in {0, -signal.SIGKILL}
    return status != 0


def test_a_run_that_is_killed_three_times_ends_as_one_that_is_not(options, undisturbed, tmp_path):
    folders = [tmp_path / f"killed-{number}" for number in range(TRIES)]

    killed = next(folder for folder in folders if all(is_killed(options, folder) for _ in range(KILLS)))
    done = rul_score(*options, "--output", killed)

    assert done.returncode == 0, done.stderr
    assert "parts are finished already" in done.stderr
    assert tree(killed) == tree(undisturbed[0])


def test_processes_end_with_a_killed_parent(options, tmp_path):
    process = begun(*options, "--output", tmp_path / "out", stderr=subprocess.PIPE)
    wait_until(lambda: [*(tmp_path / "out").glob("part-*")], SECONDS, pause=0.001)

    process.kill()

    # Every process of the run holds this pipe open until it ends.
    process.communicate(timeout=SECONDS)


def test_a_prediction_ended_by_sigterm_leaves_no_part_of_its_file(tmp_path):
    units = tmp_path / "units.csv"
    assert commands.rul("simulate", "--bundle", "fd001", "--units", 100, "--output", units).exit_code == 0
    options = ("--bundle", "fd001", "--input", units, "--output", tmp_path / "rul.csv")
    process = subprocess.Popen([RUL, "predict", *map(str, options)], env=clean_environment())
    wait_until(lambda: [*tmp_path.glob(".part-*")], SECONDS, pause=0.001)

    process.terminate()

    assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert [*tmp_path.iterdir()] == [units]


def test_the_summary_is_printed_and_stored(undisturbed):
    folder, said = undisturbed

    summary = json.loads(said)
    assert summary == json.loads((folder / "_summary.json").read_text("utf-8"))
    assert (summary["units"], summary["refused_readings"]) == (40, 1)
    assert sum(summary["health_states"].values()) == summary["windows"]
    assert set(summary["drift"]["columns"]) >= {"vibration"}


def test_a_run_over_dates_says_once_that_it_numbers_them(tiny_bundle, tmp_path):
    table = write_pumps(tmp_path / "pumps.parquet", pumps(units=4, seed=21))
    dates = table["cycle"].cast("int32").cast("date32")
    pq.write_table(table.set_column(1, "cycle", dates), tmp_path / "pumps.parquet")
    given = ("--bundle", tiny_bundle.path, "--input", tmp_path / "pumps.parquet", "--part-readings", 60)

    done = rul_score(*map(str, given), "--output", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    assert done.stderr.count("column 'cycle' holds dates") == 1


def test_people_read_counts_and_where_reasons_are_of_a_finished_run_too(options, undisturbed):
    folder, _ = undisturbed

    done = rul_score(*options, "--output", folder)

    assert "windows of 40 units" in done.stdout
    assert f"refused: 1 reading, 0 windows (reasons: {folder}/_refused)" in done.stdout
    assert "drift" in done.stdout
