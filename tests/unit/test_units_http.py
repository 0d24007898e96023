"""/v1/units over a real SQLite file: fleet, histories, outcomes, refusals."""

import asyncio
import gc
import sqlite3
import threading
from contextlib import nullcontext
from time import time

import numpy as np
import pytest
from sqlalchemy import update

from service import logs
from service.edge.keys import add_key
from service.errors import DeadlineExceeded, NotReady, Overloaded, UnknownUnit
from service.http.units import _place, _token
from service.store import async_store
from service.store.async_store import AsyncStore
from service.store.judgement import Outcome, OutcomeKind, OutcomeResult, Receipt, VersionJudgement
from service.store.recorder import Recorder
from service.store.rows import Append, DeletedRows, Given, History, ModelVersion, Stretch, UnitKey
from service.store.schema import OUTCOMES
from service.store.store import Store
from tests.fakes import FakeKeepingObserver, FakeRuntime, make_manifest
from tests.in_process import json_window, keeping, message_window
from tests.oip import json_request


@pytest.fixture
async def service(tmp_path):
    async with keeping(tmp_path) as started:
        yield started


async def predicted(service, *windows):
    """Predict for units: (unit, last cycle, RUL)."""
    given = [json_window(rul, unit=unit, last_cycle=cycle) for unit, cycle, rul in windows]
    response = await service.predict_http(windows=given)
    assert response.status_code == 200


async def report(service, unit, **outcome):
    return await service.http.post(f"/v1/units/{unit}/outcomes", json=outcome)


def pointers(response):
    return [error["pointer"] for error in response.json()["errors"]]


async def test_an_outcome_shows_the_errors_of_the_predictions(service):
    await predicted(service, ("17", 100, 42.0), ("17", 150, 3.0), ("17", 160, 5.0))

    response = await report(service, "17", kind="failed", cycle=150, time="2026-03-01T12:00:00Z")

    body = response.json()
    assert response.status_code == 200
    assert body["result"] == "created"
    assert body["outcome"] | {"recorded_at": ""} == {
        "kind": "failed", "cycle": 150, "time": "2026-03-01T12:00:00Z", "recorded_at": "",
    }  # fmt: skip
    (score,) = body["scores"]
    assert (score["version"], score["predictions"], score["covered"], score["coverage"]) == ("1", 2, 1, 0.5)
    assert score["bias"] == pytest.approx(-2.5)
    assert score["rmse"] == pytest.approx(36.5**0.5)
    newest, middle, oldest = body["predictions"]
    assert (oldest["truth"], oldest["error"], oldest["covered"]) == (50.0, -8.0, False)
    assert (middle["truth"], middle["error"], middle["covered"]) == (0.0, 3.0, True)
    assert "error" not in newest
    assert service.value("rul_outcomes_total", kind="failed") == 1
    assert service.value("rul_outcome_error_cycles_total", model="fake", side="early") == 8
    assert service.value("rul_outcome_error_cycles_total", model="fake", side="late") == 3


async def test_predictions_of_a_removed_unit_are_no_trials_of_the_coverage(service):
    await predicted(service, ("17", 100, 52.0), ("17", 140, 40.0))

    await report(service, "17", kind="removed", cycle=180)

    assert service.value("rul_coverage_trials_total", model="fake") == 0
    verdicts = ("contradicted", "open")
    found = [service.value("rul_removed_predictions_total", model="fake", verdict=v) for v in verdicts]
    assert found == [1, 1]


@pytest.mark.parametrize(("explains", "is_kept"), [(True, True), (True, False), (False, True)])
async def test_the_history_says_what_each_prediction_rested_on(tmp_path, explains, is_kept):
    runtime = FakeRuntime(make_manifest(explains_readings=explains))

    async with keeping(tmp_path, runtime=runtime, store_explanations=is_kept) as service:
        await predicted(service, ("17", 100, 52.0))
        (prediction,) = (await service.http.get("/v1/units/17")).json()["predictions"]

    expected = {"evidence": {"100": 1.0}, "sensor_contributions": {"sensor_1": 52.0, "sensor_2": 0.0}}
    assert prediction.get("explanation") == (expected if explains and is_kept else None)


async def fleet(service):
    return [unit["unit"] for unit in (await service.http.get("/v1/units")).json()["units"]]


