"""Asking a server: what is sent, what is asked again, and what a refusal reads like."""

import asyncio
import math
import os
import re
import signal
import socket
import sys
import threading
from contextlib import suppress
from time import perf_counter
from types import MappingProxyType

import grpc
import httpx
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import typer
from grpc.aio import AioRpcError, Metadata

from model.domain import InvalidData
from rul_client import errors
from rul_client.address import InvalidAddress, Tls, chosen_key, in_path
from rul_client.api import AsyncClient, Client
from rul_client.errors import Rejected, RemoteFailed, RulError
from rul_client.grpc import grpc_channel
from rul_client.http import TIMEOUT_SECONDS, http_client
from rul_client.readings import Window, windows_per_request
from rul_client.retries import ATTEMPTS, MAX_PAUSE_SECONDS
from service.proto import rul_v1_pb2 as pb
from tests.fakes import make_manifest
from tests.in_process import until
from tests.programs import has_ipv6

URL = "http://rul.test:3000"
PREDICTION = {
    "unit": "1",
    "rul": 38.5,
    "rul_state": "estimated",
    "interval": {"coverage": 0.9, "lower": 27.0, "upper": 51.0},
    "failure_probability": {"10": 0.0},
    "health_state": {"label": "degrading", "probabilities": {}},
    "imputed_fraction": 0.0,
    "warnings": [{"code": "of a later version", "detail": "..."}],
    "a field of a later version": {},
}
MODEL = {"name": "fake", "version": "1", "sha256": "f"}
WINDOW = Window("1", 2.0, np.array([[1, np.nan, 3], [4, 5, 6]], dtype=np.float32))


def model_entry(name):
    manifest = make_manifest(name).model_dump(mode="json")
    return MODEL | {"name": name, "provider": "p", "manifest": manifest}


def problem(status, title="The queue is full", detail="4096 windows wait", **headers):
    return httpx.Response(status, json={"title": title, "detail": detail, "status": status}, headers=headers)


class Server:
    """Answers /v1/models always, and /v1/predict with these responses in turn."""

    def __init__(self, *responses, models=("fake",)):
        self.responses = list(responses)
        self.models = models
        self.requests = []
        self.pauses = []

    def __call__(self, request):
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"models": [model_entry(name) for name in self.models]})
        if request.url.path.startswith("/v1/models/"):
            return httpx.Response(200, json=model_entry(request.url.path.rpartition("/")[2]))
        self.requests.append(request)
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response

    async def sleep(self, seconds):
        self.pauses.append(seconds)

    def client(self, **options):
        return AsyncClient(URL, transport=httpx.MockTransport(self), sleep=self.sleep, **options)

    async def ask(self, windows=WINDOW, *, timeout_seconds=TIMEOUT_SECONDS, attempts=ATTEMPTS, **options):
        async with self.client(timeout_seconds=timeout_seconds, attempts=attempts) as client:
            return await client.predict(windows, **options)

    def sent(self):
        return msgspec.json.decode(self.requests[0].content)


def good(*predictions):
    return httpx.Response(200, json={"model": MODEL, "predictions": list(predictions or (PREDICTION,))})


async def test_the_query_names_the_model_and_sends_missing_readings_as_null():
    server = Server(good())

    async with server.client(api_key="secret") as client:
        await client.ask([WINDOW], model="fake", partial=True, explain="attention", store=False)

    (request,) = server.requests
    assert server.sent() == {
        "model": "fake",
        "partial": True,
        "explain": "attention",
        "store": False,
        "windows": [{"unit": "1", "last_cycle": 2.0, "readings": [[1.0, None, 3.0], [4.0, 5.0, 6.0]]}],
    }
    assert request.headers["x-api-key"] == "secret"
    assert request.headers["content-type"] == "application/json"


async def test_a_window_that_the_server_refuses_has_its_reason():
    problem = {"pointer": "/windows/0/readings", "code": "too_much_missing", "detail": "too little"}
    error = {"title": "A window cannot be read", "detail": "too little", "errors": [problem]}

    answers = await Server(good(PREDICTION, {"unit": "2", "error": error})).ask(partial=True)

    assert [answer.rul for answer in answers] == [38.5]
    assert [(refused.unit, refused.detail) for refused in answers.refused] == [("2", "too little")]


@pytest.mark.parametrize(
    ("response", "pause"),
    [
        (problem(429, **{"retry-after": "7"}), 7.0),
        (problem(503, **{"retry-after": "7"}), 7.0),
        (problem(503, **{"retry-after": "0"}), 0.0),
        (problem(503, **{"retry-after": "86400"}), MAX_PAUSE_SECONDS),
        (problem(502), 0.5),
        (httpx.RemoteProtocolError("peer closed"), 0.5),
    ],
)
async def test_temporary_failures_are_retried_after_the_servers_pause_up_to_a_limit(response, pause):
    server = Server(response, good())

    answers = await server.ask()

    assert answers[0].rul == 38.5
    assert server.pauses == [pause]


