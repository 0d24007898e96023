"""/v1/units over a real SQLite file: a fleet by urgency, histories, outcomes fed back, and every refusal."""

import sqlite3
from contextlib import asynccontextmanager

import pytest

from service import logs
from service.http.units import _place, _token
from service.store.async_store import AsyncStore
from service.store.judgement import Outcome, OutcomeKind, OutcomeResult, Receipt
from service.store.rows import History
from tests.fakes import FakeKeepingObserver, FakeRuntime, make_manifest
from tests.in_process import in_process, json_window


@asynccontextmanager
async def keeping(tmp_path, **options):
    options = {"store": f"sqlite:///{tmp_path}/rul.db", **options}
    async with in_process(**options) as service:
        yield service


async def predicted(service, *windows):
    """Ask about units: (unit, last cycle, RUL)."""
    given = [json_window(rul, unit=unit, last_cycle=cycle) for unit, cycle, rul in windows]
    response = await service.predict_http(windows=given)
    assert response.status_code == 200


async def report(service, unit, **outcome):
    return await service.http.post(f"/v1/units/{unit}/outcomes", json=outcome)


def pointers(response):
    return [error["pointer"] for error in response.json()["errors"]]


async def test_a_unit_that_was_asked_about_is_in_the_fleet(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, ("17", 121, 40.0))

        body = (await service.http.get("/v1/units")).json()

    (unit,) = body["units"]
    assert unit.pop("predicted_at").endswith("Z")
    assert unit == {
        "unit": "17", "model": "fake", "version": "1", "last_cycle": 121, "rul": 40.0,
        "rul_state": "estimated", "interval": {"coverage": 0.9, "lower": 35.0, "upper": 45.0},
        "health_state": "degrading", "outcome": None,
    }  # fmt: skip
    assert body["next"] is None


async def test_the_fleet_is_paged_by_urgency(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, *((str(i), 50, float(90 - i)) for i in range(7)))

        seen, after = [], {}
        while after is not None:
            body = (await service.http.get("/v1/units", params={"limit": 3, **after})).json()
            seen.append([unit["unit"] for unit in body["units"]])
            after = {"after": body["next"]} if body["next"] else None

    assert seen == [["6", "5", "4"], ["3", "2", "1"], ["0"]]


async def test_the_fleet_may_be_asked_for_one_state(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, ("well", 50, 125.0), ("ill", 50, 10.0))

        body = (await service.http.get("/v1/units", params={"state": "at_least_cap"})).json()

    assert [unit["unit"] for unit in body["units"]] == ["well"]


async def test_an_outcome_tells_how_the_predictions_fared(tmp_path):
    observer = FakeKeepingObserver()
    async with keeping(tmp_path, keeping_observer=observer) as service:
        await predicted(service, ("17", 100, 52.0), ("17", 120, 20.0), ("17", 160, 5.0))

        response = await report(service, "17", kind="failed", cycle=150, time="2026-03-01T12:00:00Z")

    body = response.json()
    assert response.status_code == 200
    assert body["result"] == "created"
    assert body["outcome"] | {"recorded_at": ""} == {
        "kind": "failed", "cycle": 150, "time": "2026-03-01T12:00:00Z", "recorded_at": "",
    }  # fmt: skip
    (score,) = body["scores"]
    assert (score["version"], score["predictions"], score["covered"], score["coverage"]) == ("1", 2, 1, 0.5)
    assert score["bias"] == pytest.approx(-4.0)
    assert score["rmse"] == pytest.approx(52**0.5)
    newest, middle, oldest = body["predictions"]
    assert (oldest["truth"], oldest["error"], oldest["covered"]) == (50.0, 2.0, True)
    assert (middle["truth"], middle["error"], middle["covered"]) == (30.0, -10.0, False)
    assert "error" not in newest
    assert observer.outcomes == [(OutcomeKind.FAILED, OutcomeResult.CREATED)]
    assert sorted(observer.judged[0][1].error.tolist()) == [-10.0, 2.0]


