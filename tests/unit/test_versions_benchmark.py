"""The benchmark of two versions: what it sends, and how it compares."""

import json
import math
import os

import pytest
import torch

from export.probes import simulated_windows
from model.calibration import tensors
from model.domain import NOVELTY_LIMIT
from tests.benchmarks.comparable import comparable_manifest, comparable_network
from tests.benchmarks.loads import ID, HttpCall, Load, Measured
from tests.benchmarks.payloads import DOORS, GRPC_CALLS, calls_of
from tests.benchmarks.streams import under_load
from tests.benchmarks.versions_report import HEADINGS, markdown, rows


def figures(throughputs):
    names = ("over ceiling", "p50 ms", "p99 ms", "cpu s per 1000", "failed")
    found = {f"cell: {name}": [1.0] * len(throughputs) for name in names}
    return found | {"cell: windows/s": throughputs}


def test_versions_are_compared_round_by_round():
    kept = {"old": figures([100.0, 200.0, 400.0]), "new": figures([110.0, 260.0, 480.0])}

    [row] = rows(kept, ["cell"])

    assert len(row) == len(HEADINGS)
    assert row[1:3] == ["1.20", "1.10 to 1.30"]
    assert "| cell | 1.20 |" in markdown(kept, ["cell"])


@pytest.mark.parametrize("door", DOORS)
def test_realistic_calls_differ_and_the_identical_call_is_one(door):
    realistic = calls_of("fd001", Load(door, 64, realistic=True))
    bodies = {call.body if isinstance(call, HttpCall) else call.message for call in realistic}

    assert len(bodies) == len(realistic) >= GRPC_CALLS
    assert len(calls_of("fd001", Load(door, 64))) == 1


def test_windows_are_usual_ones_to_the_model_that_is_asked():
    manifest = comparable_manifest()

    with torch.no_grad():
        answers = comparable_network(manifest)(*tensors(simulated_windows(manifest, count=100, seed=1)))

    assert (answers.novelty <= NOVELTY_LIMIT).float().mean() > 0.95


def test_realistic_json_has_columns_of_float64_and_room_for_an_id():
    call = calls_of("fd001", Load("json", 64, realistic=True))[0]

    [window] = json.loads(call.body)["windows"]
    digits = [len(repr(value).replace(".", "")) for values in window["columns"].values() for value in values]

    assert max(digits) >= 15
    assert f"x-request-id: {ID}".encode() in call.raw("http://localhost:3000")


def test_a_load_in_which_no_call_was_answered_has_no_latency():
    found = Measured.of([], windows=0, failed=0)

    assert math.isnan(found.p50)
    assert Measured.of([1.0, 2.0, 3.0], windows=3, failed=0).p50 == 2.0


async def test_a_rate_at_which_no_reading_is_answered_has_no_latency():
    row = await under_load([], [], [os.getpid()], rate=0, seconds=0.02)

    assert math.isnan(row["p99 ms"])