async def test_it_is_asked_a_bounded_number_of_times():
    server = Server(*[problem(429) for _ in range(ATTEMPTS)])

    with pytest.raises(RemoteFailed, match=r"429: The queue is full: 4096 windows wait; tried 6 times"):
        await server.ask()
    assert server.pauses == [0.5, 1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    "lost",
    [
        httpx.ReadError("reset"),
        httpx.DecodingError("incorrect header check"),
        httpx.Response(502),
        httpx.Response(503, text="upstream connect error or disconnect/reset before headers"),
    ],
    ids=["connection", "damaged gzip", "proxy", "Envoy"],
)
async def test_a_reading_without_a_cycle_is_not_sent_again_once_it_may_be_stored(lost):
    server = Server(problem(503), lost)

    async with server.client() as client:
        with pytest.raises(RemoteFailed, match=r"; the service may have done it; tried 2 times$"):
            await client.append("a", {"x": 1})
    assert server.pauses == [0.5]


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        (httpx.ConnectError("connection refused"), "connection refused"),
        (httpx.ConnectTimeout(""), "ConnectTimeout"),
    ],
)
async def test_a_server_that_is_not_there_is_one_clear_line_at_once(lost, why):
    server = Server(lost)

    with pytest.raises(RemoteFailed, match=f"^{URL} cannot be reached: {why}$"):
        await server.ask()
    assert server.pauses == []


@pytest.mark.parametrize("before", [good(), httpx.ReadError("reset")], ids=["answered", "lost"])
async def test_a_server_that_was_there_before_is_waited_for_while_it_restarts(before):
    refused = httpx.ConnectError("connection refused")
    server = Server(before, refused, refused, good())

    async with server.client() as client:
        while len(server.requests) < 4:
            answers = await client.predict(WINDOW)

    assert answers[0].rul == 38.5
    assert server.pauses == ([0.5, 1.0] if isinstance(before, httpx.Response) else [0.5, 1.0, 2.0])


@pytest.mark.parametrize(
    ("response", "line"),
    [
        (problem(422, "A window cannot be read", "bad"), "answered 422: A window cannot be read: bad"),
        (problem(401, detail="no key"), r"401: .*: no key \(--key-file, --api-key or RUL_API_KEY\)"),
        (httpx.Response(404, text="<html>"), "404: no problem document; is this the address of a rulserve"),
        (
            httpx.Response(307, headers={"location": "https://b/x"}),
            "307: a redirect to 'https://b/x': use that address",
        ),
        (problem(422, "A\nwindow", "no column 'a\n b'"), "422: A window: no column 'a b'"),
        (httpx.Response(200, text="<html>"), "is not rulserve, or a newer version"),
        (good({"unit": "1"}), "is not rulserve, or a newer version: Object missing required field"),
        (good({"unit": "1", "error": "text"}), "is not rulserve, or a newer version"),
        (httpx.Response(200, content=b'{"x":' * 100_000), "is not rulserve, or a newer version"),
        (httpx.Response(422, content=b"[" * 100_000), "422: no problem document"),
    ],
)
async def test_a_refusal_is_one_line_and_not_asked_again(response, line):
    server = Server(response)

    with pytest.raises(RemoteFailed, match=line) as raised:
        await server.ask()
    assert "\n" not in str(raised.value)
    assert server.pauses == []


async def test_an_answer_that_never_ends_is_given_up_after_the_timeout():
    async def endless():
        while True:
            yield b" "
            await asyncio.sleep(0)

    server = Server(httpx.Response(200, content=endless()))

    with pytest.raises(RemoteFailed, match="failed: its answer took more than 0"):
        await server.ask(timeout_seconds=0.01, attempts=1)


async def test_of_several_models_one_must_be_named():
    async with Server(models=("fd001", "fd002")).client() as client:
        with pytest.raises(
            RemoteFailed, match=r"several models \(fd001, fd002\): choose one with model \(--model\)"
        ):
            await client.choose()
        with pytest.raises(RemoteFailed, match="serves no model 'fd003', only fd001, fd002"):
            await client.choose("fd003")
        assert (await client.choose("fd002")).name == "fd002"
        assert (await client.manifest("fd002")).name == "fd002"


def described(change):
    """The client of a service whose manifest was changed."""
    entry = model_entry("fake")
    change(entry["manifest"])
    return AsyncClient("http://rul", transport=httpx.MockTransport(lambda _: httpx.Response(200, json=entry)))


async def test_fields_of_a_later_version_in_a_manifest_are_ignored():
    def add(manifest):
        manifest["later"] = manifest["training"]["later"] = manifest["columns"][0]["later"] = {}
        manifest["format"] += 1

    async with described(add) as client:
        assert (await client.manifest("fake")).name == "fake"


async def test_a_manifest_that_lacks_a_field_is_refused_by_name_with_what_to_install():
    async with described(lambda manifest: manifest["degradation"].pop("units")) as client:
        with pytest.raises(
            RemoteFailed,
            match=r"http://rul .*manifest.*degradation.units: Field required.*install the version",
        ):
            await client.manifest("fake")


@pytest.mark.parametrize("url", ["host:3000", "http://host:3000/?model=fd001", "grpc://host:3000/prefix"])
async def test_an_address_without_a_scheme_or_with_parts_that_no_request_keeps_is_refused(url):
    with pytest.raises(RemoteFailed, match=re.escape(f"http, https, grpc, grpcs://HOST:PORT, got {url!r}")):
        AsyncClient(url)


@pytest.mark.parametrize("url", ["http://me:secret@host:3000", "grpcs://secret@host", "htp://me:secret@host"])
async def test_an_address_with_a_password_is_refused_without_quoting_it(url):
    with pytest.raises(RemoteFailed, match=r"got one with a user or password; .* RUL_API_KEY take") as caught:
        AsyncClient(url)

    assert "secret" not in str(caught.value)


