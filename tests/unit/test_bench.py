"""`rul bench`: usage, what it sends, how callers take turns, and what it makes of what they saw."""

from __future__ import annotations

import asyncio
import io
from collections import Counter

import grpc
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from rul_client.cli import register
from rul_client.commands.bench.cli import PROTOCOLS
from rul_client.commands.bench.load import Figures, Tally, closed_loop, summed
from rul_client.commands.bench.requests import POOL_WINDOWS, calls_of, simulated_pool
from rul_client.commands.bench.run import NotReady, Scenario, document, ready_model, shared, table_of
from rul_client.remote import RemoteFailed, RemoteModel
from service.core.queries import ModelName
from tests.fakes import make_manifest
from tests.in_process import ask_grpc, framed, in_process

MANIFEST = make_manifest()
MODEL = RemoteModel(ModelName("fake", "1.0", "abc"), MANIFEST)


# Usage


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["localhost:3000"],
        ["grpc://localhost:3000"],
        ["http://localhost:port"],
        ["http://localhost:3000", "--protocol", "json,soap"],
        ["http://localhost:3000", "--callers", "1,zero"],
        ["http://localhost:3000", "--windows", "0"],
        ["http://localhost:3000", "--seconds", "0"],
        ["http://localhost:3000", "--processes", "0"],
    ],
)
def test_wrong_usage_ends_with_2(options):
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)

    result = CliRunner().invoke(app, ["bench", *options])

    assert result.exit_code == 2, result.output
    assert "Error" in result.stderr


# What is sent


def test_windows_are_as_long_as_the_context_and_of_many_units_and_ages():
    pool = simulated_pool(MANIFEST)

    assert pool.readings.shape == (POOL_WINDOWS, MANIFEST.context, len(MANIFEST.columns))
    assert set(pool.lengths) == {MANIFEST.context}
    assert len(set(pool.last_cycle)) > POOL_WINDOWS / 2


def test_a_context_longer_than_any_life_makes_shorter_windows():
    pool = simulated_pool(make_manifest(context=500))

    assert pool.lengths.max() < 500
    assert (pool.lengths <= pool.last_cycle).all()


