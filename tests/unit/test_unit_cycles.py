"""Readings of units by HTTP and gRPC over a real SQLite file: forms, answers, refusals, units as a whole."""

import asyncio
import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import quote

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from service.core.rules import WindowRules
from service.core.turns import LARGE_BYTES
from service.edge.keys import add_key
from service.errors import MalformedBody
from service.http.units_bodies import shortest
from service.http.units_cycles import read_csv
from service.proto import rul_v1_pb2 as pb
from tests.examples import examples
from tests.fakes import COLUMNS, FakeRuntime, fake_outputs, make_manifest
from tests.in_process import ask_grpc, framed, in_process, message_window
from tests.in_process import keeping as stored_in

APPEND = "/rul.v1.RulService/AppendCycles"
CSV = {"content-type": "text/csv"}
JSON = {"content-type": "application/json"}
GAP = 4
"""Most cycles between two readings of a window: half of the context."""
COSTS = {"planned": 1.0, "failure": 20.0}


class WindowRuntime(FakeRuntime):
    """A runtime whose RUL depends on every reading, its place, the length and the last cycle."""

    def run(self, readings, lengths, last_cycle):
        read = np.where(np.isnan(readings), 0.1, readings)
        marked = np.zeros_like(readings)
        for window, given_, length, last in zip(marked, read, lengths, last_cycle, strict=True):
            weights = np.arange(1, length + 1)[:, None] * np.arange(1, readings.shape[2] + 1)
            window[length - 1, 0] = (weights * given_[:length]).sum() / 100 + last / 7
        return fake_outputs(marked, lengths, self.manifest)


def keeping(folder, **options):
    return stored_in(folder, **{"runtime": WindowRuntime(), **options})


@pytest.fixture
async def service(tmp_path):
    async with keeping(tmp_path) as started:
        yield started


def values(cycle):
    """The reading of a cycle, by column; every fifth lacks a sensor."""
    read = {"setting_1": 1.0 + cycle % 2, "sensor_1": 0.25 * cycle, "sensor_2": 40.0 - 0.5 * cycle}
    return read if cycle % 5 else {name: read[name] for name in ("setting_1", "sensor_1")}


def reading(cycle):
    return {"cycle": cycle, "columns": values(cycle)}


def columns(cycles):
    return {name: [values(cycle).get(name) for cycle in cycles] for name in COLUMNS}


async def post(service, unit="7", headers=None, **body):
    return await service.http.post(f"/v1/units/{unit}/cycles", json=body, headers=headers)


async def send(service, content, headers=CSV, *, unit="7", **params):
    path = f"/v1/units/{unit}/cycles"
    return await service.http.post(path, content=content, headers=headers, params=params)


class SwapsAfterwards(ThreadPoolExecutor):
    """Runs a function at once, and swaps the model before its caller goes on: its columns are rotated."""

    def __init__(self, parts):
        super().__init__(1)
        self.parts, self.columns = parts, COLUMNS

    def submit(self, run, /, *arguments, **named):
        done = Future()
        done.set_result(run(*arguments, **named))
        self.columns = (*self.columns[1:], self.columns[0])
        runtime = WindowRuntime(make_manifest(columns=self.columns))
        self.parts.desk.predictor.serve({"fake": self.parts.joints.serve(runtime)})
        return done


async def test_readings_of_a_large_body_keep_their_columns_if_the_model_is_swapped_meanwhile(tmp_path):
    cycles = range(1, 4)
    body = json.dumps({"cycles": [*cycles], "columns": columns(cycles)}) + " " * LARGE_BYTES
    async with keeping(tmp_path, max_body_bytes=4 * LARGE_BYTES) as service:
        asyncio.get_running_loop().set_default_executor(SwapsAfterwards(service.parts))

        reply = await send(service, body, JSON)

        assert reply.status_code == 200, reply.text
        stored = (await service.http.get("/v1/units/7")).json()["readings"]["columns"]
    assert stored == columns(cycles)


def life(cycles):
    """The readings since the last gap too long for a window, by column; None where a cycle has none."""
    first = max(c for c in cycles if not any(c - 1 - GAP <= before < c for before in cycles))
    every = range(first, max(cycles) + 1)
    return {name: [values(c).get(name) if c in cycles else None for c in every] for name in COLUMNS}


async def window_answer(service, cycles, unit="7", **options):
    """What /v1/predict answers for this life."""
    window = {"unit": unit, "last_cycle": max(cycles), "columns": life(cycles)}
    response = await service.http.post(
        "/v1/predict",
        json={"windows": [window], "explain": "none", "partial": True, "store": False, **options},
    )
    return response.json()["predictions"][0]


