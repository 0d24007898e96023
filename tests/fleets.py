"""Small fleets and units, their files, and hypothesis strategies for them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from model.domain import Column, Schema, Trajectory, WindowSet
from model.fleet import Fleet, fleet_toml
from model.writers import csv_text

PUMP_SCHEMA = Schema(
    (
        Column("load", "setting", "kW"),
        Column("vibration", "sensor", "mm/s"),
        Column("pressure", "sensor", "bar"),
    )
)
PUMPS = Fleet(
    name="pumps",
    schema=PUMP_SCHEMA,
    sources=PUMP_SCHEMA.names,
    cap=100.0,
    context=20,
    horizons=(5, 15),
    critical_below=10.0,
    degrading_below=30.0,
)


def numbered_unit(cycles: int, *, columns: int = 2, unit: str = "1", failed: bool = True) -> Trajectory:
    """Make a unit whose readings show their place: row t holds t, t + 0.25, ..."""
    readings = np.arange(cycles)[:, None] + np.arange(columns) / 4
    return Trajectory(unit, np.arange(1, cycles + 1), readings.astype(np.float32), failed=failed)


def worn_pumps(*, units: int, seed: int, loads: tuple[float, ...] = (40.0, 75.0)) -> list[Trajectory]:
    """Make pumps that wear out over 40 to 80 cycles, with one of these loads at each cycle."""
    rng = np.random.default_rng(seed)
    made = []
    for n in range(1, units + 1):
        life = int(rng.integers(40, 81))
        wear = np.exp(-np.arange(life - 1, -1, -1) / 15.0)
        load = rng.choice(loads, size=life)
        readings = np.stack(
            [
                load + rng.normal(0, 0.1, life),
                2.0 + load / 10 + 3.0 * wear + rng.normal(0, 0.1, life),
                9.0 - load / 20 - 1.5 * wear + rng.normal(0, 0.05, life),
            ],
            axis=1,
        )
        made.append(Trajectory(str(n), np.arange(1, life + 1), readings.astype(np.float32), failed=True))
    return made


def write_fleet(folder: Path, units: Sequence[Trajectory], fleet: Fleet) -> tuple[Path, Path]:
    """Write units and the fleet that reads them: pumps.csv and pumps.toml."""
    data, described = folder / "pumps.csv", folder / "pumps.toml"
    data.write_bytes(csv_text(units, fleet.schema))
    described.write_text(fleet_toml(fleet), encoding="utf-8")
    return data, described


def windows_of(
    readings: ArrayLike,
    *,
    lengths: ArrayLike | None = None,
    rul: ArrayLike = np.nan,
    unit: Sequence[str] | None = None,
    group: Sequence[str] | None = None,
    weight: ArrayLike = 1.0,
) -> WindowSet:
    """Make windows [W, T, F] that end at cycle 50; by default full ones, each of a unit without a group."""
    made = np.array(readings, np.float32)
    count, cycles, _ = made.shape
    names = [str(i) for i in range(count)] if unit is None else unit
    return WindowSet(
        made,
        np.full(count, cycles) if lengths is None else np.array(lengths),
        np.full(count, 50, np.float32),
        np.full(count, rul, np.float32),
        np.array(names),
        np.array(names if group is None else group),
        np.full(count, weight, np.float32),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Strategy for failed units: cycles with gaps, readings that show their place."""
    steps = draw(st.lists(st.integers(1, 4), min_size=1, max_size=40))
    return replace(numbered_unit(len(steps), unit="u"), cycles=np.cumsum(steps))
