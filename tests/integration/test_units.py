"""Readings of units in the real process: SIGKILL loses none, and answers are those of whole windows."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import monotonic
from typing import Any

import httpx
import numpy as np
import pytest

from export.bundle import find_bundle
from export.session import open_bundle
from model.domain import Trajectory
from model.simulation import simulate
from service.store.rows import Append, Appended, UnitKey
from service.store.store import Store
from service.store.url import store_url
from tests.databases import PostgreSql, postgresql
from tests.ingesting import answers, disordered, distance, reading, whole
from tests.integration.conftest import Server, running

UNITS, CYCLES, TOLERANCE, PATIENCE, ROUNDS = 6, 90, 1e-4, 60, 40


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgreSql]:
    with postgresql() as started:
        yield started


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.system)])
def url(request, tmp_path) -> str:
    """The address of a new database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/rul.db"
    return request.getfixturevalue("postgres").database(tmp_path.name)


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
        store, results = Store.open(store_url(url)), []
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
    return Append(UnitKey("", "fd001", unit), ("a",), len(cycles) + 1, cycles, values, "/{}/{}".format)


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


def settled(http: httpx.Client, method: str, path: str, **options: Any) -> dict[str, Any]:
    """Ask again while the store opens, which on a busy machine takes longer than the service."""
    give_up_at = monotonic() + PATIENCE
    while True:
        answer = http.request(method, path, **options)
        if answer.status_code != 503 or monotonic() > give_up_at:
            return answer.raise_for_status().json()


class Field:
    """Devices that report readings and remember which ones were acknowledged."""

    def __init__(self, fleet: tuple[list[Trajectory], list[str]]) -> None:
        self.units, self.names = fleet
        rng = np.random.default_rng(5)
        self.queues = {unit.unit: disordered(unit.cycles.tolist(), rng) for unit in self.units}
        self.acknowledged: dict[str, set[int]] = {unit.unit: set() for unit in self.units}

    def report(self, server: Server, *, dies_after: int | None = None) -> None:
        """Send what is left of each unit, from a thread each; the service dies while they do."""

        def send(unit: Trajectory) -> None:
            queue, known = self.queues[unit.unit], self.acknowledged[unit.unit]
            path = f"/v1/units/{unit.unit}/cycles"
            with httpx.Client(base_url=server.http, trust_env=False, timeout=PATIENCE) as http:
                while queue:
                    try:
                        settled(http, "POST", path, json=reading(unit, queue[0], self.names))
                    except httpx.TransportError:
                        return
                    known.add(queue.pop(0))
                    if sum(map(len, self.acknowledged.values())) == dies_after:
                        os.killpg(server.process.pid, signal.SIGKILL)

        with ThreadPoolExecutor(len(self.units)) as threads:
            list(threads.map(send, self.units))


def test_after_sigkill_in_the_middle_nothing_acknowledged_is_lost_and_answers_are_those_of_whole_windows(
    tmp_path, url, fleet
):
    field = Field(fleet)
    settings = {"store_url": url, "workers": "2"}
    with running(tmp_path, "fd001", **settings) as service:
        field.report(service, dies_after=UNITS * CYCLES // 2)
        service.process.wait(PATIENCE)
    assert all(field.queues.values())

    with (
        running(tmp_path, "fd001", **settings) as service,
        httpx.Client(base_url=service.http, trust_env=False, timeout=PATIENCE) as http,
    ):
        for unit, known in field.acknowledged.items():
            found = settled(http, "GET", f"/v1/units/{unit}?limit=1000")
            assert known <= {*found["readings"]["cycles"]}
        field.report(service)
        last = [
            settled(http, "POST", f"/v1/units/{u.unit}/cycles", json=reading(u, u.cycles[-1], field.names))
            for u in field.units
        ]
        expected = answers(http, "fd001", [whole(unit, field.names) for unit in field.units])
        kept = [settled(http, "GET", f"/v1/units/{u.unit}?limit=1000")["readings"] for u in field.units]

    assert {(answer["stored"], answer["repeated"]) for answer in last} == {(0, 1)}
    for unit, answer, of_whole, readings in zip(field.units, last, expected, kept, strict=True):
        assert distance(answer["prediction"], of_whole) <= TOLERANCE
        assert readings["cycles"] == unit.cycles.tolist()
        read = np.array([readings["columns"][name] for name in field.names], np.float32).T
        np.testing.assert_array_equal(read, unit.readings)