def without_truncation(prediction):
    """A prediction without the warning that only a window longer than the context has."""
    kept = [warning for warning in prediction["warnings"] if warning["code"] != "truncated_to_context"]
    return prediction | {"warnings": kept}


async def test_a_reading_is_answered_with_the_prediction_of_the_unit(service):
    await post(service, **reading(1))

    response = await post(service, **reading(2))

    body = response.json()
    assert response.status_code == 200
    expected = {"unit": "7", "stored": 1, "repeated": 0, "last_cycle": 2, "refusal": None}
    assert {name: body[name] for name in expected} == expected
    assert body["model"]["name"] == "fake"
    assert body["prediction"] == await window_answer(service, [1, 2])
    assert "attention" not in body["prediction"]


BODIES = {
    "one by one": {"readings": [reading(3), reading(1), reading(2)]},
    "lists": {"cycles": [1, 3, 2], "columns": columns([1, 3, 2])},
    "whole numbers as pandas writes them": {"cycles": [1.0, 3.0, 2.0], "columns": columns([1, 3, 2])},
    "one by one, likewise": {"readings": [reading(3.0), reading(1.0), reading(2.0)]},
    "lists without numbers": {"columns": columns([1, 2, 3])},
    "csv": "sensor_2, cycle,setting_1,sensor_1\n38.5,3,2,0.75\n39.5,1,2,.25\n39,2,1,0.5\n\n",
    "csv of a spreadsheet": "\ufeffsetting_1,sensor_1,sensor_2\r\n2,0.25,39.5\r\n1,.5,39\r\n2,.75,38.5",
    "csv with carriage returns": "setting_1,sensor_1,sensor_2\r2,0.25,39.5\r1,.5,39\r2,.75,38.5",
    "csv with decimal commas": (
        "cycle;setting_1;sensor_1;sensor_2\n1;2;0,25;39,5\n2;1;,5;39\n3;2;0,75;38,5\n"
    ),
}


@pytest.mark.parametrize("form", BODIES)
async def test_every_form_of_readings_stores_the_same(service, form):
    body = BODIES[form]
    given_ = (body, CSV) if isinstance(body, str) else (json.dumps(body), JSON)

    response = await send(service, *given_, unit="a/7")

    assert response.status_code == 200, response.text
    assert response.json()["stored"] == service.value("rul_store_rows_total", kind="reading") == 3
    assert response.json()["prediction"] == await window_answer(service, [1, 2, 3], unit="a/7")
    kept = (await service.http.get("/v1/units/a/7")).json()["readings"]
    assert kept == {"cycles": [1, 2, 3], "columns": columns([1, 2, 3])}


async def test_with_costs_readings_are_answered_with_the_decision_of_the_whole_window(service):
    response = await post(service, cycles=[1, 2, 3], columns=columns([1, 2, 3]), costs=COSTS)
    by_csv = await send(service, "setting_1,sensor_1,sensor_2\n2,0.25,39.5", unit="8", **COSTS)

    expected = await window_answer(service, [1, 2, 3], costs=COSTS)
    assert response.json()["prediction"] == expected
    assert expected["decision"]["costs"] == by_csv.json()["prediction"]["decision"]["costs"] == COSTS


async def test_costs_of_csv_that_cannot_be_are_refused_by_their_name_and_nothing_is_stored(service):
    response = await send(service, "setting_1,sensor_1,sensor_2\n2,0.25,39.5", planned=2, failure=1)

    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/failure")
    assert (await service.http.get("/v1/units/7")).status_code == 404


@examples(25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.lists(st.integers(1, 14), min_size=1, max_size=5), min_size=1, max_size=5),
    restart=st.integers(0, 5),
)
async def test_whatever_the_order_the_answer_is_that_of_the_whole_window(tmp_path_factory, parts, restart):
    folder, known = tmp_path_factory.mktemp("store"), set()
    for half in (parts[:restart], parts[restart:]):
        async with keeping(folder) as service:
            for cycles in half:
                known |= set(cycles)
                answer = (await post(service, readings=[reading(cycle) for cycle in cycles])).json()

                expected = await window_answer(service, known)
                if answer["prediction"] is None:
                    assert answer["refusal"]["errors"][0]["code"] == "too_much_missing"
                    assert expected["error"]["errors"][0]["code"] == "too_much_missing"
                else:
                    assert answer["prediction"] == without_truncation(expected)


