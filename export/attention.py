"""What the attention of a bundle looks like, and how far it can be trusted.

Attention fails in ways that no error shows: it collapses onto one cycle, spreads evenly and says
nothing, sinks into the first or the last cycle whatever they read, or several heads look at the
same. Each has a number here, taken for each head before any averaging. Whether the attended cycles
carry the answer is measured by `model.faithfulness`. This module must not know torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from export.bundle import EntropyReference, Manifest
from export.session import Session
from model.domain import (
    BoolArray,
    FloatArray,
    IntArray,
    WindowSet,
    attention_entropy_ratio,
    effective_cycles,
)
from model.faithfulness import (
    DRAWS,
    SHARES,
    Faithfulness,
    Reply,
    Watch,
    measure_faithfulness,
    typical_readings,
)
from model.regimes import Regimes

MEAN_HEAD: Final = "mean"
"""The attention that the answer is made with; heads go by their number."""


@dataclass(frozen=True, slots=True)
class HeadReport:
    """How one head attends, over windows of two cycles or more.

    Attributes:
        head: `mean`, or the head's number.
        entropy_ratio: Median, 0..1.
        entropy_low: Its 5 % quantile.
        entropy_high: Its 95 % quantile.
        effective_cycles: Median.
        first_mass: Mean weight of a window's first cycle.
        last_mass: Mean weight of its last.
        first_over_equal: Mean weight of the first cycle over what equal weights would give it.
        last_over_equal: The same of the last.
        peak_weight: Mean of the largest weight.
        reference: The band that calibration saw, where the manifest has one for this head.
        collapsed: Share of windows below the band; NaN without one.
        uniform: Share of windows above it; NaN without one.
    """

    head: str
    entropy_ratio: float
    entropy_low: float
    entropy_high: float
    effective_cycles: float
    first_mass: float
    last_mass: float
    first_over_equal: float
    last_over_equal: float
    peak_weight: float
    reference: EntropyReference | None
    collapsed: float
    uniform: float


def heads_of(answers: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Attention [W, T] by head: `mean` first, then each head's own where the graph gives them."""
    heads = {MEAN_HEAD: answers["attention"]}
    if "head_attention" in answers:
        per_head = answers["head_attention"]
        heads |= {str(h): per_head[:, h] for h in range(per_head.shape[1])}
    return heads


def sinks(attention: FloatArray, lengths: IntArray) -> tuple[FloatArray, FloatArray]:
    """Weight of each window's first and of its last valid cycle, [W, T] -> [W], [W]."""
    last = np.take_along_axis(attention, (lengths - 1)[:, None], axis=1)[:, 0]
    return attention[:, 0], last


def report_head(
    head: str, attention: FloatArray, lengths: IntArray, reference: EntropyReference | None
) -> HeadReport:
    """How one head attends, [W, T] and [W].

    Windows of one cycle leave no choice and are left out; NaN everywhere where there are no others.
    """
    choice = lengths > 1
    attention, lengths = attention[choice], lengths[choice]
    ratio = attention_entropy_ratio(attention, lengths)
    first, last = sinks(attention, lengths)
    nothing = len(lengths) == 0
    quantiles = [float("nan")] * 3 if nothing else np.quantile(ratio, (0.05, 0.5, 0.95)).tolist()

    def mean(values: FloatArray | BoolArray) -> float:
        return float("nan") if nothing else float(values.mean())

    return HeadReport(
        head=head,
        entropy_low=quantiles[0],
        entropy_ratio=quantiles[1],
        entropy_high=quantiles[2],
        effective_cycles=float("nan") if nothing else float(np.median(effective_cycles(attention))),
        first_mass=mean(first),
        last_mass=mean(last),
        first_over_equal=mean(first * lengths),
        last_over_equal=mean(last * lengths),
        peak_weight=mean(attention.max(axis=1, initial=0.0)),
        reference=reference,
        collapsed=float("nan") if reference is None else mean(ratio < reference.low),
        uniform=float("nan") if reference is None else mean(ratio > reference.high),
    )


def report_heads(
    answers: Mapping[str, FloatArray], lengths: IntArray, manifest: Manifest
) -> list[HeadReport]:
    """How every head attends, held against the bands of the manifest."""
    bands = {band.head: band for band in manifest.entropy}
    return [
        report_head(head, attention, lengths, bands.get(head))
        for head, attention in heads_of(answers).items()
    ]


def head_redundancy(head_attention: FloatArray, lengths: IntArray) -> FloatArray:
    """How far apart each two heads look: Jensen-Shannon divergence in bits, mean over windows.

    [W, H, T] -> [H, H], 0..1: 0 where two heads are the same (one of them is redundant), 1 where
    they share no cycle. Windows of one cycle are left out. Lin, "Divergence measures based on the
    Shannon entropy" (IEEE Trans. Inf. Theory 37, 1991).
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


def regimes_of(manifest: Manifest) -> Regimes:
    """The regimes as the graph tells them apart.

    The manifest has no scale of the settings, but what makes it: their spread over all readings is
    that within the regimes plus that of the regimes' means, each by its share.
    """
    settings = list(manifest.schema_of_columns.indices("setting"))
    share = np.array([regime.share for regime in manifest.regimes])[:, None]
    mean = np.array([regime.mean for regime in manifest.regimes])[:, settings]
    deviation = np.array([regime.standard_deviation for regime in manifest.regimes])[:, settings]
    middle = (share * mean).sum(axis=0)
    spread = np.sqrt((share * (deviation**2 + (mean - middle) ** 2)).sum(axis=0))
    centre = np.array([regime.centre for regime in manifest.regimes]).reshape(len(share), len(settings))
    return Regimes(centre, np.where(spread > 0, spread, 1.0))


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
    """How far a bundle's RUL moves when cycles take the training mean of their regime.

    Raises:
        InvalidData: no window is long enough.
    """

    def ask(readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> Reply:
        answers = session.answer_all(readings, lengths, last_cycle)
        rul = manifest.baseline + answers["contribution"].astype(np.float64).sum(axis=-1)
        return Reply(rul, answers["attention"])

    typical = typical_readings(
        windows.readings,
        regimes_of(manifest),
        settings=manifest.schema_of_columns.indices("setting"),
        mean=np.array([regime.mean for regime in manifest.regimes]),
    )
    return measure_faithfulness(ask, windows, typical, shares=shares, draws=draws, seed=seed, watch=watch)


def _bits(attention: FloatArray) -> FloatArray:
    """Shannon entropy in bits, [..., T] -> [...]."""
    return -(attention * np.log2(np.where(attention > 0, attention, 1.0))).sum(axis=-1)
