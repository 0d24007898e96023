"""Sensors that left their healthy range, and clauses about their effect on an estimate.

This module only computes and words; `service.core.explanations` asks the model. A clause compares the answer
with the answer to the same window in which the sensor stayed in the middle of its healthy range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from export.regime_readings import Range
from model.domain import BoolArray, FloatArray
from service.core.queries import Clause, Side, Together

LEAST_SHARE: Final = 2 / 3
"""Minimum share of the readings since a departure that are outside: noise crosses any bound."""
LEAST_OUTSIDE: Final = 5
"""Minimum readings outside: one healthy reading in twenty is outside by chance."""
LEAST_EFFECT: Final = 1.0
"""Minimum effect for a clause, in cycles."""
LEAST_RATIO: Final = 1 / 3
"""A contribution and an effect that differ by more than a factor of three contradict each other."""
MOST_CLAUSES: Final = 3
"""Maximum sensors in a sentence: those with the largest effect."""


class Departure(NamedTuple):
    """A sensor outside its healthy range up to the end of its window.

    Attributes:
        column: Index of the sensor among the model's columns.
        start: Index in the window of its first reading outside.
        is_steady: Whether all later readings are outside too.
    """

    column: int
    side: Side
    start: int
    is_steady: bool


class Estimate(NamedTuple):
    """An answer in cycles: as reported, and `unclipped`, as in `Answers`, before it is cut to 0..cap."""

    rul: float
    is_at_least: bool
    unclipped: float

    def __str__(self) -> str:
        return f"at least {self.rul:.0f}" if self.is_at_least else f"{self.rul:.0f}"


def departures(readings: FloatArray, healthy: Range, sensors: Sequence[int]) -> list[Departure]:
    """Find the sensors that left their healthy range, [T, F]; missing readings do not count.

    A sensor that is outside on both sides is found once, since its first departure.
    """
    found: dict[int, Departure] = {}
    known = _to_the_end(~np.isnan(readings))
    sides: list[tuple[Side, BoolArray]] = [
        ("above", readings > healthy.upper),
        ("below", readings < healthy.lower),
    ]
    for side, outside in sides:
        out = _to_the_end(outside)
        begins = outside & (out >= LEAST_OUTSIDE) & (out >= LEAST_SHARE * known)
        for column in sensors:
            if begins[:, column].any():
                start = int(begins[:, column].argmax())
                is_steady = bool(out[start, column] == known[start, column])
                if column not in found or start < found[column].start:
                    found[column] = Departure(column, side, start, is_steady)
    return list(found.values())


def _to_the_end(counted: BoolArray) -> FloatArray:
    """Count from each cycle to the last, [T, F] -> [T, F]."""
    return counted[::-1].cumsum(axis=0)[::-1]


def account(
    departed: Sequence[Departure],
    answer: Estimate,
    without: Sequence[Estimate],
    of_readings: FloatArray,
    *,
    names: Sequence[str],
    first_cycle: int,
) -> tuple[str, list[Clause], Together | None]:
    """Describe the effect of departures on an estimate, largest first.

    Args:
        departed: The sensors outside their healthy range.
        answer: The estimate.
        without: The estimate with each of the first of them in its healthy range; if there are several, then
            also with all of them.
        of_readings: Contribution of each reading in cycles of RUL, [T, F].
        names: Of all columns.
        first_cycle: Number of the window's first cycle.

    Returns:
        The sentence, its clauses without those that contradict the contributions, and the joint effect of all
        departures.
    """
    added = [float(of_readings[each.start :, each.column].sum()) for each in departed]
    alone = without[:-1] if len(departed) > 1 else without
    found = [
        _clause(each, names[each.column], first_cycle, answer=answer, without=other)
        for each, cycles, other in zip(departed, added, alone, strict=False)
        if _is_confirmed(cycles, answer, other)
    ]
    found = sorted(found, key=lambda each: -abs(each[0].cycles))[:MOST_CLAUSES]
    left, at_once = [names[each.column] for each in departed], None
    if len(departed) > 1 and _is_confirmed(sum(added), answer, without[-1]):
        since = [first_cycle + each.start for each in departed]
        at_once = _together(left, since, answer, without[-1])
    said = [text if n else each.text for n, (each, text) in enumerate(found)]
    if at_once is not None:
        said.append(at_once.text)
    if not said and left:
        said = [f"Outside the healthy range, without a clear effect on the estimate: {', '.join(left)}"]
    healthy = f"No sensor is outside its healthy range for {LEAST_OUTSIDE} readings or more"
    sentence = ". ".join(said or [healthy]) + "."
    return sentence, [each for each, _ in found], at_once


def _is_confirmed(contribution: float, answer: Estimate, without: Estimate) -> bool:
    """Return whether an effect is large enough for a clause and agrees with the contribution."""
    effect = answer.unclipped - without.unclipped
    return (
        abs(answer.rul - without.rul) >= LEAST_EFFECT
        and contribution * effect > 0
        and LEAST_RATIO <= effect / contribution <= 1 / LEAST_RATIO
    )


def _clause(
    departure: Departure, name: str, first_cycle: int, *, answer: Estimate, without: Estimate
) -> tuple[Clause, str]:
    """Word a departure twice: in full, and as a later clause of a sentence."""
    cycle = first_cycle + departure.start
    side = departure.side if departure.is_steady else f"mostly {departure.side}"
    since = f"since cycle {cycle}{' or earlier' if departure.start == 0 and first_cycle > 1 else ''}"
    effect = _effect("takes", "adds", answer, without)
    text = (
        f"{name} {side} its healthy range {since} {effect}; "
        f"without it the estimate would be {without}, not {answer}"
    )
    made = Clause(name, departure.side, cycle, answer.rul - without.rul, without.rul, text)
    return made, f"{name} {side} {since} {effect} (without it: {without})"


def _together(columns: list[str], since: list[int], answer: Estimate, without: Estimate) -> Together:
    text = (
        f"Together, the {len(columns)} sensors outside their healthy range "
        f"{_effect('take', 'add', answer, without)}; without them the estimate would be {without}, "
        f"not {answer}"
    )
    return Together(columns, since, answer.rul - without.rul, without.rul, text)


def _effect(takes: str, adds: str, answer: Estimate, without: Estimate) -> str:
    """Word a difference so that the rounded numbers of the sentence add up."""
    cycles = round(answer.rul) - round(without.rul)
    least = "at least " * (answer.is_at_least or without.is_at_least)
    size = f"{least}{abs(cycles)} cycle{'' if abs(cycles) == 1 else 's'}"
    return f"{takes} {size} off" if cycles < 0 else f"{adds} {size}"
