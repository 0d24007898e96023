"""A file's units, asked in this process: every cycle gets its row, and the service's own answer."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from model.decision import Costs
from model.domain import Trajectory
from rul_client.answers import ModelName, Refused
from rul_client.commands.predict.offline import NO_OBSERVER, answerer_of
from rul_client.commands.predict.rows import GROUNDS, columns_of, rows, top_sensors
from rul_client.unit_windows import LAST, UnitWindows
from service.core.batcher import MicroBatcher
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import PredictQuery, WindowError
from service.core.rules import WindowRules
from service.core.window import WindowInput
from tests.fakes import FakeRuntime, make_manifest


def unit(name="a", *, cycles=20, step=1):
    """A unit whose `sensor_1`, and so the fake runtime's RUL, is the cycle's place: 0, 1, .."""
    readings = np.zeros((cycles, 3), dtype=np.float32)
    readings[:, 1] = np.arange(cycles)
    return Trajectory(name, 1 + step * np.arange(cycles), readings, failed=False)


@pytest.fixture
def executor():
    with ThreadPoolExecutor(2) as threads:
        yield threads


COSTS = Costs(1.0, 20.0)


def make_answerer(executor, *, costs=None, **options):
    runtime = FakeRuntime(make_manifest(**options))
    return answerer_of(runtime, make_batcher(runtime, executor), max_windows=6, threads=2, costs=costs)


@pytest.fixture
def offline(executor):
    return make_answerer(executor, context=8)


def make_batcher(runtime, executor):
    return MicroBatcher(
        runtime,
        WindowRules.of(runtime.manifest, max_window_cycles=8),
        executor=executor,
        threads=2,
        max_batch_windows=4,
        max_pending_windows=100,
        observer=NO_OBSERVER,
    )


def make_predictor(runtime, executor):
    loaded = LoadedModel.of(runtime, make_batcher(runtime, executor), max_window_cycles=8)
    return Predictor({"fake": loaded}, max_request_windows=8)


def windows_of(units, answerer, *, last_only=False):
    return UnitWindows(units, context=answerer.manifest.context, every=LAST if last_only else 1)


async def asked(units, answerer, *, last_only=False):
    unanswered = []
    windows = windows_of(units, answerer, last_only=last_only)
    made = [
        row
        async for some in rows(windows, answerer, last_only=last_only, unanswered=unanswered)
        for row in some
    ]
    return made, unanswered


async def test_a_window_of_one_cycle_has_no_entropy(offline):
    made, _ = await asked([unit(cycles=2)], offline)

    assert made[0]["entropy_ratio"] is None
    assert made[1]["entropy_ratio"] == pytest.approx(1.0)


async def test_a_window_that_cannot_be_read_keeps_an_empty_row_and_a_reason(offline):
    gappy = unit(cycles=3)
    gappy.readings[0] = np.nan

    made, unanswered = await asked([gappy], offline)

    assert made[0] == dict.fromkeys(columns_of(offline.manifest)) | {"unit": "a", "last_cycle": 1}
    assert made[1]["rul"] == 1
    (reason,) = unanswered
    assert reason.startswith("unit a, cycle 1: expected at most 50% of the readings missing, got 100%;")


@pytest.mark.parametrize(("step", "cycles"), [(1, 8), (2, 8), (1, 119)])
async def test_the_row_is_what_the_predictor_answers_to_a_window_with_nulls_for_cycles_without_a_reading(
    executor, step, cycles
):
    trajectory = unit(cycles=cycles, step=step)
    last, known = int(trajectory.cycles[-1]), dict(zip(trajectory.cycles, trajectory.readings, strict=True))
    by_cycle = [known[c].tolist() if c in known else [None] * 3 for c in range(last - 7, last + 1)]
    predictor = make_predictor(FakeRuntime(make_manifest(context=8)), executor)
    query = PredictQuery([WindowInput("a", float(last), None, by_cycle)], costs=COSTS)

    reply = await predictor.predict(query)
    (row,), _ = await asked([trajectory], make_answerer(executor, context=8, costs=COSTS), last_only=True)

    (prediction,) = reply.predictions
    assert row["rul"] == prediction.rul
    assert (row["rul_lower"], row["rul_upper"]) == (prediction.interval.lower, prediction.interval.upper)
    assert row["rul_state"] == prediction.rul_state
    assert row["health_state"] == prediction.health_state.label
    assert row["entropy_ratio"] == prediction.attention.entropy_ratio
    # The fake runtime weighs all cycles of a window alike, so the first is the top one.
    assert row["top_cycle"] == last - len(prediction.attention.weights) + 1 == last - 7
    advice = prediction.decision
    assert row["act_at_cycle"] == advice.act_at_cycle
    assert row["cost_ratio"] == advice.cost_per_cycle / advice.run_to_failure_cost_per_cycle


async def test_rows_of_a_model_that_explains_readings_say_what_they_rest_on(executor):
    offline = make_answerer(executor, context=16, explains_readings=True)

    (last,), _ = await asked([unit(cycles=12)], offline, last_only=True)
    each, _ = await asked([unit(cycles=12)], offline)

    assert tuple(last) == columns_of(offline.manifest)
    assert (last["top_cycle"], last["top_sensor"], last["top_sensor_cycles"]) == (12, "sensor_1", 11)
    assert last["trust"] == "supported"
    assert each[-1] == last | {"trust": None}


@pytest.mark.parametrize(
    ("sensors", "named"),
    [({"a": 1.0, "b": -3.0, "c": 2.0}, ("b", -3.0, "c", 2.0)), ({"a": 1.0}, ("a", 1.0)), ({}, ())],
)
def test_the_two_sensors_that_weigh_most_are_named(sensors, named):
    assert top_sensors(sensors) == dict(zip(GROUNDS, named, strict=False))


class HeldAnswerer:
    """Counts requests in flight; answers when the test lets it."""

    windows_per_request = 2
    max_in_flight = 3
    name = ModelName("fake", "1", "0" * 64)
    manifest = make_manifest(context=8)
    costs = None

    def __init__(self):
        self.waiting = []
        self.begun = 0
        self.cancelled = 0

    async def answer(self, windows, explain):
        self.begun += 1
        held = asyncio.get_running_loop().create_future()
        self.waiting.append(held)
        try:
            await held
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return [Refused(WindowError("held", "held", []))] * len(windows)


async def test_only_so_many_requests_are_held_however_long_the_file_and_none_after_a_reader_stops():
    answerer = HeldAnswerer()
    stream = rows(windows_of([unit(cycles=100)], answerer), answerer, last_only=False, unanswered=[])
    first = asyncio.ensure_future(anext(stream))
    for _ in range(10):
        await asyncio.sleep(0)

    begun_at_first = answerer.begun
    answerer.waiting[0].set_result(None)
    await first
    await stream.aclose()

    assert (begun_at_first, answerer.begun) == (3, 3)
    assert answerer.cancelled == 2