def test_every_error_that_the_documentation_imports_is_exported_to_strict_type_checkers():
    assert errors.__all__ == ["Rejected", "RemoteFailed", "RulError"]


def test_wide_windows_go_fewer_at_a_time_but_always_one():
    assert windows_per_request(60 * 3) == 64
    assert windows_per_request(10_000 * 3) == 13
    assert windows_per_request(1_000_000) == 1


async def test_many_windows_go_in_several_requests_and_are_answered_in_order():
    answers = [PREDICTION | {"unit": str(n)} for n in range(70)]
    server = Server(good(*answers[:64]), good(*answers[64:]))

    found = await server.ask([WINDOW] * 70, partial=True, store=False)

    sent = [msgspec.json.decode(request.content) for request in server.requests]
    assert [answer.unit for answer in found] == [str(n) for n in range(70)]
    assert [(len(s["windows"]), s["partial"], s["store"]) for s in sent] == [
        (64, True, False),
        (6, True, False),
    ]


async def test_a_refusal_of_a_later_request_says_which_window_it_began_with():
    server = Server(good(), problem(422, "A window cannot be read", "/windows/3/readings: bad"))

    with pytest.raises(RemoteFailed, match=r"/windows/3/readings: bad; /windows/0 is window 64 of all$"):
        await server.ask([WINDOW] * 70)


COLUMNS = {"a": [1.0, None], "b": [3.0, 4.0]}
BY_NAME = {"unit": "7", "last_cycle": 9, "columns": COLUMNS}
ROWS = [[1.0, 2.0, 3.0]]
UNNAMED = {"unit": None, "last_cycle": None}


@pytest.mark.parametrize(
    ("given", "windows"),
    [
        (COLUMNS, [BY_NAME]),
        ({"unit": "8", "last_cycle": 3, "columns": COLUMNS}, [BY_NAME | {"unit": "8", "last_cycle": 3}]),
        ([{"columns": COLUMNS}, {"readings": ROWS}], [
            BY_NAME | UNNAMED, UNNAMED | {"readings": ROWS},
        ]),
        (ROWS, [{"unit": "7", "last_cycle": 9, "readings": ROWS}]),
        (np.array(ROWS), [{"unit": "7", "last_cycle": 9, "readings": ROWS}]),
        (np.array([ROWS, ROWS]), [UNNAMED | {"readings": ROWS}] * 2),
        (np.ma.masked_greater(np.array(ROWS), 2), [
            {"unit": "7", "last_cycle": 9, "readings": [[1.0, 2.0, None]]},
        ]),
        ({"a": np.ma.masked_array([1.0, 1e36], [False, True]), "b": [3.0, 4.0]}, [BY_NAME]),
    ],
    ids=["columns", "window", "windows", "rows", "array", "arrays", "masked", "masked columns"],
)  # fmt: skip
async def test_readings_go_as_callers_hold_them(given, windows):
    server = Server(good())

    await server.ask(given, unit=7, last_cycle=9)

    assert server.sent()["windows"] == windows


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"a": [1.0], "b": [1.0, 2.0]}, "expected numbers, as many in each row"),
        ({"a": "text"}, "expected numbers"),
        ({"a": 1.0}, "expected T values in each"),
        ([1.0, 2.0], r"expected an array \[T, F\]"),
        ([["a", "b"]], "expected numbers"),
        (np.array([[1j]]), "expected numbers, got complex128"),
        (np.array([["2026-03-01"]], "datetime64[D]"), r"expected numbers, got datetime64\[D\]"),
        (pa.table({"a": [1.0]}), "a pandas DataFrame, got pyarrow.lib.Table: its to_pandas makes one"),
        ([pd.DataFrame({"a": [1.0]})], "expected one DataFrame of all units, got a list of them"),
        ({"unit": 17.0, "columns": COLUMNS}, r"unit: expected a name, got 17\.0"),
        ({"last_cycle": "end", "columns": COLUMNS}, "last_cycle: expected a number, got 'end'"),
    ],
)
async def test_readings_that_are_none_are_refused_before_anything_is_sent(given, line):
    server = Server()

    with pytest.raises(InvalidData, match=line):
        await server.ask(given)


def last_window(unit, cycle, *values):
    return {"unit": unit, "last_cycle": cycle, "columns": {"sensor_1": [*values]}}


async def test_a_file_sends_the_last_window_of_each_unit(tmp_path):
    (tmp_path / "units.csv").write_text("unit,cycle,sensor_1\na,1,5\na,2,6\nb,1,7\n", encoding="utf-8")
    server = Server(good())

    await server.ask(tmp_path / "units.csv")

    assert server.sent()["model"] == "fake"
    assert server.sent()["windows"] == [last_window("a", 2, 5, 6), last_window("b", 1, 7)]


async def test_a_file_with_other_names_is_refused_with_what_to_do_from_a_command_and_from_python(tmp_path):
    (tmp_path / "units.csv").write_text("pump,day,sensor_1\na,1,5\n", encoding="utf-8")

    with pytest.raises(
        InvalidData, match=r"--fleet FILE uses it; in Python, rename the columns of a DataFrame$"
    ):
        await Server().ask(tmp_path / "units.csv")


