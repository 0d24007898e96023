"""Each network's bundle through what serves it: runtime, batcher, predictor, metrics."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from msgspec import UNSET

from export.attention import asked
from export.probes import simulated_windows
from export.regime_readings import Typical
from export.seal import read_bundle
from export.session import open_bundle
from model.faithfulness import measure_faithfulness
from service.choices import ProviderChoice
from service.core.batcher import MicroBatcher
from service.core.explanations import SUPPORTED_AGREEMENT
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import Explain, PredictQuery, Trust
from service.core.rules import WindowRules
from service.core.runtime import OnnxRuntime, replay_golden
from service.core.window import WindowInput
from service.metrics.metrics import Metrics

NETWORKS = ["flagship", "amnl", "selfattention"]


@pytest.fixture(params=NETWORKS)
def runtime(request, tiny_bundles):
    folder = tiny_bundles(request.param)
    runtime = OnnxRuntime.load(folder, provider=ProviderChoice.CPU)
    replay_golden(runtime, read_bundle(folder).golden, origin=folder.golden)
    return runtime


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


def windows_for(runtime, count=5):
    drawn = simulated_windows(runtime.manifest, count=count, seed=1)
    return [
        WindowInput(
            unit=f"unit-{i}",
            last_cycle=float(drawn.last_cycle[i]),
            readings=drawn.readings[i, : drawn.lengths[i]].tolist(),
        )
        for i in range(count)
    ]


async def predicted(runtime, registry, executor, windows, explain=Explain.ATTENTION):
    metrics = Metrics(registry, [runtime])
    name = runtime.manifest.name
    batcher = MicroBatcher(
        runtime,
        WindowRules.of(runtime.manifest, max_window_cycles=1000),
        executor=executor,
        threads=1,
        max_batch_windows=8,
        max_pending_windows=64,
        observer=metrics.models[name],
    )
    models = {name: LoadedModel.of(runtime, batcher, max_window_cycles=1000)}
    predictor = Predictor(models, max_request_windows=64)
    try:
        return (await predictor.predict(PredictQuery(windows, explain=explain))).predictions
    finally:
        await batcher.close(drain_seconds=5)


async def test_a_network_answers_through_the_same_words(runtime, registry, executor):
    predictions = await predicted(runtime, registry, executor, windows_for(runtime))

    assert [prediction.unit for prediction in predictions] == [f"unit-{i}" for i in range(5)]
    for prediction in predictions:
        assert 0 <= prediction.interval.lower <= prediction.rul <= runtime.manifest.cap
        assert sum(prediction.health_state.probabilities.values()) == pytest.approx(1.0, abs=1e-5)
        assert sum(prediction.attention.weights) == pytest.approx(1.0, abs=1e-5)


async def test_contributions_of_sensors_are_the_graphs_where_it_explains_readings(
    runtime, registry, executor
):
    (window,) = windows_for(runtime, count=1)
    readings = np.array([window.readings], np.float32)
    asked = np.array([len(window.readings)]), np.array([window.last_cycle], np.float32)

    (prediction,) = await predicted(runtime, registry, executor, [window], Explain.FULL)

    names = [column.name for column in runtime.manifest.columns if column.role == "sensor"]
    assert [*prediction.sensor_contributions] == names
    explained = runtime.run(readings, *asked).sensor_contribution
    assert (explained is None) is (prediction.attention.evidence is UNSET)
    if explained is not None:
        expected = explained[0].sum(axis=0)[-len(names) :]
        np.testing.assert_allclose([*prediction.sensor_contributions.values()], expected, atol=1e-4)
        assert sum(prediction.attention.evidence) == pytest.approx(1.0, abs=1e-5)


async def test_trust_is_the_agreement_that_rul_attention_measures(tiny_bundles, registry, executor):
    folder = tiny_bundles("flagship")
    runtime = OnnxRuntime.load(folder, provider=ProviderChoice.CPU)
    session, manifest = open_bundle(folder)
    drawn = simulated_windows(manifest, count=40, seed=1)
    windows = drawn.take(drawn.lengths == manifest.context)
    given = [
        WindowInput(last_cycle=float(cycle), readings=readings.tolist())
        for cycle, readings in zip(windows.last_cycle, windows.readings, strict=True)
    ]

    predictions = await predicted(runtime, registry, executor, given, Explain.FULL)

    ask, typical = asked(session, manifest), Typical(manifest).of(windows.readings)
    agreement = measure_faithfulness(ask, windows, typical, shares=(0.2,), draws=1).agreement
    clear = np.abs(agreement - SUPPORTED_AGREEMENT) > 0.01
    supported = np.array([prediction.trust is Trust.SUPPORTED for prediction in predictions])
    assert (supported == (agreement >= SUPPORTED_AGREEMENT))[clear].all()
    assert 0 < supported.sum() < len(supported)
