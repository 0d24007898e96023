"""Readings of units in the real process: SIGKILL loses none, and answers are those of whole windows."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from threading import Barrier, Event, Semaphore
from typing import Any

import httpx
import numpy as np
import pytest

from export.bundle import find_bundle
from export.session import open_bundle
from model.domain import Trajectory
from model.simulation import simulate
from service.store.rows import Append, Appended, Given, UnitKey
from service.store.store import Store
from tests.ingesting import Devices, by_http, settled
from tests.integration.conftest import running
from tests.waiting import wait_until

UNITS, CYCLES, TOLERANCE, PATIENCE, ROUNDS = 4, 75, 1e-4, 60, 40
HALF = UNITS * CYCLES // 2


@pytest.fixture(scope="module")
def fleet() -> tuple[list[Trajectory], list[str]]:
    _, manifest = open_bundle(find_bundle("fd001"))
    lives = simulate(manifest, manifest.schema_of_columns, units=UNITS, seed=3)
    cut = [Trajectory(f"unit {u.unit}", u.cycles[-CYCLES:], u.readings[-CYCLES:], failed=True) for u in lives]
    return cut, [column.name for column in manifest.columns]


def appended_at_once(url: str, *processes: Sequence[Append]) -> list[tuple[Appended, ...]]:
    """What two processes get that append a request each, turn by turn at the same time."""
    meeting = Barrier(len(processes), timeout=PATIENCE)

    def process(requests: Sequence[Append]) -> list[Appended]:
        store, results = Store.open(url), []
        for request in requests:
            meeting.wait()
            (result,) = store.readings.append([request], at=1.0)
            assert isinstance(result, Appended), result
            results.append(result)
        store.close()
        return results

    with ThreadPoolExecutor(len(processes)) as threads:
        return list(zip(*threads.map(process, processes), strict=True))


def request(unit: str, cycles: Sequence[int]) -> Append:
    values = np.array(cycles, np.float32)[:, None]
    given = Given(cycles, values, "/{}/{}".format)
    return Append(UnitKey("", "fd001", unit), ("a",), len(cycles) + 1, given)


def test_processes_that_append_the_same_cycles_at_once_store_each_once(url):
    one, other = (
        [request(f"unit {turn}", rng.permutation(5).tolist()) for turn in range(ROUNDS)]
        for rng in map(np.random.default_rng, (1, 2))
    )

    results = appended_at_once(url, one, other)

    assert [sorted(each.stored for each in turn) for turn in results] == [[0, 5]] * ROUNDS
    assert {tuple(each.newest.cycles) for turn in results for each in turn} == {(0, 1, 2, 3, 4)}


def test_of_processes_that_append_to_a_unit_at_once_the_later_one_sees_the_readings_of_both(url):
    one, other = ([request(f"unit {turn}", [cycle]) for turn in range(ROUNDS)] for cycle in (1, 2))

    results = appended_at_once(url, one, other)

    assert [max(len(each.newest.cycles) for each in turn) for turn in results] == [2] * ROUNDS


def test_after_sigkill_in_the_middle_nothing_acknowledged_is_lost_and_answers_are_those_of_whole_windows(
    tmp_path, url, fleet
):
    devices = Devices(*fleet, seed=5)
    settings = {"store_url": url, "workers": "2"}
    before_the_kill, killed = Semaphore(UNITS * CYCLES - UNITS), Event()
    with (
        running(tmp_path, "fd001", **settings) as service,
        httpx.Client(base_url=service.http, trust_env=False, timeout=PATIENCE) as http,
        ThreadPoolExecutor(UNITS) as threads,
    ):
        send = by_http(http)

        def append(unit: str, given: dict[str, Any]) -> object:
            """Send a reading; the last ones wait for the kill, however late it comes."""
            if not before_the_kill.acquire(blocking=False):
                killed.wait(PATIENCE)
            return send(unit, given)

        devices.report(threads, repeat(append))
        wait_until(lambda: devices.sent > HALF, PATIENCE, what="half of the readings", pause=0)
        os.killpg(service.process.pid, signal.SIGKILL)
        service.process.wait(PATIENCE)
        killed.set()
    assert sum(map(len, devices.left.values())) >= UNITS, "readings were acknowledged after the kill"

    with (
        running(tmp_path, "fd001", **settings) as service,
        httpx.Client(base_url=service.http, trust_env=False, timeout=PATIENCE) as http,
    ):
        lost = devices.lost(http, "fd001")
        with ThreadPoolExecutor(UNITS) as threads:
            devices.report(threads, repeat(by_http(http)))
        worst = devices.worst(http)
        kept = [settled(http, "GET", f"/v1/units/{u.unit}?limit=1000")["readings"] for u in devices.units]

    assert lost == 0
    assert worst <= TOLERANCE
    for unit, readings in zip(devices.units, kept, strict=True):
        assert readings["cycles"] == unit.cycles.tolist()
        read = np.array([readings["columns"][name] for name in devices.names], np.float32).T
        np.testing.assert_array_equal(read, unit.readings)
