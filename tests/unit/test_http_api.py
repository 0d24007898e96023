"""HTTP around a runtime that does as it is told: what the real process cannot be made to show."""

import json
from contextlib import suppress
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError

from service.core.predictor import LoadedModel, Predictor
from service.core.providers import Placement
from service.errors import MalformedBody, Overloaded, TooLarge, UnknownModel
from service.http.careful import Careful
from service.http.problem import problem, unreadable
from service.labels import Route
from tests.examples import json_values
from tests.fakes import COLUMNS, FakeRuntime
from tests.in_process import in_process, json_window


async def test_readiness_says_on_which_providers_a_model_runs_and_why_not_on_others():
    runtime = FakeRuntime(provider="Second")
    runtime.placement = Placement(("Second", "Last"), "First could not be loaded")
    async with in_process(runtime) as service:
        reply = await service.http.get("/readyz")

    (model,) = reply.json()["models"]
    assert model["provider"] == "Second"
    assert model["providers"] == ["Second", "Last"]
    assert model["fallback"] == "First could not be loaded"


POSTED = {
    Route.PREDICT, Route.EXPLAIN, Route.V2_INFER, Route.V2_INDEX, Route.OUTCOMES, Route.SHADOW, Route.CANARY,
    Route.CYCLES, Route.RENAME,
}  # fmt: skip


async def test_every_route_of_http_is_counted_under_a_label_of_its_own(service):
    for route in Route:
        if route.transport == "http":
            await service.http.request("POST" if route in POSTED else "GET", route.value)

    for route in Route:
        if route.transport == "http":
            count = service.value("rul_request_duration_seconds_count", protocol="http", route=route.value)
            assert count == 1, route


async def test_every_example_of_the_docs_is_answered(tmp_path):
    async with in_process(store=f"sqlite:///{tmp_path}/rul.db", request_timeout_seconds=30) as service:
        paths = (await service.http.get("/openapi.json")).json()["paths"]
        answers = []
        for path, operations in paths.items():
            content = operations.get("post", {}).get("requestBody", {}).get("content", {})
            examples = content.get("application/json", {}).get("examples", {}).values()
            url = path.format(name="fake", version="1", unit="17")
            more = {"replace": True} if path.endswith("/outcomes") else {}  # the unit has one already
            answers += [await service.http.post(url, json=each["value"] | more) for each in examples]

    assert [answer.status_code for answer in answers] == [200] * 11, [a.text for a in answers]


async def test_the_example_of_a_csv_is_stored(tmp_path):
    async with in_process(store=f"sqlite:///{tmp_path}/rul.db", request_timeout_seconds=30) as service:
        path = "/v1/units/{unit}/cycles"
        operation = (await service.http.get("/openapi.json")).json()["paths"][path]["post"]
        text = operation["requestBody"]["content"]["text/csv"]["example"]
        given = {each["name"]: each["example"] for each in operation["parameters"] if "example" in each}
        answer = await service.http.post(
            path.format(unit=given["unit"]),
            params={"model": given["model"]},
            content=text,
            headers={"content-type": "text/csv"},
        )

    assert answer.json()["stored"] == 2, answer.text


async def test_the_documentation_page_fills_the_parameters_of_a_path_in(service):
    paths = (await service.http.get("/openapi.json")).json()["paths"]
    of_path = [
        each
        for operations in paths.values()
        for operation in operations.values()
        for each in operation.get("parameters", ())
        if each["in"] == "path"
    ]

    assert {each["name"] for each in of_path} == {"unit", "name", "version"}
    assert {each["name"] for each in of_path if "example" not in each} == set()


async def test_the_examples_of_a_prediction_are_the_same_window_by_name_and_by_row(service):
    body = (await service.http.get("/openapi.json")).json()["paths"]["/v1/predict"]["post"]["requestBody"]
    examples = body["content"]["application/json"]["examples"]

    by_name, by_row, *_ = (each["value"]["windows"][0] for each in examples.values())
    columns = by_name.pop("columns")
    assert by_row.pop("readings") == [[*cycle] for cycle in zip(*map(columns.get, COLUMNS), strict=True)]
    assert by_row == by_name


async def reply_to(text):
    """The answer to a body that no encoder of JSON writes."""
    async with in_process() as service:
        headers = {"content-type": "application/json"}
        return await service.http.post("/v1/predict", content=text.encode(), headers=headers)


async def test_of_many_problems_a_hundred_are_listed_and_the_rest_is_said(service):
    reply = await service.predict_http(windows=[json_window() | {"last_cycle": -1}] * 102)

    errors = reply.json()["errors"]
    assert [error["pointer"] for error in errors[:100]] == [f"/windows/{i}/last_cycle" for i in range(100)]
    assert [error["code"] for error in errors[100:]] == ["more_problems"]


def test_a_part_of_a_second_is_a_second_to_wait():
    error = Overloaded("the queue is full")
    error.retry_after_seconds = 0.2

    _, _, headers, _ = problem(error, "an-id", "/v1/predict")

    assert (b"retry-after", b"1") in headers


async def test_a_number_that_is_too_large_is_left_to_the_windows_check():
    reply = await reply_to('{"windows": [{"readings": [[1, 1e999, 1]]}]}')

    (problem,) = reply.json()["errors"]
    assert (problem["pointer"], problem["code"]) == ("/windows/0/readings/0/1", "non_finite")