async def test_units_of_unknown_health_are_filtered_as_such_and_not_as_healthy(tmp_path):
    runtime = FakeRuntime()
    async with keeping(tmp_path, runtime=runtime) as service:
        await predicted(service, ("known", 100, 120.0))
        runtime.novelty = 3.0
        await predicted(service, ("strange", 100, 120.0))

        found = [
            [unit["unit"] for unit in (await service.http.get(f"/v1/units?state={state}")).json()["units"]]
            for state in ("healthy", "unknown", "out_of_distribution")
        ]

    assert found == [["known"], ["strange"], ["strange"]]


async def test_a_unit_out_of_distribution_is_not_counted_among_those_expected_to_fail(tmp_path):
    runtime = FakeRuntime()
    runtime.novelty = 3.0
    async with keeping(tmp_path, runtime=runtime) as service:
        await predicted(service, ("strange", 100, 5.0))

        summary = (await service.http.get("/v1/units")).json()["summary"]

    assert (summary["states"]["unknown"], summary["fails_within"]) == (1, {})


@pytest.mark.parametrize(("kind", "cycle"), [("failed", 103), ("removed", 101)])
async def test_a_unit_that_has_ended_is_not_expected_to_fail(service, kind, cycle):
    await predicted(service, ("17", 100, 5.0))
    assert (await report(service, "17", kind=kind, cycle=cycle)).status_code == 200

    summary = (await service.http.get(f"/v1/units?state={kind}")).json()["summary"]

    assert (summary["units"], summary["fails_within"]) == (1, {})


@pytest.mark.parametrize("beside", [[], [{"columns": {"sensor_1": ["x"]}}]])
async def test_a_prediction_that_is_not_to_be_stored_is_answered_and_leaves_no_unit(service, beside):
    await predicted(service, ("stored", 100, 52.0))

    windows = [json_window(52.0, unit="tried"), *beside]
    answered = await service.predict_http(windows=windows, partial=True, store=False)
    by_grpc = await service.predict_grpc(windows=[message_window(unit="tried")], store=False)

    assert answered.json()["predictions"][0]["rul"] == 52.0
    assert len(by_grpc.messages) == 1
    assert await fleet(service) == ["stored"]


async def test_by_grpc_a_prediction_is_stored_unless_told_otherwise(service):
    await service.predict_grpc(windows=[message_window(unit="by default")])
    await service.predict_grpc(windows=[message_window(unit="as told")], store=True)

    assert sorted(await fleet(service)) == ["as told", "by default"]


async def test_what_is_inferred_by_the_open_protocol_is_never_stored(service):
    arrays = {"readings": np.ones((1, 4, 3), np.float32), "last_cycle": np.array([100], np.float32)}

    answered = await service.http.post(
        "/v2/models/fake/infer", json=json_request(arrays, id="17", parameters={"unit": "17", "store": True})
    )

    assert answered.status_code == 200
    assert await fleet(service) == []


async def test_the_same_outcome_again_is_answered_the_same_and_counted_once(service):
    await predicted(service, ("17", 100, 52.0))
    first = (await report(service, "17", kind="failed", cycle=150)).json()

    again = await report(service, "17", kind="failed", cycle=150)

    assert again.status_code == 200
    assert again.json() == first | {"result": "unchanged"}
    assert service.value("rul_outcomes_total", kind="failed") == 1
    assert service.value("rul_store_rows_total", kind="outcome") == 1
    assert service.value("rul_coverage_trials_total", model="fake") == 1


@pytest.mark.parametrize("replace", [False, True])
async def test_the_time_of_an_outcome_is_added_by_the_same_outcome_with_its_time(service, replace):
    await predicted(service, ("17", 100, 52.0))
    await report(service, "17", kind="failed", cycle=150)
    timed = {"kind": "failed", "cycle": 150, "time": "2026-03-01T12:00:00Z"}

    added = (await report(service, "17", **timed, replace=replace)).json()
    again = (await report(service, "17", **timed)).json()

    assert (added["result"], again["result"]) == ("replaced", "unchanged")
    assert again["outcome"]["time"] == "2026-03-01T12:00:00Z"
    assert service.value("rul_outcomes_total", kind="failed") == 1


