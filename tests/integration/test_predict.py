"""`rul predict` as a user runs it: here, by HTTP and by gRPC, the same table."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from dataclasses import replace
from functools import partial

import pyarrow.parquet as pq
import pytest

from export.session import open_bundle
from model.domain import RulError
from rul_client.commands.predict.rows import columns_of
from tests.commands import rul
from tests.fleets import write_fleet
from tests.integration import conftest as processes
from tests.integration.conftest import RUL, free_port, running
from tests.tiny_bundle import FLEET, pumps
from tests.waiting import wait_until

NUMBERS = ("rul", "rul_lower", "rul_upper", "entropy_ratio")
TEXTS = ("unit", "last_cycle", "rul_state", "health_state")
ADVISED = ("--last", "--costs", "1:10")
KEY = "key-of-the-test"


rul_predict = partial(rul, "predict")


def table(done):
    assert done.exit_code == 0, (done.stderr, done.exception)
    return list(csv.DictReader(io.StringIO(done.stdout)))


def assert_same(rows, others):
    assert [[row[name] for name in TEXTS] for row in rows] == [
        [row[name] for name in TEXTS] for row in others
    ]
    for name in NUMBERS:
        got = [float(row[name] or -1) for row in rows]
        assert got == pytest.approx([float(row[name] or -1) for row in others], abs=1e-4), name


@pytest.fixture(scope="module")
def pumps_csv(tmp_path_factory):
    """Five pumps at work, one of which lost a reading."""
    units = [replace(pump, readings=pump.readings.copy()) for pump in pumps(units=5, seed=21)]
    units[1].readings[4, 2] = float("nan")
    return write_fleet(tmp_path_factory.mktemp("units"), units, FLEET)[0]


@pytest.fixture(scope="module")
def columns(tiny_bundle):
    return columns_of(open_bundle(tiny_bundle)[1])


@pytest.fixture(scope="module")
def here(tiny_bundle, pumps_csv):
    return table(rul_predict("--bundle", tiny_bundle.path, "--input", pumps_csv))


@pytest.fixture(scope="module")
def advised(tiny_bundle, pumps_csv):
    """Of each unit the last row, with the stop that costs least."""
    return table(rul_predict("--bundle", tiny_bundle.path, "--input", pumps_csv, *ADVISED))


def test_there_is_a_row_for_every_cycle_in_the_order_of_the_file(here, columns, pumps_csv):
    read = list(csv.DictReader(io.StringIO(pumps_csv.read_text(encoding="utf-8"))))

    assert tuple(here[0]) == columns
    assert [(row["unit"], row["last_cycle"]) for row in here] == [(row["unit"], row["cycle"]) for row in read]


def test_the_last_rows_are_those_of_each_units_last_cycle(here, advised):
    assert [row["unit"] for row in advised] == [f"pump-{n}" for n in range(1, 6)]
    assert_same(advised, [{row["unit"]: row for row in here}[row["unit"]] for row in advised])


@pytest.fixture(scope="session")
def server(behind_envoy):
    return behind_envoy


def address(server, protocol):
    return server.http if protocol == "http" else f"grpc://{server.grpc}"


@pytest.fixture(params=["http", "grpc"])
def url(request, server):
    return address(server, request.param)


def test_a_service_gives_the_table_that_the_bundle_gives_here(here, url, pumps_csv):
    there = table(rul_predict("--url", url, "--input", pumps_csv))

    assert_same(there, here)


def test_a_service_advises_the_stops_that_the_bundle_advises_here(url, advised, pumps_csv):
    there = table(rul_predict("--url", url, "--input", pumps_csv, *ADVISED))

    assert [row["act_at_cycle"] for row in there] == [row["act_at_cycle"] for row in advised]
    ratios = [float(row["cost_ratio"]) for row in advised]
    assert [float(row["cost_ratio"]) for row in there] == pytest.approx(ratios, abs=1e-4)
    assert all(0 < ratio <= 1 for ratio in ratios)


def test_back_tests_stay_out_of_the_fleet_unless_they_are_to_be_stored(server, http, pumps_csv, tmp_path):
    def ask(name, *options):
        (tmp_path / name).write_text(pumps_csv.read_text("utf-8").replace("pump-", f"{name}-"), "utf-8")
        table(rul_predict("--url", server.http, "--input", tmp_path / name, "--last", *options))

    def stored(name):
        return len(http.get("/v1/units", params={"q": name}).json()["units"])

    ask("trial.csv")
    ask("kept.csv", "--store")

    wait_until(lambda: stored("kept.csv") == 5, 30, what="stored units in the fleet")
    assert stored("trial.csv") == 0


@pytest.mark.parametrize("suffix", ["json", "parquet", "txt"])
def test_every_format_holds_every_row(here, tiny_bundle, pumps_csv, tmp_path, suffix):
    output = tmp_path / f"rul.{suffix}"

    done = rul_predict("--bundle", tiny_bundle.path, "--input", pumps_csv, "--output", output)

    assert done.exit_code == 0, done.output
    if suffix == "txt":
        lines = output.read_text(encoding="utf-8").splitlines()
        assert len(lines) == len(here) + 4
        assert f"{len(here)} windows of 5 units" in lines[-1]
    else:
        rows = json.loads(output.read_text()) if suffix == "json" else pq.read_table(output).to_pylist()
        assert [row["rul"] for row in rows] == pytest.approx([float(row["rul"]) for row in here], abs=1e-4)


@pytest.mark.parametrize("command", ["predict --url http://{}", "top http://{} --once", "bench http://{}",
                                     "demo --seconds 1 --url http://{}"])  # fmt: skip
def test_a_service_that_is_not_there_is_named(pumps_csv, command):
    words = command.format(f"127.0.0.1:{free_port()}").split()

    done = rul(*words, *(("--input", pumps_csv) if words[0] == "predict" else ()))

    assert isinstance(done.exception, RulError)
    assert (done.stdout, done.stderr) == ("", "")
    assert "cannot be reached" in str(done.exception)


def test_a_service_that_is_not_there_is_one_line_and_1(pumps_csv):
    done = processes.rul("predict", "--url", f"grpc://127.0.0.1:{free_port()}", "--input", pumps_csv)

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "cannot be reached" in done.stderr
    assert done.stdout == ""


def test_infinite_and_missing_values_are_reported_once_on_stderr_and_count_as_missing(tiny_bundle, tmp_path):
    path, _ = write_fleet(tmp_path, pumps(units=2, seed=5), FLEET)
    lines = path.read_text(encoding="utf-8").splitlines()
    for line, broken in ((1, "inf"), (3, "-inf"), (4, "")):
        lines[line] = ",".join([*lines[line].split(",")[:-1], broken])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    done = processes.rul(
        "predict", "--bundle", tiny_bundle.path, "--input", path, "--last", "--format", "csv"
    )

    assert done.stderr.splitlines() == [
        "infinite values, read as missing: 2",
        f"  {path}, column 'current': 2, the first in line 2",
        f"missing values, of {len(lines) - 1} readings: current 1",
    ]
    assert [float(row["rul"]) >= 0 for row in csv.DictReader(io.StringIO(done.stdout))] == [True, True]


def test_a_reader_that_leaves_early_is_no_error(tiny_bundle, columns, pumps_csv):
    command = f'"{RUL}" predict --bundle "{tiny_bundle.path}" --input "{pumps_csv}" | head -n 1'

    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False, timeout=300
    )

    assert done.stdout == ",".join(columns) + "\n"
    assert (
        done.stderr == "missing values, of 263 readings: vibration 1\n"
    )  # of the file, and nothing of the pipe


@pytest.fixture(scope="module")
def guarded(tiny_bundle, tmp_path_factory):
    """A service that asks for a key."""
    with running(tmp_path_factory.mktemp("guarded"), str(tiny_bundle.path), api_keys=KEY) as started:
        yield started


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_key_is_asked_for_in_one_line_and_read_from_the_environment(
    here, guarded, pumps_csv, protocol, monkeypatch
):
    url = address(guarded, protocol)

    without = rul_predict("--url", url, "--input", pumps_csv)
    monkeypatch.setenv("RUL_API_KEY", KEY)
    with_key = rul_predict("--url", url, "--input", pumps_csv)

    assert isinstance(without.exception, RulError)
    assert "RUL_API_KEY" in str(without.exception)
    assert "\n" not in str(without.exception)
    assert_same(table(with_key), here)
