"""The task of a run of `rul score`, and its counts; both travel between processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import msgspec


@dataclass(frozen=True, slots=True)
class Job:
    """A bundle, an input, an output, and which windows and columns are wanted.

    Attributes:
        bundle: The bundle's name or folder.
        source, output: Paths or URLs.
        fleet: Describes the columns of the input: a fleet's name or TOML file.
        every: Distance in cycles between the windows of a unit, from its last one backwards.
        part_readings: Maximum readings in a part.
        attention, contributions: Whether the output has these columns.
        run: Digest of the facts that determine the output; each part's file holds it.
    """

    bundle: str
    source: str
    output: str
    fleet: str | None
    every: int
    part_readings: int
    attention: bool = False
    contributions: bool = False
    run: str = ""


class Tally(msgspec.Struct, frozen=True):
    """Counts of one part, or of several.

    Attributes:
        infinite: Infinite readings, which count as missing.
        missing: Readings that files omit, by column of the model; complete columns are not listed.
        drift: Counts of `service.drift.counts`, one block.
    """

    readings: int
    units: int
    windows: int
    refused_readings: int
    refused_windows: int
    infinite: int
    missing: dict[str, int]
    rul_states: dict[str, int]
    health_states: dict[str, int]
    drift: list[float]


def total(tallies: Iterable[Tally]) -> Tally:
    """Add up the counts of parts; there is at least one."""
    return reduce(_sum, tallies)


def _sum(one: Tally, other: Tally) -> Tally:
    return Tally(
        readings=one.readings + other.readings,
        units=one.units + other.units,
        windows=one.windows + other.windows,
        refused_readings=one.refused_readings + other.refused_readings,
        refused_windows=one.refused_windows + other.refused_windows,
        infinite=one.infinite + other.infinite,
        missing=Counter(one.missing) + Counter(other.missing),
        rul_states=Counter(one.rul_states) + Counter(other.rul_states),
        health_states=Counter(one.health_states) + Counter(other.health_states),
        drift=[a + b for a, b in zip(one.drift, other.drift, strict=True)],
    )
