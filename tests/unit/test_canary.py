"""A canary answers its share of the requests, and loses them where it answers badly."""

import asyncio

import msgspec
import numpy as np
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from service import models as models_module
from service.core.candidates import SUMS, Canary, difference
from service.core.changes import Action, Bounds, Candidate, Change, Changed
from service.core.predictor import LoadedModel
from service.core.queries import ModelName
from service.errors import ModelConflict, NotReady
from service.metrics.board import Board
from service.processes.control import WorkerSpec
from service.proto import rul_v1_pb2 as pb
from tests.changing import KEY, WINDOW, WINDOWS, serving
from tests.fakes import COLUMNS, FakeRuntime, make_manifest
from tests.in_process import until
from tests.key_files import key_file
from tests.oip import json_request
from tests.other_bundles import renamed
from tests.unit.test_streams import Caller

WIDE = {"difference": 1000.0, "novel": 1.0}


@pytest.fixture
async def service(tmp_path):
    async with serving("fd001", keys_file=key_file(tmp_path, KEY)) as started:
        yield started


async def begun(service, bundle, **options):
    answer = await service.change("POST", "/fd001/canary", bundle.path, **{"share": 1.0, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def candidate(service):
    return (await service.client.get("/v1/models/fd001")).json()["candidate"]


def make_canary(*, share=0.05, board=None, count_compared=lambda *_: None, **bounds):
    """A canary with a list of the reasons for which it was given back."""
    model, reasons = LoadedModel.of(FakeRuntime(), None, max_window_cycles=100), []
    canary = Canary(
        model, None,
        share=share, bounds=Bounds(**bounds), sums=(board or Board()).slots("canary", SUMS),
        count_asked=lambda: None, count_failed=lambda: None, count_compared=count_compared,
        give_back=reasons.append,
    )  # fmt: skip
    return canary, reasons


def rows(rul, novelty=0.5, *, windows=1):
    return np.tile([rul, rul - 5, rul + 5, novelty], (windows, 1)).astype(float)


# Which candidates


@pytest.mark.parametrize(
    ("candidate", "needed"),
    [
        ({"columns": ("setting_1", "sensor_1", "oil")}, "the same columns, but lacks sensor_2 and adds oil"),
        ({"columns": COLUMNS[:2]}, "the same columns, but lacks sensor_2"),
        ({"columns": COLUMNS[::-1]}, "the same order of columns"),
        ({"context": 9}, "context 8, got 9"),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("canary", [True, False])
def test_a_candidate_reads_what_the_model_reads(candidate, needed, canary):
    assert difference(make_manifest(**candidate), make_manifest(), canary=canary) == needed


def test_a_canary_answers_as_the_model_does_but_a_shadow_need_not():
    served = make_manifest()
    later = served.model_copy(update={"horizons": [10, 50]})
    others = [make_manifest(explains_readings=True), make_manifest(heads=2)]

    assert difference(later, served, canary=True) == f"horizons {served.horizons}, got [10, 50]"
    assert [difference(other, served, canary=True) for other in others] == 2 * ["the same outputs"]
    assert {difference(other, served, canary=False) for other in (later, *others)} == {""}


# Which requests


def test_a_unit_stays_with_one_model_in_every_worker_and_the_share_holds():
    (one, _), (other, _) = make_canary(), make_canary()
    units = [f"engine {i}" for i in range(4000)]

    taken = [one.takes(unit) for unit in units]

    assert [other.takes(unit) for unit in reversed(units)][::-1] == taken
    assert 0.04 < np.mean(taken) < 0.06


def test_a_larger_share_keeps_the_units_of_a_smaller_one():
    (few, _), (many, _) = make_canary(share=0.05), make_canary(share=0.3)
    units = [str(i) for i in range(1000)]

    assert {unit for unit in units if few.takes(unit)} <= {unit for unit in units if many.takes(unit)}


def test_requests_that_name_no_unit_are_taken_in_turn():
    canary, _ = make_canary(share=0.1)

    assert sum(canary.takes(None) for _ in range(100)) == 10


# When it is given back


@pytest.mark.parametrize(
    ("bounds", "failures", "compared", "reason"),
    [
        ({}, 1, [], "1 requests failed, bound 0"),
        ({"failed": 2}, 2, [], None),
        ({"failed": 2}, 3, [], "3 requests failed, bound 2"),
        ({"windows": 4}, 0, [(rows(50, windows=4), rows(61, windows=4))], "11 cycles on average, bound 10"),
        ({"windows": 5}, 0, [(rows(50, windows=4), rows(61, windows=4))], None),
        ({"windows": 4}, 0, [(rows(50, windows=4), rows(59, windows=4))], None),
        ({"windows": 4}, 0, [(rows(50, windows=4), rows(50, 2.1, windows=4))], "1 of the windows are novel"),
        ({"windows": 4}, 0, [(rows(50, 2.1, windows=4), rows(50, 2.1, windows=4))], None),
    ],
)  # fmt: skip
def test_a_canary_is_given_back_beyond_a_bound_and_says_which(bounds, failures, compared, reason):
    canary, reasons = make_canary(share=1.0, **bounds)

    for _ in range(failures):
        canary.failed()
    for served, answered in compared:
        canary.compared(served, answered)

    assert [reason in said for said in reasons] == [True] * bool(reason)
    assert canary.takes("any") is not bool(reason)


def test_the_answers_of_a_canary_are_counted_as_the_candidates_and_the_others_as_the_served_ones():
    seen = []
    canary, _ = make_canary(count_compared=lambda candidate, served: seen.append((candidate, served)))

    canary.compared(served := rows(50), answered := rows(61))

    assert seen == [(answered, served)]


def test_workers_judge_drift_by_the_windows_of_all_workers(tmp_path):
    (tmp_path / "board").touch()
    boards = [Board(tmp_path / "board", worker=worker, workers=2) for worker in range(2)]
    (one, _), (other, reasons) = (make_canary(board=board, windows=4) for board in boards)

    one.compared(rows(50, windows=3), rows(90, windows=3))
    other.compared(rows(50), rows(90))

    assert len(reasons) == 1


def test_a_later_canary_is_not_judged_by_an_earlier_one():
    board = Board()
    earlier, _ = make_canary(board=board)
    earlier.failed()

    _, reasons = later = make_canary(board=board, failed=1)
    later[0].failed()

    assert reasons == []


# In a service


async def test_answers_of_a_canary_name_it_and_both_models_are_compared(service, newer):
    changed = await begun(service, newer, **WIDE)
    before = service.value("rul_prediction_cycles_count", model="fd001")

    answers = [await service.predict(unit=unit) for unit in ("a", "b")]
    await until(lambda: service.value("rul_shadow_absolute_difference_cycles_count", model="fd001") == 2)

    assert changed["action"] == "canary"
    assert [answer["model"] for answer in answers] == [changed["model"]] * 2
    assert changed["model"]["version"] == "2"
    assert await candidate(service) == {
        "kind": "canary", "model": changed["model"], "share": 1.0, "returned": None,
    }  # fmt: skip
    assert service.value("rul_canary_requests_total", model="fd001") == 2
    assert service.value("rul_prediction_cycles_count", model="fd001") == before + 2


async def test_a_canary_ends_on_request_and_with_a_swap(service, newer):
    old = await service.version()
    await begun(service, newer, **WIDE)
    ended = await service.change("DELETE", "/fd001/canary")
    after = await service.version()
    again = await service.change("DELETE", "/fd001/canary")
    await begun(service, newer, **WIDE)
    await service.change("POST", "/fd001", newer.path)

    assert (ended.status_code, again.status_code) == (200, 409)
    assert after == old
    assert await candidate(service) is None
    assert (await service.change("DELETE", "/fd001/canary")).status_code == 409
    assert await service.version() == "2"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"bundle": "fd002"}, 422),
        ({"share": 0}, 400),
        ({"failed": -1}, 400),
        ({"difference": 0}, 400),
        ({"windows": 0}, 400),
    ],
)
async def test_a_canary_that_cannot_be_is_refused(service, newer, body, status):
    old = await service.version()

    refused = await service.client.post("/v1/models/fd001/canary", json={"bundle": str(newer.path)} | body)

    assert refused.status_code == status, refused.text
    assert await candidate(service) is None
    assert await service.version() == old


