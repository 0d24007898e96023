"""`rul bench`: what it sends, how callers take turns, and what it makes of what they saw."""

import asyncio
import io
import json
from collections import Counter
from contextlib import AsyncExitStack

import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from model.outputs import CannotWrite
from rul_client.commands.bench.cli import PROTOCOLS
from rul_client.commands.bench.payloads import POOL_WINDOWS, Call, calls_of, simulated_pool
from rul_client.commands.bench.run import (
    Tally,
    Target,
    _http,
    closed_loop,
    ready_models,
    run_bench,
    summarise,
    table_of,
)
from rul_client.errors import RemoteFailed
from service.proto import rul_v1_pb2 as pb
from tests.fakes import make_manifest
from tests.in_process import ask_grpc, framed, in_process

MANIFEST = make_manifest()


# What is sent


def test_windows_are_as_long_as_the_context_and_of_many_ages():
    pool = simulated_pool(MANIFEST)

    assert {window.readings.shape for window in pool.windows} == {(MANIFEST.context, len(MANIFEST.columns))}
    assert len({window.last_cycle for window in pool.windows}) > POOL_WINDOWS / 2


def test_a_context_longer_than_any_life_makes_shorter_windows():
    pool = simulated_pool(make_manifest(context=500))

    assert max(len(window.readings) for window in pool.windows) < 500
    assert all(len(window.readings) <= window.last_cycle for window in pool.windows)