async def test_a_removal_has_no_error(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, ("17", 100, 20.0))

        body = (await report(service, "17", kind="removed", cycle=150)).json()

    (prediction,) = body["predictions"]
    assert "error" not in prediction
    assert (prediction["truth"], prediction["covered"]) == (50.0, False)
    (score,) = body["scores"]
    assert (score["predictions"], score["contradicted"]) == (1, 1)
    assert (score["rmse"], score["coverage"]) == (None, None)


async def test_a_removal_that_an_interval_allows_says_nothing_of_it(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, ("17", 100, 60.0))

        body = (await report(service, "17", kind="removed", cycle=150)).json()

    assert "covered" not in body["predictions"][0]
    assert body["scores"][0]["contradicted"] == 0


async def test_the_same_outcome_again_is_answered_the_same_and_counted_once(tmp_path):
    observer = FakeKeepingObserver()
    async with keeping(tmp_path, keeping_observer=observer) as service:
        await predicted(service, ("17", 100, 52.0))
        first = (await report(service, "17", kind="failed", cycle=150)).json()

        again = await report(service, "17", kind="failed", cycle=150)

    assert again.status_code == 200
    assert again.json() == first | {"result": "unchanged"}
    assert len(observer.outcomes) == len(observer.judged) == 1


async def test_another_outcome_is_a_conflict_that_names_what_differs(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, ("17", 100, 52.0))
        await report(service, "17", kind="failed", cycle=150)

        response = await report(service, "17", kind="removed", cycle=140)

        assert response.status_code == 409
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"] == "urn:rulserve:problem:outcome_conflict"
        assert pointers(response) == ["/kind", "/cycle"]
        assert service.value("rul_rejected_total", reason="conflict") == 1


async def test_another_outcome_replaces_the_first_where_it_says_so(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, ("17", 100, 52.0))
        await report(service, "17", kind="failed", cycle=150)

        response = await report(service, "17", kind="failed", cycle=152, replace=True)
        body = (await service.http.get("/v1/units/17")).json()

    assert response.json()["result"] == "replaced"
    assert body["outcome"]["cycle"] == 152
    assert body["predictions"][0]["error"] == 0.0


async def test_a_unit_has_a_history_in_pages(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, *(("17", cycle, 60.0) for cycle in (50, 51, 52)))

        first = (await service.http.get("/v1/units/17", params={"limit": 2})).json()
        second = (await service.http.get("/v1/units/17", params={"before": first["next"]})).json()

    assert [p["last_cycle"] for p in first["predictions"]] == [52, 51]
    assert [p["last_cycle"] for p in second["predictions"]] == [50]
    assert second["next"] is None


async def test_a_page_before_a_units_first_cycle_is_empty(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, ("17", 50, 60.0))

        response = await service.http.get("/v1/units/17", params={"before": 50})

    assert response.status_code == 200
    assert (response.json()["predictions"], response.json()["next"]) == ([], None)


async def test_a_last_page_that_is_full_says_that_none_follows(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, *(("17", cycle, 60.0) for cycle in (50, 51)))

        body = (await service.http.get("/v1/units/17", params={"limit": 2})).json()

    assert len(body["predictions"]) == 2
    assert body["next"] is None


async def test_how_a_unit_fared_is_the_same_on_every_page(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, *(("17", cycle, 60.0) for cycle in (50, 51, 52)))
        known = (await report(service, "17", kind="failed", cycle=100)).json()

        pages = [
            (await service.http.get("/v1/units/17", params={"limit": 1, "before": before})).json()
            for before in (53, 52, 51)
        ]

    assert [page["predictions"][0]["error"] for page in pages] == [12.0, 11.0, 10.0]
    assert [page["scores"] for page in pages] == [known["scores"]] * 3
    assert known["scores"][0]["predictions"] == 3


