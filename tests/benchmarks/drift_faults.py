"""Faults of a fleet from one moment on: pure functions of a unit's readings.

Each gets the cycle at which the fault begins, and does not change earlier cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from export.bundle import Manifest
from model.domain import FloatArray
from tests.benchmarks.fault_kinds import KELVIN_PER_RANKINE

Change = Callable[[FloatArray, int], FloatArray]
"""Readings [N, F] and the first changed row -> readings [N, F]."""


@dataclass(frozen=True)
class Fault:
    """A fault of every unit of a fleet.

    Attributes:
        kind: Name in the table.
        where: Affected columns.
        change: The function that applies the fault.
    """

    kind: str
    where: str
    change: Change


def column_faults(manifest: Manifest) -> Iterator[Fault]:
    """Return all kinds of faults, for each sensor."""
    names = manifest.schema_of_columns.names
    sensors = manifest.schema_of_columns.indices("sensor")
    share = np.array([regime.share for regime in manifest.regimes])
    within = np.array([regime.standard_deviation for regime in manifest.regimes])
    deviation = np.sqrt(share @ within**2)
    for f in sensors:
        for times in (2, -2, 3):
            yield Fault(f"bias {times:+d} sd", names[f], biased(f, times * float(deviation[f])))
        yield Fault("frozen", names[f], frozen(f))
        yield Fault("missing", names[f], biased(f, float("nan")))
        if manifest.columns[f].unit == "degR":
            yield Fault("in K, not degR", names[f], scaled(f, KELVIN_PER_RANKINE))
    for f, g in pairwise(sensors):
        yield Fault("swapped", f"{names[f]}, {names[g]}", swapped(f, g))


def touched(columns: int | list[int], change: Change) -> Change:
    """Change only these columns, [N, F] or [N], from the given row on."""

    def changed(readings: FloatArray, since: int) -> FloatArray:
        after = readings.copy()
        after[since:, columns] = change(readings, since)
        return after

    return changed


def biased(column: int, by: float) -> Change:
    """Add a constant to a column; NaN makes it missing."""
    return touched(column, lambda readings, since: readings[since:, column] + np.float32(by))


def scaled(column: int, factor: float) -> Change:
    """Convert a column to another engineering unit."""
    return touched(column, lambda readings, since: readings[since:, column] * np.float32(factor))


def frozen(column: int) -> Change:
    """Repeat the last value of a column."""
    return touched(column, lambda readings, since: readings[max(since - 1, 0), column])


def swapped(one: int, other: int) -> Change:
    """Exchange two columns."""
    return touched([one, other], lambda readings, since: readings[since:, [other, one]])