async def test_the_accuracy_of_a_unit_is_the_same_on_every_page(service):
    await predicted(service, *(("17", cycle, 60.0) for cycle in (50, 51, 52)))
    known = (await report(service, "17", kind="failed", cycle=100)).json()

    pages = [
        (await service.http.get("/v1/units/17", params={"limit": 1, "before": before})).json()
        for before in (53, 52, 51)
    ]

    assert [page["predictions"][0]["error"] for page in pages] == [12.0, 11.0, 10.0]
    assert [page["scores"] for page in pages] == [known["scores"]] * 3
    assert known["scores"][0]["predictions"] == 3


class LateStore:
    """A store that knows a unit from the second question on: another worker wrote it.

    `first`: predictions of the unit at the first question; None: the unit is unknown then.
    """

    def __init__(self, first=None):
        self.asked = 0
        self.first = first

    def history(self, key, *, columns, limit, before):
        self.asked += 1
        predictions = self.first if self.asked == 1 else [{"last_cycle": 1}]
        readings = Stretch([1], np.zeros((1, 0), np.float32))
        return None if predictions is None else History(None, {}, predictions, readings, {})

    def take_outcome(self, outcome, *, replace):
        self.asked += 1
        return Receipt(OutcomeResult.UNCHANGED, outcome) if self.asked > 1 else None

    def judge_late_predictions(self):
        return []

    def purge(self, before):
        return []

    def check(self):
        pass

    def close(self):
        pass


def started(store, observer=None, **options):
    """The asynchronous side of this store."""
    observer = observer or FakeKeepingObserver()
    recorder = Recorder(lambda: store, most_rows=1, observer=observer, log=logs.logger(), flush_seconds=0)
    limits = {"lag_seconds": 0, "timeout_seconds": 20, **options}
    made = AsyncStore(recorder, [], retention_days=1, observer=observer, **limits)
    made.start()
    return made


async def test_a_question_that_the_database_answers_too_late_has_passed_its_deadline():
    asking, answers = started(LateStore(), timeout_seconds=0.01), threading.Event()

    with pytest.raises(DeadlineExceeded, match=r"within 0\.01 s"):
        await asking.ask(lambda _: answers.wait(20))

    answers.set()
    await asking.close(20)


async def test_while_too_many_questions_wait_for_the_database_a_further_one_is_refused(monkeypatch):
    monkeypatch.setattr(async_store, "MOST_QUESTIONS", 1)
    asking, answers = started(LateStore()), threading.Event()
    await asking.ask(lambda _: None)
    slow = asyncio.ensure_future(asking.ask(lambda _: answers.wait(20)))
    await asyncio.sleep(0)

    with pytest.raises(Overloaded, match="1 queries wait"):
        await asking.ask(lambda _: None)

    answers.set()
    assert await slow
    assert await asking.ask(lambda _: "answered") == "answered"
    await asking.close(20)


async def test_questions_whose_callers_have_left_do_not_gather_while_the_database_hangs(monkeypatch, caplog):
    monkeypatch.setattr(async_store, "THREADS", 1)
    monkeypatch.setattr(async_store, "MOST_QUESTIONS", 3)
    asking, answers, asked = started(LateStore()), threading.Event(), []
    hanging = asyncio.ensure_future(asking.ask(lambda _: answers.wait(20)))
    for _ in range(2):
        leaving = asyncio.ensure_future(asking.ask(asked.append))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait({leaving})

    with pytest.raises(Overloaded, match="3 queries wait"):
        await asking.ask(asked.append)

    answers.set()
    assert await hanging
    assert await asking.ask(lambda _: "answered") == "answered"
    await asking.close(20)
    gc.collect()
    assert (asked, caplog.messages) == ([], [])


async def test_a_store_that_closes_waits_for_no_question_and_begins_no_other_and_no_append(
    monkeypatch, caplog
):
    monkeypatch.setattr(async_store, "THREADS", 1)
    asking, begun, answers, asked = started(LateStore()), threading.Event(), threading.Event(), []
    hanging = asyncio.ensure_future(asking.ask(lambda _: begun.set() or answers.wait(20)))
    waiting = asyncio.ensure_future(asking.ask(asked.append))
    await asyncio.to_thread(begun.wait)

    await asking.close(20)

    with pytest.raises(NotReady, match="shut down before it stored"):
        await asking.append(Append(UnitKey("", "fake", "17"), (), 1, Given([1], np.zeros((1, 0)), str)))
    answers.set()
    assert await hanging
    await asyncio.wait({waiting})
    assert (waiting.cancelled(), asked, caplog.messages) == (True, [], [])


