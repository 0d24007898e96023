"""A batch of outputs, read once for all who wait on it.

Everything that can be computed for a whole batch is, here, in array operations: turning one
window's answer into a reply then costs a few look-ups. This module knows the graph's outputs and
the manifest; it must not know requests.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from export.bundle import EntropyReference, Manifest
from model.domain import NOVELTY_LIMIT, BoolArray, FloatArray, IntArray, RulState, attention_entropy
from service.core.runtime import Outputs
from service.core.rules import WindowRules
from service.core.window import Windows

NEAR_CAP: Final = 0.98
"""Share of the cap from which an answer is "at least the cap". Every RUL above the cap has the label cap,
so the network's answers for new units scatter just below it, and their digits mean nothing."""

STATES: Final = tuple(RulState)
_ESTIMATED, _AT_LEAST_CAP, _INSUFFICIENT, _OUT = range(len(STATES))


CautionCode = Literal[
    "out_of_range", "truncated_to_context", "last_cycle_unknown", "attention_collapsed", "attention_uniform"
]


class Caution(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reason to read an answer with care: one of its `warnings`."""

    code: CautionCode
    detail: str
    column: str | None = None


CYCLE_UNKNOWN: Final = Caution(
    "last_cycle_unknown", "last_cycle is not given: cycles are counted from the window's first reading"
)


class Answers:
    """One batch's outputs with what follows from them.

    Attributes:
        entropy_ratio: float64 [B], 0..1; NaN for windows of one cycle.
        effective_cycles: float64 [B].
        head_entropy_ratio: float64 [B, H], where the network has heads.
        state: int [B], indices into `STATES`.
        out_of_range: Of each window, whether a reading may be outside the range of training.
        kept: What a protocol makes of the whole batch, once for all who wait on it.
    """

    def __init__(
        self,
        outputs: Outputs,
        lengths: IntArray,
        manifest: Manifest,
        *,
        last_cycle: FloatArray,
        out_of_range: list[bool] | None = None,
    ) -> None:
        """Read the outputs of windows of so many cycles; None: nobody has looked at their range."""
        self.outputs: Final = outputs
        self.lengths: Final = lengths
        self.last_cycle: Final = last_cycle
        entropy = attention_entropy(outputs.attention)
        self._ln_cycles: Final = np.log(np.where(lengths > 1, lengths, np.nan).astype(np.float64))
        self.entropy_ratio: Final[FloatArray] = entropy / self._ln_cycles
        self.effective_cycles: Final[FloatArray] = np.exp(entropy)
        self.state: Final = states(outputs, lengths, manifest, last_cycle=last_cycle)
        self.out_of_range: Final = [True] * len(lengths) if out_of_range is None else out_of_range
        self._manifest: Final = manifest
        self.kept: Final[dict[object, Any]] = {}

    def only(self, which: BoolArray) -> Answers:
        """The answers to some of the windows."""
        heads = self.outputs.head_attention
        arrays = {
            field.name: getattr(self.outputs, field.name)[which]
            for field in fields(self.outputs)
            if field.name != "head_attention"
        }
        outputs = Outputs(**arrays, head_attention=None if heads is None else heads[which])
        return Answers(outputs, self.lengths[which], self._manifest, last_cycle=self.last_cycle[which])

    @cached_property
    def head_entropy_ratio(self) -> FloatArray | None:
        """Each head's entropy ratio before any averaging, [B, H]."""
        heads = self.outputs.head_attention
        return None if heads is None else attention_entropy(heads) / self._ln_cycles[:, None]

    @cached_property
    def peak_weight(self) -> FloatArray:
        """The largest weight of each window, [B]."""
        return self.outputs.attention.max(axis=1)

    @cached_property
    def interval_width(self) -> FloatArray:
        """Upper minus lower, in cycles, [B]."""
        return self.outputs.rul_interval[:, 1] - self.outputs.rul_interval[:, 0]

    # Lists of plain numbers: one conversion a batch in place of one a value.

    @cached_property
    def rul(self) -> list[float]:
        """What is reported, in cycles: an answer near the cap is the cap, which its state says."""
        near_cap = self.state == _AT_LEAST_CAP
        return np.where(near_cap, np.float32(self._manifest.cap), self.outputs.rul).tolist()

    @cached_property
    def states(self) -> list[RulState]:
        """How each answer may be read."""
        return [STATES[i] for i in self.state.tolist()]

    @cached_property
    def interval(self) -> list[list[float]]:
        """Lower and upper, in cycles."""
        return self.outputs.rul_interval.tolist()

    @cached_property
    def failure_probability(self) -> list[list[float]]:
        """One probability a horizon."""
        return self.outputs.failure_probability.tolist()

    @cached_property
    def health_state(self) -> list[list[float]]:
        """One probability a state."""
        return self.outputs.health_state.tolist()

    @cached_property
    def health_label(self) -> list[int]:
        """The most probable state."""
        return self.outputs.health_state.argmax(axis=1).tolist()

    @cached_property
    def attention(self) -> list[list[float]]:
        """Weights, padding included."""
        return self.outputs.attention.tolist()

    @cached_property
    def contribution(self) -> list[list[float]]:
        """Cycles, padding included."""
        return self.outputs.contribution.tolist()

    @cached_property
    def entropy(self) -> list[float]:
        """Entropy ratios; NaN for windows of one cycle."""
        return self.entropy_ratio.tolist()

    @cached_property
    def effective(self) -> list[float]:
        """Effective cycles."""
        return self.effective_cycles.tolist()


class Piece(NamedTuple):
    """Some windows of a request in the batch that answered them.

    Attributes:
        first: Row of the first of these windows in the batch; the others follow.
        places: Where these windows stand in the request, in the batch's order.
    """

    answers: Answers
    first: int
    places: Sequence[int]


def states(self) -> list[RulState]:
        """How each answer may be read."""
        return [STATES[i] for i in self.state.tolist()]

    @cached_property
    def interval(self) -> list[list[float]]:
        """Lower and upper, in cycles."""
        return self.outputs.rul_interval.tolist()

    @cached_property
    def failure_probability(self) -> list[list[float]]:
        """One probability a horizon."""
        return self.outputs.failure_probability.tolist()

    @cached_property
    def health_state(self) -> list[list[float]]:
        """One probability a state."""
        return self.outputs.health_state.tolist()

    @cached_property
    def health_label(self) -> list[int]:
        """The most probable state."""
        return self.outputs.health_state.argmax(axis=1).tolist()

    @cached_property
    def attention(self) -> list[list[float]]:
        """Weights, padding included."""
        return self.outputs.attention.tolist()

    @cached_property
    def contribution(self) -> list[list[float]]:
        """Cycles, padding included."""
        return self.outputs.contribution.tolist()

    @cached_property
    def entropy(self) -> list[float]:
        """Entropy ratios; NaN for windows of one cycle."""
        return self.entropy_ratio.tolist()

    @cached_property
    def effective(self) -> list[float]:
        """Effective cycles."""
        return self.effective_cycles.tolist()


class WindowOutputs(msgspec.Struct, frozen=True, eq=False):
    """One window's place in its batch's answers."""

    answers: Answers
    row: int

    @property
    def contribution_sum(self) -> float:
        """Unclipped RUL less the baseline, in cycles."""
        return float(self.answers.outputs.contribution[self.row].sum(dtype=np.float64))


def states(
    outputs: Outputs, lengths: IntArray, manifest: Manifest, *, last_cycle: FloatArray
) -> NDArray[np.int64]:
    """How each answer may be read, [B], as indices into `STATES`.

    What says most against the number wins: too little history, then strange data, then the cap.
    """
    state = np.where(outputs.rul >= NEAR_CAP * manifest.cap, _AT_LEAST_CAP, _ESTIMATED)
    state = np.where(outputs.novelty > NOVELTY_LIMIT, _OUT, state)
    # A young unit's few cycles are all there is to know, and are enough: what misleads is an older unit of
    # which only the last cycles were kept. Where the last cycle is not known (NaN) it may be one.
    whole_life = last_cycle <= lengths
    return np.where((lengths < manifest.min_cycles) & ~whole_life, _INSUFFICIENT, state)


def entropy_reference(manifest: Manifest, head: str = "mean") -> EntropyReference | None:
    """The band in which calibration windows had their attention entropy."""
    return next((reference for reference in manifest.entropy if reference.head == head), None)


def attention_warnings(ratio: float, band: EntropyReference | None) -> list[Caution]:
    """What to say of weights that lie otherwise than at calibration; nothing of NaN: one cycle alone."""
    if band is None or not (ratio < band.low or ratio > band.high):
        return []
    if ratio < band.low:
        detail = f"entropy ratio {ratio:.3g} is below {band.low:.3g}: the weight lies on unusually few cycles"
        return [Caution("attention_collapsed", detail)]
    detail = f"entropy ratio {ratio:.3g} is above {band.high:.3g}: the weights hardly tell cycles apart"
    return [Caution("attention_uniform", detail)]


def cautions(windows: Windows, i: int) -> list[Caution]:
    """Why the answer to a window is to be read with care, whatever it is."""
    found: list[Caution] = []
    if windows.sent[i] > windows.lengths[i]:
        detail = f"the model reads the last {windows.lengths[i]} of {windows.sent[i]} cycles"
        found.append(Caution("truncated_to_context", detail))
    if windows.last_cycle[i] != windows.last_cycle[i]:
        found.append(CYCLE_UNKNOWN)
    return found


def out_of_range(windows: Windows, i: int, rules: WindowRules) -> Iterator[Caution]:
    """One warning a column that leaves the range of training, naming the first cycle that does."""
    low, high = rules.range.lowest, rules.range.highest
    readings = windows.readings[i]
    outside = rules.range.outside(readings)
    for f in np.flatnonzero(outside.any(axis=0)).tolist():
        t = int(outside[:, f].argmax())
        unit = f" {rules.units[f]}" if rules.units[f] else ""
        detail = (
            f"{readings[t, f]:g}{unit} at cycle {windows.first_cycle(i) + t} is outside {low[f]:g} to "
            f"{high[f]:g}, the range of the training data and a margin"
        )
        yield Caution("out_of_range", detail, rules.names[f])