async def test_the_name_of_a_unit_may_hold_anything(tmp_path):
    name = "hall 3/pump ü?#&"
    async with keeping(tmp_path) as service:
        await predicted(service, (name, 50, 60.0))
        quoted = "hall%203%2Fpump%20%C3%BC%3F%23%26"

        found = await service.http.get(f"/v1/units/{quoted}")
        taken = await report(service, quoted, kind="failed", cycle=60)

    assert found.json()["unit"] == name
    assert taken.json()["unit"] == name


@pytest.mark.parametrize("ask", ["get", "post"])
async def test_a_unit_that_nobody_asked_about_is_not_known(tmp_path, ask):
    async with keeping(tmp_path) as service:
        response = (
            await service.http.get("/v1/units/nobody")
            if ask == "get"
            else await report(service, "nobody", kind="failed", cycle=3)
        )

    assert response.status_code == 404
    assert response.json()["type"] == "urn:rulserve:problem:unknown_unit"


class LateStore:
    """A store in which a unit appears only after it was asked for once: another worker wrote it."""

    def __init__(self):
        self.asked = 0

    def history(self, model, unit, *, limit, before):
        self.asked += 1
        return History(None, {}, [], {}) if self.asked > 1 else None

    def take_outcome(self, outcome, *, replace):
        self.asked += 1
        return Receipt(OutcomeResult.UNCHANGED, outcome) if self.asked > 1 else None

    def judge_late_predictions(self, *, recorded_after):
        return []

    def purge(self, before):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("ask", ["history", "outcome"])
async def test_a_unit_that_another_worker_is_about_to_write_is_waited_for(ask):
    late = LateStore()
    store = AsyncStore(
        "", [], most_rows=1, retention_days=1, observer=FakeKeepingObserver(), log=logs.logger(),
        flush_seconds=0, connect=lambda _url, _versions: late,
    )  # fmt: skip
    store.start()

    if ask == "history":
        await store.history("fake", "17", limit=1, before=None, timeout_seconds=20)
    else:
        outcome = Outcome("fake", "17", OutcomeKind.FAILED, 3, None, 1000.0)
        await store.take_outcome(outcome, replace=False, timeout_seconds=20)

    assert late.asked == 2
    await store.close(20)


async def test_a_model_that_is_not_loaded_is_not_known(tmp_path):
    async with keeping(tmp_path) as service:
        response = await report(service, "17", kind="failed", cycle=3, model="fd999")
        fleet = await service.http.get("/v1/units", params={"model": "fd999"})

    assert response.json()["type"] == fleet.json()["type"] == "urn:rulserve:problem:unknown_model"


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({"cycle": 3}, 400, []),
        ({"kind": "broken", "cycle": 3}, 400, ["/kind"]),
        ({"kind": "failed"}, 400, []),
        ({"kind": "failed", "cycle": "3"}, 400, ["/cycle"]),
        ({"kind": "failed", "cycle": 3.5}, 400, ["/cycle"]),
        ({"kind": "failed", "cycle": 0}, 422, ["/cycle"]),
        ({"kind": "failed", "cycle": 2**24 + 1}, 422, ["/cycle"]),
        ({"kind": "failed", "cycle": 3, "time": "yesterday"}, 400, ["/time"]),
        ({"kind": "failed", "cycle": 3, "time": "2026-03-01T12:00:00"}, 400, ["/time"]),
        ({"kind": "failed", "cycle": 3, "when": 1}, 400, []),
    ],
)
async def test_a_wrong_outcome_is_refused_at_its_place(tmp_path, body, status, pointer):
    async with keeping(tmp_path) as service:
        response = await service.http.post("/v1/units/17/outcomes", json=body)

    assert response.status_code == status
    assert [at for at in pointers(response) if at] == pointer


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'"x"'])
async def test_a_body_that_is_no_outcome_is_malformed(tmp_path, content):
    async with keeping(tmp_path) as service:
        headers = {"content-type": "application/json"}
        response = await service.http.post("/v1/units/17/outcomes", content=content, headers=headers)

    assert response.status_code == 400


