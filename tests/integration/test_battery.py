"""Another kind of machine, by the same commands and no code: XJTU cells, where they are (RUL_DATA)."""

import csv
import io
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from model.fleet import fleet_named
from model.readers import read_trajectories
from tests.commands import rul
from tests.integration.conftest import running

CELLS = Path(os.environ.get("RUL_DATA", Path(__file__).parents[3] / "shared" / "data")) / "battery_xjtu"
BATTERY = fleet_named("battery_xjtu")
STOPPED_EARLY = "3C_battery-2"

pytestmark = [pytest.mark.data, pytest.mark.usefixtures("cells")]


@pytest.fixture(scope="module")
def cells():
    if not CELLS.is_dir():
        pytest.skip(f"no real data: {CELLS} is missing (set RUL_DATA)")
    return sorted(CELLS.glob("[23]C_battery-[123].csv"))


def done(*arguments):
    ended = rul(*arguments)
    assert ended.exit_code == 0, ended.exception
    return ended


@pytest.fixture(scope="module")
def trained(cells, tmp_path_factory):
    """A run and its bundle, trained for a moment; what training logged, which a command has on stderr."""
    folder, log = tmp_path_factory.mktemp("battery"), logging.StreamHandler(io.StringIO())
    logging.getLogger("model").addHandler(log)
    data = [option for cell in cells for option in ("--data", cell)]
    done(
        "train", "--fleet", "battery_xjtu", *data, "--name", "battery", "--steps", 4, "--folds", 2,
        "--output", folder / "run",
    )  # fmt: skip
    logging.getLogger("model").removeHandler(log)
    done("export", folder / "run", "--output", folder / "battery")
    return folder / "battery", log.stream.getvalue()


@pytest.fixture(scope="module")
def service(trained, tmp_path_factory):
    with running(tmp_path_factory.mktemp("server"), str(trained[0])) as started:
        yield started


def test_training_says_in_which_cells_values_are_infinite_and_how_many(trained):
    _, said = trained

    assert said.count("infinite values, read as missing: 53\n") == 1
    assert f"{CELLS / '2C_battery-1.csv'}, column 'voltage entropy': 13, the first in line 251\n" in said


def test_a_bundle_of_cells_keeps_every_promise(trained):
    done("check", trained[0])


def test_a_cell_that_stopped_early_is_answered_by_http_under_the_files_own_names(trained, service):
    asked = (
        "--input",
        CELLS / f"{STOPPED_EARLY}.csv",
        "--fleet",
        "battery_xjtu",
        "--last",
        "--format",
        "csv",
    )

    (row,) = csv.DictReader(io.StringIO(done("predict", "--url", service.http, *asked).stdout))
    (here,) = csv.DictReader(io.StringIO(done("predict", "--bundle", trained[0], *asked).stdout))

    assert (row["unit"], row["last_cycle"]) == (STOPPED_EARLY, "272")
    assert 0 <= float(row["rul_lower"]) <= float(row["rul"]) <= float(row["rul_upper"]) <= BATTERY.cap
    assert float(row["rul"]) == pytest.approx(float(here["rul"]), abs=1e-3)


def test_a_missing_entropy_is_null_in_a_request_and_counted(service):
    (cell,) = read_trajectories(CELLS / "2C_battery-1.csv", BATTERY)
    end = int(np.flatnonzero(np.isnan(cell.readings).any(axis=1))[-1]) + 1
    readings = cell.readings[end - BATTERY.context : end]
    columns = {
        column.name: [None if np.isnan(value) else float(value) for value in values]
        for column, values in zip(BATTERY.schema.columns, readings.T, strict=True)
    }

    window = {"unit": cell.unit, "last_cycle": end, "columns": columns}
    reply = service.predict(window)

    (prediction,) = reply.raise_for_status().json()["predictions"]
    assert prediction["imputed_fraction"] == pytest.approx(np.isnan(readings).mean(), abs=1e-4)
    assert prediction["imputed_fraction"] > 0