async def test_a_model_is_removed_only_after_an_outcome_of_it_that_is_being_counted():
    class Ended(LateStore):
        def take_outcome(self, outcome, *, replace):
            judged = VersionJudgement("fake", "1", judgement=None)
            return Receipt(OutcomeResult.CREATED, outcome, [judged])

    class Counting(FakeKeepingObserver):
        def scored(self, model, judgement, *, is_late):
            """Remove the model meanwhile, as the event loop does; `Thread.join` waits in vain."""
            removing.start()
            removing.join(0.1)
            removed_meanwhile.append(not removing.is_alive())

    asking, removed_meanwhile = started(Ended(), observer=Counting()), []
    asking.add_model(ModelVersion("fake", "1", 125.0, 0.9))
    removing = threading.Thread(target=asking.remove_model, args=["fake"])

    await asking.take_outcome(Outcome("fake", "17", OutcomeKind.FAILED, 9, None, 0.0), replace=False)

    removing.join()
    assert removed_meanwhile == [False]
    await asking.close(20)


async def test_what_is_older_than_the_retention_is_purged(monkeypatch):
    monkeypatch.setattr(async_store, "time", lambda: 1_000_000.0)
    late, purged = LateStore(), asyncio.Event()
    loop, asked = asyncio.get_running_loop(), []
    late.purge = lambda before: [asked.append(before), loop.call_soon_threadsafe(purged.set)]

    store = started(late)

    await asyncio.wait_for(purged.wait(), 20)
    await store.close(20)
    assert asked == [1_000_000.0 - 24 * 60 * 60]


async def test_a_clock_that_is_set_ahead_deletes_nothing_before_the_next_purge(monkeypatch):
    day, late, asked = 24 * 60 * 60, LateStore(), []
    late.purge = lambda before: [asked.append(before + day)]
    monkeypatch.setattr(async_store, "PURGE_SECONDS", 0)
    monkeypatch.setattr(async_store, "monotonic", lambda: 50.0)
    clock = iter([1e9, 1e9, 1e9 + 365 * day, 1e9, 1e9 + day, 1e9 + day])
    monkeypatch.setattr(async_store, "time", lambda: next(clock))
    limits = {"lag_seconds": 0, "timeout_seconds": 20, "retention_days": 1}
    store = AsyncStore(None, [], observer=FakeKeepingObserver(), **limits)

    for _ in range(5):
        [*store._chore(late)]

    assert asked == [1e9, 1e9, 1e9, 1e9, 1e9 + day]


@pytest.mark.parametrize("ask", ["history", "outcome"])
async def test_a_question_waits_for_a_unit_that_another_worker_is_writing(ask):
    late = LateStore()
    store = started(late)

    if ask == "history":
        await store.history(UnitKey("", "fake", "17"), limit=1, before=None)
    else:
        outcome = Outcome("fake", "17", OutcomeKind.FAILED, 3, None, 1000.0)
        await store.take_outcome(outcome, replace=False)

    assert late.asked == 2
    await store.close(20)


@pytest.mark.parametrize(("predicted", "questions"), [(False, 1), (True, 2)])
async def test_a_decision_waits_for_the_prediction_that_another_worker_is_writing(predicted, questions):
    late = LateStore(first=[])
    store = started(late)

    await store.history(UnitKey("", "fake", "17"), limit=1, before=None, predicted=predicted)

    assert late.asked == questions
    await store.close(20)


async def test_a_unit_is_renamed_once_other_workers_have_written_what_they_had():
    store, progress, settled = LateStore(), Progress((0, 0), (7, 5)), []
    asking = started(store, lag_seconds=20, progress=progress)
    store.rename = lambda key, to: settled.append(progress.rows[1, 1]) or True

    await asking.rename(UnitKey("", "fake", "17"), "18")

    assert settled == [7]
    await asking.close(20)


