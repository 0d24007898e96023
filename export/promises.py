"""The promises of the model contract, each as a measurement on the exported graph.

They need nothing but a bundle, so that `rul check` can show on any machine what the tests show
here. This module must not know torch or how the graph was made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from export.bundle import INPUTS, Golden, InvalidBundle, Manifest
from export.probes import probe_windows
from export.session import Session
from model.domain import BoolArray, FloatArray, WindowSet

GOLDEN_TOLERANCE: Final = {"rul": 1e-3, "attention": 1e-4, "contribution": 1e-3}
"""In cycles where the output is; other outputs: 1e-2 at most."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise: the worst that was met, and the most that is allowed."""

    promise: str
    worst: float
    allowed: float

    @property
    def kept(self) -> bool:
        """Whether the promise holds; a worst of NaN does not."""
        return self.worst <= self.allowed


def check_shapes(session: Session, manifest: Manifest) -> None:
    """Names and shapes, before any value.

    Raises:
        InvalidBundle: the graph does not have the inputs, outputs or shapes of the contract.
    """
    wanted = expected_shapes(manifest, windows=2, cycles=min(3, manifest.context))
    if session.inputs != INPUTS:
        raise InvalidBundle(f"the graph reads {', '.join(session.inputs)}, expected {', '.join(INPUTS)}")
    if set(session.outputs) != set(wanted):
        raise InvalidBundle(f"the graph gives {', '.join(session.outputs)}, expected {', '.join(wanted)}")
    cycles = wanted["attention"][-1]
    readings = np.full((2, cycles, len(manifest.columns)), np.nan, np.float32)
    got = session.answer(readings, np.array([1, cycles]), np.full(2, np.nan, np.float32))
    for name, shape in wanted.items():
        if got[name].shape != shape or got[name].dtype != np.float32:
            raise InvalidBundle(
                f"output {name}: expected float32 {shape}, got {got[name].dtype} {got[name].shape}"
            )


def expected_shapes(manifest: Manifest, *, windows: int, cycles: int) -> dict[str, tuple[int, ...]]:
    """The shape of each output for this many windows of this many cycles."""
    shapes: dict[str, tuple[int, ...]] = {
        "rul": (windows,),
        "rul_interval": (windows, 2),
        "failure_probability": (windows, len(manifest.horizons)),
        "health_state": (windows, 3),
        "attention": (windows, cycles),
        "contribution": (windows, cycles),
        "head_attention": (windows, manifest.heads, cycles),
        "novelty": (windows,),
    }
    return {name: shape for name, shape in shapes.items() if name != "head_attention" or manifest.heads}


def replay_golden(session: Session, golden: Golden) -> list[Finding]:
    """How far the answers here are from the exporter's, for each output."""
    got = session.answer(golden.readings, golden.lengths, golden.last_cycle)
    if set(got) != set(golden.expected):
        raise InvalidBundle(
            f"golden windows expect {', '.join(golden.expected)}, the graph gives {', '.join(got)}: "
            "the files of the bundle do not belong together, export it again"
        )
    return [
        Finding(f"golden {name}", _farthest(got[name], expected), GOLDEN_TOLERANCE.get(name, 1e-2))
        for name, expected in golden.expected.items()
    ]


