"""Metrics of batches and answers, declared once and counted for each model."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from service.metrics.instruments import Shared

PART_WINDOWS: Final = 256
PART_BATCHES: Final = 24
"""Windows or batches after which a part of the counting ends."""

STAGES: Final = "rul_stage_duration_seconds"
INFERENCE: Final = "rul_inference_duration_seconds"
BATCH: Final = "rul_batch_windows"
IMPUTED: Final = "rul_imputed_fraction"
ENTROPY: Final = "rul_attention_entropy_ratio"
DIFFERENCE: Final = "rul_shadow_absolute_difference_cycles"
CANCELLED: Final = "rul_cancelled_total"
STATE: Final = "rul_state_total"
OUT_OF_BAND: Final = "rul_attention_out_of_band_total"

OF_MODEL: Final[Mapping[str, Sequence[str]]] = {"model": ()}
LABELS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    STAGES: {"stage": [stage.value for stage in Stage]},
    INFERENCE: {"model": (), "provider": ()},
    BATCH: {},
    IMPUTED: {},
    CANCELLED: {},
    ENTROPY: {"model": (), "head": ()},
    STATE: {"model": (), "state": [state.value for state in STATES]},
    OUT_OF_BAND: {"model": (), "side": [side.value for side in Side]},
}
"""Labels of metrics with other labels than `model`."""
HISTOGRAMS: Final = {
    STAGES: (STAGE_SECONDS, "Time of each stage of a request."),
    INFERENCE: (STAGE_SECONDS, "Duration of one run of the graph on a batch."),
    BATCH: (WINDOWS, "Windows in a batch."),
    IMPUTED: (FRACTIONS, "Fraction of a window's readings that are missing."),
    ENTROPY: (
        TWENTIETHS,
        "Attention entropy over its largest value; 0: one cycle has all weight, 1: all have the same.",
    ),
    "rul_attention_peak_weight": (TWENTIETHS, "Largest attention weight of a window."),
    "rul_attention_first_cycles_weight": (
        TWENTIETHS,
        "Attention weight of the first tenth of a window's cycles; even: about 0.1, more in short windows.",
    ),
    "rul_attention_last_cycles_weight": (
        TWENTIETHS,
        "Attention weight of the last tenth of a window's cycles; even: about 0.1, more in short windows.",
    ),
    "rul_attention_lag_cycles": (LAGS, "Mean lag of the attention behind the last cycle."),
    "rul_attention_head_similarity_ratio": (
        TWENTIETHS,
        "Mean cosine similarity of each two heads' attention; 1: all heads attend alike.",
    ),
    "rul_prediction_cycles": (CYCLES, "Predicted RUL in cycles."),
    "rul_interval_width_cycles": (CYCLES, "Upper minus lower bound of the prediction interval, in cycles."),
    "rul_novelty_ratio": (NOVELTY, "Distance from the training data; 1 is its 99.5 % quantile."),
    DIFFERENCE: (
        ERROR_CYCLES,
        "Absolute difference of a candidate's RUL (shadow, canary) from the serving model's, in cycles.",
    ),
}
COUNTERS: Final = {
    CANCELLED: "Windows whose caller left, or whose deadline passed, before their answer.",
    STATE: "Answers by state.",
    OUT_OF_BAND: "Windows whose attention entropy is outside the reference band of their length; low: "
    "collapsed, high: uniform.",
    "rul_shadow_beyond_interval_total": "Windows whose RUL by the candidate (shadow, canary) is outside the "
    "serving model's interval.",
    "rul_shadow_failed_total": "Requests that the shadow did not answer.",
    "rul_canary_requests_total": "Requests that went to the canary.",
    "rul_canary_failed_total": "Requests that the canary did not answer, and the model that serves did.",
    "rul_canary_returned_total": "Canaries that passed a bound, so that all requests returned to the model "
    "that serves.",
}


def declare(shared: Shared) -> None:
    """Declare the metrics of batches, whose children follow the loaded models."""
    for name, (buckets, text) in HISTOGRAMS.items():
        shared.histogram(name, text, buckets, **LABELS.get(name, OF_MODEL))
    for name, text in COUNTERS.items():
        shared.counter(name, text, **LABELS.get(name, OF_MODEL))


class ModelMetrics:
    """Counts the batches of one model: a `BatchObserver`.

    Attributes:
        ran: Takes a batch that has run; `count` counts it.
        shadow_failed: Counts a request that the shadow did not answer.
        canary_asked, canary_failed: Count a request that goes to the canary, and one that it did not answer.
        canary_returned: Counts a canary that passed a bound.
        drift: Counts answers and their units for drift; None: no drift.
        counted: Batches counted so far.
        is_released: Whether no batch follows.
    """

    def __init__(
        self,
        shared: Shared,
        model: Runtime,
        *,
        drift: Callable[[Answers, Sequence[str | None]], None] | None,
    ) -> None:
        name, histograms, counters = model.manifest.name, shared.histograms, shared.counters
        self._waiting: Final[deque[BatchReport]] = deque()
        self.ran: Final = self._waiting.append
        self.counted = 0
        self.is_released = False
        self.drift = drift
        self._queue, self._answered = (
            histograms[STAGES].labels(stage.value) for stage in (Stage.QUEUE, Stage.INFERENCE)
        )
        self._inference: Final = histograms[INFERENCE].labels(name, model.provider)
        self._batch, self._imputed = histograms[BATCH].labels(), histograms[IMPUTED].labels()
        self._entropy: Final = histograms[ENTROPY].labels(name, "mean")
        heads = range(model.manifest.heads)
        self._heads: Final = [histograms[ENTROPY].labels(name, str(head)) for head in heads]
        self._usual_entropy: Final = model.manifest.entropy[0].limits(model.manifest.context)
        self._of_windows: Final = {
            metric: histograms[metric].labels(name) for metric in HISTOGRAMS.keys() - LABELS
        }
        self._states: Final = [counters[STATE].labels(name, state.value) for state in STATES]
        self._low, self._high = (counters[OUT_OF_BAND].labels(name, s.value) for s in (Side.LOW, Side.HIGH))
        self._beyond: Final = counters["rul_shadow_beyond_interval_total"].labels(name).inc
        self.shadow_failed: Final = counters["rul_shadow_failed_total"].labels(name).inc
        self.canary_asked: Final = counters["rul_canary_requests_total"].labels(name).inc
        self.canary_failed: Final = counters["rul_canary_failed_total"].labels(name).inc
        self.canary_returned: Final = counters["rul_canary_returned_total"].labels(name).inc

    def compared(self, candidate: FloatArray, served: FloatArray) -> None:
        """Count answers of a candidate and of the serving model to the same windows."""
        rul = candidate[:, RUL]
        self._of_windows[DIFFERENCE].observe_each(np.abs(rul - served[:, RUL]).tolist())
        self._beyond(int(np.count_nonzero((rul < served[:, LOWER]) | (rul > served[:, UPPER]))))

    def release(self) -> None:
        """Note that no batch follows; called on any thread."""
        self.is_released = True

    @property
    def reported(self) -> int:
        """Batches reported so far, counted or not."""
        return self.counted + len(self._waiting)

    def count(self) -> None:
        """Count waiting batches for about a millisecond of the event loop."""
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
            if self.drift is not None:
                self.drift(answers, [*chain.from_iterable(names)])

    def _predictions(self, report: BatchReport, answers: Answers) -> tuple[Answers, list[str | None]]:
        """Return a batch's answers and units without probes, after counting what their windows miss."""
        units, imputed = report.units, report.imputed_fraction
        if any(report.is_probe):
            kept = [row for row, is_probe in enumerate(report.is_probe) if not is_probe]
            answers, units = answers.only(kept), [units[row] for row in kept]
            imputed = [imputed[row] for row in kept]
        self._imputed.observe_each(imputed)
        return answers, units

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
            self._of_windows[name].observe_array(values)
        entropy = answers.entropy_ratio
        self._entropy.observe_array(entropy)
        lowest, highest = self._usual_entropy
        self._low.inc(int(np.count_nonzero(entropy < lowest[lengths])))
        self._high.inc(int(np.count_nonzero(entropy > highest[lengths])))
        states = np.bincount(answers.state, minlength=len(STATES))
        for child, count in zip(self._states, states.tolist(), strict=True):
            child.inc(count)


class Manifests(Collector):
    """Shows facts from the bundles; all workers have the same ones.

    Args:
        runtimes: The loaded models by name; changes with them.
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
