"""The metrics of batches and of what the networks answer, declared once and counted for each model."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry, Gauge

from model.domain import FloatArray, attention_lag, edge_weights, head_similarity
from service.core.answers import STATES, Answers
from service.core.ports import BatchReport
from service.core.runtime import Runtime
from service.core.shadow import LOWER, RUL, UPPER
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
PART_BATCHES: Final = 64
"""Most windows and batches that are counted in one go."""


class Families:
    """The metrics of batches; the models' children come and go with them."""

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
        self._declare_attention(shared)
        self._declare_answers(shared)
        self.shadow: Final = shared.histogram(
            "rul_shadow_absolute_difference_cycles",
            "Absolute difference of a candidate's RUL (shadow, canary) from the serving model's, in cycles.",
            ERROR_CYCLES,
            model=(),
        )
        self.shadow_beyond: Final = shared.counter(
            "rul_shadow_beyond_interval_total",
            "Windows whose RUL by the candidate (shadow, canary) is outside the serving model's interval.",
            model=(),
        )
        self.shadow_failed: Final = shared.counter(
            "rul_shadow_failed_total", "Requests that the shadow did not answer.", model=()
        )
        self.canary: Final = shared.counter(
            "rul_canary_requests_total", "Requests that went to the canary.", model=()
        )
        self.canary_failed: Final = shared.counter(
            "rul_canary_failed_total",
            "Requests that the canary did not answer, and the model that serves did.",
            model=(),
        )
        self.canary_returned: Final = shared.counter(
            "rul_canary_returned_total",
            "Canaries that passed a bound, so that all requests went back to the model that serves.",
            model=(),
        )

    def _declare_attention(self, shared: Shared) -> None:
        self.entropy = shared.histogram(
            "rul_attention_entropy_ratio",
            "Attention entropy over its largest value; 0: one cycle has all weight, 1: all have the same.",
            TWENTIETHS,
            model=(),
            head=(),
        )
        self.peak = shared.histogram(
            "rul_attention_peak_weight", "Largest attention weight of a window.", TWENTIETHS, model=()
        )
        self.first = shared.histogram(
            "rul_attention_first_cycles_weight",
            "Attention weight of the first tenth of a window's cycles; even attention has 0.1.",
            TWENTIETHS,
            model=(),
        )
        self.last = shared.histogram(
            "rul_attention_last_cycles_weight",
            "Attention weight of the last tenth of a window's cycles; even attention has 0.1.",
            TWENTIETHS,
            model=(),
        )
        self.lag = shared.histogram(
            "rul_attention_lag_cycles", "Mean lag of the attention behind the last cycle.", LAGS, model=()
        )
        self.similarity = shared.histogram(
            "rul_attention_head_similarity_ratio",
            "Mean cosine similarity of each two heads' attention; 1: all heads attend alike.",
            TWENTIETHS,
            model=(),
        )
        self.out_of_band = shared.counter(
            "rul_attention_out_of_band_total",
            "Windows whose attention entropy is outside the reference band of their length; low: collapsed, "
            "high: uniform.",
            model=(),
            side=[side.value for side in Side],
        )

    def _declare_answers(self, shared: Shared) -> None:
        self.rul = shared.histogram("rul_prediction_cycles", "Predicted RUL in cycles.", CYCLES, model=())
        self.width = shared.histogram(
            "rul_interval_width_cycles",
            "Upper minus lower bound of the prediction interval, in cycles.",
            CYCLES,
            model=(),
        )
        self.states = shared.counter(
            "rul_state_total",
            "Answers by state.",
            model=(),
            state=[state.value for state in STATES],
        )
        self.novelty = shared.histogram(
            "rul_novelty_ratio",
            "Distance from the training data; 1 is its 99.5 % quantile.",
            NOVELTY,
            model=(),
        )
        self.imputed = shared.histogram(
            "rul_imputed_fraction", "Missing readings over all readings of a window.", FRACTIONS
        )


