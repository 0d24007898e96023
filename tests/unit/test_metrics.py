"""What Prometheus is told: everything, once, under names and labels that were known at the start."""

import asyncio
import threading
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count as count_from
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from service.core.answers import Answers
from service.core.ports import BatchReport
from service.core.providers import Placement
from service.core.runtime import Asked
from service.labels import Route, Transport, codes
from service.metrics import metrics as metrics_module
from service.metrics.buckets import Buckets
from service.metrics.instruments import Shared
from service.metrics.metrics import Metrics
from service.metrics.models import PART_BATCHES, PART_WINDOWS
from service.metrics.store import StoreMetrics
from service.store.judgement import judge
from tests.examples import examples
from tests.fakes import FakeRuntime, fake_answers, make_manifest


@pytest.fixture
def runtime():
    return FakeRuntime(make_manifest("fake", heads=2, band=(0.2, 0.9)))


@pytest.fixture
def metrics(registry, runtime):
    return Metrics(registry, [runtime])


@pytest.fixture
def value(registry):
    """Read a sample."""
    return lambda name, **labels: registry.get_sample_value(name, labels)


def batch_of(*windows, manifest, imputed=None, units=None, is_probe=False):
    """The report of a batch: windows as pairs of the last reading of `sensor_1` and their cycles."""
    lengths = np.array([cycles for _, cycles in windows])
    readings = np.zeros((len(windows), lengths.max(), 3), dtype=np.float32)
    readings[:, :, 1] = np.array([[reading] for reading, _ in windows])
    asked = Asked(readings, lengths, np.full(len(windows), 100.0, dtype=np.float32))
    count = len(windows)
    of_windows = (units or ["17"] * count, imputed or [0.0] * count, [is_probe] * count)
    return BatchReport(count, [0.001], [0.02], 0.01, fake_answers(asked, manifest).bare(), *of_windows)


@pytest.mark.parametrize("code", codes(Transport.HTTP))
@pytest.mark.usefixtures("metrics")
def test_every_code_of_a_prediction_is_there_from_the_start(value, code):
    assert value("rul_requests_total", protocol="http", route="/v1/predict", code=code) == 0


def test_a_batch_is_observed_window_by_window(metrics, value, runtime):
    windows = [(30.0, 4), (60.0, 8), (300.0, 1)]

    metrics.models["fake"].ran(batch_of(*windows, manifest=runtime.manifest, imputed=[0.0, 0.25, 0.0]))

    assert value("rul_batch_windows_sum") == 3
    assert value("rul_stage_duration_seconds_sum", stage="queue") == 0.001
    assert value("rul_stage_duration_seconds_sum", stage="inference") == 0.02
    assert value("rul_inference_duration_seconds_sum", model="fake", provider="FakeProvider") == 0.01
    assert value("rul_prediction_cycles_sum", model="fake") == 30 + 60 + 125
    assert value("rul_interval_width_cycles_sum", model="fake") == 10 + 10 + 5
    assert value("rul_novelty_ratio_sum", model="fake") == 3 * 0.5
    assert value("rul_imputed_fraction_bucket", le="0.0") == 2
    assert value("rul_attention_peak_weight_sum", model="fake") == pytest.approx(1 / 4 + 1 / 8 + 1)
    tenths = 1 / 4 + 1 / 8 + 1
    assert value("rul_attention_first_cycles_weight_sum", model="fake") == pytest.approx(tenths)
    assert value("rul_attention_last_cycles_weight_sum", model="fake") == pytest.approx(tenths)
    assert value("rul_attention_lag_cycles_sum", model="fake") == pytest.approx(3 / 2 + 7 / 2)
    assert value("rul_attention_head_similarity_ratio_count", model="fake") == 3
    assert value("rul_state_total", model="fake", state="estimated") == 2
    assert value("rul_state_total", model="fake", state="insufficient_history") == 1
    # The window of one cycle has no entropy.
    for head in ("mean", "0", "1"):
        assert value("rul_attention_entropy_ratio_count", model="fake", head=head) == 2
    assert value("rul_attention_out_of_band_total", model="fake", side="high") == 2
    assert value("rul_attention_out_of_band_total", model="fake", side="low") == 0


