"""What a run of `rul score` does, and what it counts; both travel between processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np


@dataclass(frozen=True, slots=True)
class Job:
    """A bundle, an input, an output, and which windows and columns are wanted.

    Attributes:
        bundle: The bundle's name or folder.
        source, output: Paths or URLs.
        fleet: Describes the columns of the input: a fleet's name or TOML file.
        every: Each unit's last window, and each one so many cycles before it.
        attention, contributions: Whether the output has these columns.
    """

    bundle: str
    source: str
    output: str
    fleet: str | None
    every: int
    attention: bool = False
    contributions: bool = False


class Tally(msgspec.Struct, frozen=True):
    """Counts of one part, or of several.

    Attributes:
        infinite: Infinite readings, which count as missing.
        drift: Counts of `service.drift.counts`, one block.
    """

    readings: int
    units: int
    windows: int
    refused_readings: int
    refused_windows: int
    infinite: int
    rul_states: dict[str, int]
    health_states: dict[str, int]
    drift: list[float]


def total(tallies: Iterable[Tally]) -> Tally:
    """Add up the counts of parts; there is at least one."""
    each = list(tallies)
    return Tally(
        *(sum(getattr(tally, name) for tally in each) for name in Tally.__struct_fields__[:6]),
        *(dict(_added(getattr(tally, name) for tally in each)) for name in ("rul_states", "health_states")),
        np.sum([tally.drift for tally in each], axis=0).tolist(),
    )  # fmt: skip


def _added(counts: Iterable[dict[str, int]]) -> Counter[str]:
    added = Counter[str]()
    for each in counts:
        added.update(each)
    return added