NUMBERED = {"unit": 7, "last_cycle": 9}


@pytest.mark.parametrize(
    ("columns", "given", "windows"),
    [
        (
            {"unit": ["a", "b", "a"], "cycle": [2, 1, 1], "sensor_1": [6, 7, 5], "site": "x"},
            NUMBERED,
            [last_window("a", 2, 5, 6), last_window("b", 1, 7)],
        ),
        ({"unit": 1, "cycle": [1, 3], "sensor_1": [5, 6]}, {}, [last_window("1", 3, 5, None, 6)]),
        ({"cycle": [1, 2], "sensor_1": [5, 6]}, NUMBERED, [last_window("7", 2, 5, 6)]),
        ({"sensor_1": [5, 6]}, NUMBERED, [last_window("7", 9, 5, 6)]),
        ({"sensor_1": [5, 6]}, {}, [last_window(None, None, 5, 6)]),
    ],
    ids=["cycles in any order", "a skipped cycle is missing", "no unit", "neither, given", "neither"],
)
@pytest.mark.parametrize("index", [(), ("unit",), ("unit", "cycle")])
@pytest.mark.parametrize("drop", [True, False])
async def test_a_data_frame_sends_the_last_window_of_each_unit_in_order_of_cycles(
    columns, given, windows, index, drop
):
    server, frame = Server(good()), pd.DataFrame(columns)
    names = [name for name in index if name in columns]

    await server.ask(frame.set_index(names, drop=drop) if names else frame, **given)

    assert server.sent()["windows"] == windows


@pytest.mark.parametrize("kind", [dict, MappingProxyType])
async def test_costs_may_be_numbers_of_numpy_in_any_mapping(kind):
    server = Server(good())

    await server.ask(COLUMNS, costs=kind({"planned": np.float64(1), "failure": np.int64(10)}))

    assert server.sent()["costs"] == {"planned": 1, "failure": 10}


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"speed": [1]}, "the frame has none of the columns that fake reads"),
        (
            {"unit": "a", "cycle": 1, "sensor_1": [5, 6]},
            "row 2: unit a, cycle 1: duplicate of the frame: row 1",
        ),
        (
            {"pump": ["a", "b"], "cycle": 1, "sensor_1": [5, 6]},
            "row 2: unit without a name, cycle 1: duplicate of the frame: row 1",
        ),
        ({"unit": ["a", None], "sensor_1": [5, 6]}, "row 2, column 'unit': expected a name, got nothing"),
        ({"cycle": [1, 2.5], "sensor_1": [5, 6]}, "row 2, column 'cycle': expected a whole .*, got 2.5"),
        ({"sensor_1": [5, "x"]}, "the frame cannot be read: .*sensor_1"),
        ({"sensor_1": pd.arrays.SparseArray([5.0])}, "the frame cannot be read: .*sensor_1"),
    ],
)
async def test_a_data_frame_that_is_not_one_reading_a_unit_and_cycle_is_refused(columns, error):
    with pytest.raises(InvalidData, match=error):
        await Server().ask(pd.DataFrame(columns))


async def test_answers_become_a_data_frame_a_row_each():
    frame = (await Server(good()).ask()).to_pandas()

    assert frame.loc[0, ["unit", "rul", "rul_lower", "failure_within_10"]].tolist() == ["1", 38.5, 27.0, 0.0]


async def test_a_prediction_reads_as_one_line_with_its_warnings():
    (answer,) = await Server(good()).ask()

    assert str(answer) == "unit 1: 38.5 cycles left (27.0 to 51.0), degrading, of a later version"


async def test_an_rul_at_the_cap_is_no_exact_number_whatever_its_state():
    warnings = [{"code": "out_of_range", "detail": detail} for detail in "ab"]
    capped = {"rul": 51.0, "rul_state": "out_of_distribution", "warnings": warnings}

    (answer,) = await Server(good(PREDICTION | capped)).ask()

    assert str(answer) == (
        "unit 1: at least 51 cycles left (27.0 to 51.0), degrading, out of distribution, out_of_range"
    )


async def test_a_long_life_is_no_power_of_ten_in_a_notebook():
    answers = await Server(good(PREDICTION | {"rul": 12345.6})).ask()

    assert "<td>12346</td>" in answers[0]._repr_html_()


async def test_text_of_others_is_escaped_in_a_notebook():
    answers = await Stub(GRPC_REPLY).ask()
    answers += await Server(good(PREDICTION | {"unit": "<script>alert(1)</script>"})).ask()

    assert "<td>38.5</td>" in answers[1]._repr_html_()
    assert "<script>" not in answers[1]._repr_html_() + answers._repr_html_()
    assert answers[0]._repr_html_().endswith("<p>why &lt;b&gt;</p>")


async def test_one_reading_is_appended_or_several():
    appended = {"unit": "a/b", "model": MODEL, "stored": 1, "repeated": 0, "last_cycle": 3}
    server = Server(*[httpx.Response(200, json=appended | {"prediction": PREDICTION})] * 2)

    async with server.client() as client:
        answer = await client.append("a/b", {"a": 1, "b": None}, cycle=3.0)
        await client.append("a/b", pd.DataFrame({"a": [1, 2]}), model="fake", store=False)

    assert (answer.last_cycle, answer.prediction.rul) == (3, 38.5)
    assert server.requests[0].url.raw_path == b"/v1/units/a%2Fb/cycles"
    one, several = (msgspec.json.decode(request.content) for request in server.requests)
    assert one == {"cycles": [3], "columns": {"a": [1.0], "b": [None]}, "explain": "none", "store": True}
    assert several == {"columns": {"a": [1.0, 2.0]}, "explain": "none", "store": False, "model": "fake"}