@pytest.mark.parametrize("context", [8, 120], ids=["whole", "ragged"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_service_answers_every_body_of_every_protocol(protocol, context):
    calls = calls_of(protocol, "fake", simulated_pool(make_manifest(context=context)), 3)

    async with in_process() as app:
        for body in calls.bodies:
            if calls.grpc:
                answer = await ask_grpc(app.grpc, calls.path, framed(body))
                assert answer.code is grpc.StatusCode.OK, answer.detail
            else:
                reply = await app.http.post(calls.path, content=body, headers=calls.headers)
                assert reply.status_code == 200, reply.text

        answered = sum(app.runtime.batches)
    assert answered == 3 * len(calls.bodies)


def test_bodies_differ_unless_they_are_large():
    pool = simulated_pool(MANIFEST)

    assert len(set(calls_of("json", "fake", pool, 1).bodies)) == 8
    assert len(calls_of("json", "fake", pool, 1000).bodies) == 1


# Callers


class Line:
    """A caller whose calls take a second of a clock that stands still otherwise."""

    def __init__(self, codes=("200",), seconds=1.0):
        self.codes, self.seconds = codes, seconds
        self.now = 0.0
        self.sent = []

    def clock(self):
        return self.now

    async def call(self, body):
        await asyncio.sleep(0)
        self.now += self.seconds
        self.sent.append(body)
        return self.codes[len(self.sent) % len(self.codes)]

    async def close(self):
        pass


async def test_a_caller_asks_again_until_the_time_is_over_and_its_last_call_counts():
    line = Line(seconds=2.0)

    tally = await closed_loop([line], [b"a", b"b"], 5.0, clock=line.clock)

    assert tally.latencies == [2.0, 2.0, 2.0]
    assert tally.elapsed == 6.0


async def test_the_call_that_connects_is_not_measured():
    line = Line()

    tally = await closed_loop([line], [b"a", b"b"], 3.0, clock=line.clock)

    assert line.sent == [b"a", b"a", b"b", b"a"]
    assert tally.codes == {"200": 3}


async def test_only_answers_have_a_latency_and_every_code_is_counted():
    line = Line(codes=("429", "200", "connection"))

    tally = await closed_loop([line], [b"a"], 6.0, clock=line.clock)

    assert tally.codes == {"200": 2, "429": 2, "connection": 2}
    assert len(tally.latencies) == 2


# Figures


def test_the_rates_of_processes_add_up_and_their_latencies_are_judged_together():
    one = Tally([0.001] * 98, Counter({"200": 98}), elapsed=1.0, cpu=0.25)
    other = Tally([0.5, 0.7], Counter({"200": 2, "429": 7}), elapsed=2.0, cpu=0.5)

    figures = summed([one, other], windows=64)

    assert figures.windows_per_second == pytest.approx(98 * 64 + 2 * 64 / 2)
    assert (figures.p50_ms, figures.p99_ms, figures.p999_ms) == pytest.approx((1.0, 700.0, 700.0))
    assert figures.errors == {"429": 7}
    assert figures.calls == 107
    assert figures.client_cpu == pytest.approx(0.5)


@pytest.mark.parametrize(("cpu", "limited"), [(0.79, False), (0.95, True)])
def test_a_busy_process_of_callers_is_said(cpu, limited):
    busy = Tally([0.01], Counter({"OK": 1}), elapsed=1.0, cpu=cpu)

    assert summed([Tally([0.01], Counter({"OK": 1}), 1.0, 0.1), busy], 1).client_limited is limited


@pytest.mark.parametrize(
    ("callers", "processes", "shares"), [(5, 2, [3, 2]), (1, 4, [1]), (64, 4, [16, 16, 16, 16])]
)
def test_callers_are_shared_out_over_processes(callers, processes, shares):
    assert shared(callers, processes) == shares


NONE = Figures(0.0, 4, None, None, None, {"504": 4}, 0.9, client_limited=True)
SOME = Figures(1234.5, 500, 1.0, 2.0, 3.5, {}, 0.2, client_limited=False)


def test_the_table_shows_rates_latencies_and_errors_by_code():
    console = Console(width=160, file=io.StringIO(), record=True)

    table = table_of(MODEL, "http://here", [(Scenario("json", 16, 1), SOME), (Scenario("grpc", 1, 64), NONE)])
    console.print(table)

    text = console.export_text()
    assert next(line.split() for line in text.splitlines() if "json" in line) == [
        "json", "16", "1", "1,234", "1.00", "2.00", "3.50", "none", "0.20",
    ]  # fmt: skip
    assert "504: 4" in text
    assert "0.90*" in text
    assert "raise --processes" in text


def test_the_file_names_the_weights_and_the_load_of_each_figure():
    written = document(MODEL, "http://here", [(Scenario("json", 16, 1), SOME)], seconds=5, processes=1)

    assert written["model"] == {"name": "fake", "version": "1.0", "sha256": "abc"}
    assert written["scenarios"][0]["callers"] == 16
    assert written["scenarios"][0]["p999_ms"] == 3.5


# The service


async def test_a_service_that_starts_is_refused_with_its_own_words():
    async with in_process(ready=False) as app:
        with pytest.raises(NotReady, match=r"not ready: http://in\.process answered 503"):
            await ready_model("http://in.process", model=None, api_key=None, transport=app.http._transport)


async def test_the_only_model_is_asked_and_an_unknown_one_is_refused():
    async with in_process() as app:
        found = await ready_model(
            "http://in.process", model=None, api_key=None, transport=app.http._transport
        )
        with pytest.raises(RemoteFailed, match="serves no model 'other', only fake"):
            await ready_model("http://in.process", model="other", api_key=None, transport=app.http._transport)

    assert found.name.name == "fake"