def test_attention_is_observed_head_by_head_and_at_either_end(metrics, value, runtime):
    even, first = np.full(4, 0.25), np.array([1.0, 0.0, 0.0, 0.0])
    report = batch_of((30.0, 4), manifest=runtime.manifest)
    outputs = replace(report.answers.outputs, attention=first[None], head_attention=np.array([[first, even]]))
    report.answers = Answers(report.answers.asked, outputs, runtime.manifest, report.answers.rules).bare()

    metrics.models["fake"].ran(report)

    def total(name, **labels):
        return value(f"rul_attention_{name}_sum", model="fake", **labels)

    assert (total("first_cycles_weight"), total("last_cycles_weight"), total("lag_cycles")) == (1, 0, 3)
    assert [total("entropy_ratio", head=head) for head in ("mean", "0", "1")] == pytest.approx([0, 0, 1])


@pytest.mark.parametrize(("cap", "score"), [(125.0, 1.0), (200.0, 0.0)])
def test_predictions_of_failed_and_of_removed_units_are_counted_apart(registry, value, cap, score):
    rows = [  # last cycle, RUL, lower, upper; the outcome is at cycle 100
        (90, 12, 8, 14),  # late by 2, held
        (90, 7, 5, 9),  # early by 3, beyond its interval
        (90, 12, 8, 9),  # outlived its interval, then removed
        (90, 12, 8, 14),  # removed
        (90, 12, 9, 11),  # removed
    ]
    failed = np.array([True, True, False, False, False])
    shared = Shared(registry)
    counted = StoreMetrics(shared)
    shared.add_model("fake")

    counted.scored("fake", judge(rows, failed=failed, outcome_cycle=100, cap=cap), is_late=False)

    value = partial(value, model="fake")

    assert value("rul_coverage_trials_total") == 2
    assert value("rul_coverage_hits_total") == 1
    assert value("rul_removed_predictions_total", verdict="contradicted") == 1
    assert value("rul_removed_predictions_total", verdict="open") == 2
    assert value("rul_outcome_error_cycles_total", side="late") == 2
    assert value("rul_outcome_error_cycles_total", side="early") == 3
    assert value("rul_outcome_absolute_error_cycles_sum") == 5
    nasa = (np.exp(2 / 10) - 1) + (np.exp(3 / 13) - 1)
    assert value("rul_outcome_nasa_score_total") == pytest.approx(score * nasa)


def test_a_unit_that_failed_is_counted_once_also_if_predictions_are_written_late(registry, value):
    shared = Shared(registry)
    counted = StoreMetrics(shared)
    shared.add_model("fake")
    first, removed = (judge([(90, 12, 8, 14)], failed=f, outcome_cycle=100, cap=125) for f in (True, False))

    counted.scored("fake", first, is_late=False)
    counted.scored("fake", first, is_late=True)
    counted.scored("fake", removed, is_late=False)

    assert value("rul_coverage_units_total", model="fake") == 1
    assert value("rul_coverage_trials_total", model="fake") == 2


@pytest.mark.parametrize("up", [True, False])
def test_the_store_is_shown_as_up_while_the_database_answers(registry, up):
    store = StoreMetrics(Shared(registry))
    before = registry.get_sample_value("rul_store_up")

    store.up(up=up)

    assert (before, registry.get_sample_value("rul_store_up")) == (1, up)


def test_windows_of_a_candidate_are_beyond_the_served_interval_on_either_side(metrics, registry):
    served = np.array([[50.0, 45.0, 55.0, 0.5]] * 4)
    candidate = served + np.array([[-5.5], [-5.0], [5.0], [5.5]])

    metrics.models["fake"].compared(candidate, served)

    assert registry.get_sample_value("rul_shadow_beyond_interval_total", {"model": "fake"}) == 2
    difference = registry.get_sample_value("rul_shadow_absolute_difference_cycles_sum", {"model": "fake"})
    assert difference == 21