async def test_another_media_type_is_refused(tmp_path):
    async with keeping(tmp_path) as service:
        response = await service.http.post("/v1/units/17/outcomes", content=b"kind=failed")

    assert response.status_code == 415


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("/v1/units?limit=0", "/limit"), ("/v1/units?limit=1001", "/limit"), ("/v1/units?limit=x", "/limit"),
        ("/v1/units?state=ill", "/state"), ("/v1/units?after=%25", "/after"),
        ("/v1/units?after=WzFd", "/after"),
        ("/v1/units?sate=critical", "/sate"), ("/v1/units/17?before=-1", "/before"),
        ("/v1/units/17?limit=99999999999", "/limit"), ("/v1/units/17?limit=%D9%A3", "/limit"),
    ],
)  # fmt: skip
async def test_a_wrong_parameter_is_refused_by_its_name(tmp_path, path, pointer):
    async with keeping(tmp_path) as service:
        response = await service.http.get(path)

    assert response.status_code == 422
    assert pointers(response) == [pointer]


@pytest.mark.parametrize("path", ["/v1/units", "/v1/units/17"])
async def test_a_service_that_keeps_nothing_says_so(path):
    async with in_process() as service:
        response = await service.http.get(path)

    assert response.status_code == 404
    assert response.json()["type"] == "urn:rulserve:problem:no_store"
    assert "RUL_STORE" in response.json()["detail"]


async def test_a_store_that_is_away_fails_no_prediction(tmp_path):
    (tmp_path / "file").write_text("in the way")
    async with in_process(store=f"sqlite:///{tmp_path}/file/rul.db") as service:
        await predicted(service, ("17", 100, 52.0))
        response = await service.http.get("/v1/units")

    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert response.json()["type"] == "urn:rulserve:problem:store_unavailable"


@pytest.mark.parametrize(("key", "status"), [("", 401), ("wrong", 403), ("right", 200)])
async def test_units_are_shown_to_those_with_a_key(tmp_path, key, status):
    headers = {"x-api-key": key} if key else {}
    async with keeping(tmp_path, keys=["right"]) as service:
        await service.predict_http(headers={"x-api-key": "right"})

        answers = [
            await service.http.get("/v1/units", headers=headers),
            await service.http.get("/v1/units/1", headers=headers),
            await service.http.post(
                "/v1/units/1/outcomes", json={"kind": "failed", "cycle": 200}, headers=headers
            ),
        ]

    assert [answer.status_code for answer in answers] == [status] * 3


async def test_outcomes_are_refused_while_the_service_is_not_ready(tmp_path):
    async with keeping(tmp_path, ready=False) as service:
        response = await report(service, "17", kind="failed", cycle=150)

    assert response.status_code == 503


async def test_only_predictions_of_the_loaded_version_are_counted(tmp_path):
    observer = FakeKeepingObserver()
    older = FakeRuntime(make_manifest().model_copy(update={"version": "0"}))
    async with keeping(tmp_path, runtime=older) as service:
        await predicted(service, ("17", 100, 52.0))
    async with keeping(tmp_path, keeping_observer=observer) as service:
        await predicted(service, ("17", 110, 41.0))

        body = (await report(service, "17", kind="failed", cycle=150)).json()

    assert [score["version"] for score in body["scores"]] == ["0", "1"]
    assert [judged.error.tolist() for _, judged in observer.judged] == [[1.0]]


async def test_predictions_by_grpc_are_kept_too(tmp_path):
    async with keeping(tmp_path) as service:
        await service.predict_grpc()

        body = (await service.http.get("/v1/units/1")).json()

    assert [p["last_cycle"] for p in body["predictions"]] == [100]


async def test_what_waits_is_written_when_the_service_ends(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, *((str(i), 50, 60.0) for i in range(20)))

    with sqlite3.connect(tmp_path / "rul.db") as connection:
        assert connection.execute("SELECT count(*) FROM predictions").fetchone() == (20,)
    connection.close()


def test_a_page_of_the_fleet_ends_where_the_next_begins():
    row = {"rul": 0.1 + 0.2, "model": "fd001", "unit": "ü/1"}

    assert _place(_token(row)) == (0.1 + 0.2, "fd001", "ü/1")