async def test_a_conflict_points_at_the_value_and_shows_both(service):
    await post(service, readings=[reading(1), reading(2)])

    response = await post(service, cycles=[3, 2], columns=columns([3, 3]))

    body = response.json()
    assert (response.status_code, body["type"]) == (409, "urn:rulserve:problem:cycle_conflict")
    assert [error["pointer"] for error in body["errors"]] == [f"/columns/{name}/1" for name in COLUMNS]
    assert body["errors"][2]["detail"] == "cycle 2 has sensor_2 = 39.0, got 38.5"
    assert (await service.http.get("/v1/units/7")).json()["readings"]["cycles"] == [1, 2]


async def test_a_window_that_cannot_be_answered_yet_does_not_refuse_the_reading(service):
    await post(service, **reading(1))

    response = await post(service, **reading(1 + GAP + 1))

    body = response.json()
    assert (response.status_code, body["stored"], body["prediction"]) == (200, 1, None)
    assert "cycles 1 to 6: expected at most 50% of the readings missing" in body["refusal"]["detail"]
    explained = await service.http.get("/v1/units/7/explanation")
    assert (explained.status_code, explained.json()["detail"]) == (422, body["refusal"]["detail"])


async def test_a_full_queue_refuses_no_reading_that_a_retry_would_store_twice(tmp_path):
    async with keeping(tmp_path, runtime=FakeRuntime(), max_pending_windows=1) as service:
        async with service.busy():
            waiting = asyncio.create_task(service.predict_http())
            await service.waiting(1)
            unnumbered = await post(service, columns=values(1))
            numbered = await post(service, **reading(2))
        await waiting
        again = (await post(service, **reading(2))).json()

    body = unnumbered.json()
    assert (unnumbered.status_code, body["stored"], body["prediction"]) == (200, 1, None)
    assert body["refusal"]["title"] == "The queue is full"
    assert numbered.status_code == 429
    assert (again["stored"], again["repeated"], again["refusal"]) == (0, 1, None)


async def test_a_unit_is_answered_again_at_once_after_a_long_outage(service):
    await post(service, readings=[reading(cycle) for cycle in range(1, 9)])

    response = await post(service, **reading(100))

    prediction = response.json()["prediction"]
    assert prediction == await window_answer(service, [*range(1, 9), 100])
    assert prediction["rul_state"] == "insufficient_history"
    (unit,) = (await service.http.get("/v1/units")).json()["units"]
    assert (unit["last_cycle"], unit["rul"]) == (100, pytest.approx(prediction["rul"]))


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({}, 400, ""),
        ({"readings": [], "columns": {}}, 400, ""),
        ({"cycle": 1, "columns": {"sensor_1": [1.0]}}, 400, ""),
        ({"columns": {"sensor_1": [1.0], "sensor_2": 2.0}}, 400, ""),
        ({"readings": []}, 422, "/readings"),
        ({"columns": {}}, 422, "/columns"),
        ({"cycle": 5, "columns": {}}, 422, "/columns"),
        ({"cycles": [5], "columns": {}}, 422, "/columns"),
        ({"readings": [reading(1), {"cycle": 5, "columns": {}}]}, 422, "/readings/1/columns"),
        ({"cycles": [], "columns": {"sensor_1": []}}, 422, "/columns"),
        ({"readings": [reading(1), {"cycle": -1, "columns": {}}]}, 422, "/readings/1/cycle"),
        ({"readings": [{"columns": {"a/b": 1}}]}, 422, "/readings/0/columns/a~1b"),
        ({"cycle": 1, "columns": {"sensor_1": 1e39}}, 422, "/columns/sensor_1"),
        ({"cycle": 2**24 + 1, "columns": values(1)}, 422, "/cycle"),
        ({"cycles": [1, 2], "columns": {"sensor_1": [1.0, 1e39]}}, 422, "/columns/sensor_1/1"),
        ({"cycles": [1, -2], "columns": columns([1, 2])}, 422, "/cycles/1"),
        ({"cycles": [1], "columns": columns([1, 2])}, 422, "/cycles"),
        ({"cycles": [1, 2], "columns": {"sensor_1": [1.0]}}, 422, "/cycles"),
        ({"cycles": [1], "columns": {"sensor_9": [1.0]}}, 422, "/columns/sensor_9"),
        ({"readings": [reading(1)] * 1001}, 422, "/readings"),
        ({"cycle": "1", "columns": values(1)}, 400, "/cycle"),
        ({"cycle": 1, "columns": {"sensor_1": 1.0, "sensor_2": "642"}}, 400, "/columns/sensor_2"),
        ({"cycles": [1, 2], "columns": {"setting_1": [1, 1], "a/b": [1, "x"]}}, 400, "/columns/a~1b/1"),
        ({"readings": [reading(1), {"columns": {"sensor_1": [2.0]}}]}, 400, "/readings/1/columns/sensor_1"),
        ({"cycles": [1, 2], "columns": {"sensor_1": [1.0, 2.0], "sensor_9": None}}, 422, "/columns/sensor_9"),
        ({"cycles": [1, 2], "columns": {"sensor_1": [1.0], "sensor_2": None}}, 422, "/cycles"),
        ({**reading(1), "costs": {"planned": 2.0, "failure": 1.0}}, 400, "/costs"),
        ({"cyle": 5, "columns": values(5)}, 400, ""),
        ({"readings": [{"cyle": 5, "columns": values(5)}]}, 400, "/readings/0"),
    ],
)
async def test_a_bad_body_is_refused_where_it_is_wrong_and_nothing_is_stored(service, body, status, pointer):
    response = await post(service, **body)

    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (status, pointer), response.text
    assert (await service.http.get("/v1/units/7")).status_code == 404


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ('{"columns": {"sensor_1": 1e999}}', "/columns/sensor_1", "non_finite"),
        ('{"cycle": 1e999, "columns": {"sensor_1": 1}}', "/cycle", "bad_cycle"),
    ],
)
async def test_a_number_beyond_float64_is_refused_as_an_infinite_one(service, body, pointer, code):
    response = await send(service, body, JSON)

    (problem,) = response.json()["errors"]
    assert (response.status_code, problem["pointer"], problem["code"]) == (422, pointer, code)


