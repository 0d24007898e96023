"""Windows without content raise the alert on uniform attention: a trained bundle, its metrics, real rules."""

import pytest
import torch
import yaml
from prometheus_client import CollectorRegistry

from export.bundle import BundleFolder, find_bundle
from export.handover import export_bundle
from export.probes import simulated_windows
from model.checkpoint import Checkpoint
from model.domain import NOVELTY_LIMIT
from model.networks import network_class
from model.run import Plan, Source, train_run
from model.training import TrainConfig
from service.choices import ProviderChoice
from service.core.answers import Answers
from service.core.ports import BatchReport
from service.core.rules import WindowRules
from service.core.runtime import Asked, OnnxRuntime
from service.metrics.metrics import Metrics
from tests.observability import RULES
from tests.planted import planted_fleet, planted_units
from tests.programs import output_of, program

CONTEXT = 20
MINUTES = 60
FEEDS = ("ordinary", "zero", "frozen")


@pytest.fixture(scope="module")
def planted_bundle(tmp_path_factory):
    """A bundle of `flagship` whose searching head has learnt to find an event."""
    folder = tmp_path_factory.mktemp("planted")
    recipe = {**network_class("flagship").recipe, "learning_rate": 1e-2}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train_run(
            Plan(
                planted_units("event", units=24, context=CONTEXT, seed=0).units,
                planted_fleet("event", context=CONTEXT),
                "flagship",
                TrainConfig(seed=0, steps=60, batch=64, **recipe),
                folds=2,
            ),
            name="planted",
            source=Source("planted events", "0" * 64),
            folder=folder / "run",
            watch=lambda step, loss, check: None,
        )
    finally:
        torch.set_num_threads(threads)
    export_bundle(Checkpoint.load(folder / "run"), folder / "planted", version="1.0.0")
    return BundleFolder(folder / "planted")


@pytest.fixture(scope="module")
def counted(planted_bundle):
    """Of each feed, windows that were counted, and those below and above the bands of their lengths."""
    runtime = OnnxRuntime.load(planted_bundle, provider=ProviderChoice.CPU)
    return {feed: counts(runtime, *windows_of(runtime.manifest, feed)) for feed in FEEDS}


def windows_of(manifest, feed):
    """Full windows of plausible units, whose sensors all read 0 or whose last reading repeats."""
    windows = simulated_windows(manifest, count=400, seed=1)
    full = windows.take(windows.lengths == manifest.context)
    readings = full.readings.copy()
    if feed == "zero":
        readings[:, :, list(manifest.schema_of_columns.indices("sensor"))] = 0.0
    elif feed == "frozen":
        readings[:] = readings[:, -1:]
    return readings, full.lengths, full.last_cycle


def counts(runtime, readings, lengths, last_cycle):
    manifest, registry = runtime.manifest, CollectorRegistry()
    asked, size = Asked(readings, lengths, last_cycle), len(lengths)
    rules = WindowRules.of(manifest, max_window_cycles=1000)
    answers = Answers(asked, runtime.run(readings, lengths, last_cycle), manifest, rules)
    report = BatchReport(size, [], [], 0.0, answers.bare(), [None] * size, [0.0] * size, [False] * size)
    Metrics(registry, [runtime]).models[manifest.name].ran(report)

    def of(side):
        labels = {"model": manifest.name, "side": side}
        return int(registry.get_sample_value("rul_attention_out_of_band_total", labels))

    return {"windows": size, "low": of("low"), "high": of("high")}


def test_windows_without_content_are_above_their_band_and_ordinary_ones_inside(counted):
    share = {
        feed: {side: found[side] / found["windows"] for side in ("low", "high")}
        for feed, found in counted.items()
    }

    assert share["ordinary"]["high"] < 0.02
    assert share["ordinary"]["low"] < 0.04
    assert share["zero"] == {"low": 0.0, "high": 1.0}
    assert share["frozen"]["high"] > 0.5


@pytest.mark.system
def test_prometheus_raises_the_alert_for_these_windows_and_not_for_ordinary_ones(counted, tmp_path):
    def series(name, value, **labels):
        given = "".join(f', {label}="{text}"' for label, text in labels.items())
        return {"series": f'{name}{{job="rulserve"{given}}}', "values": f"0+{value}x{MINUTES}"}

    inputs = []
    for feed, found in counted.items():
        inputs.append(series("rul_state_total", found["windows"], model=feed, state="estimated"))
        inputs += [
            series("rul_attention_out_of_band_total", found[side], model=feed, side=side)
            for side in ("low", "high")
        ]
    raised = [
        {"labels": f'{{alertname="RulAttentionUniform", model="{feed}"}}', "value": 1} for feed in FEEDS[1:]
    ]
    check = {
        "expr": 'sum by (alertname, model) (ALERTS{alertname=~"RulAttention.*", alertstate="firing"})',
        "eval_time": f"{MINUTES - 5}m",
        "exp_samples": raised,
    }
    case = {"interval": "1m", "input_series": inputs, "promql_expr_test": [check]}
    file = tmp_path / "rules_test.yml"
    rules = {"rule_files": list(map(str, RULES)), "evaluation_interval": "1m", "tests": [case]}
    file.write_text(yaml.safe_dump(rules), "utf-8")

    output_of(program("promtool"), "test", "rules", file)


@pytest.mark.parametrize("name", ["fd001", "fd002", "fd003", "fd004"])
def test_shipped_models_tell_windows_without_content_by_novelty(name):
    """Where nothing happens at once, attention is nearly even in ordinary windows, and cannot tell."""
    runtime = OnnxRuntime.load(find_bundle(name), provider=ProviderChoice.CPU)

    novelty = {feed: runtime.run(*windows_of(runtime.manifest, feed)).novelty for feed in FEEDS[1:]}

    outside = {feed: float((values > NOVELTY_LIMIT).mean()) for feed, values in novelty.items()}
    assert outside == {"zero": 1.0, "frozen": 1.0}