Answers = dict[str, FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A graph, the windows that try it, and what it answers to all of them in one batch."""

    session: Session
    manifest: Manifest
    windows: WindowSet
    answers: Answers

    @classmethod
    def of(cls, session: Session, manifest: Manifest) -> Probe:
        """With plausible and extreme windows."""
        windows = probe_windows(manifest)
        answers = session.answer(windows.readings, windows.lengths, windows.last_cycle)
        return cls(session, manifest, windows, answers)

    @property
    def padding(self) -> BoolArray:
        """Where the windows are padding, [B, T]."""
        return np.arange(self.windows.readings.shape[1]) >= self.windows.lengths[:, None]


def measure_promises(session: Session, manifest: Manifest) -> list[Finding]:
    """Every promise, on plausible and extreme windows."""
    probe = Probe.of(session, manifest)
    return [promise(probe) for promise in PROMISES]


def answers_are_finite(probe: Probe) -> Finding:
    """No legal window gets NaN or infinity."""
    broken = sum(int((~np.isfinite(answer)).sum()) for answer in probe.answers.values())
    return Finding("answers that are not finite", broken, 0)


def attention_sums_to_one(probe: Probe) -> Finding:
    """Over the valid cycles."""
    off = [
        float(np.abs(probe.answers[name].astype(np.float64).sum(axis=-1) - 1).max())
        for name in ("attention", "head_attention")
        if name in probe.answers
    ]
    return Finding("attention sums to 1", max(off), 1e-5)


def padding_gets_nothing(probe: Probe) -> Finding:
    """Neither attention nor contribution, to the bit."""
    per_cycle = [probe.answers["attention"], probe.answers["contribution"]]
    if "head_attention" in probe.answers:
        per_cycle.extend(np.moveaxis(probe.answers["head_attention"], 1, 0))
    stray = [float(np.abs(values[probe.padding]).max(initial=0.0)) for values in per_cycle]
    return Finding("attention and contribution on padding", max(stray), 0)


def contributions_add_up(probe: Probe) -> Finding:
    """Baseline plus contributions, clipped to 0..cap, is the RUL."""
    unclipped = probe.manifest.baseline + probe.answers["contribution"].astype(np.float64).sum(axis=-1)
    difference = np.abs(np.clip(unclipped, 0.0, probe.manifest.cap) - probe.answers["rul"])
    return Finding("baseline + contributions = RUL, cycles", float(difference.max()), 1e-3)


def interval_holds_the_answer(probe: Probe) -> Finding:
    """0 <= lower <= rul <= upper <= cap."""
    lower, upper = probe.answers["rul_interval"].T
    rul = probe.answers["rul"]
    beyond = np.max([-lower, lower - rul, rul - upper, upper - probe.manifest.cap])
    return Finding("0 <= lower <= RUL <= upper <= cap, cycles beyond", max(float(beyond), 0.0), 1e-4)


def probabilities_make_sense(probe: Probe) -> Finding:
    """In 0..1, health states sum to 1, a later horizon is never less likely."""
    failure, health = probe.answers["failure_probability"], probe.answers["health_state"]
    outside = max(float(-min(failure.min(), health.min())), float(max(failure.max(), health.max()) - 1))
    total = float(np.abs(health.sum(axis=-1) - 1).max())
    falling = float(-np.diff(failure, axis=-1).min(initial=0.0))
    return Finding(
        "probabilities: in 0..1, sum to 1, rise with the horizon", max(0.0, outside, total, falling), 1e-5
    )


def alone_or_in_a_batch(probe: Probe) -> Finding:
    """A window alone, without its padding, answers as in the batch of all; cycles over the cap."""
    worst = 0.0
    for i in range(len(probe.windows)):
        n = int(probe.windows.lengths[i])
        alone = probe.session.answer(
            probe.windows.readings[i : i + 1, :n],
            probe.windows.lengths[i : i + 1],
            probe.windows.last_cycle[i : i + 1],
        )
        worst = max(
            worst,
            _relative(alone, {k: v[i : i + 1] for k, v in probe.answers.items()}, n, probe.manifest.cap),
        )
    return Finding("alone or in a batch, cycles over the cap", worst, 1e-5)


def whatever_stands_on_padding(probe: Probe) -> Finding:
    """NaN, infinity or huge values past a window's length change nothing."""
    worst = 0.0
    for value in (np.nan, np.inf, -1e30, 0.0):
        readings = probe.windows.readings.copy()
        readings[probe.padding] = value
        got = probe.session.answer(readings, probe.windows.lengths, probe.windows.last_cycle)
        worst = max(worst, _relative(got, probe.answers, readings.shape[1], probe.manifest.cap))
    return Finding("whatever stands on padding", worst, 1e-5)


def asked_twice(probe: Probe) -> Finding:
    """The same bits."""
    again = probe.session.answer(probe.windows.readings, probe.windows.lengths, probe.windows.last_cycle)
    return Finding(
        "asked twice, differing numbers",
        sum(_differing(again[k], probe.answers[k]) for k in probe.answers),
        0,
    )


def anything_may_be_missing(probe: Probe) -> Finding:
    """Each column in turn, every column at once, and the last cycle's number: the answer is a number."""
    columns = len(probe.manifest.columns)
    readings = np.repeat(probe.windows.readings[:1], columns + 2, axis=0)
    for column in range(columns):
        readings[column, :, column] = np.nan
    readings[columns] = np.nan
    lengths = np.repeat(probe.windows.lengths[:1], len(readings))
    got = probe.session.answer(readings, lengths, np.full(len(readings), np.nan, np.float32))
    broken = sum(int((~np.isfinite(answer)).sum()) for answer in got.values())
    return Finding("missing columns or last cycle: answers that are not finite", broken, 0)


PROMISES: Final[tuple[Callable[[Probe], Finding], ...]] = (
    answers_are_finite,
    attention_sums_to_one,
    padding_gets_nothing,
    contributions_add_up,
    interval_holds_the_answer,
    probabilities_make_sense,
    alone_or_in_a_batch,
    whatever_stands_on_padding,
    asked_twice,
    anything_may_be_missing,
)


def _relative(got: Answers, expected: Answers, cycles: int, cap: float) -> float:
    """Largest difference of RUL and contribution over the cap, and of attention and probabilities."""
    unit = {"rul": cap, "rul_interval": cap, "contribution": cap}
    worst = 0.0
    for name in set(expected) - {"novelty"}:
        per_cycle = name in ("contribution", "attention", "head_attention")
        want = expected[name][..., :cycles] if per_cycle else expected[name]
        worst = max(worst, _farthest(got[name], want) / unit.get(name, 1.0))
    return worst


def _farthest(got: FloatArray, expected: FloatArray) -> float:
    """Largest absolute difference; infinite where shapes differ or anything is NaN."""
    if got.shape != expected.shape:
        return float("inf")
    difference = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    return float(np.where(np.isnan(difference), np.inf, difference).max(initial=0.0))


def _differing(a: FloatArray, b: FloatArray) -> int:
    return int((a != b).sum())
