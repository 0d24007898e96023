"""What Prometheus is told: everything, once, under names and labels that were known at the start."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as PlainHistogram

from service.core.answers import Answers
from service.core.batcher import stacked
from service.core.providers import Placement
from service.labels import Stage, Transport, codes
from service.metrics import histograms
from service.metrics.histograms import Histogram
from service.metrics.metrics import Metrics
from tests.fakes import FakeRuntime, fake_outputs, make_manifest, make_window


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def runtime():
    return FakeRuntime(make_manifest("fake", heads=2, band=(0.2, 0.9)))


@pytest.fixture
def metrics(registry, runtime):
    return Metrics(registry, [runtime])


def answers_to(*windows, manifest):
    readings, lengths, last_cycle = stacked(windows)
    return Answers(fake_outputs(readings, lengths, manifest), lengths, manifest, last_cycle=last_cycle)


@pytest.mark.parametrize("code", codes(Transport.HTTP))
def test_every_code_of_a_prediction_is_there_from_the_start(metrics, registry, code):
    labels = {"protocol": "http", "route": "/v1/predict", "code": code}

    assert registry.get_sample_value("rul_requests_total", labels) == 0


@pytest.mark.parametrize("stage", Stage)
def test_a_stage_is_measured_also_when_it_fails(metrics, registry, stage):
    with pytest.raises(ValueError, match="broken"), metrics.stage(stage):
        raise ValueError("broken")

    assert registry.get_sample_value("rul_stage_duration_seconds_count", {"stage": stage.value}) == 1


def test_a_batch_is_observed_window_by_window(metrics, registry, runtime):
    windows = [make_window(30.0, cycles=4), make_window(60.0, cycles=8), make_window(300.0, cycles=1)]

    metrics.models["fake"].ran(3, 0.01)
    metrics.models["fake"].answers(
        answers_to(*windows, manifest=runtime.manifest), np.array([0.0, 0.25, 0.0])
    )

    def value(name, **labels):
        return registry.get_sample_value(name, labels)

    assert value("rul_batch_windows_sum") == 3
    assert value("rul_inference_duration_seconds_sum", model="fake", provider="FakeProvider") == 0.01
    assert value("rul_prediction_cycles_sum", model="fake") == 30 + 60 + 125
    assert value("rul_interval_width_cycles_count", model="fake") == 3
    assert value("rul_novelty_ratio_count", model="fake") == 3
    assert value("rul_imputed_fraction_bucket", le="0.0") == 2
    assert value("rul_attention_peak_weight_sum", model="fake") == pytest.approx(1 / 4 + 1 / 8 + 1)
    assert value("rul_state_total", model="fake", state="estimated") == 2
    assert value("rul_state_total", model="fake", state="insufficient_history") == 1
    # The window of one cycle has no entropy.
    for head in ("mean", "0", "1"):
        assert value("rul_attention_entropy_ratio_count", model="fake", head=head) == 2
    assert value("rul_attention_out_of_band_total", model="fake", side="high") == 2
    assert value("rul_attention_out_of_band_total", model="fake", side="low") == 0


def test_the_model_that_serves_is_named(registry, metrics, runtime):
    named = {"model": "fake", "version": "1", "sha256": runtime.sha256}
    placed = {"provider": "FakeProvider", "providers": "FakeProvider"}

    assert registry.get_sample_value("rul_model_info", named | placed) == 1


def test_every_provider_of_a_model_is_named_in_its_order(registry):
    runtime = FakeRuntime(provider="First")
    runtime.placement = Placement(("First", "Second", "Last"))

    Metrics(registry, [runtime])

    (sample,) = next(family for family in registry.collect() if family.name == "rul_model_info").samples
    assert sample.labels["provider"] == "First"
    assert sample.labels["providers"] == "First>Second>Last"


def test_the_queues_of_all_models_add_up(metrics, registry):
    metrics.watch_pending(lambda: 3)
    metrics.watch_pending(lambda: 4)

    assert registry.get_sample_value("rul_pending_windows") == 7


def test_the_windows_that_were_asked_for_count_for_drift(metrics, registry, runtime):
    window = make_window(5.0, unit="17")
    readings, _, _ = stacked([window])

    metrics.models["fake"].windows(readings, answers_to(window, manifest=runtime.manifest), ["17"])

    assert registry.get_sample_value("rul_column_drift_windows", {"model": "fake"}) == 1
    assert registry.get_sample_value("rul_column_drifting", {"model": "fake"}) == 0


def test_windows_of_callers_who_left_are_counted(metrics, registry):
    metrics.models["fake"].cancelled(5)

    assert registry.get_sample_value("rul_cancelled_total") == 5


def test_two_services_in_one_process_do_not_mix(runtime):
    one, other = CollectorRegistry(), CollectorRegistry()
    Metrics(one, [runtime]).models["fake"].ran(1, 0.1)

    Metrics(other, [runtime])

    assert one.get_sample_value("rul_batch_windows_count") == 1
    assert other.get_sample_value("rul_batch_windows_count") == 0


@given(
    st.lists(st.floats(-1e6, 1e6) | st.sampled_from([0.0, 0.5, 1.0, 2.0]), max_size=50), st.integers(0, 50)
)
def test_our_histogram_counts_as_prometheus_clients_does(values, cut):
    registry, buckets = CollectorRegistry(), (0.0, 0.5, 1.0, 2.0, 100.0)
    plain = PlainHistogram("plain", "help", buckets=buckets, registry=registry)
    ours = Histogram("ours", "help", buckets=buckets, registry=registry).labels()

    for value in values:
        plain.observe(value)
    ours.observe_many(np.array(values[:cut]))
    for value in values[cut:]:
        ours.observe(value)

    for le in ("0.0", "0.5", "1.0", "2.0", "100.0", "+Inf"):
        expected = registry.get_sample_value("plain_bucket", {"le": le})
        assert registry.get_sample_value("ours_bucket", {"le": le}) == expected
    assert registry.get_sample_value("ours_count") == len(values)


def test_what_waits_to_be_counted_is_bounded(monkeypatch, registry):
    monkeypatch.setattr(histograms, "MOST_WAITING", 10)
    monkeypatch.setattr(histograms, "MOST_ARRAYS", 10)
    child = Histogram("bounded", "help", buckets=(1,), registry=registry).labels()

    for _ in range(25):
        child.observe(0.5)
        child.observe_many(np.array([2.0, 2.0]))

    assert len(child._values) < 10
    assert len(child._arrays) < 10
    assert registry.get_sample_value("bounded_count") == 75


def test_batches_that_wait_to_be_counted_hold_little_memory_though_nobody_looks(registry):
    child = Histogram("held", "help", buckets=(1,), registry=registry).labels()

    for _ in range(1000):
        child.observe_many(np.zeros((32, 8))[:, 3])

    held = sum(array.base.nbytes for array in child._arrays)
    assert held < 1 << 20


def test_a_label_value_that_was_not_declared_is_refused(registry):
    histogram = Histogram("labelled", "help", {"model": ["a"]}, buckets=(1,), registry=registry)

    with pytest.raises(KeyError):
        histogram.labels("b")


def test_a_name_that_is_taken_is_refused(registry):
    Histogram("twice", "help", buckets=(1,), registry=registry)

    with pytest.raises(ValueError, match="Duplicated"):
        Histogram("twice", "help", buckets=(1,), registry=registry)
