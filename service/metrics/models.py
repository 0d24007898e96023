"""The metrics of batches and of what the networks answer, declared once and counted for each model."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from model.domain import FloatArray, attention_lag, edge_weights, head_similarity
from service.core.answers import STATES, Answers
from service.core.candidates import LOWER, RUL, UPPER
from service.core.ports import BatchReport
from service.core.runtime import Runtime
from service.drift.monitor import DriftMonitor
from service.labels import Side, Stage
from service.metrics.buckets import (
    CYCLES,
    ERROR_CYCLES,
    FRACTIONS,
    LAGS,
    NOVELTY,
    STAGE_SECONDS,
    TWENTIETHS,
    WINDOWS,
)
from service.metrics.instruments import Histogram, Shared

PART_WINDOWS: Final = 256
PART_BATCHES: Final = 24
"""Most windows and batches that are counted in one go."""


HISTOGRAMS: Final = {
    "rul_attention_peak_weight": (TWENTIETHS, "Largest attention weight of a window."),
    "rul_attention_first_cycles_weight": (
        TWENTIETHS,
        "Attention weight of the first tenth of a window's cycles; even attention has 0.1.",
    ),
    "rul_attention_last_cycles_weight": (
        TWENTIETHS,
        "Attention weight of the last tenth of a window's cycles; even attention has 0.1.",
    ),
    "rul_attention_lag_cycles": (LAGS, "Mean lag of the attention behind the last cycle."),
    "rul_attention_head_similarity_ratio": (
        TWENTIETHS,
        "Mean cosine similarity of each two heads' attention; 1: all heads attend alike.",
    ),
    "rul_prediction_cycles": (CYCLES, "Predicted RUL in cycles."),
    "rul_interval_width_cycles": (
        CYCLES,
        "Upper minus lower bound of the prediction interval, in cycles.",
    ),
    "rul_novelty_ratio": (NOVELTY, "Distance from the training data; 1 is its 99.5 % quantile."),
    "rul_shadow_absolute_difference_cycles": (
        ERROR_CYCLES,
        "Absolute difference of a candidate's RUL (shadow, canary) from the serving model's, in cycles.",
    ),
}
COUNTERS: Final = {
    "rul_shadow_beyond_interval_total": "Windows whose RUL by the candidate (shadow, canary) is outside the "
    "serving model's interval.",
    "rul_shadow_failed_total": "Requests that the shadow did not answer.",
    "rul_canary_requests_total": "Requests that went to the canary.",
    "rul_canary_failed_total": "Requests that the canary did not answer, and the model that serves did.",
    "rul_canary_returned_total": "Canaries that passed a bound, so that all requests went back to the model "
    "that serves.",
}


class Families:
    """The metrics of batches; the models' children come and go with them.

    Attributes:
        histograms, counters: Those with no label but the model, by name.
    """

    def __init__(self, shared: Shared, stage_seconds: Histogram) -> None:
        self.stage_seconds: Final = stage_seconds
        self.inference: Final = shared.histogram(
            "rul_inference_duration_seconds",
            "One run of the graph on one batch.",
            STAGE_SECONDS,
            model=(),
            provider=(),
        )
        self.batch: Final = shared.histogram("rul_batch_windows", "Windows in a batch.", WINDOWS)
        self.cancelled: Final = shared.counter(
            "rul_cancelled_total",
            "Windows whose caller left, or whose deadline passed, before their answer.",
        )
        self.imputed: Final = shared.histogram(
            "rul_imputed_fraction", "Missing readings over all readings of a window.", FRACTIONS
        )
        self.states: Final = shared.counter(
            "rul_state_total", "Answers by state.", model=(), state=[state.value for state in STATES]
        )
        self.entropy: Final = shared.histogram(
            "rul_attention_entropy_ratio",
            "Attention entropy over its largest value; 0: one cycle has all weight, 1: all have the same.",
            TWENTIETHS,
            model=(),
            head=(),
        )
        self.out_of_band: Final = shared.counter(
            "rul_attention_out_of_band_total",
            "Windows whose attention entropy is outside the reference band of their length; low: collapsed, "
            "high: uniform.",
            model=(),
            side=[side.value for side in Side],
        )
        self.histograms: Final = {
            name: shared.histogram(name, text, buckets, model=())
            for name, (buckets, text) in HISTOGRAMS.items()
        }
        self.counters: Final = {name: shared.counter(name, text, model=()) for name, text in COUNTERS.items()}


class ModelMetrics:
    """Counts the batches of one model: a `BatchObserver`.

    Args:
        families: What is counted in.
        model: The model.
        drift: Counts the windows for drift; None: nothing does.

    Attributes:
        ran: Takes a batch that has run; `count` counts it.
        cancelled: Counts windows whose caller left before they were answered.
        shadow_failed: Counts a request that the shadow did not answer.
        canary_asked, canary_failed: Count a request that the canary takes, and one that it did not answer.
        canary_returned: Counts a canary that passed a bound.
        counted: Batches counted so far.
        is_released: True where no batch follows.
    """

    def __init__(self, families: Families, model: Runtime, *, drift: DriftMonitor | None) -> None:
        name = model.manifest.name
        self._queue: Final = families.stage_seconds.labels(Stage.QUEUE.value)
        self._answered: Final = families.stage_seconds.labels(Stage.INFERENCE.value)
        self.cancelled: Final = families.cancelled.labels().inc
        self._drift: DriftMonitor | None = drift
        self._inference: Final = families.inference.labels(name, model.provider)
        self._batch: Final = families.batch.labels()
        self._imputed: Final = families.imputed.labels()
        self._entropy: Final = families.entropy.labels(name, "mean")
        heads = range(model.manifest.heads)
        self._heads: Final = [families.entropy.labels(name, str(head)) for head in heads]
        self._states: Final = [families.states.labels(name, state.value) for state in STATES]
        self._low, self._high = (families.out_of_band.labels(name, s.value) for s in (Side.LOW, Side.HIGH))
        self._usual_entropy: Final = model.manifest.entropy[0].limits(model.manifest.context)
        self._histograms: Final = {each: made.labels(name) for each, made in families.histograms.items()}
        counters = {each: made.labels(name).inc for each, made in families.counters.items()}
        self._beyond: Final = counters["rul_shadow_beyond_interval_total"]
        self.shadow_failed: Final = counters["rul_shadow_failed_total"]
        self.canary_asked: Final = counters["rul_canary_requests_total"]
        self.canary_failed: Final = counters["rul_canary_failed_total"]
        self.canary_returned: Final = counters["rul_canary_returned_total"]
        self._waiting: Final[deque[BatchReport]] = deque()
        self.counted = 0
        self.is_released = False
        self.ran: Final = self._waiting.append

    def compared(self, candidate: FloatArray, served: FloatArray) -> None:
        """Count what a candidate and the model that serves answered to the same windows."""
        rul = candidate[:, RUL]
        difference = self._histograms["rul_shadow_absolute_difference_cycles"]
        difference.observe_each(np.abs(rul - served[:, RUL]).tolist())
        self._beyond(int(np.count_nonzero((rul < served[:, LOWER]) | (rul > served[:, UPPER]))))

    def retire(self) -> None:
        """Leave drift to the version that takes over; batches in flight are still counted."""
        self._drift = None

    def release(self) -> None:
        """Note that no batch follows; called on any thread."""
        self.is_released = True

    @property
    def reported(self) -> int:
        """Batches reported so far, counted or not."""
        return self.counted + len(self._waiting)

    def count(self) -> None:
        """Count batches that wait: so many that the event loop waits for about a millisecond."""
        windows = 0
        by_cycles: defaultdict[int, list[tuple[Answers, list[str | None]]]] = defaultdict(list)
        for _ in range(min(len(self._waiting), PART_BATCHES)):
            report = self._waiting.popleft()
            self.counted += 1
            self._queue.observe_each(report.queued)
            self._answered.observe_each(report.answered)
            if report.answers is None:
                continue
            self._inference.observe(report.seconds)
            self._batch.observe(report.size)
            answers, units = self._predictions(report, report.answers)
            if units:
                by_cycles[answers.outputs.attention.shape[1]].append((answers, units))
            windows += report.size
            if windows >= PART_WINDOWS:
                break
        for alike in by_cycles.values():
            parts, names = zip(*alike, strict=True)
            answers = Answers.joined(parts)
            self._count(answers)
            if self._drift is not None:
                self._drift.count(answers, [*chain.from_iterable(names)])

    def _predictions(self, report: BatchReport, answers: Answers) -> tuple[Answers, list[str | None]]:
        """The answers of a batch and the units they are for; those to probes are no predictions."""
        if not any(report.is_probe):
            self._imputed.observe_each(report.imputed_fraction)
            return answers, report.units
        kept = [row for row, is_probe in enumerate(report.is_probe) if not is_probe]
        self._imputed.observe_each([report.imputed_fraction[row] for row in kept])
        return answers.only(kept), [report.units[row] for row in kept]

    def _count(self, answers: Answers) -> None:
        outputs, lengths = answers.outputs, answers.asked.lengths
        first, last = edge_weights(outputs.attention, lengths)
        found = {
            "rul_attention_peak_weight": outputs.attention.max(axis=1),
            "rul_attention_first_cycles_weight": first,
            "rul_attention_last_cycles_weight": last,
            "rul_attention_lag_cycles": attention_lag(outputs.attention, lengths),
            "rul_prediction_cycles": outputs.rul,
            "rul_interval_width_cycles": outputs.rul_interval[:, 1] - outputs.rul_interval[:, 0],
            "rul_novelty_ratio": outputs.novelty,
        }
        by_head = answers.head_entropy_ratio
        if outputs.head_attention is not None and by_head is not None:
            found["rul_attention_head_similarity_ratio"] = head_similarity(outputs.head_attention)
            for ratios, child in zip(by_head.T, self._heads, strict=True):
                child.observe_array(ratios)
        for name, values in found.items():
            self._histograms[name].observe_array(values)
        entropy = answers.entropy_ratio
        self._entropy.observe_array(entropy)
        lowest, highest = self._usual_entropy
        self._low.inc(int(np.count_nonzero(entropy < lowest[lengths])))
        self._high.inc(int(np.count_nonzero(entropy > highest[lengths])))
        states = np.bincount(answers.state, minlength=len(STATES))
        for child, count in zip(self._states, states.tolist(), strict=True):
            child.inc(count)


class Manifests(Collector):
    """Shows what the bundles say of themselves; each worker has loaded the same ones.

    Args:
        runtimes: The models that are loaded, by name; it changes with them.
    """

    def __init__(self, registry: CollectorRegistry, runtimes: Mapping[str, Runtime]) -> None:
        self._runtimes: Final = runtimes
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the families with the samples of each model."""
        info = GaugeMetricFamily(
            "rul_model_info",
            "1 for each loaded model; labels are its version, file digest, provider and the order of "
            "providers.",
            labels=("model", "version", "sha256", "provider", "providers"),
        )
        coverage = GaugeMetricFamily(
            "rul_nominal_coverage_ratio",
            "Share of outcomes that the model's intervals should hold.",
            labels=("model",),
        )
        band = GaugeMetricFamily(
            "rul_attention_entropy_band_ratio",
            "Ends of the reference band of the attention entropy ratio of full windows; 0.5 % are beyond "
            "each.",
            labels=("model", "head", "side"),
        )
        for name, model in self._runtimes.items():
            manifest, order = model.manifest, ">".join(model.placement.providers)
            info.add_metric((name, manifest.version, model.sha256, model.provider, order), 1)
            coverage.add_metric((name,), manifest.nominal_coverage)
            for reference in manifest.entropy:
                for side, limits in zip(
                    (Side.LOW, Side.HIGH), reference.limits(manifest.context), strict=True
                ):
                    band.add_metric((name, reference.head, side.value), limits[-1])
        yield from (info, coverage, band)

    describe = collect  # when it is registered, no model is loaded
