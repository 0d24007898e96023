"""The report of `tests.benchmarks.capacity`: a measurement that follows the simulation agrees with it."""

from __future__ import annotations

import msgspec
import pytest
from typer.testing import CliRunner

from tests.benchmarks.capacity_report import (
    Load,
    Measurement,
    Plan,
    Round,
    compared,
    costs,
    planned,
    simulated_load,
)
from tests.benchmarks.fleet_simulation import Batch
from tests.benchmarks.loop_simulation import Client

LOADS = (Load(callers=1), Load(callers=64), Load(per_second=2000))
GRAPH = {1: 0.0001, 8: 0.0004, 32: 0.001}


def measurement(*, slower: float = 1.0) -> Measurement:
    """Two rounds that measured what the simulation says, or service times that were slower by a factor."""

    def batches(factor: float) -> dict[int, list[Batch]]:
        return {n: [Batch(factor * (0.0002 + 0.00009 * n), factor * (0.0002 + 0.0001 * n))] for n in GRAPH}

    def rounds(factor: float) -> list[Round]:
        cpu, client = dict.fromkeys(GRAPH, 0.0002), Client(0.00001, 0.00001)
        return [Round(seed, 0.5, batches(factor), cpu, client, [], 0.01) for seed in (1, 2)]

    plain = Measurement("fd001", "json", 18_000, 0, 220.0, GRAPH, rounds(1.0))
    made = [[simulated_load(plain, each, load) for load in LOADS] for each in plain.rounds]
    shown = [
        msgspec.structs.replace(each, loads=loads) for each, loads in zip(rounds(slower), made, strict=True)
    ]
    return msgspec.structs.replace(plain, rounds=shown)


def cells(text: str) -> list[list[str]]:
    """The rows of a table, without its heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_measurement_that_follows_the_simulation_has_the_ratio_one_everywhere() -> None:
    rows = cells(compared(measurement()))

    assert [row[0] for row in rows] == ["1 caller", "64 callers", "2,000 a second at random"]
    assert [(row[3], row[6], row[9]) for row in rows] == [("1.00", "1.00", "1.00")] * 3


def test_service_times_that_are_too_long_show_in_the_ratios() -> None:
    rows = cells(compared(measurement(slower=1.5)))

    assert all(float(row[6]) > 1.3 for row in rows)


def test_costs_are_per_window() -> None:
    rows = cells(costs(measurement()))

    assert rows[2] == ["32", "3.400", "0.106", "0.200", "0.031"]


@pytest.mark.parametrize("workers", [1, 4])
def test_a_plan_has_cores_for_every_unit_while_one_replica_of_eight_is_gone(workers: int) -> None:
    found = measurement(slower=50)  # fewer requests to simulate

    text = planned(found, found.times(found.rounds), Plan(workers, p99_seconds=0.5, core_hour=0.5))

    percent = int(text.split(" % of")[0].split()[-1])
    throughput = percent / 100 * 32 / (50 * 0.0034)
    for units, row in zip((10_000, 100_000, 1_000_000), cells(text), strict=True):
        replicas, cores = int(row[1]), int(row[2])
        assert cores == replicas * workers
        assert cores * 7 / 8 * throughput >= 0.999 * units or replicas == 2
        assert float(row[3]) <= 500
        assert row[-1] == f"{cores * 0.5 * 730:,.0f}"


def test_a_missing_measurement_is_a_clear_error(tmp_path) -> None:
    import typer

    from tests.benchmarks.capacity import main

    app = typer.Typer()
    app.command()(main)

    result = CliRunner().invoke(app, ["--data", str(tmp_path / "none.json")], env={"COLUMNS": "200"})

    assert result.exit_code == 2
    assert "none.json" in result.output
    assert "--measure" in result.output