@pytest.mark.parametrize(
    ("unit", "columns", "cycle", "error"),
    [
        ("a", {"a": [1, 2]}, 3, "cycle: expected 2 numbers, got 1"),
        ("a", {"a": [1, 2]}, [3, 4.5], "cycle: expected whole numbers up to 16777216, got 4.5"),
        ("a", {"a": 1}, -math.inf, "cycle: expected whole numbers up to 16777216, got -inf"),
        ("a", {"a": 1}, 2.0**70, "cycle: expected whole numbers up to 16777216, got 1.18"),
        ("a", {"a": [1, 2]}, ["3", "May"], "cycle: expected numbers, .*'May'"),
        ("a", {"a": [1]}, pd.to_datetime(["2026-03-01"]), "cycle: expected numbers, got datetime64"),
        (
            "a",
            {"a": [1]},
            pd.array([None], dtype="Int64"),
            "cycle: expected whole numbers up to 16777216, got nan",
        ),
        ("a", None, None, "columns: expected values by column, got"),
        ("a", pa.table({"a": [1.0]}), None, "columns: expected values by column, got"),
        (17.0, {"a": 1.0}, None, "unit: expected a name, got"),
        (None, {"a": 1.0}, None, "unit: expected a name, got"),
        (True, {"a": 1.0}, None, "unit: expected a name, got"),
    ],
)
async def test_readings_with_a_wrong_unit_column_or_cycle_are_refused_before_anything_is_sent(
    unit, columns, cycle, error
):
    async with Server().client() as client:
        with pytest.raises(InvalidData, match=error):
            await client.append(unit, columns, cycle=cycle)


