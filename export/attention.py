"""Diagnostics of a bundle's attention: collapse, uniformity, sinks, redundant heads, faithfulness.

Attention fails without an error: it collapses onto one cycle, spreads evenly, sinks into the
first or last cycle, or several heads attend alike. Each failure has a number here, taken for each
head before averaging. `model.faithfulness` measures whether the attended cycles carry the answer.

A sink draws weight whatever the readings are (Xiao et al., "Efficient streaming language models with
attention sinks", ICLR 2024). A large weight alone proves nothing: it matters whether the answer rests on
the cycle too. This module must not know torch or screens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from export.bundle import Manifest
from export.evaluation_windows import spread_windows
from export.regime_readings import regimes_of
from export.session import Session
from model.domain import (
    MEAN_HEAD,
    BoolArray,
    FloatArray,
    IntArray,
    InvalidData,
    Trajectory,
    WindowSet,
    attention_entropy,
    attention_entropy_ratio,
    effective_cycles,
    heads_by_name,
)
from model.faithfulness import Ask, Faithfulness, Reply
from model.sensitivity import Sensitivity, measure_sensitivity, worn_readings

MUCH: Final = 3.0
"""An end cycle with more weight than this, over equal weights, is examined."""
CONSTANT: Final = 0.5
"""If windows have this share of the weight whatever their content, content does not explain it."""
EARNED: Final = 0.5
"""A weight is justified if the cycle's share of the effect is at least this part of it."""
STEADY_QUANTILE: Final = 0.05

Verdict = Literal["content decides", "earned", "sink"]


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
    # Entropy band of full windows in calibration, if the manifest has one for this head.
    band: tuple[float, float] | None
    collapsed: float  # Share of windows below the band of their length; NaN without a band
    uniform: float  # Share of windows above it; NaN without a band


def heads_of(answers: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return attention [W, T] by head: `mean` first, then each head of the graph."""
    return heads_by_name(answers["attention"], answers.get("head_attention"))


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

    [W, H, T] -> [H, H], 0..1: 0 if two heads are the same (one is redundant), 1 if they share
    no cycle. Windows of one cycle are ignored. Lin, "Divergence measures based on the Shannon
    entropy" (IEEE Trans. Inf. Theory 37, 1991).
    """
    a = head_attention[lengths > 1].astype(np.float64)
    if len(a) == 0:
        return np.full((head_attention.shape[1],) * 2, np.nan)
    own = attention_entropy(a)  # [W, H]
    apart = np.zeros((a.shape[1],) * 2)
    for h in range(a.shape[1]):
        middle = attention_entropy((a[:, h, None] + a) / 2)  # [W, H]
        apart[h] = (middle - (own[:, h, None] + own) / 2).mean(axis=0)
    return np.clip(apart / np.log(2.0), 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class EndWeight:
    """Weight of one head on the first or last cycle, over the windows with hidden cycles."""

    head: str
    place: str  # first or last
    weight: float  # Mean over windows
    over_equal: float  # Mean over windows, over an equal share
    steady: float  # Weight that 95 % of the windows exceed
    effect: float  # Change of the RUL from hiding the cycle, over the sum for all cycles hidden one at a time

    @property
    def verdict(self) -> Verdict:
        """Return whether the content or the effect explains the weight; otherwise it is a sink."""
        if self.steady < CONSTANT * self.weight:
            return "content decides"
        return "earned" if self.effect >= EARNED * self.weight else "sink"


def end_weights(answers: Mapping[str, FloatArray], lengths: IntArray, found: Faithfulness) -> list[EndWeight]:
    """Return the end cycles with much weight, for every head; `found` belongs to the same windows."""
    rows = found.rows
    lengths, single = lengths[rows], found.single
    total = single.sum(axis=1).mean()
    effects = [float(part.mean() / total) if total > 0 else 0.0 for part in sinks(single, lengths)]
    equal = float((1 / lengths).mean())
    ends: list[EndWeight] = []
    for head, attention in heads_of(answers).items():
        for place, weights, effect in zip(
            ("first", "last"), sinks(attention[rows], lengths), effects, strict=True
        ):
            weight, steady = float(weights.mean()), float(np.quantile(weights, STEADY_QUANTILE))
            if weight > MUCH * equal:
                ends.append(EndWeight(head, place, weight, weight / equal, steady, effect))
    return ends


def sentence(end: EndWeight) -> str:
    """Word whether the weight of an end cycle matters."""
    meaning = {
        "content decides": "it differs between windows: content decides, no sink",
        "earned": "the answer rests on this cycle as well: no sink",
        "sink": "the answer rests on it less than the weight says: a SINK, do not read it as importance",
    }
    return (
        f"Head {end.head}: {end.weight:.0%} of the weight is on the {end.place} cycle "
        f"({end.over_equal:.1f} x equal), over {end.steady:.1%} in 19 of 20 windows. Hiding that cycle has "
        f"{end.effect:.1%} of the effect of all cycles hidden one at a time; {meaning[end.verdict]}."
    )


def sentences(ends: list[EndWeight]) -> list[str]:
    """Word each end cycle with much weight, or that there is none."""
    nothing = f"No sinks: no head has over {MUCH:g} x an equal share on the first or the last cycle."
    return [sentence(end) for end in ends] or [nothing]


def asked(session: Session, manifest: Manifest) -> Ask:
    """Return a function that predicts windows with a bundle's graph."""

    def ask(windows: WindowSet) -> Reply:
        answers = session.answer_all(windows)
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
    worn = worn_readings(windows.readings, regimes_of(manifest), manifest, settings=settings)
    return measure_sensitivity(asked(session, manifest), windows, worn)


@dataclass(frozen=True, slots=True, eq=False)
class CycleMap:
    """Where each cycle of a window looks."""

    unit: str
    cycles: IntArray  # [n], the unit's own numbers, also of cycles without a reading
    weights: FloatArray  # [H, n, n]; row: the cycle that looks, column: the cycle that it looks at

    def looks(self, cycle: int) -> dict[str, FloatArray]:
        """Return the weights [n] of one cycle's look: the mean of the heads, then each head.

        Raises:
            InvalidData: the cycle is not in the window.
        """
        (where,) = np.nonzero(self.cycles == cycle)
        if not len(where):
            raise InvalidData(
                f"unit {self.unit} has no cycle {cycle} in its last window, "
                f"which holds {self.cycles[0]} to {self.cycles[-1]}"
            )
        rows = self.weights[:, where[0]]
        return {MEAN_HEAD: rows.mean(axis=0)} | {str(h): row for h, row in enumerate(rows)}


def map_of(session: Session, manifest: Manifest, trajectory: Trajectory) -> CycleMap:
    """Compute the map of a unit's last window."""
    window = spread_windows([trajectory], manifest, per_unit=1)
    length = int(window.lengths[0])
    weights = session.self_attention(window.readings, window.lengths, window.last_cycle)
    cycles = int(trajectory.cycles[-1]) - np.arange(length)[::-1]  # also those without a reading
    return CycleMap(trajectory.unit, cycles, weights[0, :, :length, :length])
