"""Outputs of a batch, and everything that follows from them.

Whatever can be computed for a whole batch is computed here in array operations, so that the reply to one
window costs a few look-ups. This module knows the graph's outputs and the manifest; it must not know
requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from export.bundle import Manifest
from export.drift_reference import STUCK_CYCLES
from model.domain import (
    BEYOND_OLDEST,
    HEALTH_LABELS,
    HEALTH_STATES,
    NEAR_CAP,
    NOVELTY_LIMIT,
    BoolArray,
    FloatArray,
    RulState,
    attention_entropy,
)
from service.core.queries import (
    CYCLE_UNKNOWN,
    NO_GROUNDS,
    Attention,
    Caution,
    Decision,
    Explain,
    Grounds,
    HealthState,
    Interval,
    Prediction,
)
from service.core.rules import WindowRules
from service.core.runtime import Asked, Outputs
from service.core.window import Windows

T = TypeVar("T", Asked, Outputs)

STATES: Final = tuple(RulState)
_ESTIMATED, _AT_LEAST_CAP, _INSUFFICIENT, _OUT = range(len(STATES))
_LAST: Final = np.arange(-STUCK_CYCLES, 0)


def _listed(output: str) -> Any:  # noqa: ANN401 - a cached property of the output's own shape
    """Convert an output to plain numbers once per batch; None if the graph has no such output."""

    def read(answers: Answers) -> Any:  # noqa: ANN401
        values = getattr(answers.outputs, output)
        return None if values is None else values.tolist()

    return cached_property(read)


class Answers:
    """Outputs of a batch; what follows from them is computed on first use."""

    def __init__(self, asked: Asked, outputs: Outputs, manifest: Manifest, rules: WindowRules) -> None:
        """Keep the inputs and outputs of a batch."""
        self.asked: Final = asked
        self.outputs: Final = outputs
        self.manifest: Final = manifest
        self.rules: Final = rules

    def only(self, which: Sequence[int]) -> Answers:
        """The answers to some of the windows."""
        asked = _fields(Asked, lambda name: getattr(self.asked, name)[which])
        outputs = _fields(
            Outputs, lambda name: None if (all_ := getattr(self.outputs, name)) is None else all_[which]
        )
        return Answers(asked, outputs, self.manifest, self.rules)

    def bare(self) -> Answers:
        """The same answers with the last ten readings only, [B, 10, F], and no explanation of readings."""
        asked = Asked(last_readings(self.asked), self.asked.lengths, self.asked.last_cycle)
        outputs = replace(self.outputs, sensor_contribution=None, window_contribution=None, evidence=None)
        return Answers(asked, outputs, self.manifest, self.rules)

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        """Join the answers to several batches with windows of equal length."""
        asked = _fields(Asked, lambda name: np.concatenate([getattr(part.asked, name) for part in parts]))
        outputs = Outputs.joined([part.outputs for part in parts])
        return cls(asked, outputs, parts[0].manifest, parts[0].rules)

    @cached_property
    def unclipped(self) -> list[float]:
        """The RUL before it is cut to 0..cap, minus the model's baseline."""
        total = self.outputs.contribution.sum(axis=1, dtype=np.float64)
        of_window = self.outputs.window_contribution
        return (total if of_window is None else total + of_window).tolist()

    @cached_property
    def state(self) -> NDArray[np.int64]:
        """The RUL state of each answer, [B], as indices into `STATES`.

        The first that applies wins: insufficient history, out of distribution, at least cap.
        """
        lengths, outputs, manifest = self.asked.lengths, self.outputs, self.manifest
        state = np.where(outputs.rul >= NEAR_CAP * manifest.cap, _AT_LEAST_CAP, _ESTIMATED)
        state = np.where(outputs.novelty > NOVELTY_LIMIT, _OUT, state)
        # Few cycles are enough for a young unit, because there are no others. They mislead for an older unit
        # of which only the last cycles were sent; a unit of unknown age (NaN) may be one.
        whole_life = self.asked.last_cycle <= lengths
        return np.where((lengths < manifest.min_cycles) & ~whole_life, _INSUFFICIENT, state)

    @cached_property
    def _entropy_nats(self) -> FloatArray:
        return np.fmin(attention_entropy(self.outputs.attention), self._ln_cycles)  # rounding may add 1e-8

    @cached_property
    def _ln_cycles(self) -> FloatArray:
        lengths = self.asked.lengths
        return np.log(np.where(lengths > 1, lengths, np.nan).astype(np.float64))

    @cached_property
    def entropy_ratio(self) -> FloatArray:
        """Attention entropy over its largest possible value, float64 [B]; NaN for windows of one cycle."""
        return self._entropy_nats / self._ln_cycles

    @cached_property
    def head_entropy_ratio(self) -> FloatArray | None:
        """Each head's entropy ratio before any averaging, [B, H]."""
        heads = self.outputs.head_attention
        return None if heads is None else np.minimum(attention_entropy(heads) / self._ln_cycles[:, None], 1.0)

    @cached_property
    def reported(self) -> Outputs:
        """The outputs as reported: a RUL near the cap is the cap, in every state."""
        cap = np.float32(self.manifest.cap)
        return replace(self.outputs, rul=np.where(self.outputs.rul >= NEAR_CAP * cap, cap, self.outputs.rul))

    # Lists of plain numbers: one conversion per batch instead of one per value.

    interval: Final[cached_property[list[list[float]]]] = _listed("rul_interval")
    """Lower and upper, in cycles."""
    failure_probability: Final[cached_property[list[list[float]]]] = _listed("failure_probability")
    """One probability per horizon."""
    health_state: Final[cached_property[list[list[float]]]] = _listed("health_state")
    """One probability per state."""
    of_window: Final[cached_property[list[float] | None]] = _listed("window_contribution")
    """Contribution of age, length and missing readings; None if the model does not explain readings."""

    @cached_property
    def rul(self) -> list[float]:
        """The reported RUL, in cycles."""
        return self.reported.rul.tolist()

    @cached_property
    def states(self) -> list[RulState]:
        """The RUL state of each answer."""
        return [STATES[i] for i in self.state.tolist()]

    @cached_property
    def is_out_of_range(self) -> list[bool]:
        """Whether a reading of each window is outside the range of training."""
        outside = _outside(self.asked.readings, self.rules)
        return np.asarray(outside.any(axis=(1, 2))).tolist()

    @cached_property
    def health_label(self) -> list[int]:
        """The most probable state, or unknown, as indices into `HEALTH_LABELS`."""
        likely = self.outputs.health_state.argmax(axis=1)
        return np.where(self.outputs.novelty > NOVELTY_LIMIT, len(HEALTH_STATES), likely).tolist()

    @cached_property
    def of_columns(self) -> FloatArray | None:
        """Contribution of each column, [B, F]; None if the model does not explain readings."""
        values = self.outputs.sensor_contribution
        # A product takes a third of the time of a sum over a short axis.
        return None if values is None else np.ones(values.shape[1]) @ values.astype(np.float64)

    @cached_property
    def entropy(self) -> list[float]:
        """Entropy ratios; NaN for windows of one cycle."""
        return self.entropy_ratio.tolist()

    @cached_property
    def effective(self) -> list[float]:
        """Effective cycles."""
        return np.exp(self._entropy_nats).tolist()