@pytest.mark.parametrize("missing", [None, []])
@pytest.mark.parametrize("numbered", [True, False])
async def test_a_column_that_is_null_or_empty_among_lists_is_missing(service, missing, numbered):
    whole = {"setting_1": [1.0, 2.0], "sensor_1": [3.0, 4.0], "sensor_2": missing}
    cycles = {"cycles": [1, 2]} if numbered else {}

    response = await post(service, **cycles, columns=whole)

    assert (response.status_code, response.json()["stored"]) == (200, 2), response.text
    stored = (await service.http.get("/v1/units/7")).json()["readings"]["columns"]
    assert stored == {**whole, "sensor_2": [None, None]}


async def test_lists_of_a_column_that_is_null_are_as_many_as_their_cycles(service):
    body = (await post(service, cycles=[4, 5], columns={"sensor_1": None})).json()

    assert (body["stored"], body["last_cycle"]) == (2, 5)


async def test_csv_that_is_not_utf8_is_refused_as_such(service):
    text = "cycle,sensor_1,temp\u00e9rature\n1,2,3\n".encode("latin-1")

    response = await send(service, text)

    assert response.status_code == 400
    assert response.json()["detail"].startswith("the body is not UTF-8: ")


RULES = replace(WindowRules.of(make_manifest(), max_window_cycles=9), known=frozenset({"a", "b", "heat"}))


@pytest.mark.parametrize(
    ("text", "line", "detail"),
    [
        ("", 1, "expected a header with each column once"),
        ("a,a\n1,2", 1, "expected a header with each column once"),
        ("a,b\n1,2\n3", 3, "expected 2 fields, as the header has, got 1"),
        ("a\n1_0", 2, "column 'a': expected a number, got '1_0'"),
        ("a\n\u0661", 2, "column 'a': expected a number, got '\u0661'"),
        ("cycle\n1_0", 2, "column 'cycle': expected a number, got '1_0'"),
        ("cycle\n1.5", 2, "column 'cycle': expected a whole number, got '1.5'"),
        ("cycle\ninf", 2, "column 'cycle': expected a whole number, got 'inf'"),
        ('a\n"1', 2, "unexpected end of data"),
        ("cycle,heat\n1,hot", 2, "column 'heat': expected a number, got 'hot'"),
        (
            'cycle,heat\n1,"2,5"', 2,
            "got '2,5': write a decimal point; decimal commas are read where ; separates",
        ),
        ("cycle;heat\n1;2,5\n2;1.234", 3, "got '1.234': this file has decimal commas, so write no point"),
    ],
)  # fmt: skip
def test_bad_csv_is_refused_with_its_line_and_column(text, line, detail):
    with pytest.raises(MalformedBody) as caught:
        read_csv(text, RULES)

    assert str(caught.value).startswith(f"line {line}")
    assert detail in str(caught.value)
    assert caught.value.problems[0].pointer == f"/lines/{line}"


def test_a_missing_reading_of_csv_may_be_written_as_files_have_it():
    text = "cycle,heat\n1,\n2,NaN\n3,#NV\n4,5"

    assert read_csv(text, RULES) == ([1, 2, 3, 4], {"heat": [None, None, None, 5.0]})


