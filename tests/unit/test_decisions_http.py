"""When to act, by every protocol and from the store."""

import msgspec
import pytest

from model.decision import Costs, costs_of
from model.domain import NOVELTY_LIMIT
from service.http.decisions import MOST_SHOWN
from service.http.predict import decode
from service.proto import rul_v1_pb2 as pb
from service.settings import Settings
from tests.fakes import FakeRuntime, make_manifest
from tests.in_process import in_process, json_window, keeping, message_window

COSTS = {"planned": 1.0, "failure": 20.0}
OTHER = {"planned": 3.0, "failure": 4.0}


@pytest.fixture
async def service(tmp_path):
    async with keeping(tmp_path) as started:
        yield started


WORN = {"rul": 119.0, "last_cycle": 20}
"""A window that states no failure within the horizons, of a unit whose fleet lives for 100 cycles."""


async def decided(service, *, costs=COSTS, **window):
    response = await service.predict_http(windows=[json_window(**WORN | window)], costs=costs)
    assert response.status_code == 200, response.text
    (prediction,) = response.json()["predictions"]
    return prediction["decision"]


async def decision_of(service, unit="1", **query):
    return await service.http.get(f"/v1/units/{unit}/decision", params=query)


async def test_costs_add_the_cheapest_stop_to_each_prediction(service):
    decision = await decided(service)

    assert 60 < decision["act_in_cycles"] < 119
    assert decision["act_at_cycle"] == 20 + decision["act_in_cycles"]
    assert decision["costs"] == COSTS
    assert decision["cost_per_cycle"] <= decision["fixed_interval_cost_per_cycle"]
    assert decision["cost_per_cycle"] < decision["run_to_failure_cost_per_cycle"]


async def test_a_stored_answer_keeps_the_cap_of_the_version_that_gave_it(tmp_path):
    """At least 125 cycles is no estimate of 125 because the next version goes up to 300."""
    async with keeping(tmp_path) as before:
        expected = await decided(before, rul=125.0)
    later = make_manifest(cap=300.0).model_copy(update={"version": "2"})

    async with keeping(tmp_path, runtime=FakeRuntime(later)) as after:
        found = (await decision_of(after, **COSTS)).json()["decision"]

    assert found == expected


async def test_without_costs_there_is_no_decision(service):
    response = await service.predict_http()
    (message,) = (await service.predict_grpc()).messages

    assert "decision" not in response.json()["predictions"][0]
    assert not pb.PredictReply.FromString(message).predictions[0].HasField("decision")


async def test_grpc_decides_as_http(service):
    expected = await decided(service)

    asked = {"windows": [message_window(**WORN)], "costs": pb.Costs(**COSTS)}
    (message,) = (await service.predict_grpc(**asked)).messages

    (prediction,) = pb.PredictReply.FromString(message).predictions
    found = {name: getattr(prediction.decision, name) for name in expected if name != "costs"}
    assert found == pytest.approx({name: expected[name] for name in found})
    assert prediction.decision.costs == pb.Costs(**COSTS)


async def test_a_failure_that_hardly_costs_more_is_awaited(service):
    decision = await decided(service, costs={"planned": 1.0, "failure": 1.0001})
    (message,) = (await service.predict_grpc(costs=pb.Costs(planned=1.0, failure=1.0001))).messages

    assert (decision["act_at_cycle"], decision["act_in_cycles"]) == (None, None)
    assert decision["cost_per_cycle"] == decision["run_to_failure_cost_per_cycle"]
    (by_grpc,) = pb.PredictReply.FromString(message).predictions
    assert by_grpc.HasField("decision")
    assert not by_grpc.decision.HasField("act_in_cycles")


@pytest.mark.parametrize(
    ("window", "novelty"),
    [
        ({"last_cycle": None}, 0.5),
        ({"last_cycle": 0, "cycles": 1}, 0.5),  # no cycle has passed to which a cost could be spread
        ({"cycles": 1}, 0.5),
        ({}, 2 * NOVELTY_LIMIT),
    ],
)
async def test_an_answer_without_age_or_history_or_to_strange_data_has_no_decision(window, novelty):
    runtime = FakeRuntime()
    runtime.novelty = novelty

    async with in_process(runtime) as service:
        assert await decided(service, **window) is None


async def test_the_costs_of_the_settings_serve_requests_without_their_own():
    async with in_process(costs="fake=1:20, 1:2") as service:
        usual = (await service.predict_http()).json()["predictions"][0]["decision"]
        own = await decided(service, costs=OTHER)

    assert usual["costs"] == COSTS
    assert own["costs"] == OTHER