def test_every_provider_of_a_model_is_named_in_its_order(registry):
    runtime = FakeRuntime(provider="First")
    runtime.placement = Placement(("First", "Second", "Last"))

    Metrics(registry, [runtime])

    (sample,) = next(family for family in registry.collect() if family.name == "rul_model_info").samples
    assert sample.labels["provider"] == "First"
    assert sample.labels["providers"] == "First>Second>Last"


def test_a_batch_that_failed_or_held_probes_alone_counts_no_answers(metrics, registry, runtime):
    metrics.models["fake"].ran(BatchReport(2, [0.001]))
    metrics.models["fake"].ran(batch_of(*[(5.0, 4)] * 3, manifest=runtime.manifest, is_probe=True))

    assert registry.get_sample_value("rul_batch_windows_sum") == 3
    assert registry.get_sample_value("rul_stage_duration_seconds_count", {"stage": "queue"}) == 2
    assert registry.get_sample_value("rul_prediction_cycles_count", {"model": "fake"}) == 0


def test_probes_beside_predictions_are_counted_neither_as_answers_nor_as_their_units(
    metrics, registry, runtime
):
    model, counted = metrics.models["fake"], []
    model.drift = lambda answers, units: counted.append((answers.outputs.rul.tolist(), units))
    windows = [(5.0, 4), (30.0, 4), (60.0, 4)]
    report = batch_of(
        *windows, manifest=runtime.manifest, imputed=[0.5, 0.25, 0.0], units=["probed", "a", "b"]
    )
    report.is_probe[0] = True

    model.ran(report)

    assert registry.get_sample_value("rul_prediction_cycles_sum", {"model": "fake"}) == 90
    assert registry.get_sample_value("rul_imputed_fraction_sum") == 0.25
    assert counted == [([30.0, 60.0], ["a", "b"])]


@pytest.mark.parametrize(("windows", "batches"), [(1, PART_BATCHES), (PART_WINDOWS // 4, 4)])
def test_a_part_of_the_counting_is_bounded_by_batches_and_by_windows(metrics, runtime, windows, batches):
    model = metrics.models["fake"]
    for _ in range(2 * PART_BATCHES):
        model.ran(batch_of(*[(5.0, 4)] * windows, manifest=runtime.manifest))

    model.count()

    assert model.counted == batches


ONE: Final = Buckets((1,), "for the test")


@asynccontextmanager
async def publishing(metrics, monkeypatch, *, pause_seconds=0.0):
    """Publish all the time while a test looks on, for ten seconds at the most."""
    monkeypatch.setattr(metrics_module, "PUBLISH_SECONDS", 0.001)
    monkeypatch.setattr(metrics_module, "PAUSE_SECONDS", pause_seconds)
    task = asyncio.create_task(metrics.publish_regularly())
    async with asyncio.timeout(10):
        yield
    task.cancel()


async def test_what_waits_is_published_though_nobody_scrapes(monkeypatch, metrics, runtime):
    metrics.models["fake"].ran(batch_of((5.0, 4), manifest=runtime.manifest))
    published = asyncio.Event()
    metrics.pending = lambda: published.set() or 0  # asked each time that it publishes

    async with publishing(metrics, monkeypatch):
        await published.wait()

    assert metrics.models["fake"].counted == 1


async def test_batches_that_come_while_others_are_counted_wait_for_the_next_round(
    monkeypatch, metrics, runtime
):
    model, published = metrics.models["fake"], asyncio.Event()
    metrics.pending = lambda: published.set() or 0  # asked at the end of a round
    model.ran(batch_of((5.0, 4), manifest=runtime.manifest))
    count = model.count

    def count_as_another_comes():
        count()
        model.ran(batch_of((5.0, 4), manifest=runtime.manifest))

    monkeypatch.setattr(model, "count", count_as_another_comes)

    async with publishing(metrics, monkeypatch):
        await published.wait()

    assert model.reported - model.counted == 1


async def test_a_request_of_many_turns_of_the_loop_ends_between_two_parts_of_the_counting(
    monkeypatch, metrics, runtime
):
    model, parts = metrics.models["fake"], 4
    for _ in range(parts * PART_BATCHES):
        model.ran(batch_of((5.0, 4), manifest=runtime.manifest))
    turns = Counter[int]()

    # A turn takes half a millisecond by the loop's clock, however busy the machine is.
    monkeypatch.setattr(asyncio.get_running_loop(), "time", partial(next, count_from(0, 0.0005)))
    async with publishing(metrics, monkeypatch, pause_seconds=metrics_module.PAUSE_SECONDS):
        while waiting := model.reported - model.counted:
            turns[waiting] += 1
            await asyncio.sleep(0)

    assert [*turns] == [PART_BATCHES * left for left in range(parts, 0, -1)]
    assert min([*turns.values()][1:]) >= 10


async def test_what_cannot_be_counted_is_logged_and_ends_nothing(monkeypatch, metrics):
    asked = asyncio.Semaphore(0)

    def broken():
        asked.release()
        raise ValueError("broken")

    metrics.pending = broken

    with capture_logs() as lines:
        async with publishing(metrics, monkeypatch):
            for _ in range(3):
                await asked.acquire()

    assert {(line["event"], line["reason"]) for line in lines} == {("metrics lost", "broken")}


@examples(40)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.floats(0, 130, width=32), st.integers(1, 8)), min_size=1, max_size=5),
        max_size=90,
    )
)
def test_however_many_batches_wait_each_window_counts_once(batches):
    registry, runtime = CollectorRegistry(), FakeRuntime(make_manifest("fake", heads=2))
    model = Metrics(registry, [runtime]).models["fake"]
    for windows in batches:
        model.ran(batch_of(*windows, manifest=runtime.manifest))

    ruls = [min(max(reading, 0), 125) for windows in batches for reading, _ in windows]
    total = registry.get_sample_value("rul_prediction_cycles_sum", {"model": "fake"})
    assert registry.get_sample_value("rul_prediction_cycles_count", {"model": "fake"}) == len(ruls)
    assert total == pytest.approx(sum(ruls), abs=0.1)
    assert registry.get_sample_value("rul_column_drift_windows", {"model": "fake"}) == len(ruls)