@pytest.mark.parametrize("url", [URL, "grpc://rul.test"])
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"explain": "all"}, "explain: expected one of none, attention, sensors, full, got 'all'"),
        ({"costs": (1, 10)}, r"costs: expected a mapping with planned and failure, got \(1, 10\)"),
        ({"costs": {"planned": 1}}, "costs: .*missing required field `failure`"),
        ({"costs": {"planned": 1, "failure": object()}}, "costs: .*object"),
        ({"costs": {"planned": 1, "failure": "10"}}, "costs: .*`str`"),
        ({"costs": {"planned": 10, "failure": 1}}, "costs: failure: expected more than planned"),
    ],
)
async def test_options_that_no_service_reads_are_refused_by_either_transport_before_anything_is_sent(
    url, options, line
):
    async with AsyncClient(url) as client:
        for asked in (
            client.predict(WINDOW, model="fake", **options),
            client.append("a", {"a": 1}, **options),
        ):
            with pytest.raises(RulError, match=line):
                await asked


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("grpc://rul.test", "http://rul.test:3000"),
        ("grpc://rul.test:3001", "http://rul.test:3001"),
        ("grpcs://rul.test", "https://rul.test"),
        ("grpc://[::1]", "http://[::1]:3000"),
    ],
)
async def test_routes_that_grpc_lacks_are_asked_for_by_http_on_the_same_port(url, asked):
    paths = []

    def answer(request):
        paths.append(str(request.url))
        return httpx.Response(404)

    async with AsyncClient(url, transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(RemoteFailed):
            await client.unit("a")

    assert paths == [f"{asked}/v1/units/a?limit=100"]


IPV6 = pytest.param("[::1]", marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6"))


@pytest.mark.parametrize("host", ["127.0.0.1", IPV6])
async def test_an_address_of_either_family_is_reached_by_grpc(host):
    server = grpc.aio.server()
    port = server.add_insecure_port(f"{host}:0")
    await server.start()

    async with grpc_channel(f"grpc://{host}:{port}") as channel:
        with pytest.raises(AioRpcError) as refused:
            await channel.unary_unary("/nothing/Here", bytes, bytes)(b"", timeout=10)

    await server.stop(None)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_infinite_reading_is_sent_as_a_number_that_the_service_refuses():
    server = Server(
        good(),
        httpx.Response(200, json={"unit": "1", "model": MODEL, "stored": 1, "repeated": 0, "last_cycle": 3}),
    )

    async with server.client() as client:
        await client.predict({"a": [math.inf, None, -math.inf, 1.0]})
        await client.append("1", {"a": math.inf}, cycle=3)

    asked, appended = (msgspec.json.decode(request.content) for request in server.requests)
    assert asked["windows"][0]["columns"] == {"a": [1e39, None, -1e39, 1.0]}
    assert appended["columns"] == {"a": [1e39]}


@pytest.mark.parametrize("number", [int, np.int64])
async def test_numbers_and_times_of_any_library_are_sent_wherever_they_are_named(number):
    server = Server(good(), *[httpx.Response(404)] * 4)
    unit, cycle, ended = number(17), number(9), pd.Timestamp("2026-03-01T12:00:00Z")

    async with server.client() as client:
        await client.predict({"unit": unit, "last_cycle": cycle, "columns": COLUMNS})
        for asked in (
            client.append(unit, {"a": np.float64(1.5)}, cycle=cycle),
            client.outcome(unit, "failed", cycle, time=ended),
            client.explain(unit, cycle=cycle),
            client.decision(unit, planned=1, failure=10),
        ):
            with pytest.raises(RemoteFailed, match="404"):
                await asked

    predict, *of_unit = server.requests
    (window,) = msgspec.json.decode(predict.content)["windows"]
    append, outcome = (msgspec.json.decode(request.content) for request in of_unit[:2])
    actions = [request.url.raw_path.removeprefix(b"/v1/units/17/").decode() for request in of_unit]
    assert window == BY_NAME | {"unit": "17"}
    assert append == {"cycles": [9], "columns": {"a": [1.5]}, "explain": "none", "store": True}
    assert outcome == {"kind": "failed", "cycle": 9, "time": "2026-03-01T12:00:00+00:00", "replace": False}
    assert actions == ["cycles", "outcomes", "explanation?cycle=9", "decision?planned=1&failure=10"]


def test_a_client_without_an_event_loop_waits_and_retries_as_configured():
    begun = perf_counter()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "http://{}:{}".format(*silent.getsockname())
        with (
            Client(address, timeout_seconds=0.05, attempts=1) as client,
            pytest.raises(RemoteFailed, match=r"connection failed: (Read|Connect)Timeout$"),
        ):
            client.models()

    assert perf_counter() - begun < TIMEOUT_SECONDS / 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads: the case
def test_a_client_of_another_process_is_an_error_at_once():
    client = Client("http://rul.test")
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            signal.alarm(10)
            with pytest.raises(RuntimeError, match="is of another process: open another one"):
                client.models()
            status = 0
        os._exit(status)

    assert os.waitpid(child, 0)[1] == 0
    client.close()


def test_an_interrupt_cancels_the_request_that_it_ends():
    main, cancelled = threading.get_ident(), threading.Event()

    async def interrupted():
        await until(lambda: sys._current_frames()[main].f_code is threading.Condition.wait.__code__)
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with Client("http://rul.test") as client:
        with pytest.raises(KeyboardInterrupt):
            client.wait(interrupted())

        assert cancelled.wait(10)


def test_closing_a_client_ends_what_another_thread_waits_for():
    client, began, errors = Client("http://rul.test"), threading.Event(), []

    async def endless():
        began.set()
        await asyncio.Event().wait()

    def ask():
        with pytest.raises(RuntimeError) as raised:
            client.wait(endless())
        errors.append(str(raised.value))

    other = threading.Thread(target=ask, daemon=True)
    other.start()
    assert began.wait(10)
    client.close()
    other.join(10)

    assert errors == ["the client of http://rul.test is closed: open another one"]


def test_closing_a_client_ends_its_generators_so_that_no_answer_in_parts_is_left():
    client, left = Client("http://rul.test"), []

    async def parts():
        try:
            yield
        finally:
            left.append("ended")

    async def begin(generator):
        await anext(generator)

    generator = parts()
    client.wait(begin(generator))
    client.close()

    assert left == ["ended"]


def test_a_call_that_begins_while_another_thread_closes_the_client_is_an_error():
    client, errors = Client("http://rul.test"), []

    def ask():
        with pytest.raises(RuntimeError) as raised:
            client.wait(asyncio.Event().wait())
        errors.append(str(raised.value))

    other = threading.Thread(target=ask, daemon=True)

    async def parts():
        try:
            yield
        finally:
            other.start()
            other.join(10)

    async def begin(generator):
        await anext(generator)

    generator = parts()
    client.wait(begin(generator))
    client.close()

    assert errors == ["the client of http://rul.test is closed: open another one"]


def test_a_closed_client_is_an_error_that_may_be_closed_again():
    with Client("http://rul.test") as client:
        pass

    with pytest.raises(RuntimeError, match=r"the client of http://rul\.test is closed: open another one"):
        client.models()
    client.close()
    assert client.asynchronous._http.is_closed


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_host_name_that_no_domain_may_have_is_an_invalid_address(scheme):
    with pytest.raises(InvalidAddress, match="Invalid IDNA hostname: '-ü'"):
        AsyncClient(f"{scheme}://-ü:3000")


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("a", False)],
)
def test_no_proxy_is_asked_about_this_machine_itself(host, here, monkeypatch):
    given, authority = {}, f"[{host}]" if ":" in host else host
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda _, options: given.update(options))

    client = http_client(f"http://{authority}", None, tls=Tls(), timeout_seconds=1)
    grpc_channel(f"grpc://{authority}")

    assert (client._mounts == {}) is here
    assert given["grpc.enable_http_proxy"] == (not here)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("all_proxy", "socks5://127.0.0.1:1080"),
        ("https_proxy", "unknown://127.0.0.1"),
        ("no_proxy", "[::1]"),
        ("SSL_CERT_FILE", "missing.pem"),
    ],
)
def test_a_variable_of_the_environment_that_cannot_be_used_is_one_line_that_names_it(
    variable, value, monkeypatch
):
    monkeypatch.setenv(variable, value)

    with pytest.raises(
        RemoteFailed, match=f"^https://rul.test cannot be reached.*{variable.upper()}.*: [^\n]+$"
    ):
        AsyncClient("https://rul.test")