async def test_an_unknown_column_of_text_in_csv_is_refused_as_in_json(service):
    by_csv = await send(service, "cycle,setting_1,site\n1,2,Ulm\n")
    by_json = await post(service, cycles=[1], columns={"setting_1": [2], "site": [3]})

    assert by_csv.status_code == by_json.status_code == 422
    assert by_csv.json()["errors"] == by_json.json()["errors"]
    assert by_csv.json()["errors"][0]["pointer"] == "/columns/site"


async def test_csv_takes_its_options_from_the_address(service):
    text = "cycle,setting_1,sensor_1,sensor_2\n1,2,3,4\n"

    answer = await send(service, text, model="fake", explain="attention", store="false")
    unknown = await send(service, text, models="fake")
    bad = await send(service, text, explain="all")
    other = await send(service, text, {"content-type": "text/plain"})

    assert answer.json()["prediction"]["attention"]["cycles"] == [1]
    assert (await service.http.get("/v1/units/7")).json()["predictions"] == []
    assert (unknown.status_code, unknown.json()["errors"][0]["pointer"]) == (400, "/models")
    assert bad.status_code == 400
    assert (other.status_code, "application/json or text/csv" in other.json()["detail"]) == (415, True)


async def test_without_store_the_prediction_is_not_kept_and_the_readings_are(service):
    await post(service, **reading(1), store=False)

    body = (await service.http.get("/v1/units/7")).json()

    assert (body["predictions"], body["readings"]["cycles"]) == ([], [1])
    assert (await service.http.get("/v1/units")).json()["units"] == []


@pytest.mark.parametrize("name", ["a/explanation", "a/decision", "a/cycles", "/", "a\n", "a%2Fb", "ü?#&;"])
async def test_a_unit_of_any_name_is_reached_by_its_quoted_name_and_no_other_unit_is(service, name):
    await post(service, unit="a", **reading(1))
    quoted = quote(name, safe="")

    stored = await post(service, unit=quoted, readings=[reading(1), reading(2)])

    shown = (await service.http.get(f"/v1/units/{quoted}")).json()
    explained = (await service.http.get(f"/v1/units/{quoted}/explanation")).json()
    assert [answer["unit"] for answer in (stored.json(), shown, explained["prediction"])] == [name] * 3
    assert shown["readings"]["cycles"] == [1, 2]
    assert (await service.http.get("/v1/units/a")).json()["readings"]["cycles"] == [1]


async def test_the_commit_of_readings_is_a_stage_of_their_request(service):
    await post(service, **reading(1))
    await appended(service, message(2))

    assert service.value("rul_stage_duration_seconds_count", stage="store") == 2
    assert service.value("rul_stage_duration_seconds_sum", stage="store") > 0


async def test_a_name_that_cannot_be_kept_is_refused(service):
    long = await post(service, unit="n" * 257, **reading(1))
    zero = await post(service, unit="a%00b", **reading(1))
    by_grpc = await appended(service, message(1, unit="a\0b"))

    assert (long.status_code, long.json()["errors"][0]["code"]) == (422, "bad_name")
    assert (zero.status_code, "without NUL" in zero.json()["detail"]) == (400, True)
    assert by_grpc.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["", "a\0b", "n" * 257])
async def test_no_prediction_is_stored_under_a_name_that_no_address_has(service, name):
    window = {"unit": name, "last_cycle": 1, "columns": columns([1])}

    by_http = await service.predict_http(windows=[window])
    by_grpc = await service.predict_grpc(windows=[message_window(unit=name)])

    (error,) = by_http.json()["errors"]
    assert (by_http.status_code, error["pointer"], error["code"]) == (422, "/windows/0/unit", "bad_name")
    assert by_grpc.violations() == {"/windows/0/unit": error["detail"]}


async def test_a_unit_without_a_prediction_takes_an_outcome(service):
    await post(service, **reading(1), store=False)

    ended = {"kind": "removed", "cycle": 1}
    first, again = [(await service.http.post("/v1/units/7/outcomes", json=ended)).json() for _ in range(2)]

    assert (first["result"], again["result"], first["predictions"]) == ("created", "unchanged", [])
    assert first["outcome"] == again["outcome"]
    assert first["outcome"].items() >= ended.items()
    assert first["readings"]["cycles"] == [1]


async def test_an_explanation_is_that_of_the_window_at_a_cycle_and_is_not_stored(service):
    await post(service, readings=[reading(cycle) for cycle in range(1, 13)], store=False)

    answer = await service.http.get("/v1/units/7/explanation", params={"cycle": 10})

    prediction = answer.json()["prediction"]
    assert prediction["attention"]["cycles"] == [*range(3, 11)]
    assert "sensor_contributions" in prediction
    assert prediction["rul"] == (await window_answer(service, range(1, 11)))["rul"]
    assert (await service.http.get("/v1/units/7")).json()["predictions"] == []
    missing = await service.http.get("/v1/units/8/explanation")
    assert (missing.status_code, missing.json()["detail"][:10]) == (404, "no reading")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("limit", ["store_readings_per_unit", "max_window_cycles"])
