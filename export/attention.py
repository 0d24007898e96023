"""Diagnostics of a bundle's attention: collapse, uniformity, sinks, redundant heads, faithfulness.

Attention fails without an error: it collapses onto one cycle, spreads evenly, sinks into the
first or last cycle, or several heads attend alike. Each failure has a number here, taken for each
head before averaging. `model.faithfulness` measures whether the attended cycles carry the answer.
This module must not know torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from export.bundle import Manifest
from export.occlusion import Typical, regimes_of
from export.session import Session
from model.domain import BoolArray, FloatArray, IntArray, WindowSet, attention_entropy_ratio, effective_cycles
from model.faithfulness import (
    DRAWS,
    SHARES,
    Ask,
    Faithfulness,
    Reply,
    Watch,
    measure_faithfulness,
)
from model.sensitivity import Sensitivity, measure_sensitivity, wear_direction, worn_readings

MEAN_HEAD: Final = "mean"
"""Name of the attention that makes the answer; heads are named by their number."""


@dataclass(frozen=True, slots=True)
class HeadReport:
    """Attention of one head, over windows of two cycles or more."""

    head: str  # `mean`, or the head's number
    entropy_ratio: float  # Median, 0..1
    entropy_low: float  # 5 % quantile
    entropy_high: float  # 95 % quantile
    effective_cycles: float  # Median
    first_mass: float  # Mean weight of a window's first cycle
    last_mass: float  # Mean weight of its last cycle
    first_over_equal: float  # Mean weight of the first cycle over its equal share
    last_over_equal: float  # The same of the last cycle
    peak_weight: float  # Mean of the largest weight
    # Entropy band of full windows in calibration, where the manifest has one for this head.
    band: tuple[float, float] | None
    collapsed: float  # Share of windows below the band of their length; NaN without a band
    uniform: float  # Share of windows above it; NaN without a band


def heads_of(answers: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return attention [W, T] by head: `mean` first, then each head of the graph."""
    heads = {MEAN_HEAD: answers["attention"]}
    if "head_attention" in answers:
        per_head = answers["head_attention"]
        heads |= {str(h): per_head[:, h] for h in range(per_head.shape[1])}
    return heads


def sinks(attention: FloatArray, lengths: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the weights of each window's first and last valid cycle, [W, T] -> [W], [W]."""
    last = np.take_along_axis(attention, (lengths - 1)[:, None], axis=1)[:, 0]
    return attention[:, 0], last


def report_head(
    head: str, attention: FloatArray, lengths: IntArray, limits: tuple[FloatArray, FloatArray] | None
) -> HeadReport:
    """Summarise the attention of one head, [W, T] and [W], against `EntropyReference.limits`.

    Windows of one cycle are ignored; every number is NaN without other windows.
    """
    choice = lengths > 1
    attention, lengths = attention[choice], lengths[choice]
    ratio = attention_entropy_ratio(attention, lengths)
    first, last = sinks(attention, lengths)
    empty = len(lengths) == 0

    def mean(values: FloatArray | BoolArray) -> float:
        return float("nan") if empty else float(values.mean())

    low, median, high = [float("nan")] * 3 if empty else np.quantile(ratio, (0.05, 0.5, 0.95)).tolist()
    return HeadReport(
        head=head,
        entropy_low=low,
        entropy_ratio=median,
        entropy_high=high,
        effective_cycles=float("nan") if empty else float(np.median(effective_cycles(attention))),
        first_mass=mean(first),
        last_mass=mean(last),
        first_over_equal=mean(first * lengths),
        last_over_equal=mean(last * lengths),
        peak_weight=mean(attention.max(axis=1, initial=0.0)),
        band=None if limits is None else (float(limits[0][-1]), float(limits[1][-1])),
        collapsed=float("nan") if limits is None else mean(ratio < limits[0][lengths]),
        uniform=float("nan") if limits is None else mean(ratio > limits[1][lengths]),
    )


def report_heads(
    answers: Mapping[str, FloatArray], lengths: IntArray, manifest: Manifest
) -> list[HeadReport]:
    """Summarise the attention of every head, against the bands of the manifest."""
    bands = {each.head: each.limits(manifest.context) for each in manifest.entropy}
    return [
        report_head(head, attention, lengths, bands.get(head))
        for head, attention in heads_of(answers).items()
    ]


def head_redundancy(head_attention: FloatArray, lengths: IntArray) -> FloatArray:
    """Compute the mean Jensen-Shannon divergence of each two heads, in bits.

    [W, H, T] -> [H, H], 0..1: 0 where two heads are the same (one is redundant), 1 where they share
    no cycle. Windows of one cycle are ignored. Lin, "Divergence measures based on the Shannon
    entropy" (IEEE Trans. Inf. Theory 37, 1991).
    """
    a = head_attention[lengths > 1].astype(np.float64)
    if len(a) == 0:
        return np.full((head_attention.shape[1],) * 2, np.nan)
    own = _bits(a)  # [W, H]
    apart = np.zeros((a.shape[1],) * 2)
    for h in range(a.shape[1]):
        middle = _bits((a[:, h, None] + a) / 2)  # [W, H]
        apart[h] = (middle - (own[:, h, None] + own) / 2).mean(axis=0)
    return np.clip(apart, 0.0, 1.0)


def asked(session: Session, manifest: Manifest) -> Ask:
    """Return what predicts windows by a bundle's graph."""

    def ask(readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> Reply:
        answers = session.answer_all(readings, lengths, last_cycle)
        rul = manifest.baseline + answers["contribution"].astype(np.float64).sum(axis=-1)
        rul += answers.get("window_contribution", 0.0)
        attention, of_readings = answers["attention"], answers.get("sensor_contribution")
        return Reply(
            rul,
            answers.get("evidence", attention),
            attention,
            answers.get("head_attention"),
            None if of_readings is None else of_readings.sum(axis=1),
        )

    return ask


def bundle_sensitivity(session: Session, manifest: Manifest, windows: WindowSet) -> Sensitivity:
    """Measure how evidence follows a sudden wear, lag and the next cycle."""
    settings = manifest.schema_of_columns.indices("setting")
    worn = worn_readings(
        windows.readings,
        regimes_of(manifest),
        settings=settings,
        deviation=np.array([regime.standard_deviation for regime in manifest.regimes]),
        by=wear_direction(manifest, settings),
    )
    return measure_sensitivity(asked(session, manifest), windows, worn)


def bundle_faithfulness(
    session: Session,
    manifest: Manifest,
    windows: WindowSet,
    *,
    shares: tuple[float, ...] = SHARES,
    draws: int = DRAWS,
    seed: int = 0,
    watch: Watch | None = None,
) -> Faithfulness:
    """Measure how far the RUL moves when cycles take the training mean of their regime."""
    typical, ask = Typical(manifest).of(windows.readings), asked(session, manifest)
    return measure_faithfulness(ask, windows, typical, shares=shares, draws=draws, seed=seed, watch=watch)


def _bits(attention: FloatArray) -> FloatArray:
    """Compute the Shannon entropy in bits, [..., T] -> [...]."""
    return -(attention * np.log2(np.where(attention > 0, attention, 1.0))).sum(axis=-1)
