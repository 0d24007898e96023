"""Two replicas with one PostgreSQL: the short run of `replicas`, and reads of the other replica's writes."""

from collections.abc import Iterator

import httpx
import pytest

from tests.hostile.balancer import GENTLE_SECONDS, PATIENCE_SECONDS, Pair
from tests.hostile.replicas import MOST_LOST, MOST_SHARE, TOLERANCE, Result, devices_of, replicas, run
from tests.ingesting import Devices, reading
from tests.waiting import wait_until

CALLERS = 2
pytestmark = [pytest.mark.system, pytest.mark.alone]


@pytest.fixture(scope="module")
def devices(tiny_bundle) -> Devices:
    return devices_of(str(tiny_bundle.path), units=4, cycles=30)


@pytest.fixture(scope="module")
def pair(tiny_bundle, tmp_path_factory) -> Iterator[Pair]:
    with replicas(tmp_path_factory.mktemp("replicas"), str(tiny_bundle.path)) as started:
        yield started


@pytest.fixture(scope="module")
def result(pair, devices) -> Result:
    return run(pair, devices, CALLERS, pace=GENTLE_SECONDS)


@pytest.fixture
def both(pair, result) -> Iterator[list[httpx.Client]]:
    """Make a client of each replica, with the devices' units stored."""
    first, second = (
        httpx.Client(base_url=server.http, trust_env=False, timeout=PATIENCE_SECONDS)
        for server in pair.servers
    )
    with first, second:
        yield [first, second]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_both_replicas_answer_as_many_requests_within_a_tenth(result, protocol):
    assert result.shares[protocol] <= MOST_SHARE


def test_no_request_fails_while_a_replica_is_drained_and_returns(result):
    assert {outcome for _, outcome in result.loads["drained"].outcomes} == {"answered"}


def test_a_killed_replica_costs_each_caller_at_most_two_requests(result):
    killed = result.loads["killed"]
    assert killed.failed <= MOST_LOST * result.callers, killed.outcomes


def test_readings_sent_through_both_replicas_are_answered_as_whole_windows_are(result):
    assert max(result.worst) <= TOLERANCE


def test_a_reading_that_one_replica_stored_is_a_repeat_or_a_conflict_at_the_other(both, devices):
    given = {"cycle": 1000, "columns": dict.fromkeys(devices.names, 1.0)}
    other = {"cycle": 1000, "columns": dict.fromkeys(devices.names, 2.0)}

    stored, repeated = (each.post("/v1/units/shared/cycles", json=given).json() for each in both)
    conflict = both[1].post("/v1/units/shared/cycles", json=other)

    assert (stored["stored"], repeated["repeated"]) == (1, 1)
    assert (conflict.status_code, conflict.json()["errors"][0]["code"]) == (409, "cycle_conflict")


def test_both_replicas_list_the_same_units(both, devices):
    def listed() -> list[dict]:
        return [each.get("/v1/units").raise_for_status().json() for each in both]

    def are_same() -> bool:
        """Whether the lists are equal; a prediction may be written between two reads."""
        first, second = listed()
        return first == second and known <= {unit["unit"] for unit in first["units"]}

    known = {unit.unit for unit in devices.units}
    wait_until(are_same, PATIENCE_SECONDS, what="equal lists")


def test_an_outcome_that_one_replica_took_is_unchanged_or_a_conflict_at_the_other(both, devices):
    unit = devices.units[-1]
    path, end = f"/v1/units/{unit.unit}/outcomes", int(unit.cycles[-1])

    taken, again = (each.post(path, json={"kind": "failed", "cycle": end}) for each in both)
    other = both[1].post(path, json={"kind": "failed", "cycle": end + 1})

    assert (taken.json()["result"], again.json()["result"]) == ("created", "unchanged")
    assert other.status_code == 409


def test_an_outcome_may_follow_the_prediction_of_the_other_replica_at_once(both, devices):
    cycle = int(devices.units[0].cycles[-1])
    both[0].post("/v1/units/new/cycles", json=reading(devices.units[0], cycle, devices.names))

    taken = both[1].post("/v1/units/new/outcomes", json={"kind": "failed", "cycle": cycle})

    assert taken.json()["result"] == "created"


def test_events_of_one_replica_tell_of_units_of_the_other(both, devices):
    given = reading(devices.units[0], int(devices.units[0].cycles[-1]), devices.names)

    with both[1].stream("GET", "/v1/events") as events:
        both[0].post("/v1/units/watched/cycles", json=given)
        told = next(line for line in events.iter_lines() if '"watched"' in line)

    assert told.startswith("data: ")
