"""Promises of the model contract, each measured on the exported graph.

They need only a bundle, so `rul check` measures them on any machine. This module must not know torch
or how the graph was made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from export.bundle import InvalidBundle, Manifest
from export.golden import Finding, contributions_add_up, farthest, interval_holds_the_answer
from export.outputs import IN_CYCLES, PER_CYCLE, cycles_of, in_cycles, output_shapes
from export.probes import probe_windows
from export.session import Session
from model.domain import BoolArray, FloatArray, WindowSet


def check_shapes(session: Session, manifest: Manifest) -> None:
    """Check the shapes and dtypes of the graph's outputs."""
    wanted = output_shapes(manifest, windows=2, cycles=min(3, manifest.context))
    cycles = wanted["attention"][-1]
    readings = np.full((2, cycles, len(manifest.columns)), np.nan, np.float32)
    got = session.answer(readings, np.array([1, cycles]), np.full(2, np.nan, np.float32))
    for name, shape in wanted.items():
        if got[name].shape != shape or got[name].dtype != np.float32:
            raise InvalidBundle(
                f"output {name}: expected float32 {shape}, got {got[name].dtype} {got[name].shape}"
            )


Answers = dict[str, FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A graph, its probe windows and its answers to all of them in one batch."""

    session: Session
    manifest: Manifest
    windows: WindowSet
    answers: Answers

    @classmethod
    def of(cls, session: Session, manifest: Manifest) -> Probe:
        """Run the graph on plausible and extreme windows."""
        windows = probe_windows(manifest)
        answers = session.answer(windows.readings, windows.lengths, windows.last_cycle)
        return cls(session, manifest, windows, answers)

    def answer_again(self, readings: FloatArray) -> Answers:
        """Run the probe windows with other readings."""
        return self.session.answer(readings, self.windows.lengths, self.windows.last_cycle)

    @property
    def padding(self) -> BoolArray:
        """Return the mask of padding, [B, T]."""
        return np.arange(self.windows.readings.shape[1]) >= self.windows.lengths[:, None]


def measure_promises(session: Session, manifest: Manifest) -> list[Finding]:
    """Measure every promise on plausible and extreme windows."""
    probe = Probe.of(session, manifest)
    return [promise(probe) for promise in promises_of(manifest)]


def promises_of(manifest: Manifest) -> tuple[Callable[[Probe], Finding], ...]:
    """Return the promises that a bundle's graph keeps."""
    return PROMISES + EXPLANATION_PROMISES if manifest.explains_readings else PROMISES


def answers_are_finite(probe: Probe) -> Finding:
    """Count NaN and infinite answers to valid windows."""
    return Finding("answers that are not finite", _not_finite(probe.answers), 0)


def attention_sums_to_one(probe: Probe) -> Finding:
    """Compare the sums of attention and evidence over the valid cycles with 1."""
    off = [
        float(np.abs(probe.answers[name].astype(np.float64).sum(axis=-1) - 1).max())
        for name in ("attention", "head_attention", "evidence")
        if name in probe.answers
    ]
    return Finding("attention sums to 1", max(off), 1e-5)


def padding_gets_nothing(probe: Probe) -> Finding:
    """Find the largest attention, contribution or evidence on padding; it is exactly 0."""
    worst = 0.0
    for name in PER_CYCLE & set(probe.answers):
        answer = np.swapaxes(probe.answers[name], 1, 2) if name == "head_attention" else probe.answers[name]
        worst = max(worst, float(np.abs(answer[probe.padding]).max(initial=0.0)))
    return Finding("attention and contribution on padding", worst, 0)


def missing_readings_contribute_nothing(probe: Probe) -> Finding:
    """Find the largest contribution of a missing reading or an unread setting; it is exactly 0."""
    without = np.isnan(probe.windows.readings)
    without |= ~np.isin(np.arange(without.shape[-1]), probe.manifest.contributing)
    stray = np.abs(probe.answers["sensor_contribution"][without]).max(initial=0.0)
    return Finding("contribution of readings that are missing or not read, cycles", float(stray), 0)


def typical_readings_contribute_nothing(probe: Probe) -> Finding:
    """Find the largest contribution of a sensor if all readings are the training mean of a regime.

    A setting that is read contributes there: it is scaled over all regimes.
    """
    mean = np.array([regime.mean for regime in probe.manifest.regimes], np.float32)
    readings = np.repeat(mean[:, None], probe.manifest.context, axis=1)
    lengths = np.full(len(mean), probe.manifest.context)
    got = probe.session.answer(readings, lengths, np.full(len(mean), np.nan, np.float32))
    contribution = got["sensor_contribution"][:, :, list(probe.manifest.schema_of_columns.indices("sensor"))]
    worst = farthest("contribution", contribution, np.zeros_like(contribution))
    allowed = in_cycles(1e-3, cap=probe.manifest.cap)
    return Finding("contribution of typical readings, cycles", worst, allowed)


def evidence_is_the_share_of_readings(probe: Probe) -> Finding:
    """Compare evidence with each cycle's share in the absolute contributions of readings."""
    weight = np.abs(probe.answers["sensor_contribution"].astype(np.float64)).sum(axis=-1)
    total = weight.sum(axis=-1, keepdims=True)
    share = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    off = np.where(total > 1.0, probe.answers["evidence"] - share, 0.0)
    return Finding("evidence is the share of each cycle's readings", float(np.abs(off).max()), 1e-5)


def probabilities_make_sense(probe: Probe) -> Finding:
    """Check that probabilities are in 0..1, sum to 1 and rise with the horizon."""
    failure, health = probe.answers["failure_probability"], probe.answers["health_state"]
    outside = max(float(-min(failure.min(), health.min())), float(max(failure.max(), health.max()) - 1))
    total = float(np.abs(health.sum(axis=-1) - 1).max())
    falling = float(-np.diff(failure, axis=-1).min(initial=0.0))
    worst = max(0.0, outside, total, falling)
    return Finding("probabilities: in 0..1, sum to 1, rise with the horizon", worst, 1e-5)


def alone_or_in_a_batch(probe: Probe) -> Finding:
    """Compare each window alone, without padding, with its answer in the batch."""
    worst = 0.0
    for i in range(len(probe.windows)):
        part = probe.windows.take(np.array([i]))
        n = int(part.lengths[0])
        alone = probe.session.answer(part.readings[:, :n], part.lengths, part.last_cycle)
        together = {name: values[i : i + 1] for name, values in probe.answers.items()}
        worst = max(worst, _relative(alone, together, n, probe.manifest.cap))
    return Finding("alone or in a batch, cycles over the cap", worst, 1e-5)


def padding_is_ignored(probe: Probe) -> Finding:
    """Put NaN, infinity and large values on padding and compare the answers."""
    worst = 0.0
    for value in (np.nan, np.inf, -1e30, 0.0):
        readings = probe.windows.readings.copy()
        readings[probe.padding] = value
        got = probe.answer_again(readings)
        worst = max(worst, _relative(got, probe.answers, readings.shape[1], probe.manifest.cap))
    return Finding("any values on padding", worst, 1e-5)


def answers_repeat(probe: Probe) -> Finding:
    """Run the same windows again and count numbers that differ in any bit."""
    again = probe.answer_again(probe.windows.readings)
    differing = sum(int((again[name] != probe.answers[name]).sum()) for name in probe.answers)
    return Finding("same windows twice, differing numbers", differing, 0)


def anything_may_be_missing(probe: Probe) -> Finding:
    """Hide each column in turn, then all, then none, without `last_cycle`; count non-finite answers."""
    columns = len(probe.manifest.columns)
    readings = np.repeat(probe.windows.readings[:1], columns + 2, axis=0)
    for column in range(columns):
        readings[column, :, column] = np.nan
    readings[columns] = np.nan
    lengths = np.repeat(probe.windows.lengths[:1], len(readings))
    got = probe.session.answer(readings, lengths, np.full(len(readings), np.nan, np.float32))
    return Finding("missing columns or last cycle: answers that are not finite", _not_finite(got), 0)


PROMISES: Final[tuple[Callable[[Probe], Finding], ...]] = (
    answers_are_finite,
    attention_sums_to_one,
    padding_gets_nothing,
    lambda probe: contributions_add_up(probe.answers, probe.manifest),
    lambda probe: interval_holds_the_answer(probe.answers, probe.manifest),
    probabilities_make_sense,
    alone_or_in_a_batch,
    padding_is_ignored,
    answers_repeat,
    anything_may_be_missing,
)

EXPLANATION_PROMISES: Final[tuple[Callable[[Probe], Finding], ...]] = (
    missing_readings_contribute_nothing,
    typical_readings_contribute_nothing,
    evidence_is_the_share_of_readings,
)
"""Promises of graphs that explain readings."""


def _not_finite(answers: Answers) -> int:
    return sum(int((~np.isfinite(answer)).sum()) for answer in answers.values())


def _relative(got: Answers, expected: Answers, cycles: int, cap: float) -> float:
    """Return the largest difference of all outputs but novelty; cycles are over the cap."""
    worst = 0.0
    for name in set(expected) - {"novelty"}:
        want = expected[name][cycles_of(name, slice(cycles))] if name in PER_CYCLE else expected[name]
        worst = max(worst, farthest(name, got[name], want) / (cap if name in IN_CYCLES else 1.0))
    return worst