@pytest.mark.parametrize("identical", [False, True], ids=["realistic", "identical"])
@pytest.mark.parametrize("context", [8, 120], ids=["whole", "ragged"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_service_answers_every_body_of_every_protocol(protocol, context, identical):
    calls = calls_of(protocol, [simulated_pool(make_manifest(context=context))], 3, identical=identical)

    async with in_process() as app:
        for call in calls:
            headers, body = Target("", "").prepare(call)
            if call.headers:
                reply = await app.http.post(call.path, content=body, headers=headers)
                assert reply.status_code == 200, reply.text
            else:
                answer = await ask_grpc(app.grpc, call.path, framed(body))
                assert answer.code is grpc.StatusCode.OK, answer.detail

        answered = sum(app.runtime.batches)
    assert answered == 3 * len(calls)


def test_json_is_what_clients_send_columns_with_15_digits():
    pool = simulated_pool(MANIFEST)

    (window,) = json.loads(calls_of("json", [pool], 1)[0].parts[0])["windows"]

    assert tuple(window["columns"]) == pool.columns
    sent = window["columns"]["sensor_1"]
    assert sent == [float(f"{x:.15g}") for x in pool.windows[0].readings[:, 1].tolist()]
    assert max(len(str(x)) for x in sent) > 12


@pytest.mark.parametrize(("protocol", "places"), [("json", 0), ("grpc", 0), ("binary", 1), ("oip-grpc", 1)])
def test_each_request_has_an_id_of_its_own(protocol, places):
    (call, *_) = calls_of(protocol, [simulated_pool(MANIFEST)], 1)

    (first, body), (second, _) = (Target("", "").prepare(call) for _ in range(2))

    assert first["x-request-id"] != second["x-request-id"]
    assert body.count(first["x-request-id"].encode()) == places


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_identical_request_has_no_id_and_is_the_same_each_time(protocol):
    (call,) = calls_of(protocol, [simulated_pool(MANIFEST)], 1, identical=True)

    assert Target("", "").prepare(call) == Target("", "").prepare(call)


# Callers


class Line:
    """A caller whose calls take a second of a clock that stands still otherwise."""

    def __init__(self, codes=("200",), seconds=1.0):
        self.codes, self.seconds = codes, seconds
        self.now = 0.0
        self.sent = []

    def clock(self):
        return self.now

    async def send(self, body):
        await asyncio.sleep(0)
        self.now += self.seconds
        self.sent.append(body)
        return self.codes[len(self.sent) % len(self.codes)]


async def test_a_caller_asks_again_until_the_time_is_over_and_its_last_call_counts():
    line = Line(seconds=2.0)

    tally = await closed_loop([line.send], [b"a", b"b"], 5.0, clock=line.clock)

    assert tally.latencies == [2.0, 2.0, 2.0]
    assert tally.elapsed == 6.0


async def test_a_redirect_is_an_answer_that_takes_the_key_nowhere():
    keys: list[str | None] = []

    async def moved(request: web.Request) -> web.Response:
        keys.append(request.headers.get("x-api-key"))
        return web.Response(status=307, headers={"location": "/elsewhere"})

    app = web.Application()
    app.router.add_post("/{path:.*}", moved)
    async with TestServer(app) as server, AsyncExitStack() as stack:
        send = await _http(Target(str(server.make_url("/")), "", "secret"), stack, "")
        code = await send(Call("/v1/predict", {}, [b"{}"], has_id=False))

    assert (code, keys) == ("307", ["secret"])


async def test_only_answers_have_a_latency_and_every_code_is_counted():
    line = Line(codes=("429", "200", "connection"))

    tally = await closed_loop([line.send], [b"a"], 6.0, clock=line.clock)

    assert tally.codes == {"200": 2, "429": 2, "connection": 2}
    assert len(tally.latencies) == 2


# Figures


def test_the_rates_of_processes_add_up_and_their_latencies_are_judged_together():
    one = Tally([0.001] * 98, Counter({"200": 98}), elapsed=1.0, cpu=0.25)
    other = Tally([0.5, 0.7], Counter({"200": 2, "429": 7}), elapsed=2.0, cpu=0.5)

    figures = summarise([one, other], windows=64)

    assert figures["windows_per_second"] == pytest.approx(98 * 64 + 2 * 64 / 2)
    assert [figures[name] for name in ("p50_ms", "p99_ms", "p999_ms")] == pytest.approx([1.0, 700.0, 700.0])
    assert figures["errors"] == {"429": 7}
    assert figures["calls"] == 107
    assert figures["client_cpu"] == pytest.approx(0.5)


@pytest.mark.parametrize(("cpu", "limited"), [(0.79, False), (0.95, True)])
def test_a_busy_process_of_callers_is_marked(cpu, limited):
    idle, busy = (Tally([0.01], Counter({"OK": 1}), 1.0, used) for used in (0.1, cpu))

    assert summarise([idle, busy], 1)["client_limited"] is limited


def test_the_table_shows_rates_latencies_and_errors_by_code():
    some = summarise([Tally([0.001] * 1234, Counter({"200": 1234}), 1.0, 0.2)], 1)
    none = summarise([Tally([], Counter({"504": 4}), 1.0, 0.9)], 64)
    loads = [("json", 16, 1, some), ("grpc", 1, 64, none)]
    console = Console(width=160, file=io.StringIO(), record=True)

    console.print(table_of("", [{"protocol": p, "callers": c, "windows": w} | f for p, c, w, f in loads]))

    text = console.export_text()
    assert next(line.split() for line in text.splitlines() if "json" in line) == [
        "json", "16", "1", "1,234", "1.00", "1.00", "1.00", "none", "0.20",
    ]  # fmt: skip
    assert "504: 4" in text
    assert "0.90*" in text


# The service


TARGET = Target("http://localhost", "http://localhost")


def test_a_file_that_cannot_be_written_is_an_error_before_any_load(tmp_path):
    with pytest.raises(CannotWrite, match=r"nodir/figures\.json: cannot be written"):
        run_bench(
            Target("http://rul.test", "http://rul.test"),
            [],
            model=None,
            identical=False,
            store=False,
            seconds=1,
            processes=1,
            json_file=tmp_path / "nodir" / "figures.json",
        )


async def test_a_service_that_starts_is_refused_with_its_own_words():
    async with in_process(ready=False) as app:
        with pytest.raises(RemoteFailed, match=r"http://localhost answered 503: .*the service is starting"):
            await ready_models(TARGET, None, transport=app.http._transport)


async def test_all_models_are_asked_or_the_named_one_and_an_unknown_one_is_refused():
    async with in_process() as app:
        found, named = [
            await ready_models(TARGET, name, transport=app.http._transport) for name in (None, "fake")
        ]
        with pytest.raises(RemoteFailed, match="serves no model 'other', only fake"):
            await ready_models(TARGET, "other", transport=app.http._transport)

    assert [model.name for model, _ in found] == ["fake"]
    assert named == found


@pytest.mark.parametrize("protocol", ["json", "grpc"])
@pytest.mark.parametrize("store", [False, True])
def test_a_load_test_stores_no_predictions_by_default(protocol, store):
    (call,) = calls_of(
        protocol, [simulated_pool(MANIFEST)], 1, identical=True, **{"store": True} if store else {}
    )

    body = call.parts[0]
    sent = json.loads(body)["store"] if protocol == "json" else pb.PredictRequest.FromString(body).store
    assert sent is store