async def test_a_request_that_a_canary_fails_is_answered_by_the_model_and_all_go_back(
    service, newer, monkeypatch
):
    old = await service.version()
    await begun(service, newer)
    canary = service.parts.desk.predictor.models["fd001"].canary
    monkeypatch.setattr(canary.model.batcher.serving.runtime, "_names", ["no such output"])

    with capture_logs() as said:
        versions = [await service.version(unit=unit) for unit in ("a", "b")]
        await until(lambda: service.value("rul_canary_returned_total", model="fd001") == 1)

    reason = "1 requests failed, bound 0"
    assert versions == [old, old]
    assert (await candidate(service))["returned"] == reason
    assert service.value("rul_canary_failed_total", model="fd001") == 1
    assert service.value("rul_canary_requests_total", model="fd001") == 1
    (line,) = [line for line in said if line["event"] == "canary returned"]
    assert (line["model"], line["version"], line["reason"]) == ("fd001", "2", reason)


async def test_a_canary_that_differs_too_much_is_given_back(service, newer):
    old = await service.version()
    await begun(service, newer, difference=10, windows=2, novel=1.0)
    windows = [WINDOWS[1].json()]  # to which the two answer 109 and 125 cycles

    for _ in range(2):
        assert await service.version(windows=windows) == "2"
    await until(lambda: service.value("rul_canary_returned_total", model="fd001") == 1)

    assert "cycles on average" in (await candidate(service))["returned"]
    assert await service.version() == old
    assert (await service.change("DELETE", "/fd001/canary")).status_code == 200
    assert await candidate(service) is None