class Piece(NamedTuple):
    """Some windows of a request in the batch that answered them.

    Attributes:
        first: Row of the first of these windows in the batch; the others are in the next rows.
        places: Places of these windows in the request, in the batch's order.
    """

    answers: Answers
    first: int
    places: Sequence[int]


def last_readings(asked: Asked) -> FloatArray:
    """Return each window's last ten readings, [B, 10, F]; a shorter one repeats its first."""
    readings, lengths = asked.readings, asked.lengths
    cycles = readings.shape[1]
    if cycles >= STUCK_CYCLES and lengths.min() == cycles:  # quicker
        return readings[:, -STUCK_CYCLES:].copy()  # a view would keep the whole batch
    return readings[np.arange(len(lengths))[:, None], np.maximum(lengths[:, None] + _LAST, 0)]


def _fields(kind: type[T], value: Callable[[str], Any]) -> T:
    """Make a dataclass from the value of each field."""
    return kind(**{field.name: value(field.name) for field in fields(kind)})


def prediction(
    piece: Piece,
    row: int,
    windows: Windows,
    i: int,
    *,
    explain: Explain,
    grounds: Grounds = NO_GROUNDS,
    decision: Decision | UnsetType | None = UNSET,
) -> Prediction:
    """Make the prediction for window `i` of the request from this row of the batch."""
    answers, manifest, outputs = piece.answers, piece.answers.manifest, piece.answers.outputs
    lower, upper = answers.interval[row]
    health = answers.health_state[row]
    shown: Attention | UnsetType = UNSET
    if explain is not Explain.NONE:
        cycles, first, ratio = windows.lengths[i], windows.first_cycle[i], answers.entropy[row]
        shown = Attention(
            np.arange(first, first + cycles),
            outputs.attention[row, :cycles],
            outputs.contribution[row, :cycles],
            manifest.baseline,
            None if math.isnan(ratio) else ratio,
            answers.effective[row],
            UNSET if outputs.evidence is None else outputs.evidence[row, :cycles],
            UNSET if answers.of_window is None else answers.of_window[row],
        )
    return Prediction(
        windows.units[i],
        answers.rul[row],
        answers.states[row],
        Interval(manifest.nominal_coverage, lower, upper),
        dict(zip(answers.rules.horizons, answers.failure_probability[row], strict=True)),
        HealthState(HEALTH_LABELS[answers.health_label[row]], dict(zip(HEALTH_STATES, health, strict=True))),
        windows.imputed_fraction[i],
        _cautions(answers, row, windows, i),
        shown,
        *grounds,
        decision,
    )