def refusal(code, *, ours=True, details="why", **trailing):
    ids = {"x-request-id": "1"} if ours else {}
    return AioRpcError(code, Metadata(), Metadata(*(ids | trailing).items()), details=details)


class Stub:
    """Answers `Predict` with these outcomes in turn."""

    def __init__(self, *outcomes, state=grpc.ChannelConnectivity.READY):
        self.outcomes = list(outcomes)
        self.state = state
        self.is_open = True
        self.requests = []
        self.metadata = None
        self.pauses = []

    async def Predict(self, request, *, metadata, timeout):  # noqa: ASYNC109, N802 as the generated stub
        self.requests.append(request)
        self.metadata = metadata
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    AppendCycles = Predict

    async def sleep(self, seconds):
        self.pauses.append(seconds)

    def client(self):
        client = AsyncClient("grpc://rul.test", api_key="secret", sleep=self.sleep)
        client._rpc.stub = client._rpc._channel = self
        return client

    def get_state(self):
        return self.state

    async def close(self):
        self.is_open = False

    async def ask(self, window=WINDOW, **options):
        async with self.client() as client:
            return await client.predict(window, model="fake", partial=True, **options)


GRPC_REPLY = pb.PredictReply(
    model=pb.ModelReference(**MODEL),
    predictions=[
        pb.Prediction(
            unit="1",
            rul=38.5,
            rul_state="estimated",
            interval=pb.Interval(coverage=0.5, lower=27.0, upper=51.0),
            failure_probability={30: 0.75, 10: 0.25},
            health_state=pb.HealthState(label="degrading"),
            attention=pb.Attention(cycles=[1, 2], weights=[0.25, 0.75], evidence=[0.875, 0.125]),
            sensor_contributions={"sensor_1": 3.5},
            warnings=[pb.Warning(code="later", column="sensor_1", detail="...")],
            trust="supported",
            explanation=pb.Explanation(
                columns=["sensor_1"],
                cycles=[1, 2],
                contributions={"sensor_1": pb.Series(values=[1.5, 2.0])},
                usual={"sensor_1": pb.UsualRange(lower=[0.5, 0.5], upper=[1.0, 1.0])},
                sentence="why <b>",
            ),
        ),
        pb.Prediction(unit="2", error=pb.WindowError(title="A window cannot be read", detail="too little")),
    ],
)


async def test_grpc_gives_the_same_answers_as_http():
    body = {
        "unit": "1",
        "rul": 38.5,
        "rul_state": "estimated",
        "interval": {"coverage": 0.5, "lower": 27.0, "upper": 51.0},
        "failure_probability": {"10": 0.25, "30": 0.75},
        "health_state": {"label": "degrading", "probabilities": {}},
        "imputed_fraction": 0.0,
        "warnings": [{"code": "later", "column": "sensor_1", "detail": "..."}],
        "attention": {
            "cycles": [1, 2], "weights": [0.25, 0.75], "evidence": [0.875, 0.125], "contributions": [],
            "baseline": 0.0, "effective_cycles": 0.0, "entropy_ratio": None,
        },
        "sensor_contributions": {"sensor_1": 3.5},
        "trust": "supported",
        "explanation": {
            "columns": ["sensor_1"], "cycles": [1, 2], "contributions": {"sensor_1": [1.5, 2.0]},
            "usual": {"sensor_1": {"lower": [0.5, 0.5], "upper": [1.0, 1.0]}}, "sentence": "why <b>",
            "clauses": [], "together": None, "agreement": None, "needed_agreement": 0.0,
            "judged_cycles": 0, "skill": 0.0, "needed_skill": 0.0,
        },
    }  # fmt: skip

    by_grpc = await Stub(GRPC_REPLY).ask()
    by_http = await Server(good(body)).ask()

    assert by_grpc == by_http
    assert by_grpc.model == by_http.model
    assert [(refused.unit, refused.detail) for refused in by_grpc.refused] == [("2", "too little")]


async def test_grpc_sends_the_same_as_http():
    stub = Stub(GRPC_REPLY, GRPC_REPLY)

    await stub.ask(explain="sensors", store=False)
    await stub.ask({"sensor_1": [1.0, None]})

    (window,) = stub.requests[0].windows
    np.testing.assert_array_equal(window.readings.values, [1, np.nan, 3, 4, 5, 6])
    assert stub.requests[0].explain == pb.EXPLAIN_SENSORS
    assert (stub.requests[0].store, stub.requests[1].HasField("store")) == (False, False)
    np.testing.assert_array_equal(stub.requests[1].windows[0].columns.columns["sensor_1"].values, [1, np.nan])
    assert stub.metadata == [("x-api-key", "secret")]


async def test_windows_that_are_asked_without_a_form_of_explanation_get_the_default_by_grpc():
    stub = Stub(GRPC_REPLY)

    async with stub.client() as client:
        _, (prediction, _) = await client.ask([WINDOW])

    assert prediction.rul == 38.5
    assert stub.requests[0].explain == pb.EXPLAIN_UNSPECIFIED


async def test_a_client_closes_its_grpc_connection():
    stub = Stub()

    async with stub.client():
        assert stub.is_open

    assert not stub.is_open