@pytest.mark.parametrize(
    ("costs", "pointer", "detail"),
    [
        ({"planned": 1.0}, "/costs", "failure"),
        ({**COSTS, "spare": 1.0}, "/costs", "spare"),
        ({"planned": 0.0, "failure": 1.0}, "/costs", "planned: expected a number above 0, from 1e-9 to"),
        ({"planned": 2.0, "failure": 1.0}, "/costs", "failure: expected more than planned (2), got 1"),
        ({"planned": "1", "failure": 2.0}, "/costs/planned", "Expected `float`, got `str`"),
    ],
)
async def test_costs_that_cannot_be_are_refused_with_their_place(service, costs, pointer, detail):
    response = await service.predict_http(costs=costs)

    assert response.status_code == 400
    (error,) = response.json()["errors"]
    assert error["pointer"] == pointer
    assert detail in error["detail"]


async def test_by_grpc_costs_that_cannot_be_are_refused_with_their_place(service):
    answer = await service.predict_grpc(costs=pb.Costs(planned=2.0))

    assert answer.violations() == {"/costs": "failure: expected a number above 0, from 1e-9 to 1e15, got 0"}


async def test_a_large_body_is_answered_as_a_small_one():
    window = json_window(40.0, cycles=1000, last_cycle=1000)
    options = {"costs": COSTS, "explain": "none"}
    assert decode(msgspec.json.encode({"windows": [window] * 90, **options})) is None  # read in slices

    async with in_process(max_body_bytes=10**7, max_pending_windows=90) as service:
        small, large = [
            (await service.predict_http(windows=[window] * count, **options)).json() for count in (1, 90)
        ]

    assert small["predictions"][0]["decision"]["costs"] == COSTS
    assert large["predictions"] == small["predictions"] * 90


@pytest.mark.parametrize("rul", [119.0, 40.0])  # 40: with failure probabilities that say something
async def test_a_stored_unit_is_decided_as_its_prediction_was(service, rul):
    expected = await decided(service, unit="pump/7", rul=rul)

    body = (await decision_of(service, "pump/7", **COSTS)).json()

    assert (body["unit"], body["model"], body["last_cycle"]) == ("pump/7", "fake", 20)
    assert body["decision"].pop("costs") == expected.pop("costs")
    assert body["decision"] == pytest.approx(expected, rel=1e-4)  # of probabilities with four digits
    curve = dict(zip(body["curve"]["in_cycles"], body["curve"]["cost_per_cycle"], strict=True))
    assert 0 < len(curve) <= MOST_SHOWN
    assert min(curve.values()) == pytest.approx(expected["cost_per_cycle"])
    assert curve[expected["act_in_cycles"]] == pytest.approx(expected["cost_per_cycle"])


async def test_a_unit_that_has_failed_has_nothing_to_decide(service):
    await decided(service)
    await service.http.post("/v1/units/1/outcomes", json={"kind": "failed", "cycle": 100})

    body = (await decision_of(service, **COSTS)).json()

    assert (body["decision"], body["curve"]) == (None, None)


async def test_the_decision_of_an_unknown_unit_is_not_found(service):
    response = await decision_of(service, "nobody", **COSTS)

    assert response.status_code == 404


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({}, "/planned"),
        ({"planned": "1"}, "/failure"),
        ({"planned": "x", "failure": "2"}, "/planned"),
        ({"planned": "nan", "failure": "2"}, "/planned"),
        ({"planned": "2", "failure": "1"}, "/failure"),
        ({**COSTS, "price": "1"}, "/price"),
    ],
)
async def test_costs_of_the_address_that_cannot_be_are_refused(service, query, pointer):
    await decided(service)

    response = await decision_of(service, **query)

    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


async def test_the_costs_of_the_settings_serve_stored_units_too(tmp_path):
    async with keeping(tmp_path, costs="1:20") as service:
        await service.predict_http(windows=[json_window(unit="1")])
        usual, own = [(await decision_of(service, **costs)).json() for costs in ({}, OTHER)]

    assert (usual["decision"]["costs"], own["decision"]["costs"]) == (COSTS, OTHER)


def test_settings_name_costs_by_model(monkeypatch):
    monkeypatch.setenv("RUL_COSTS", "fd001=1:10, 2:30")

    settings = Settings.read()

    assert costs_of(settings.costs, "fd001") == Costs(1.0, 10.0)
    assert costs_of(settings.costs, "fd002") == Costs(2.0, 30.0)
    assert costs_of(Settings(costs="fd001=1:10").costs, "fd002") is None