def _cautions(answers: Answers, row: int, windows: Windows, i: int) -> list[Caution]:
    """List the warnings of the answer in this row, to window `i`."""
    found: list[Caution] = []
    if answers.is_out_of_range[row]:
        found += _out_of_range(windows, i, answers.rules)
    if answers.state[row] == _OUT:
        found += _stuck(windows, i, answers)
    if windows.imputed_fraction[i] * len(answers.rules.names) > 0.99:  # enough is missing for a whole column
        found += _missing_columns(windows, i, answers.rules)
    found += _of_history(windows, i, answers.rules)
    ratio, (lowest, highest) = answers.entropy[row], answers.rules.usual_entropy
    low, high = lowest[windows.lengths[i]], highest[windows.lengths[i]]
    if ratio < low:
        detail = f"entropy ratio {ratio:.6g}, usually {low:.6g} or more: the weight lies on fewer cycles"
        found.append(Caution("attention_collapsed", detail))
    if ratio > high:
        detail = f"entropy ratio {ratio:.6g}, usually {high:.6g} or less: the weights are more even"
        found.append(Caution("attention_uniform", detail))
    return found


def _of_history(windows: Windows, i: int, rules: WindowRules) -> Iterator[Caution]:
    """List warnings about the window's cycles and the unit's age."""
    last, cycles, sent = windows.last_cycle[i], windows.lengths[i], windows.sent[i]
    if sent > cycles:
        yield Caution("truncated_to_context", f"the model reads the last {cycles} of {sent} cycles")
    if last != last:  # noqa: PLR0124 NaN
        yield CYCLE_UNKNOWN
    if last > BEYOND_OLDEST * rules.longest_life:
        # Bundles of this version treat such an age as unknown, older ones as their highest age.
        longest = f"the longest life of training is {rules.longest_life:.12g}"
        detail = f"the model knows no age of {last:.12g}: {longest}"
        yield Caution("last_cycle_beyond_training", detail)
    if last > cycles < rules.context / 2:
        detail = (
            f"the window has {cycles} cycles of a unit at cycle {last:.12g}: the model reads {rules.context}"
        )
        yield Caution("short_history", detail)


def _out_of_range(windows: Windows, i: int, rules: WindowRules) -> Iterator[Caution]:
    """List one warning per column that leaves the training range, with the first cycle outside."""
    low, high = rules.lowest, rules.highest
    readings = windows.readings[i]
    outside = _outside(readings, rules)
    for f in np.flatnonzero(outside.any(axis=0)).tolist():
        t = int(outside[:, f].argmax())
        unit = f" {rules.units[f]}" if rules.units[f] else ""
        detail = (
            f"{readings[t, f]:g}{unit} at cycle {windows.first_cycle[i] + t} is outside {low[f]:g} to "
            f"{high[f]:g}, the range of the training data and a margin"
        )
        yield Caution("out_of_range", detail, rules.names[f])


def _stuck(windows: Windows, i: int, answers: Answers) -> Iterator[Caution]:
    """List one warning per sensor that repeats its last value although it varied in training."""
    readings = windows.readings[i, : windows.lengths[i]]
    is_still = (readings[-STUCK_CYCLES:] == readings[-1]).all(axis=0) & (len(readings) >= STUCK_CYCLES)
    for f in answers.rules.sensors:
        column = answers.manifest.columns[f]
        if is_still[f] and column.low < column.high:
            repeats = np.logical_and.accumulate(readings[::-1, f] == readings[-1, f]).sum()
            unit = f" {column.unit}" if column.unit else ""
            detail = f"the last {repeats} readings are all {readings[-1, f]:g}{unit}: is the sensor stuck?"
            yield Caution("stuck_sensor", detail, column.name)


def _missing_columns(windows: Windows, i: int, rules: WindowRules) -> Iterator[Caution]:
    """List one warning per column without any reading in the window."""
    for f in np.flatnonzero(np.isnan(windows.readings[i]).all(axis=0)).tolist():
        yield Caution("missing_column", f"the window has no reading of {rules.names[f]}", rules.names[f])


def _outside(readings: FloatArray, rules: WindowRules) -> BoolArray:
    """Return which values [..., F] are out of the training range; missing values are not."""
    return (readings < rules.lowest) | (readings > rules.highest)
