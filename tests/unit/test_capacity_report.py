"""The report of `tests.benchmarks.capacity`: a measurement that follows the simulation agrees with it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import pytest
import typer
from msgspec.structs import replace

from tests.benchmarks.capacity_report import (
    Load,
    Measurement,
    Plan,
    Round,
    compared,
    costs,
    measurements,
    planned,
    simulated,
    with_simulation,
)
from tests.benchmarks.loop_simulation import Client

LOADS = (Load(callers=1), Load(callers=64), Load(per_second=2000))
GRAPH = {1: 0.0001, 8: 0.0004, 32: 0.001}


@cache
def measurement(*, slower: float = 1.0) -> Measurement:
    """Two rounds that measured what the simulation says, or service times that were slower by a factor."""

    def micros(factor: float) -> dict[int, list[tuple[int, int]]]:
        return {n: [(round(factor * (200 + 90 * n)), round(factor * (200 + 100 * n)))] for n in GRAPH}

    def rounds(factor: float) -> list[Round]:
        cpu, client = dict.fromkeys(GRAPH, 0.0002 * factor), Client(0.00001, 0.00001)
        return [Round(seed, 0.5, micros(factor), cpu, 0.0, 0.0, {}, client, [], [], 0.01) for seed in (1, 2)]

    plain = Measurement("fd001", "json", 18_000, 0, 220.0, GRAPH, rounds(1.0))
    times = [plain.times([each]) for each in plain.rounds]
    shown = [
        replace(each, loads=[simulated(own, each, load) for load in LOADS])
        for own, each in zip(times, rounds(slower), strict=True)
    ]
    return with_simulation(replace(plain, rounds=shown))


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
    throughput = percent / 100 / (50 * 0.0002)  # the CPU time of a full batch is above its time
    for units, row in zip((10_000, 100_000, 1_000_000), cells(text), strict=True):
        replicas, cores = int(row[1]), int(row[2])
        assert cores == replicas * workers
        assert cores * 7 / 8 * throughput >= 0.999 * units or replicas == 2
        assert float(row[3]) <= 500
        assert row[-1] == f"{cores * 0.5 * 730:,.0f}"


def test_a_limit_below_the_time_of_one_window_gives_no_plan() -> None:
    found = measurement(slower=50)

    text = planned(found, found.times(found.rounds), Plan(1, p99_seconds=0.001, core_hour=0.5))

    assert text.startswith("No load keeps p99 below 1 ms")


@pytest.mark.parametrize("content", [None, b"{", b'[{"bundle": "fd001"}]'])
def test_a_file_without_measurements_is_a_clear_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "times.json"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(typer.BadParameter, match=r"times\.json: expected measurements.*--measure"):
        measurements(file)


def test_measurements_are_read_as_they_were_written(tmp_path: Path) -> None:
    file, found = tmp_path / "times.json", [measurement()]
    file.write_bytes(msgspec.json.encode(found))

    assert measurements(file) == found