def test_a_count_that_fails_does_not_count_its_requests_again(monkeypatch, metrics, registry):
    labels = metrics._duration.labels

    def broken(*_values):
        raise ValueError("broken")

    metrics.ended[Transport.HTTP, Route.PREDICT, "200"].append(0.001)
    monkeypatch.setattr(metrics._duration, "labels", broken)
    with pytest.raises(ValueError, match="broken"):
        metrics.publish()
    monkeypatch.setattr(metrics._duration, "labels", labels)
    metrics.publish()

    labels = {"protocol": "http", "route": "/v1/predict", "code": "200"}
    assert registry.get_sample_value("rul_requests_total", labels) == 1


def test_a_label_value_that_was_not_declared_is_refused(registry):
    histogram = Shared(registry).histogram("labelled", "help", ONE, model=["a"])

    with pytest.raises(KeyError):
        histogram.labels("b")


def names_of(text):
    """The series in a text of metrics, in order."""
    return [line.rpartition(b" ")[0] for line in text.splitlines()]


def a_turn_later(loop):
    """Wait on a thread until the event loop has run what was ready; return whether it did."""
    ran = threading.Event()
    loop.call_soon_threadsafe(ran.set)
    return ran.wait(10)


async def test_requests_run_while_a_scrape_is_written(metrics, registry):
    loop = asyncio.get_running_loop()

    text = await metrics.exposition(lambda found: a_turn_later(loop) and generate_latest(found))

    assert names_of(text) == names_of(generate_latest(registry)) != []


async def test_a_scrape_begins_when_the_one_before_is_written(metrics):
    loop, collected, written = asyncio.get_running_loop(), [], []
    metrics.ready = lambda: collected.append(1) or True  # asked once in each collection

    def encode(_found):
        assert a_turn_later(loop)
        written.append(len(collected))
        return b""

    await asyncio.gather(*(metrics.exposition(encode) for _ in range(4)))

    assert written == [1, 2, 3, 4]