async def test_a_limit_below_the_context_gives_one_window_however_readings_were_grouped(
    tmp_path, limit, at_once
):
    async with keeping(tmp_path, **{limit: 5}) as service:
        size = 1 if not at_once else 5 if limit == "max_window_cycles" else 12  # that also limits a request
        groups = [range(first, min(first + size, 13)) for first in range(1, 13, size)]
        answers = [await post(service, readings=[reading(c) for c in cycles]) for cycles in groups]
        explained = (await service.http.get("/v1/units/7/explanation")).json()["prediction"]
        expected = await window_answer(service, range(8, 13))

    assert explained["attention"]["cycles"] == [*range(8, 13)]
    assert answers[-1].json()["prediction"]["rul"] == explained["rul"] == expected["rul"]


@pytest.mark.parametrize("again", ["its explanation", "a repeated reading"])
async def test_an_answer_to_stored_readings_alone_counts_in_no_metric_of_answers(service, again):
    await post(service, cycles=[1, 2, 3], columns=columns([1, 2, 3]))

    if again == "its explanation":
        response = await service.http.get("/v1/units/7/explanation")
    else:
        response = await post(service, **reading(2))

    assert (response.status_code, response.json()["prediction"] is None) == (200, False)
    assert service.value("rul_prediction_cycles_count", model="fake") == 1
    assert service.value("rul_imputed_fraction_count") == 1
    monitored = (await service.http.get("/v1/models/fake/monitoring")).json()
    assert monitored["windows"] == 1


async def test_a_cycle_without_a_reading_has_no_explanation(service):
    await post(service, readings=[reading(1), reading(2), reading(5)])

    answers = [await service.http.get("/v1/units/7/explanation", params={"cycle": at}) for at in (2, 4, 6)]

    assert [answer.status_code for answer in answers] == [200, 404, 404]
    assert answers[1].json()["detail"] == "no reading of cycle 4 of unit '7' for model 'fake' is stored"


async def test_cycle_0_is_a_cycle_at_every_door(service):
    stored = await post(service, **reading(0))
    explained = await service.http.get("/v1/units/7/explanation", params={"cycle": 0})
    await post(service, readings=[reading(1)])
    page = (await service.http.get("/v1/units/7", params={"before": 1})).json()
    ended = await service.http.post("/v1/units/7/outcomes", json={"kind": "removed", "cycle": 0})

    assert stored.json()["last_cycle"] == 0
    assert explained.json()["prediction"]["attention"]["cycles"] == [0]
    assert page["readings"]["cycles"] == [past["last_cycle"] for past in page["predictions"]] == [0]
    assert ended.json()["outcome"]["cycle"] == 0


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"columns": values(1)}, "/cycle"),
        ({"columns": columns([1])}, "/cycles"),
        ({"readings": [{"columns": values(1)}]}, "/readings/0/cycle"),
    ],
)
async def test_a_reading_after_the_largest_cycle_is_refused_where_its_number_is_missing(
    service, body, pointer
):
    await post(service, cycle=2**24, columns=values(1))

    response = await post(service, **body)

    (error,) = response.json()["errors"]
    assert (response.status_code, error["pointer"], error["code"]) == (422, pointer, "bad_cycle")
    assert (await service.http.get("/v1/units/7")).json()["readings"]["cycles"] == [2**24]


async def test_pages_of_a_unit_hold_each_reading_and_prediction_once(service):
    for cycles in (range(1, 5), [5], [6], range(7, 11)):
        await post(service, readings=[reading(cycle) for cycle in cycles])
    predictions, readings, before = [], [], None
    while True:
        params = {"limit": 3} | ({} if before is None else {"before": before})
        page = (await service.http.get("/v1/units/7", params=params)).json()
        predictions += [past["last_cycle"] for past in page["predictions"]]
        readings = page["readings"]["cycles"] + readings
        before = page["next"]
        if before is None:
            break

    assert predictions == [10, 6, 5, 4]
    assert readings == [*range(1, 11)]