class ModelMetrics:
    """Counts the batches of one model: a `BatchObserver`.

    Args:
        families: What is counted in.
        model: The model.
        drift: Counts the windows for drift; None: nothing does.

    Attributes:
        ran: Takes a batch that has run; `count` counts it.
        is_released: True where no batch follows.
    """

    def __init__(
        self,
        families: Families,
        model: Runtime,
        *,
        drift: DriftMonitor | None,
    ) -> None:
        name = model.manifest.name
        self._queue: Final = families.stage_seconds.labels(Stage.QUEUE.value)
        self._answered: Final = families.stage_seconds.labels(Stage.INFERENCE.value)
        self._cancelled: Final = families.cancelled.labels()
        self._shadow: Final = families.shadow.labels(name)
        self._shadow_beyond: Final = families.shadow_beyond.labels(name)
        self._shadow_failed: Final = families.shadow_failed.labels(name)
        self._canary: Final = families.canary.labels(name)
        self._canary_failed: Final = families.canary_failed.labels(name)
        self._canary_returned: Final = families.canary_returned.labels(name)
        self._drift: DriftMonitor | None = drift
        self._inference: Final = families.inference.labels(name, model.provider)
        self._batch: Final = families.batch.labels()
        self._peak: Final = families.peak.labels(name)
        self._first, self._last = families.first.labels(name), families.last.labels(name)
        self._lag: Final = families.lag.labels(name)
        self._similarity: Final = families.similarity.labels(name)
        self._rul: Final = families.rul.labels(name)
        self._width: Final = families.width.labels(name)
        self._novelty: Final = families.novelty.labels(name)
        self._imputed: Final = families.imputed.labels()
        self._entropy: Final = families.entropy.labels(name, "mean")
        heads = range(model.manifest.heads)
        self._heads: Final = [families.entropy.labels(name, str(head)) for head in heads]
        self._states: Final = [families.states.labels(name, state.value) for state in STATES]
        self._low, self._high = (families.out_of_band.labels(name, s.value) for s in (Side.LOW, Side.HIGH))
        self._usual_entropy: Final = model.manifest.entropy[0].limits(model.manifest.context)
        self._waiting: Final[deque[BatchReport]] = deque()
        self.is_released = False
        self.ran: Final = self._waiting.append

    def cancelled(self, windows: int) -> None:
        """Count windows whose caller left before they were answered."""
        self._cancelled.inc(windows)

    def compared(self, candidate: FloatArray, served: FloatArray) -> None:
        """Count what a candidate and the model that serves answered to the same windows."""
        rul = candidate[:, RUL]
        self._shadow.observe_each(np.abs(rul - served[:, RUL]).tolist())
        beyond = (rul < served[:, LOWER]) | (rul > served[:, UPPER])
        self._shadow_beyond.inc(int(np.count_nonzero(beyond)))

    def shadow_failed(self) -> None:
        """Count a request that the shadow did not answer."""
        self._shadow_failed.inc()

    def canary_asked(self) -> None:
        """Count a request that the canary takes."""
        self._canary.inc()

    def canary_failed(self) -> None:
        """Count a request that the canary did not answer."""
        self._canary_failed.inc()

    def canary_returned(self) -> None:
        """Count a canary that passed a bound."""
        self._canary_returned.inc()

    def retire(self) -> None:
        """Leave drift to the version that takes over; batches in flight are still counted."""
        self._drift = None

    def release(self) -> None:
        """Note that no batch follows; called on any thread."""
        self.is_released = True

    @property
    def waits(self) -> bool:
        """Whether batches wait to be counted."""
        return bool(self._waiting)

    def count(self) -> None:
        """Count batches that wait: so many that the event loop waits for about a millisecond."""
        windows = 0
        by_cycles: defaultdict[int, list[tuple[Answers, list[str | None]]]] = defaultdict(list)
        for _ in range(min(len(self._waiting), PART_BATCHES)):
            report = self._waiting.popleft()
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
        self._count_attention(answers)
        self._rul.observe_array(answers.outputs.rul)
        self._width.observe_array(answers.interval_width)
        self._novelty.observe_array(answers.outputs.novelty)
        states = np.bincount(answers.state, minlength=len(STATES))
        for child, count in zip(self._states, states.tolist(), strict=True):
            child.inc(count)

    def _count_attention(self, answers: Answers) -> None:
        attention, lengths = answers.outputs.attention, answers.asked.lengths
        self._peak.observe_array(answers.peak_weight)
        self._lag.observe_array(attention_lag(attention, lengths))
        for weights, child in zip(edge_weights(attention, lengths), (self._first, self._last), strict=True):
            child.observe_array(weights)
        heads, by_head = answers.outputs.head_attention, answers.head_entropy_ratio
        if heads is not None and by_head is not None:
            self._similarity.observe_array(head_similarity(heads))
            for ratios, child in zip(by_head.T, self._heads, strict=True):
                child.observe_array(ratios)
        entropy = answers.entropy_ratio
        self._entropy.observe_array(entropy)
        lowest, highest = self._usual_entropy
        self._low.inc(int(np.count_nonzero(entropy < lowest[lengths])))
        self._high.inc(int(np.count_nonzero(entropy > highest[lengths])))


class Manifests:
    """Shows what the bundles say of themselves; each worker has loaded the same ones."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self._info: Final = gauge(
            "rul_model_info",
            "1 for each loaded model; labels are its version, file digest, provider and the order of "
            "providers.",
            ("model", "version", "sha256", "provider", "providers"),
        )
        self._coverage: Final = gauge(
            "rul_nominal_coverage_ratio",
            "Share of outcomes that the model's intervals should hold.",
            ("model",),
        )
        self._band: Final = gauge(
            "rul_attention_entropy_band_ratio",
            "Ends of the reference band of the attention entropy ratio of full windows; 0.5 % are beyond "
            "each.",
            ("model", "head", "side"),
        )

        self._shows = False

    def show(self, models: Iterable[Runtime]) -> None:
        """Show these models, and no others."""
        if self._shows:  # at the start there is nothing to clear, and BentoML's registry warns that it cannot
            for family in (self._info, self._coverage, self._band):
                family.clear()
        self._shows = True
        for model in models:
            manifest, order = model.manifest, ">".join(model.placement.providers)
            self._info.labels(manifest.name, manifest.version, model.sha256, model.provider, order).set(1)
            self._coverage.labels(manifest.name).set(manifest.nominal_coverage)
            for reference in manifest.entropy:
                low, high = reference.limits(manifest.context)
                self._band.labels(manifest.name, reference.head, Side.LOW.value).set(low[-1])
                self._band.labels(manifest.name, reference.head, Side.HIGH.value).set(high[-1])
