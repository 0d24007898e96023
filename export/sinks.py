"""Attention sinks: weight on the first or last cycle, held against what hiding that cycle does.

A sink draws weight whatever the readings are (Xiao et al., "Efficient streaming language models with
attention sinks", ICLR 2024). A large weight alone proves nothing: it matters whether the answer
rests on the cycle too. This module must not know torch or screens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from export.attention import heads_of, sinks
from model.domain import FloatArray, IntArray
from model.faithfulness import Faithfulness

MUCH: Final = 3.0
"""A cycle with more weight than this, in equal shares, is looked at."""
CONSTANT: Final = 0.5
"""Share of the weight that windows have whatever they hold, from which content does not explain it."""
EARNED: Final = 0.5
"""A cycle whose share of the effect is at least this part of its weight has earned it."""
STEADY_QUANTILE: Final = 0.05

Verdict = Literal["content decides", "earned", "sink"]


@dataclass(frozen=True, slots=True)
class EndWeight:
    """Weight of one head on the first or last cycle, over windows in which cycles were hidden."""

    head: str
    place: str  # first or last
    weight: float  # Mean over windows
    over_equal: float  # The same in equal shares
    steady: float  # Weight that 95 % of the windows exceed, whatever they hold
    effect: float  # Change of the RUL from hiding the cycle, over the sum for all cycles hidden one at a time

    @property
    def verdict(self) -> Verdict:
        """Return whether content explains the weight, or its effect does, or nothing: a sink."""
        if self.steady < CONSTANT * self.weight:
            return "content decides"
        return "earned" if self.effect >= EARNED * self.weight else "sink"


def end_weights(answers: Mapping[str, FloatArray], lengths: IntArray, found: Faithfulness) -> list[EndWeight]:
    """Return the ends of windows with much weight, of every head; `found` is of the same windows."""
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
    """Say in words whether the weight of an end matters."""
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
    """Say it of each end, or that no head has much weight on one."""
    nothing = f"No sinks: no head has over {MUCH:g} x an equal share on the first or the last cycle."
    return [sentence(end) for end in ends] or [nothing]
