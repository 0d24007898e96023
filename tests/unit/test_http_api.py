"""HTTP around a runtime that does as it is told: what the real process cannot be made to show."""

import asyncio
import gzip
import json
import math
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError

from service.core.lifecycle import Phase
from service.core.providers import Placement
from service.errors import MalformedBody
from service.http.predict import decode
from service.http.problem import unreadable
from service.labels import Route
from tests.fakes import FakeRuntime
from tests.in_process import SLOW_SECONDS, SlowRuntime, in_process, json_window, until


async def test_a_runtime_that_fails_is_our_fault_and_nothing_of_it_is_shown():
    runtime = FakeRuntime()
    runtime.failures = 1

    async with in_process(runtime) as service:
        failed = await service.predict_http()
        next_one = await service.predict_http()

    assert failed.status_code == 500
    assert failed.headers["content-type"] == "application/problem+json"
    assert failed.json()["type"] == "urn:rulserve:problem:internal"
    assert failed.json()["request_id"] == failed.headers["x-request-id"]
    assert "secret" not in failed.text
    assert "ValueError" not in failed.text
    assert next_one.status_code == 200


@pytest.mark.parametrize("failures", [0, 1])
async def test_a_runtime_that_takes_50_ms_shows_at_least_50_ms_also_on_error(failures):
    runtime = SlowRuntime()
    runtime.failures = failures

    async with in_process(runtime) as service:
        await service.predict_http()

        labels = {"protocol": "http", "route": "/v1/predict"}
        assert service.value("rul_request_duration_seconds_count", **labels) == 1
        assert service.value("rul_request_duration_seconds_sum", **labels) >= SLOW_SECONDS
        assert service.value("rul_request_duration_seconds_bucket", **labels, le="0.02") == 0


async def test_a_queue_that_is_full_turns_callers_away_until_it_is_not():
    runtime = FakeRuntime()
    runtime.gate.clear()

    async with in_process(runtime, max_pending_windows=2) as service:
        running = asyncio.create_task(service.predict_http())
        await until(runtime.entered.is_set)
        waiting = asyncio.create_task(service.predict_http(windows=[json_window()] * 2))
        await until(lambda: service.batcher.pending_windows == 2)

        refused = await service.predict_http()
        runtime.gate.set()
        answered = [await running, await waiting, await service.predict_http()]

    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert [reply.status_code for reply in answered] == [200, 200, 200]


async def test_a_deadline_that_passes_while_the_runtime_works_is_504():
    runtime = FakeRuntime()
    runtime.gate.clear()

    async with in_process(runtime) as service:
        reply = await service.predict_http(headers={"request-timeout": "0.001"})

    assert reply.status_code == 504
    assert reply.json()["type"] == "urn:rulserve:problem:deadline_exceeded"


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.DRAINING, Phase.FAILED])
async def test_a_service_that_is_not_ready_says_so_and_when_to_come_back(phase):
    async with in_process(ready=False) as service:
        service.lifecycle.enter(phase, "for a reason")

        replies = [await service.predict_http(), await service.http.get("/readyz")]

        for reply in replies:
            assert reply.status_code == 503
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.json()["detail"] == f"the service is {phase}: for a reason"
        assert (await service.http.get("/livez")).status_code == 200
        assert (await service.http.get("/v1/models")).status_code == 200


async def test_readiness_says_on_which_providers_a_model_runs_and_why_not_on_others():
    runtime = FakeRuntime(provider="Second")
    runtime.placement = Placement(("Second", "Last"), "First could not be loaded")
    async with in_process(runtime) as service:
        reply = await service.http.get("/readyz")

    (model,) = reply.json()["models"]
    assert model["provider"] == "Second"
    assert model["providers"] == ["Second", "Last"]
    assert model["fallback"] == "First could not be loaded"


async def test_a_batcher_that_stopped_turns_readiness_and_liveness_false():
    async with in_process() as service:
        service.batcher._stop(RuntimeError("broken"))

        codes = [(await service.http.get(path)).status_code for path in ("/livez", "/readyz")]

    assert codes == [500, 500]


async def test_a_request_without_an_id_that_fits_is_given_one():
    async with in_process() as service:
        reply = await service.http.get("/livez", headers={"x-request-id": "no good"})

    assert len(reply.headers["x-request-id"]) == 32


POSTED = {Route.PREDICT, Route.V2_INFER, Route.V2_INDEX, Route.OUTCOMES}


async def test_every_route_of_http_is_counted_under_a_label_of_its_own():
    async with in_process() as service:
        for route in Route:
            if route.transport == "http":
                await service.http.request("POST" if route in POSTED else "GET", route.value)

        for route in Route:
            if route.transport == "http":
                count = service.value(
                    "rul_request_duration_seconds_count", protocol="http", route=route.value
                )
                assert count == 1, route


async def test_problems_beyond_the_limit_are_counted():
    async with in_process() as service:
        reply = await service.predict_http(windows=[json_window(1e300)] * 100)

    *shown, more = reply.json()["errors"]
    assert len(shown) == 100
    assert more["detail"] == "300 more problems are not listed"


@pytest.mark.parametrize(
    ("encoding", "compress", "status"),
    [("gzip", gzip.compress, 200), ("deflate", zlib.compress, 200), ("gzip", bytes, 400), ("br", bytes, 415)],
)
async def test_a_body_is_read_as_its_content_encoding_says(encoding, compress, status):
    body = compress(json.dumps({"windows": [json_window()]}).encode())
    headers = {"content-type": "application/json", "content-encoding": encoding}

    async with in_process() as service:
        reply = await service.http.post("/v1/predict", content=body, headers=headers)

    assert reply.status_code == status, reply.text


def test_a_query_that_is_right_has_no_malformed_window():
    query, malformed = decode(b'{"windows": [{"readings": [[1, null, 2.5]]}]}')

    assert not malformed
    assert query.windows[0].readings == [[1, None, 2.5]]


@pytest.mark.parametrize("reading", ['"x"', "true", "{}", "[1]"])
def test_a_reading_that_is_no_number_is_named(reading):
    query, malformed = decode(b'{"windows": [{}, {"readings": [[1, %s]]}]}' % reading.encode())

    assert len(query.windows) == 2
    assert [(i, p.pointer, p.code) for i, found in malformed.items() for p in found] == [
        (1, "/readings/0/1", "not_a_number")
    ]


def test_a_number_that_is_too_large_is_left_to_the_windows_check():
    query, malformed = decode(b'{"windows": [{"readings": [[1e999]]}]}')

    assert not malformed
    assert query.windows[0].readings == [[math.inf]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["windows", "unit", "last_cycle", "columns", "readings", "model", "partial"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps({"windows": [value]}).encode()))
def test_any_body_is_refused_or_read(body):
    try:
        query, malformed = decode(body)
    except MalformedBody:
        return
    assert malformed.keys() <= set(range(len(query.windows)))


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"windows": [{"readings": [[NaN]]}]}'])
def test_what_is_not_json_is_malformed(body):
    with pytest.raises(MalformedBody, match="not JSON"):
        decode(body)


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