async def test_predictions_that_other_workers_write_after_the_deletion_of_their_unit_are_deleted_too(
    tmp_path,
):
    late = ("fake", "17", "", 9, 50.0, 45.0, 55.0, "estimated", "healthy", time(), None, None, "1")
    kept = Store.open(f"sqlite:///{tmp_path}/rul.db", [ModelVersion("fake", "1", 125.0, 0.9)])
    newer = (*late[:3], 1, *late[4:9], 4e9, *late[10:])  # of a new unit of this name
    kept.write([(*late[:3], 8, *late[4:])])
    progress = Progress((0, 0), (7, 5), write=lambda: kept.write([late, newer]))
    asking = started(kept, lag_seconds=20, progress=progress)
    key = UnitKey("", "fake", "17")

    deleted = await asking.delete(key)

    assert deleted == DeletedRows(readings=0, predictions=2)
    left = await asking.history(key, limit=9, before=None)
    assert [row["last_cycle"] for row in left.predictions] == [1]
    await asking.close(20)


class Progress:
    """Rows of this worker and of another."""

    def __init__(self, *rows, write=lambda: None):
        self.rows = np.array(rows, dtype=float)
        self.own = self.rows[0]
        self.looks = 0
        self.write = write

    def each_living(self):
        self.looks += 1
        if self.looks > 3 and self.rows[1, 1] != self.rows[1, 0]:  # the other worker writes
            self.write()
            self.rows[1, 1] = self.rows[1, 0]
        return self.rows.copy()


@pytest.mark.parametrize(("rows", "questions"), [(((0, 0), (7, 7)), 1), (((0, 0), (7, 5)), 2)])
async def test_an_unknown_unit_is_asked_for_again_only_where_a_worker_has_rows_to_write(rows, questions):
    store = LateStore()
    asking = started(store, lag_seconds=20, progress=Progress(*rows))

    outcome = Outcome("fake", "17", OutcomeKind.FAILED, 3, None, 1000.0)
    with pytest.raises(UnknownUnit) if questions == 1 else nullcontext():
        await asking.take_outcome(outcome, replace=False)

    assert store.asked == questions
    await asking.close(20)


async def test_an_unknown_unit_is_asked_for_again_if_another_worker_wrote_during_the_question():
    store, progress = LateStore(), Progress((0, 0), (7, 5))
    asking = started(store, lag_seconds=20, progress=progress)

    def answered_from_before(*key, **page):
        progress.rows[1, 1] = 7
        return LateStore.history(store, *key, **page)

    store.history = answered_from_before

    await asking.history(UnitKey("", "fake", "17"), limit=1, before=None)

    assert store.asked == 2
    await asking.close(20)


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({"cycle": 3}, 400, []),
        ({"kind": "failed"}, 400, []),
        ({"kind": "failed", "cycle": "3"}, 400, ["/cycle"]),
        ({"kind": "failed", "cycle": 3.5}, 422, ["/cycle"]),
        ({"kind": "failed", "cycle": -1}, 422, ["/cycle"]),
        ({"kind": "failed", "cycle": 2**24 + 1}, 422, ["/cycle"]),
        ({"kind": "failed", "cycle": 3, "time": "2026-03-01T12:00:00"}, 400, ["/time"]),
        ({"kind": "failed", "cycle": 3, "time": "9999-12-31T23:59:59-01:00"}, 422, ["/time"]),
        ({"kind": "failed", "cycle": 3, "time": "0001-01-01T00:00:00+10:00"}, 422, ["/time"]),
    ],
)
async def test_a_wrong_outcome_is_refused_at_its_place(service, body, status, pointer):
    response = await service.http.post("/v1/units/17/outcomes", json=body)

    assert response.status_code == status
    assert [at for at in pointers(response) if at] == pointer


@pytest.mark.parametrize("seconds", [1e12, -1e12, 1e300])
async def test_a_unit_whose_stored_outcome_has_an_impossible_time_is_shown_without_it(service, seconds):
    await predicted(service, ("17", 100, 52.0))
    await report(service, "17", kind="failed", cycle=150)
    store = service.parts.desk.units._store.recorder.flush(20)
    with store.writing() as connection:
        connection.execute(update(OUTCOMES).values(happened_at=seconds))

    response = await service.http.get("/v1/units/17")

    assert (response.status_code, response.json()["outcome"]["time"]) == (200, None)


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("/v1/units?limit=0", "/limit"), ("/v1/units?limit=1001", "/limit"), ("/v1/units?limit=x", "/limit"),
        ("/v1/units?state=ill", "/state"), ("/v1/units?after=%25", "/after"),
        ("/v1/units?after=WzFd", "/after"), ("/v1/units?after=WzEsImZkMDAxIiwiYVx1MDAwMGIiXQ", "/after"),
        ("/v1/units?sate=critical", "/sate"), ("/v1/units/17?before=-1", "/before"),
        ("/v1/units/17/explanation?cycle=-1", "/cycle"), ("/v1/units/17/explanation?cycle=1_0", "/cycle"),
        ("/v1/units/17?limit=99999999999", "/limit"), ("/v1/units/17?limit=%D9%A3", "/limit"),
    ],
)  # fmt: skip
async def test_a_wrong_parameter_is_refused_by_its_name(service, path, pointer):
    response = await service.http.get(path)

    assert response.status_code == 422
    assert pointers(response) == [pointer]