async def test_grpc_appends_readings():
    decision = pb.Decision(cost_per_cycle=0.5, costs=pb.Costs(planned=1, failure=10))
    prediction = pb.Prediction()
    prediction.MergeFrom(GRPC_REPLY.predictions[0])
    prediction.decision.MergeFrom(decision)
    stub = Stub(
        pb.AppendCyclesReply(unit="a", model=pb.ModelReference(**MODEL), last_cycle=4, prediction=prediction)
    )

    async with stub.client() as client:
        appended = await client.append("a", {"x": [1, 2], "y": [3, None]}, cycle=[3, 4])

    assert (appended.last_cycle, appended.stored, appended.refusal) == (4, 0, None)
    assert (appended.prediction.rul, appended.prediction.decision.act_at_cycle) == (38.5, None)
    (request,) = stub.requests
    assert [(reading.cycle, reading.columns["x"]) for reading in request.readings] == [(3, 1), (4, 2)]
    assert math.isnan(request.readings[1].columns["y"])
    assert (request.unit, request.explain, request.store) == ("a", pb.EXPLAIN_NONE, True)


@pytest.mark.parametrize(
    "lost",
    [
        refusal(grpc.StatusCode.UNAVAILABLE),
        refusal(grpc.StatusCode.CANCELLED),
        refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, **{"grpc-retry-pushback-ms": "500"}),
        refusal(grpc.StatusCode.UNAVAILABLE, ours=False, details="Stream removed"),
    ],
)
async def test_grpc_retries_temporary_failures_and_broken_connections(lost):
    pushed_back = [
        refusal(grpc.StatusCode.UNAVAILABLE, **{"grpc-retry-pushback-ms": pause})
        for pause in ("7000", "9" * 400, "9" * 5000)
    ]
    stub = Stub(lost, *pushed_back, GRPC_REPLY)

    answers = await stub.ask()

    assert len(answers) == 1
    assert stub.pauses == [0.5, 7.0, MAX_PAUSE_SECONDS, MAX_PAUSE_SECONDS]


async def test_a_reading_without_a_cycle_is_not_sent_again_by_grpc_once_it_may_be_stored():
    stub = Stub(refusal(grpc.StatusCode.UNAVAILABLE, ours=False, details="Socket closed"))

    async with stub.client() as client:
        with pytest.raises(RemoteFailed, match=r"Socket closed; the service may have done it$"):
            await client.append("a", {"x": 1})


async def test_grpc_does_not_wait_for_a_server_that_is_not_there():
    lost = refusal(grpc.StatusCode.UNAVAILABLE, ours=False, details="failed to connect\nto all")
    stub = Stub(lost, state=grpc.ChannelConnectivity.TRANSIENT_FAILURE)

    with pytest.raises(RemoteFailed, match=r"^grpc://rul\.test cannot be reached: failed to connect to all$"):
        await stub.ask()
    assert stub.pauses == []


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("INVALID_ARGUMENT", 422, Rejected),
        ("NOT_FOUND", 404, Rejected),
        ("ABORTED", 409, Rejected),
        ("RESOURCE_EXHAUSTED", 413, Rejected),
        ("INTERNAL", 500, RemoteFailed),
        ("DEADLINE_EXCEEDED", 504, RemoteFailed),
    ],
)
async def test_what_the_service_rejects_by_grpc_is_told_from_its_failures_as_by_http(code, status, kind):
    with pytest.raises(RemoteFailed, match=code) as by_grpc:
        await Stub(refusal(grpc.StatusCode[code], details="cycle 7 is stored with other values")).ask()
    with pytest.raises(RemoteFailed, match=str(status)) as by_http:
        await Server(problem(status)).ask()

    assert by_grpc.type is by_http.type is kind


async def test_a_grpc_refusal_is_one_line():
    with pytest.raises(
        RemoteFailed, match=r"PERMISSION_DENIED: not a key \(--key-file, --api-key or RUL_API_KEY\)$"
    ):
        await Stub(refusal(grpc.StatusCode.PERMISSION_DENIED, details="not a key")).ask()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_the_key_in_a_file_is_chosen_before_one_that_is_given_and_loses_newline_and_mark(tmp_path, encoding):
    (tmp_path / "key").write_text("of the file\n", encoding=encoding)

    assert chosen_key("given", tmp_path / "key") == "of the file"
    assert chosen_key("given", None) == "given"
    with pytest.raises(typer.BadParameter, match="cannot be read"):
        chosen_key("given", tmp_path / "none")


@pytest.mark.parametrize(
    ("key", "got"), [("", "nothing"), ("schlüssel", "other characters"), ("two\nlines", "other characters")]
)
def test_a_key_that_no_header_can_hold_is_refused_without_quoting_it(tmp_path, key, got):
    wanted = f"^API key: expected one line of printable ASCII, got {got}$"
    (tmp_path / "key").write_text(key, encoding="utf-8")

    for refused in (lambda: AsyncClient(URL, api_key=key), lambda: chosen_key(None, tmp_path / "key")):
        with pytest.raises(RemoteFailed, match=wanted):
            refused()


async def test_what_json_cannot_hold_is_refused_before_anything_is_sent():
    async with Server().client() as client:
        with pytest.raises(InvalidData, match="got object"):
            await client.outcome("1", "failed", 9, time=object())


@pytest.mark.parametrize(("name", "path"), [(".", "%2E"), ("..", "%2E%2E"), ("a.b", "a.b"), ("a/b", "a%2Fb")])
def test_a_unit_named_by_dots_is_no_folder(name, path):
    assert in_path(name) == path
