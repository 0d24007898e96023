"""`rul simulate` on a real bundle: what it writes, other commands read."""

import json
from functools import partial

import numpy as np
import pytest

from export.session import open_bundle
from model.fleet import fleet_named, fleet_of_schema
from model.outputs import CannotWrite
from model.readers import read_trajectories
from tests.commands import rul


@pytest.fixture
def simulate(tiny_bundle):
    return partial(rul, "simulate", "--bundle", tiny_bundle.path)


@pytest.fixture
def manifest(tiny_bundle):
    return open_bundle(tiny_bundle)[1]


def test_csv_is_written_to_standard_output_with_a_header(simulate, manifest):
    result = simulate("--units", 2)

    header, *rows = result.stdout.splitlines()
    assert result.exit_code == 0, result.output
    assert header == ",".join(["unit", "cycle", *manifest.schema_of_columns.names])
    assert rows[0].startswith("1,1,")
    assert rows[-1].startswith("2,")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_training_reads_the_simulated_file_and_its_fleet(simulate, manifest, tmp_path, suffix):
    data, fleet_file = tmp_path / f"units.{suffix}", tmp_path / "fleet.toml"

    result = simulate("--units", 12, "--output", data, "--fleet", fleet_file)

    fleet = fleet_named(fleet_file)
    units = read_trajectories(data, fleet)
    assert result.exit_code == 0, result.output
    assert [unit.unit for unit in units] == [str(n) for n in range(1, 13)]
    assert all(unit.failed for unit in units)
    assert fleet.schema == manifest.schema_of_columns
    assert (fleet.cap, fleet.context, fleet.horizons) == (
        manifest.cap,
        manifest.context,
        tuple(manifest.horizons),
    )


def test_json_is_a_request_with_at_most_the_context_of_each_unit(simulate, manifest):
    result = simulate("--units", 3, "--truncate", "--format", "json")

    body = json.loads(result.stdout)
    assert body["model"] == manifest.name
    assert [window["unit"] for window in body["windows"]] == ["1", "2", "3"]
    for window in body["windows"]:
        assert set(window["columns"]) == set(manifest.schema_of_columns.names)
        cycles = {len(values) for values in window["columns"].values()}
        assert cycles == {min(manifest.context, window["last_cycle"])}


def test_last_cycles_keeps_the_end_of_each_unit(simulate, manifest, tmp_path):
    fleet = fleet_of_schema("x", manifest.schema_of_columns)
    simulate("--output", tmp_path / "whole.csv")
    simulate("--output", tmp_path / "ends.csv", "--last-cycles", 4)

    whole, ends = (read_trajectories(tmp_path / name, fleet) for name in ("whole.csv", "ends.csv"))

    for a, b in zip(whole, ends, strict=True):
        assert b.cycles.tolist() == a.cycles[-4:].tolist()
        np.testing.assert_array_equal(b.readings, a.readings[-4:])


def test_the_same_seed_writes_the_same_bytes(simulate):
    assert simulate("--seed", 4).stdout == simulate("--seed", 4).stdout != simulate("--seed", 5).stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--format parquet", "parquet needs --output FILE"),
        ("--truncate --fleet fleet.toml", "training needs csv or parquet of units that ran to failure"),
        ("--format json --fleet fleet.toml", "training needs csv or parquet of units that ran to failure"),
        ("--units 0", "--units"),
        ("--last-cycles 0", "--last-cycles"),
        ("--format xlsx", "'csv', 'parquet', 'json'"),
        ("--format json --output units.csv", "expected .json, got .csv"),
        ("--format csv --output units.parquet", "expected .csv, .txt, got .parquet"),
        ("--output units.xlsx", "expected .csv, .txt, .parquet, .pq, .json, got .xlsx"),
        ("--format csv --output units.xlsx", "expected .csv, .txt, got .xlsx"),
        ("--output -", "without --output, standard output is written"),
    ],
)
def test_wrong_usage_exits_with_2_and_writes_nothing(simulate, options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    result = simulate(*options.split())

    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["units.csv", "units.parquet", "units.json"])
def test_an_output_that_cannot_be_written_is_named(simulate, tmp_path, name):
    (tmp_path / name).mkdir()

    result = simulate("--output", tmp_path / name)

    assert isinstance(result.exception, CannotWrite)
    assert f"{tmp_path / name}: cannot be written: " in str(result.exception)


def test_missing_folders_of_the_output_and_its_fleet_are_made(simulate, tmp_path):
    data, fleet = tmp_path / "new" / "data" / "units.csv", tmp_path / "new" / "fleet.toml"

    result = simulate("--output", data, "--fleet", fleet)

    assert result.exit_code == 0, result.exception
    assert data.is_file()
    assert fleet.is_file()


def test_simulated_units_age_towards_failure_in_the_eyes_of_the_model(
    simulate, tiny_bundle, manifest, tmp_path
):
    simulate("--units", 30, "--output", tmp_path / "units.csv")
    units = read_trajectories(tmp_path / "units.csv", fleet_of_schema("x", manifest.schema_of_columns))
    session, _ = open_bundle(tiny_bundle)
    context = manifest.context

    def rul(parts):
        readings = np.stack(parts)
        lengths = np.full(len(parts), context)
        return session.answer(readings, lengths, np.full(len(parts), np.nan, dtype=np.float32))["rul"]

    young = rul([unit.readings[:context] for unit in units])
    old = rul([unit.readings[-context:] for unit in units])

    assert (young > old).mean() > 0.9