@pytest.mark.parametrize("beside", [[], [{"unit": 18, "columns": {"sensor_1": ["x"]}}]])
async def test_an_integer_is_the_name_of_a_unit(service, beside):
    reply = await service.predict_http(windows=[json_window() | {"unit": 17}, *beside], partial=True)

    assert [p["unit"] for p in reply.json()["predictions"]] == ["17", "18"][: 1 + len(beside)]


@pytest.mark.parametrize(("unit", "digits"), [("9" * 257, 257), ("-" + "9" * 300, 301)])
async def test_an_integer_of_too_many_digits_is_no_name(unit, digits):
    reply = await reply_to(f'{{"windows": [{{"unit": {unit}, "readings": [[1, 1, 1]]}}]}}')

    (problem,) = reply.json()["errors"]
    assert (problem["pointer"], problem["code"]) == ("/windows/0/unit", "bad_name")
    assert f"got {digits}: " in problem["detail"]


async def test_a_value_outside_a_closed_set_is_refused_with_the_set(service):
    reply = await service.predict_http(explain="ful")

    (problem,) = reply.json()["errors"]
    expected = "expected one of none, attention, sensors, full, got 'ful'"
    assert (problem["pointer"], problem["detail"]) == ("/explain", expected)


@pytest.mark.parametrize("unit", [1.5, True, ["17"]])
async def test_other_values_are_no_names(service, unit):
    reply = await service.predict_http(windows=[json_window() | {"unit": unit}])

    assert reply.status_code == 400
    assert reply.json()["errors"][0]["pointer"] == "/windows/0/unit"


@pytest.mark.parametrize("beside", ["1e999", "1"])
@pytest.mark.parametrize(
    "text",
    [
        r'{"windows": [{"unit": "\ud800", "readings": [[1, 1, %s]]}]}',
        r'{"windows": [{"readings": [[1, 1, %s]], "unit": "\udfff"}]}',
        r'{"windows": [{"columns": {"\ud800": [1], "a": [%s]}}]}',
        r'{"windows": [{"readings": [[1, 1, %s]]}], "model": "\ud800\ud800"}',
        '{"windows": [{"readings": [[1, NaN, %s]]}]}',
        '{"windows": [{"readings": [[1, -Infinity, %s]]}]}',
    ],
)
async def test_text_that_is_not_json_is_malformed(text, beside):
    reply = await reply_to(text % beside)

    assert reply.status_code == 400
    assert reply.json()["title"] == "The body is malformed"


JSON = json_values("windows", "unit", "last_cycle", "columns", "readings", "model", "partial")


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps({"windows": [value]}).encode()))
async def test_any_body_is_refused_or_read(body):
    model = LoadedModel.of(FakeRuntime(), Mock(), max_window_cycles=100)
    careful = Careful(Predictor({"fake": model}, max_request_windows=2))

    with suppress(MalformedBody, UnknownModel, TooLarge):
        query, _, parts = await careful.read(body)
        assert len(query.windows) == len(parts)


async def test_a_large_window_has_as_many_cycles_as_the_limit():
    model = LoadedModel.of(FakeRuntime(), Mock(), max_window_cycles=100)
    values = ", ".join(["0.125" + "0" * 1000] * 100)
    columns = ", ".join(f'"{name}": [{values}]' for name in COLUMNS)

    _, _, (part,) = await Careful(Predictor({"fake": model}, max_request_windows=2)).read(
        f'{{"windows": [{{"columns": {{{columns}}}}}]}}'.encode()
    )

    assert (part.sent, part.problems) == (100, ())


async def test_a_window_of_too_many_cycles_is_one_problem_however_many_columns_it_has():
    model = LoadedModel.of(FakeRuntime(), Mock(), max_window_cycles=100)
    columns = {name: [0.125] * 20_000 for name in ("setting_1", "sensor_1", "sensor_2")}

    _, _, (part,) = await Careful(Predictor({"fake": model}, max_request_windows=2)).read(
        json.dumps({"windows": [{"columns": columns}]}).encode()
    )

    assert [(each.pointer, each.code) for each in part.problems] == [("/columns", "too_long")]
    assert part.problems[0].detail == "expected at most 100 cycles, got 20000"


@pytest.mark.parametrize(
    ("message", "pointer", "detail"),
    [
        ("Expected `str` - at `$.windows[3].unit`", "/windows/3/unit", "Expected `str`"),
        ("Object missing required field `windows`", "", "Object missing required field `windows`"),
        ("Expected `object`, got `array` - at `$`", "", "Expected `object`, got `array`"),
        ("no - at `$.windows[0].columns[...]`", "/windows/0/columns", "no"),
    ],
)
def test_the_decoders_path_becomes_a_json_pointer(message, pointer, detail):
    (problem,) = unreadable(ValidationError(message)).problems

    assert (problem.pointer, problem.detail) == (pointer, detail)


@pytest.mark.parametrize(
    "form", ["{}", "W/{}", '"another", {}'], ids=["as it was sent", "weakened by a proxy", "a list"]
)
@pytest.mark.parametrize("path", ["/page/app.js", "/docs/assets/swagger-ui-bundle.js"])
async def test_a_copy_of_a_file_that_is_still_right_is_not_sent_again(service, path, form):
    first = await service.http.request("GET", path)
    headers = {"if-none-match": form.format(first.headers["etag"])}

    again = await service.http.request("GET", path, headers=headers)
    other = await service.http.request("GET", "/page/api.js", headers=headers)

    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")
    assert "content-length" not in again.headers  # RFC 9110, 8.6: only that of the page is allowed
    assert other.status_code == 200