async def test_requests_that_an_earlier_canary_still_had_do_not_count_against_a_later_one(
    service, newer, tmp_path
):
    await begun(service, newer)
    earlier = service.parts.desk.predictor.models["fd001"].canary
    await begun(service, renamed(tmp_path / "newest", "fd001", name="fd001", version="3"))

    earlier.failed()

    assert await service.version() == "3"
    service.parts.desk.predictor.models["fd001"].canary.compared(rows(50), rows(50))
    assert await service.version() == "3"


async def test_a_canary_whose_bound_is_passed_late_does_not_end_the_one_in_its_place(service, newer):
    await begun(service, newer)
    earlier = service.parts.desk.predictor.models["fd001"].canary
    await begun(service, newer, **WIDE)

    earlier.failed()
    await asyncio.gather(*service.parts.catalog._returning)

    assert (await candidate(service))["returned"] is None
    assert await service.version() == "2"


async def test_a_canary_that_two_workers_give_back_at_once_is_given_back_once(service, newer):
    await begun(service, newer, **WIDE)
    begun_by = service.parts.desk.predictor.models["fd001"].candidate.change
    returned = msgspec.structs.replace(begun_by, action=Action.UNCANARY, reason="the first reason")
    catalog = service.parts.catalog

    await catalog.change(returned)
    with pytest.raises(ModelConflict, match="canary of fd001 was given back"):
        await catalog.change(msgspec.structs.replace(returned, reason="the second"))

    assert (await candidate(service))["returned"] == "the first reason"


async def test_a_worker_that_restarted_from_a_copy_gives_the_canary_of_the_others_back(service, newer):
    await begun(service, newer, **WIDE)
    begun_by = service.parts.desk.predictor.models["fd001"].candidate.change

    await service.parts.catalog.change(
        msgspec.structs.replace(begun_by, action=Action.UNCANARY, reason="a bound", bundle="/copy")
    )

    assert (await candidate(service))["returned"] == "a bound"


async def test_a_canary_is_given_back_as_soon_as_the_workers_take_changes_again(service, newer, monkeypatch):
    monkeypatch.setattr(models_module, "RETURN_AGAIN_SECONDS", 0.0)
    await begun(service, newer, **WIDE)
    catalog, refusals = service.parts.catalog, [NotReady("worker 1 did not answer within 120 s")]

    async def everywhere(change):
        if refusals:
            raise refusals.pop()
        return await catalog.change(change)

    monkeypatch.setattr(catalog, "everywhere", everywhere)

    with capture_logs() as said:
        catalog._give_back(service.parts.desk.predictor.models["fd001"].candidate.change, "a bound is passed")
        await until(lambda: service.value("rul_canary_returned_total", model="fd001") == 1)

    assert (await candidate(service))["returned"] == "a bound is passed"
    (line,) = [line for line in said if line["event"] == "canary not returned yet"]
    assert (line["model"], line["error"]) == ("fd001", "worker 1 did not answer within 120 s")


