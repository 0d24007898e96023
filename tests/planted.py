"""Planted truth: units of noise in which an event or a drift at a random moment decides the failure.

Kinds; all other readings are standard normal:

- `event`: columns 1 and 2 are shifted for three cycles; the unit fails one context later.
- `two events`: the same event happens twice; the unit fails one context after the middle of the two.
  So the RUL depends on both equally, and a network that finds only one cannot answer.
- `drift`: one of 20 columns rises slowly; the unit fails one context after the start.
- `missing`: as `event`, but each window to answer lacks one of the two columns.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from model.dataset import join_windows, windows_ending_at
from model.domain import BoolArray, Column, FloatArray, Schema, Trajectory, WindowSet
from model.fleet import Fleet

Kind = Literal["event", "two events", "drift", "missing"]
KINDS: tuple[Kind, ...] = get_args(Kind)

EVENT = (6.0, -4.0)
"""Shift of columns 1 and 2 at an event, in standard deviations of the noise."""
EVENT_CYCLES = 3
DRIFTING = 6
"""Index of the drifting column."""
DRIFT = 6.0
"""Shift of the drifting column at failure, in standard deviations of the noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Planted:
    """Units, and for each the index of the first reading of its events or its drift."""

    kind: Kind
    units: list[Trajectory]
    starts: list[tuple[int, ...]]


def planted_fleet(kind: Kind, *, context: int) -> Fleet:
    """Make the fleet of a kind, with a cap of two contexts."""
    schema = Schema(tuple(Column(f"sensor_{i + 1}", "sensor") for i in range(columns_of(kind))))
    return Fleet(
        name="planted",
        schema=schema,
        sources=schema.names,
        cap=float(2 * context),
        context=context,
        horizons=(context // 4, context // 2),
        critical_below=context / 4,
        degrading_below=float(context),
    )


def planted_units(kind: Kind, *, units: int, context: int, seed: int) -> Planted:
    """Simulate units whose first event, or drift, starts after up to two contexts."""
    rng = np.random.default_rng(seed)
    made: list[Trajectory] = []
    starts: list[tuple[int, ...]] = []
    for unit in range(1, units + 1):
        first = int(rng.integers(context // 4, 2 * context + 1))
        gap = int(rng.integers(EVENT_CYCLES + 2, context // 2 + 1)) if kind == "two events" else 0
        start = (first, first + gap) if gap else (first,)
        life = first + gap // 2 + context
        readings = rng.normal(size=(life, columns_of(kind)))
        if kind == "drift":
            readings[first:, DRIFTING] += DRIFT * np.arange(1, context + 1) / context
        else:
            for event in start:
                readings[event : event + EVENT_CYCLES, :2] += EVENT
        made.append(Trajectory(str(unit), np.arange(1, life + 1), readings.astype(np.float32), failed=True))
        starts.append(start)
    return Planted(kind, made, starts)


def planted_windows(planted: Planted, *, context: int, seed: int) -> tuple[WindowSet, BoolArray]:
    """Cut one window of each unit with its complete events; return their places too, [W, E, T].

    A drift has reached about a third of its height or more.
    """
    rng = np.random.default_rng(seed)
    grown = context // 3 if planted.kind == "drift" else EVENT_CYCLES
    sets: list[WindowSet] = []
    where: list[BoolArray] = []
    for unit, starts in zip(planted.units, planted.starts, strict=True):
        end = int(rng.integers(starts[-1] + grown - 1, min(len(unit), starts[0] + context) - 1))
        windows = windows_ending_at(unit, np.array([end]), length=context)
        number = end + 1 - int(windows.lengths[0]) + np.arange(context)
        start = np.array(starts)[:, None]
        sets.append(windows)
        where.append((number >= start) & (number < start + EVENT_CYCLES))
    joined = join_windows(sets)
    if planted.kind == "missing":
        readings = joined.readings.copy()
        readings[np.arange(len(joined)), :, rng.integers(2, size=len(joined))] = np.nan
        joined = replace(joined, readings=readings)
    return joined, np.stack(where)


def columns_of(kind: Kind) -> int:
    """Return the number of columns."""
    return 20 if kind == "drift" else 4


def points_at(weight: FloatArray, where: BoolArray) -> float:
    """Compute the share of windows whose largest weight, [W, T], is in each event, [W, E, T].

    With two events, the largest weight outside that event must be in the other.
    """
    left, found = weight.copy(), np.zeros(where.shape[:2], bool)
    rows = np.arange(len(where))
    for _ in range(where.shape[1]):
        hit = where[rows, :, left.argmax(axis=1)]  # [W, E]
        found |= hit
        left[(hit[:, :, None] & where).any(axis=1)] = 0.0
    return float(found.all(axis=1).mean())


def drift_leads(sensor_contribution: FloatArray) -> float:
    """Compute the share of windows, [W, T, F], in which the drifting column weighs most."""
    return float((np.abs(sensor_contribution).sum(axis=1).argmax(axis=1) == DRIFTING).mean())