async def test_only_predictions_of_the_loaded_version_are_counted(tmp_path):
    older = FakeRuntime(make_manifest().model_copy(update={"version": "0"}))
    async with keeping(tmp_path, runtime=older) as service:
        await predicted(service, ("17", 100, 52.0), ("18", 100, 52.0))
    async with keeping(tmp_path) as service:
        await predicted(service, ("17", 110, 41.0))

        body = (await report(service, "17", kind="failed", cycle=150)).json()
        await report(service, "18", kind="failed", cycle=150)

        assert service.value("rul_outcomes_total", kind="failed") == 2
        assert service.value("rul_coverage_units_total", model="fake") == 1
        assert service.value("rul_coverage_trials_total", model="fake") == 1
        assert service.value("rul_outcome_absolute_error_cycles_sum", model="fake") == 1
    assert [score["version"] for score in body["scores"]] == ["0", "1"]


async def test_questions_are_told_why_the_store_cannot_be_opened(tmp_path):
    (tmp_path / "rul.db").write_bytes(b"no database" * 1000)

    async with keeping(tmp_path) as service:
        answers = [
            await service.http.get("/v1/units"),
            await report(service, "17", kind="failed", cycle=1),
            await service.http.post("/v1/units/17/cycles", json={"columns": {"sensor_1": 1.0}}),
        ]

    for answer in answers:
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:rulserve:problem:store_unavailable")
        assert "retry-after" in answer.headers
        assert "no SQLite database" in answer.json()["detail"]


async def test_waiting_predictions_are_written_at_shutdown(tmp_path):
    async with keeping(tmp_path) as service:
        await predicted(service, *((str(i), 50, 60.0) for i in range(20)))

    with sqlite3.connect(tmp_path / "rul.db") as connection:
        assert connection.execute("SELECT count(*) FROM predictions").fetchone() == (20,)
    connection.close()


def test_the_token_of_a_page_keeps_its_place_exactly():
    row = {"lower": 0.1 + 0.2, "model": "fd001", "unit": "ü/1"}

    assert _place(_token(row)) == (0.1 + 0.2, "fd001", "ü/1")


async def test_a_tenant_does_not_see_the_units_of_another_by_any_protocol(tmp_path):
    file = tmp_path / "keys.toml"
    tenants = ("plant-a", "plant-b", "")
    scopes = ("predict", "ingest", "outcomes")
    keys = {tenant: add_key(file, f"of-{tenant}", scopes, tenant) for tenant in tenants}
    async with keeping(tmp_path, keys_file=str(file)) as service:
        a, b, nobody = ({"x-api-key": key} for key in keys.values())
        await service.predict_http(windows=[json_window(40.0, unit="17", last_cycle=9)], headers=a)
        window = message_window(30.0, unit="18", last_cycle=9)
        await service.predict_grpc(windows=[window], metadata=[*a.items()])

        async def seen(headers):
            fleet = (await service.http.get("/v1/units", headers=headers)).json()["units"]
            statuses = [
                (await service.http.get(f"/v1/units/{unit}", headers=headers)).status_code
                for unit in ("17", "18")
            ]
            ended = {"kind": "failed", "cycle": 50}
            outcome = await service.http.post("/v1/units/17/outcomes", json=ended, headers=headers)
            return [unit["unit"] for unit in fleet], [*statuses, outcome.status_code]

        assert await seen(b) == ([], [404, 404, 404])
        assert await seen(nobody) == ([], [404, 404, 404])
        assert await seen(a) == (["18", "17"], [200, 200, 200])
