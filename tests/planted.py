"""Planted truth: units of noise in which one event, at a random moment, decides when they fail."""

from dataclasses import dataclass

import numpy as np

from model.dataset import join_windows, windows_ending_at
from model.domain import BoolArray, Column, FloatArray, Schema, Trajectory, WindowSet
from model.fleet import Fleet

SCHEMA = Schema(tuple(Column(f"sensor_{i}", "sensor") for i in range(1, 5)))
EVENT = np.array([6.0, -4.0, 0.0, 0.0])
"""Shift of each column at the event, in standard deviations of the noise."""
EVENT_CYCLES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Planted:
    """Units and the index of the first reading of each one's event."""

    units: list[Trajectory]
    event: list[int]


def planted_fleet(*, context: int) -> Fleet:
    """Units fail `context` cycles after their event; nothing is known before it."""
    return Fleet(
        name="planted",
        schema=SCHEMA,
        sources=SCHEMA.names,
        cap=float(2 * context),
        context=context,
        horizons=(context // 4, context // 2),
        critical_below=context / 4,
        degrading_below=float(context),
    )


def planted_units(*, units: int, context: int, seed: int) -> Planted:
    """Simulate units whose event comes after up to two contexts."""
    rng = np.random.default_rng(seed)
    made: list[Trajectory] = []
    events: list[int] = []
    for unit in range(1, units + 1):
        event = int(rng.integers(context // 4, 2 * context + 1))
        life = event + context
        readings = rng.normal(size=(life, len(SCHEMA)))
        readings[event : event + EVENT_CYCLES] += EVENT
        made.append(Trajectory(str(unit), np.arange(1, life + 1), readings.astype(np.float32), failed=True))
        events.append(event)
    return Planted(made, events)


def windows_with_event(planted: Planted, *, context: int, seed: int) -> tuple[WindowSet, BoolArray]:
    """Cut one window of each unit that holds its event; return also where it is, [W, T]."""
    rng = np.random.default_rng(seed)
    sets: list[WindowSet] = []
    where: list[BoolArray] = []
    for unit, event in zip(planted.units, planted.event, strict=True):
        end = int(rng.integers(event + EVENT_CYCLES - 1, len(unit) - 1))
        windows = windows_ending_at(unit, np.array([end]), length=context)
        first = end + 1 - int(windows.lengths[0])
        number = first + np.arange(context)
        sets.append(windows)
        where.append((number >= event) & (number < event + EVENT_CYCLES))
    return join_windows(sets), np.stack(where)


def points_at(weight: FloatArray, where: BoolArray) -> float:
    """Compute the share of windows whose largest weight, [W, T], is in the marked cycles."""
    return float(where[np.arange(len(where)), weight.argmax(axis=1)].mean())