async def test_a_canary_that_is_given_back_as_its_model_is_unloaded_is_logged(service, newer, monkeypatch):
    await begun(service, newer, **WIDE)
    await service.change("POST", "", "fd002")
    catalog = service.parts.catalog

    async def everywhere(change):
        changed = await catalog.change(change)
        await service.change("DELETE", "/fd001")
        return changed

    monkeypatch.setattr(catalog, "everywhere", everywhere)

    with capture_logs() as said:
        catalog._give_back(service.parts.desk.predictor.models["fd001"].candidate.change, "a bound is passed")
        await asyncio.gather(*catalog._returning)

    assert [line["reason"] for line in said if line["event"] == "canary returned"] == ["a bound is passed"]


async def test_the_open_protocol_names_the_canary_unless_it_asks_for_a_version(service, newer):
    old = await service.version()
    await begun(service, newer, **WIDE)
    body = json_request({"readings": np.array([WINDOW.readings], np.float32)})

    paths = ["/v2/models/fd001/infer", f"/v2/models/fd001/versions/{old}/infer"]
    answers = [(await service.client.post(path, json=body)).json() for path in paths]

    assert [answer["model_version"] for answer in answers] == ["2", old]


async def test_a_unit_of_the_canary_is_explained_by_the_canary(tmp_path, newer):
    store = {"store": True, "store_url": SecretStr(f"sqlite:///{tmp_path}/rul.db")}
    async with serving("fd001", keys_file=key_file(tmp_path, KEY), **store) as service:
        await begun(service, newer, **WIDE)
        names = service.parts.desk.predictor.models["fd001"].rules.names
        body = {"columns": dict(zip(names, zip(*WINDOW.json()["readings"][-3:], strict=True), strict=True))}
        appended = await service.client.post("/v1/units/7/cycles", json=body)
        explained = await service.client.get("/v1/units/7/explanation")

    versions = [answer.json()["model"]["version"] for answer in (appended, explained)]
    assert versions == ["2", "2"]


async def test_a_stream_stays_with_the_model_that_serves(service, newer):
    old = await service.version()
    await begun(service, newer, **WIDE)

    caller = Caller(service.parts.grpc, metadata=[("x-api-key", KEY)])
    opened = (await caller.ask(pb.StreamRequest(open=pb.StreamOpen()))).opened
    caller.task.cancel()

    assert opened.model.version == old


# In a worker that restarts


def spec(bundle, action=Action.CANARY, *, returned="", sha256=""):
    change = Change(action, "fd001", str(bundle), 1.0, Bounds(**WIDE), sha256=sha256)
    name = ModelName("fd001", "2", "f")
    return WorkerSpec(serving=Changed(candidates={"fd001": Candidate(change, name, returned)}))


@pytest.mark.parametrize("action", [Action.SHADOW, Action.CANARY])
async def test_a_worker_that_restarts_has_its_candidates_again(newer, action):
    async with serving("fd001", worker=spec(newer.path, action)) as service:
        shown, version = await candidate(service), await service.version()

    assert (shown["kind"], shown["model"]["version"], shown["returned"]) == (action, "2", None)
    assert (version == "2") is (action is Action.CANARY)


@pytest.mark.parametrize(
    ("folder", "options", "reason"),
    [
        ("nowhere", {}, "nowhere"),
        (None, {"sha256": "another"}, "the bundle changed"),
        ("any", {"returned": "1 requests failed"}, "1 requests failed"),
    ],
)
async def test_a_candidate_that_cannot_come_back_answers_nothing_and_says_why(newer, folder, options, reason):
    async with serving("fd001", worker=spec(folder or newer.path, **options)) as service:
        shown, version = await candidate(service), await service.version()

    assert reason in shown["returned"]
    assert version != "2"
