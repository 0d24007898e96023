"""Kinds of windows for `tests.benchmarks.rul_states`: the fault and its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from export.bundle import Manifest
from model.domain import FloatArray, Trajectory, WindowSet
from tests.benchmarks import faults

KELVIN_PER_RANKINE = 5 / 9
KILOPASCAL_PER_PSI = 6.894757
BAR_PER_PSI = KILOPASCAL_PER_PSI / 100
METRES_PER_KILOFOOT = 304.8
SECONDS_PER_MINUTE = 60.0


@dataclass(frozen=True)
class Kind:
    """Windows of one kind.

    Attributes:
        name: Name in the table.
        windows: The windows to answer.
        paired: Whether they are the model's own windows with a fault, one for one.
    """

    name: str
    windows: WindowSet
    paired: bool = False


def faulty_kinds(
    own: WindowSet,
    units: Sequence[Trajectory],
    fleets: Mapping[str, WindowSet],
    manifest: Manifest,
    *,
    rng: np.random.Generator,
) -> list[Kind]:
    """Return the model's own windows, those of each fleet, and its own with every fault."""
    context = manifest.context
    young = [
        Kind(
            f"units of {cycles} cycles, their whole life",
            faults.young_windows(units, context=context, cycles=cycles),
        )
        for cycles in (5, 20)
    ]
    return [
        Kind("own units, as they are", own, paired=True),
        *(Kind(f"units of {name}", windows) for name, windows in fleets.items()),
        *(
            Kind(name, windows, paired=True)
            for made in (_of_sensors, _of_units, _of_readings)
            for name, windows in made(own, manifest, rng)
        ),
        *young,
    ]


_Named = Iterator[tuple[str, WindowSet]]


def _of_sensors(own: WindowSet, manifest: Manifest, rng: np.random.Generator) -> _Named:
    sensors = manifest.schema_of_columns.indices("sensor")
    one, all_of_them = faults.one_each(own, sensors), faults.every(own, sensors)
    mean, deviation = _moments(manifest)
    yield "two sensors swapped", faults.swapped(own, faults.random_pairs(own, sensors, rng))
    yield "all sensors permuted", faults.permuted(own, sensors, rng)
    yield "one sensor frozen at the window's first reading", faults.frozen(own, one)
    yield "one sensor frozen for the last 20 cycles", faults.frozen(own, one, last=20)
    yield "one sensor frozen for the last 10 cycles", faults.frozen(own, one, last=10)
    yield "one sensor stuck at its training mean", faults.stuck(own, one, mean)
    yield "all sensors frozen at the window's first reading", faults.frozen(own, all_of_them)
    yield "all sensors stuck at their training means", faults.stuck(own, all_of_them, mean)
    yield "one sensor 0", faults.stuck(own, one, np.zeros_like(mean))
    yield "all columns 0", faults.stuck(own, faults.every(own, range(len(mean))), np.zeros_like(mean))
    for times in (1, 3, -3, 10):
        yield f"one sensor off by {times:+d} standard deviations", faults.shifted(own, one, times * deviation)


def _of_units(own: WindowSet, manifest: Manifest, rng: np.random.Generator) -> _Named:
    for unit, which, what, factor in (
        ("degR", faults.every, "all {} given as K", KELVIN_PER_RANKINE),
        ("psia", faults.every, "all {} given as kPa", KILOPASCAL_PER_PSI),
        ("psia", faults.every, "all {} given as bar", BAR_PER_PSI),
        ("rpm", faults.every, "all {} given as 1/s", 1 / SECONDS_PER_MINUTE),
        ("kft", faults.every, "all {} given as m", METRES_PER_KILOFOOT),
        ("degR", faults.one_each, "one {} given as K", KELVIN_PER_RANKINE),
        ("rpm", faults.one_each, "one {} 10 % high", 1.1),
        ("rpm", faults.one_each, "one {} 1 % high", 1.01),
    ):
        if columns := [i for i, column in enumerate(manifest.columns) if column.unit == unit]:
            yield what.format(unit), faults.scaled(own, which(own, columns), factor)


def _of_readings(own: WindowSet, manifest: Manifest, rng: np.random.Generator) -> _Named:
    sensors = manifest.schema_of_columns.indices("sensor")
    settings = manifest.schema_of_columns.indices("setting")
    yield "cycles out of order", faults.out_of_order(own, rng)
    for name, which, share in (
        ("30 % of the sensors' readings missing", faults.every(own, sensors), 0.3),
        ("30 % of the settings' readings missing", faults.every(own, settings), 0.3),
        ("one sensor missing", faults.one_each(own, sensors), 1.0),
        ("half of the sensors missing", faults.every(own, sensors[::2]), 1.0),
        ("all settings missing", faults.every(own, settings), 1.0),
    ):
        yield name, faults.missing(own, which, share=share, rng=rng)
    for cycles in (2, 5, 20):
        yield f"only the last {cycles} cycles kept", faults.last_kept(own, cycles)
    yield "only the last 20 cycles kept, age not known", faults.of_unknown_age(faults.last_kept(own, 20))
    yield "age not known", faults.of_unknown_age(own)


def _moments(manifest: Manifest) -> tuple[FloatArray, FloatArray]:
    """Return each column's mean over all regimes and standard deviation within them."""
    share = np.array([regime.share for regime in manifest.regimes])[:, None]
    mean = np.array([regime.mean for regime in manifest.regimes])
    deviation = np.array([regime.standard_deviation for regime in manifest.regimes])
    return (share * mean).sum(axis=0), np.sqrt((share * deviation**2).sum(axis=0))