async def test_the_fleet_shows_trend_probabilities_age_and_a_summary(service):
    for cycle in (1, 2, 3):
        await post(service, unit="a", **reading(cycle))
    await post(service, unit="ab", **reading(1), store=True)

    body = (await service.http.get("/v1/units", params={"limit": 1})).json()
    rest = (await service.http.get("/v1/units", params={"limit": 1, "after": body["next"]})).json()

    units = {unit["unit"]: unit for unit in body["units"] + rest["units"]}
    assert [unit["interval"]["lower"] for unit in units.values()] == sorted(
        unit["interval"]["lower"] for unit in units.values()
    )
    assert len(units["a"]["recent"]) == 3
    assert units["a"]["trend"] == pytest.approx(np.polyfit([1, 2, 3], units["a"]["recent"], 1)[0], abs=1e-4)
    assert units["ab"]["trend"] is None
    assert units["a"]["last_reading_at"] <= units["a"]["predicted_at"]
    assert units["a"]["failure_probability"].keys() == {"10", "30"}
    assert "summary" not in rest
    summary = body["summary"]
    assert (summary["units"], sum(summary["states"].values())) == (2, 2)
    expected = sum(unit["failure_probability"]["10"] for unit in units.values())
    assert summary["fails_within"]["fake"]["10"] == pytest.approx(expected, abs=0.01)


async def test_the_fleet_shows_to_which_cycle_there_are_readings_that_have_no_answer(service):
    await post(service, unit="a", **reading(1))
    gap = {"setting_1": 1.0}
    late = [{"cycle": cycle, "columns": gap} for cycle in range(2, 7)]
    refused = (await post(service, unit="a", readings=late)).json()["refusal"]
    window = {"unit": "b", "last_cycle": 9, "columns": columns([1, 2])}
    await service.http.post("/v1/predict", json={"windows": [window], "explain": "none"})

    units = (await service.http.get("/v1/units")).json()["units"]

    assert refused is not None
    assert {unit["unit"]: (unit["last_cycle"], unit["last_reading_cycle"]) for unit in units} == {
        "a": (1, 6),
        "b": (9, None),
    }


async def test_the_fleet_is_filtered_by_name_and_by_time(service):
    await post(service, unit="pump-1", **reading(1))
    first = (await service.http.get("/v1/units")).json()["units"][0]
    await post(service, unit="FAN_1", **reading(1))

    async def names(**params):
        return [unit["unit"] for unit in (await service.http.get("/v1/units", params=params)).json()["units"]]

    assert await names(q="fan_") == ["FAN_1"]
    assert await names(q="%") == []
    assert await names(changed_since=first["predicted_at"]) == ["FAN_1"]
    bad = await service.http.get("/v1/units", params={"changed_since": "2026-03-01"})
    assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (422, "/changed_since")


async def test_a_unit_is_deleted_with_all_that_is_known_of_it(service):
    await post(service, readings=[reading(1), reading(2)])
    await post(service, **reading(3))
    ended = {"kind": "failed", "cycle": 9}
    await service.http.post("/v1/units/7/outcomes", json=ended)

    deleted = await service.http.delete("/v1/units/7", params={"model": "fake"})

    assert deleted.json() == {"unit": "7", "model": "fake", "deleted": {"readings": 3, "predictions": 2}}
    assert (await service.http.get("/v1/units/7")).status_code == 404
    assert (await service.http.delete("/v1/units/7")).status_code == 404
    await post(service, **reading(1))
    assert (await service.http.get("/v1/units/7")).json()["outcome"] is None


@pytest.mark.parametrize("to", ["b/8", "7"])
async def test_a_unit_is_renamed_with_all_that_is_known_of_it_also_to_its_own_name(service, to):
    await post(service, **reading(1))
    before = (await service.http.get("/v1/units/7")).json()

    renamed = await service.http.post("/v1/units/7/rename", json={"to": to})

    assert (renamed.status_code, renamed.json()) == (200, before | {"unit": to})
    assert (await service.http.get("/v1/units/7")).status_code == (200 if to == "7" else 404)
    assert (await service.http.get(f"/v1/units/{to}")).json() == renamed.json()


@pytest.mark.parametrize("kept", [{"store": False}, {}], ids=["readings alone", "readings and answers"])
async def test_a_unit_takes_no_name_of_another(service, kept):
    await post(service, **reading(1))
    await post(service, unit="8", **reading(2), **kept)

    taken = await service.http.post("/v1/units/7/rename", json={"to": "8"})
    empty = await service.http.post("/v1/units/7/rename", json={"to": ""})
    unknown = await service.http.post("/v1/units/9/rename", json={"to": "10"})

    assert (taken.status_code, taken.json()["errors"][0]["pointer"]) == (409, "/to")
    assert (empty.status_code, unknown.status_code) == (422, 404)


