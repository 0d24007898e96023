"""The metrics of batches and of what the networks answer, declared once and counted for each model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry, Gauge

from service.core.answers import STATES, Answers
from service.core.ports import Batch
from service.core.runtime import Runtime
from service.drift.monitor import DriftMonitor
from service.labels import Side, Stage
from service.metrics.instruments import (
    CYCLES,
    FRACTIONS,
    NOVELTY,
    STAGE_SECONDS,
    TWENTIETHS,
    WINDOWS,
    Histogram,
    Shared,
    taken,
)


class Families:
    """The metrics of batches, declared for all models."""

    def __init__(self, shared: Shared, models: Sequence[Runtime], stage_seconds: Histogram) -> None:
        names = [model.manifest.name for model in models]
        heads = {m.manifest.name: ("mean", *map(str, range(m.manifest.heads))) for m in models}
        self.stage_seconds: Final = stage_seconds
        self.inference: Final = shared.histogram(
            "rul_inference_duration_seconds",
            "One run of the graph on one batch.",
            STAGE_SECONDS,
            keys=[(model.manifest.name, model.provider) for model in models],
            model=(),
            provider=(),
        )
        self.batch: Final = shared.histogram("rul_batch_windows", "Windows in a batch.", WINDOWS)
        self.cancelled: Final = shared.counter(
            "rul_cancelled_total",
            "Windows whose caller left, or whose deadline passed, before their answer.",
        )
        self.entropy: Final = shared.histogram(
            "rul_attention_entropy_ratio",
            "Attention entropy over its largest value; 0: one cycle has all weight, 1: all have the same.",
            TWENTIETHS,
            keys=[(name, head) for name in names for head in heads[name]],
            model=(),
            head=(),
        )
        self.peak: Final = shared.histogram(
            "rul_attention_peak_weight", "Largest attention weight of a window.", TWENTIETHS, model=names
        )
        self.out_of_band: Final = shared.counter(
            "rul_attention_out_of_band_total",
            "Windows whose attention entropy is outside the reference band; low: collapsed, high: uniform.",
            model=names,
            side=[side.value for side in Side],
        )
        self.rul: Final = shared.histogram(
            "rul_prediction_cycles", "Predicted RUL in cycles.", CYCLES, model=names
        )
        self.width: Final = shared.histogram(
            "rul_interval_width_cycles",
            "Upper minus lower bound of the prediction interval, in cycles.",
            CYCLES,
            model=names,
        )
        self.states: Final = shared.counter(
            "rul_state_total",
            "Answers by state.",
            model=names,
            state=[state.value for state in STATES],
        )
        self.novelty: Final = shared.histogram(
            "rul_novelty_ratio",
            "Distance from the training data; 1 is its 99.5 % quantile.",
            NOVELTY,
            model=names,
        )
        self.imputed: Final = shared.histogram(
            "rul_imputed_fraction", "Missing readings over all readings of a window.", FRACTIONS
        )


class ModelMetrics:
    """Counts the batches of one model, from any thread: a `BatchObserver`.

    Args:
        families: What is counted in.
        model: The model.
        drift: Counts the windows for drift.

    Attributes:
        ran: Takes note of a batch, which is counted later: arrays are read more cheaply in numbers.
    """

    def __init__(
        self,
        families: Families,
        model: Runtime,
        *,
        drift: DriftMonitor,
    ) -> None:
        name = model.manifest.name
        self._queue: Final = families.stage_seconds.labels(Stage.QUEUE.value)
        self._answered: Final = families.stage_seconds.labels(Stage.INFERENCE.value)
        self._cancelled: Final = families.cancelled.labels()
        self._drift: Final = drift
        self._inference: Final = families.inference.labels(name, model.provider)
        self._batch: Final = families.batch.labels()
        self._peak: Final = families.peak.labels(name)
        self._rul: Final = families.rul.labels(name)
        self._width: Final = families.width.labels(name)
        self._novelty: Final = families.novelty.labels(name)
        self._imputed: Final = families.imputed.labels()
        self._entropy: Final = families.entropy.labels(name, "mean")
        heads = range(model.manifest.heads)
        self._heads: Final = [families.entropy.labels(name, str(head)) for head in heads]
        self._states: Final = [families.states.labels(name, state.value) for state in STATES]
        self._low, self._high = (families.out_of_band.labels(name, s.value) for s in (Side.LOW, Side.HIGH))
        self._band: Final = next((band for band in model.manifest.entropy if band.head == "mean"), None)
        self._counting: Final = threading.Lock()
        self._batches: Final[list[Batch]] = []
        self.ran: Final = self._batches.append

    def cancelled(self, windows: int) -> None:
        """Count windows whose caller left before they were answered."""
        self._cancelled.inc(windows)

    def count(self) -> None:
        """Count the batches that wait; one that comes meanwhile waits for the next time."""
        with self._counting:  # held until all is counted: a scrape that comes meanwhile waits for it
            counted = [answers for batch in taken(self._batches) if (answers := self._counted(batch))]
            if counted:
                self._count(counted)

    def _counted(self, batch: Batch) -> Answers | None:
        """Count a batch but for its answers; these, without those to probes."""
        self._queue.observe_each(batch.queued)
        self._answered.observe_each(batch.answered)
        if batch.answers is None:
            return None
        self._inference.observe(batch.seconds)
        self._batch.observe(batch.size)
        imputed: list[float] = []
        units: list[str | None] = []
        asked: list[bool] = []
        for caller, places in batch.shares:
            windows = caller.windows
            asked += [not windows.is_probe] * len(places)
            if not windows.is_probe:  # a probe is no prediction, and would look like a failing sensor
                imputed += [windows.imputed_fraction[i] for i in places]
                units += [windows.units[i] for i in places]
        if not units:
            return None
        answers = batch.answers if len(units) == batch.size else batch.answers.only(np.array(asked))
        self._imputed.observe_each(imputed)
        self._drift.observe(answers.asked.readings, answers, units)
        return answers

    def _count(self, batches: Sequence[Answers]) -> None:
        self._peak.observe_array(np.concatenate([each.peak_weight for each in batches]))
        self._rul.observe_array(np.concatenate([each.outputs.rul for each in batches]))
        self._width.observe_array(np.concatenate([each.interval_width for each in batches]))
        self._novelty.observe_array(np.concatenate([each.outputs.novelty for each in batches]))
        entropy = np.concatenate([each.entropy_ratio for each in batches])
        self._entropy.observe_array(entropy)
        heads = [each.head_entropy_ratio for each in batches if each.head_entropy_ratio is not None]
        for head, child in enumerate(self._heads if heads else ()):
            child.observe_array(np.concatenate([ratios[:, head] for ratios in heads]))
        states = np.bincount(np.concatenate([each.state for each in batches]), minlength=len(STATES))
        for child, count in zip(self._states, states.tolist(), strict=True):
            child.inc(count)
        if self._band is not None:
            self._low.inc(int(np.count_nonzero(entropy < self._band.low)))
            self._high.inc(int(np.count_nonzero(entropy > self._band.high)))


def declare_manifests(registry: CollectorRegistry, models: Sequence[Runtime]) -> None:
    """Show what the bundles say of themselves; each worker has loaded the same ones."""

    def gauge(name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(name, documentation, labels, registry=registry)

    info = gauge(
        "rul_model_info",
        "1 for each loaded model; labels are its version, file digest, provider and the order of providers.",
        *("model", "version", "sha256", "provider", "providers"),
    )
    coverage = gauge(
        "rul_nominal_coverage_ratio",
        "Share of outcomes that the model's intervals should hold.",
        "model",
    )
    band = gauge(
        "rul_attention_entropy_band_ratio",
        "Ends of the reference band of the attention entropy ratio; 0.5 % of windows are beyond each.",
        *("model", "head", "side"),
    )
    for model in models:
        manifest, order = model.manifest, ">".join(model.placement.providers)
        info.labels(manifest.name, manifest.version, model.sha256, model.provider, order).set(1)
        coverage.labels(manifest.name).set(manifest.nominal_coverage)
        for reference in manifest.entropy:
            band.labels(manifest.name, reference.head, Side.LOW.value).set(reference.low)
            band.labels(manifest.name, reference.head, Side.HIGH.value).set(reference.high)