async def test_readings_belong_to_a_tenant(tmp_path):
    file = tmp_path / "keys.toml"
    scopes = ("ingest", "predict")
    a, b, other = ({"x-api-key": add_key(file, name, scopes, name)} for name in ("a", "b", "other"))
    async with keeping(tmp_path, keys_file=str(file)) as service:
        for n, key in enumerate((a, b)):
            stored = await post(service, cycle=1, columns={"sensor_1": n, "sensor_2": n}, headers=key)
            assert stored.status_code == 200
        seen = [await service.http.get("/v1/units/7", headers=key) for key in (a, b, other)]

    assert [answer.status_code for answer in seen] == [200, 200, 404]


async def test_without_a_store_readings_are_refused():
    async with in_process() as service:
        response = await post(service, **reading(1))

    assert (response.status_code, response.json()["type"]) == (404, "urn:rulserve:problem:no_store")


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 413)])
async def test_a_body_of_readings_has_at_most_a_mebibyte(tmp_path, more, status):
    body = json.dumps(reading(1)).encode().ljust(2**20 + more)

    async with keeping(tmp_path, max_body_bytes=4_000_000) as service:
        response = await send(service, body, JSON)

    assert response.status_code == status, response.text


def message(cycle, **fields):
    given_ = {"unit": "7", "readings": [pb.Reading(cycle=cycle, columns=values(cycle))], **fields}
    return pb.AppendCyclesRequest(**given_)


async def appended(service, request):
    return await ask_grpc(service.grpc, APPEND, framed(request.SerializeToString()))


async def test_grpc_stores_and_answers_as_http_does(service):
    answer = await appended(service, message(1))
    by_http = (await post(service, **reading(1))).json()

    reply = pb.AppendCyclesReply.FromString(answer.messages[0])
    assert (reply.unit, reply.model.name, reply.last_cycle) == ("7", "fake", 1)
    assert (reply.stored, reply.repeated, by_http["repeated"]) == (1, 0, 1)
    assert reply.prediction.rul == pytest.approx(by_http["prediction"]["rul"])
    assert not reply.prediction.HasField("attention")


async def test_grpc_takes_values_in_schema_order_and_no_number(service):
    rows = [pb.Reading(values=[values(cycle).get(name, np.nan) for name in COLUMNS]) for cycle in (1, 2)]

    answer = await appended(
        service, pb.AppendCyclesRequest(unit="7", readings=rows, explain=pb.EXPLAIN_ATTENTION, store=False)
    )

    reply = pb.AppendCyclesReply.FromString(answer.messages[0])
    assert (reply.stored, list(reply.prediction.attention.cycles)) == (2, [1.0, 2.0])
    body = (await service.http.get("/v1/units/7")).json()
    assert (body["readings"]["columns"], body["predictions"]) == (columns([1, 2]), [])


async def test_by_grpc_with_costs_the_decision_is_that_of_http(service):
    expected = (await post(service, **reading(1), costs=COSTS)).json()["prediction"]["decision"]

    answer = await appended(service, message(1, costs=pb.Costs(**COSTS)))

    found = pb.AppendCyclesReply.FromString(answer.messages[0]).prediction.decision
    assert found.costs == pb.Costs(**COSTS)
    assert found.act_in_cycles == expected["act_in_cycles"]
    assert found.cost_per_cycle == pytest.approx(expected["cost_per_cycle"])


async def test_a_conflict_by_grpc_is_aborted_with_its_place(service):
    await appended(service, message(2))
    other = pb.Reading(cycle=2, columns=values(2) | {"sensor_1": 9.0})

    answer = await appended(service, pb.AppendCyclesRequest(unit="7", readings=[other]))

    assert answer.code is grpc.StatusCode.ABORTED
    assert answer.violations() == {"/readings/0/columns/sensor_1": "cycle 2 has sensor_1 = 0.5, got 9.0"}


async def test_a_refusal_by_grpc_comes_in_place_of_the_prediction(service):
    await appended(service, message(1))

    answer = await appended(service, message(1 + GAP + 1))

    reply = pb.AppendCyclesReply.FromString(answer.messages[0])
    assert (reply.stored, reply.HasField("prediction")) == (1, False)
    assert reply.refusal.errors[0].code == "too_much_missing"


def test_readings_are_shown_with_the_digits_that_were_sent():
    sent = np.array([641.82, -0.0007, 0.0, 1e-30, 16777217.0, 3e38, 8138.62, np.nan])

    shown = shortest(sent.astype(np.float32))

    np.testing.assert_array_equal(shown.astype(np.float32), sent.astype(np.float32))
    assert shown[[0, 1, 2, 6]].tolist() == [641.82, -0.0007, 0.0, 8138.62]
