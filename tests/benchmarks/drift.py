"""True and false alarms of the drift monitor, for docs/drift.md.

    python -m tests.benchmarks.drift --data FOLDER_OF_CMAPSS --doc docs/drift.md

Fleets unknown to the reference go through the drift monitor as streams of windows, with the answers of the
shipped models: first without a fault, then with a fault of every unit from one moment on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from export.bundle import Manifest, find_bundle
from export.evaluation_windows import matching_fleet
from export.session import Session, open_bundle
from model.domain import Trajectory
from model.fleet import Fleet
from model.readers import read_trajectories
from model.reference import fit_reference
from service.drift.monitor import DriftIndex
from tests.benchmarks.drift_faults import column_faults
from tests.benchmarks.drift_page import faults_table, healthy_table, picture
from tests.benchmarks.drift_replay import Batch, Monitor, Place, alarms, answered, changed, places
from tests.benchmarks.tables import publish

SUBSETS: Final = ("FD001", "FD002", "FD003", "FD004")
OTHERS: Final = {"FD001": "FD002", "FD003": "FD004"}
"""A fleet of the same machines in six flight conditions, for a model of one condition."""
EVERY: Final = 100
"""Windows between two readings of the monitor."""
BEFORE: Final = 4000
"""Windows before a fault, so that the sliding window is full."""
PATIENCE: Final = 4000
"""Windows after which a fault counts as missed."""


@dataclass
class Healthy:
    """False alarms on a fleet without a fault.

    Attributes:
        model: Name of the model with the reference and the answers.
        fleet: Description of the units and their ages.
        windows: Number of windows sent.
        looks: Number of readings of the monitor.
        alarms: Number of readings with each alarm.
        column: Largest index of a column over its limit; above 1 is an alarm.
        prediction: The same of predictions.
        entropy: Of attention entropy.
    """

    model: str
    fleet: str
    windows: int = 0
    looks: int = 0
    alarms: dict[str, int] = field(default_factory=dict[str, int])
    column: float = 0.0
    prediction: float = 0.0
    entropy: float = 0.0


@dataclass(frozen=True)
class Found:
    """A fault, the number of windows until the first alarm (None: never), and that alarm."""

    model: str
    kind: str
    where: str
    windows: int | None
    alarms: Sequence[str]
    named: bool


@dataclass
class Curve:
    """DriftIndex of one column over windows, without and with a fault."""

    healthy: list[float] = field(default_factory=list[float])
    faulty: list[float] = field(default_factory=list[float])
    limit: list[float] = field(default_factory=list[float])


def main(
    *,
    data: Annotated[Path, typer.Option(help="Folder with train_FD001.txt .. test_FD004.txt.")],
    seed: Annotated[int, typer.Option(help="Of when units join.")] = 0,
    doc: Annotated[Path | None, typer.Option(help="Also put tables and picture here.")] = None,
) -> None:
    """Print the tables."""
    healthy: list[Healthy] = []
    found: list[Found] = []
    curves: dict[str, Curve] = {}
    for subset in SUBSETS:
        session, manifest = open_bundle(find_bundle(subset.lower()))
        kind = matching_fleet(manifest, "cmapss")
        rng = np.random.default_rng(seed)
        units = read_trajectories([data / f"test_{subset}.txt"], kind)
        healthy += healthy_fleets(session, manifest, units, rng)
        healthy += halves(
            session, manifest, read_trajectories([data / f"train_{subset}.txt"], kind), kind, rng
        )
        stream = places(units, together=False, rng=rng)
        found += with_column_faults(session, manifest, units, stream)
        others = OTHERS.get(subset)
        foreign = read_trajectories([data / f"test_{others}.txt"], kind) if others else None
        found += new_regimes(session, manifest, units, stream, foreign)
        curves[manifest.name] = curve(session, manifest, units, stream)
    publish(f"{healthy_table(healthy)}\n\n{faults_table(found)}", "tests.benchmarks.drift", doc)
    if doc is not None:
        picture(curves, doc.with_suffix(".png"), since=BEFORE, every=EVERY)


def healthy_fleets(
    session: Session, manifest: Manifest, units: Sequence[Trajectory], rng: np.random.Generator
) -> Iterator[Healthy]:
    """Units that trained no model, of mixed ages and of equal ages."""
    for name, together in (("test units, of all ages", False), ("test units, all equally old", True)):
        stream = places(units, together=together, rng=rng)
        yield watched(Healthy(manifest.name, name), manifest, answered(session, manifest, units, stream))


def halves(
    session: Session, manifest: Manifest, units: Sequence[Trajectory], kind: Fleet, rng: np.random.Generator
) -> Iterator[Healthy]:
    """Whole lives, against a reference of the other half of the units; all units trained the network."""
    half = fit_reference(units[::2], kind.schema)
    known = manifest.model_copy(update={"regimes": half.regimes, "degradation": half.degradation})
    rest = units[1::2]
    stream = places(rest, together=False, rng=rng)
    row = Healthy(manifest.name, "training units to failure, reference of the other half")
    yield watched(row, known, answered(session, manifest, rest, stream))


def watched(row: Healthy, manifest: Manifest, batches: Iterator[Batch]) -> Healthy:
    """Read the monitor on a healthy fleet."""
    for drift in Monitor(manifest).readings_of(counted(row, batches), every=EVERY):
        row.looks += 1
        row.column = max(row.column, *map(nearness, drift.columns.values()))
        row.prediction = max(row.prediction, nearness(drift.prediction))
        row.entropy = max(row.entropy, *map(nearness, drift.entropy.values()))
        for alarm in alarms(drift):
            row.alarms[alarm] = row.alarms.get(alarm, 0) + 1
    return row


def nearness(index: DriftIndex) -> float:
    """Return an index over its limit."""
    return index.psi / index.limit


def counted(row: Healthy, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches and count them."""
    for batch in batches:
        row.windows += len(batch[1])
        yield batch


def with_column_faults(
    session: Session, manifest: Manifest, units: Sequence[Trajectory], stream: Sequence[Place]
) -> Iterator[Found]:
    """Every fault of every sensor, one after the other, after the same healthy windows."""
    before = list(answered(session, manifest, units, stream[:BEFORE]))
    monitor = Monitor(manifest)
    for fault in track(list(column_faults(manifest)), manifest.name, console=Console(stderr=True)):
        faulty = changed(units, stream, fault.change, since=BEFORE)
        after = answered(session, manifest, faulty, stream[BEFORE : BEFORE + PATIENCE])
        windows, raised = first_alarm(monitor, before, after)
        named = any(column in raised for column in fault.where.split(", "))
        yield Found(manifest.name, fault.kind, fault.where, windows, raised, named)


def new_regimes(
    session: Session,
    manifest: Manifest,
    units: Sequence[Trajectory],
    stream: Sequence[Place],
    foreign: Sequence[Trajectory] | None,
) -> Iterator[Found]:
    """Flight conditions unknown to the reference: another fleet's, or one of its own, removed from it."""
    monitor = Monitor(manifest)
    if foreign is not None:
        before = list(answered(session, manifest, units, stream[:BEFORE]))
        other = places(foreign, together=False, rng=np.random.default_rng(0))[BEFORE : BEFORE + PATIENCE]
        windows, raised = first_alarm(monitor, before, answered(session, manifest, foreign, other))
        yield Found(
            manifest.name, "new operating regime", "another fleet's", windows, raised, "regime" in raised
        )
        return
    settings = list(manifest.schema_of_columns.indices("setting"))
    centre = np.array([regime.centre for regime in manifest.regimes])
    scale = monitor.reference.scale
    for r in range(len(manifest.regimes)):
        rest = [regime for i, regime in enumerate(manifest.regimes) if i != r]
        narrow = Monitor(manifest.model_copy(update={"regimes": rest}))

        def elsewhere(place: Place, r: int = r) -> bool:
            off = (units[place.unit].readings[place.row, settings] - centre) / scale
            return int(np.square(off).sum(axis=1).argmin()) != r

        known = [place for place in stream if elsewhere(place)][:BEFORE]
        since = stream.index(known[-1]) + 1
        before = list(answered(session, manifest, units, known))
        after = answered(session, manifest, units, stream[since : since + PATIENCE])
        windows, raised = first_alarm(narrow, before, after)
        yield Found(
            manifest.name, "new operating regime", f"regime {r + 1}", windows, raised, "regime" in raised
        )


def first_alarm(
    monitor: Monitor, before: Sequence[Batch], after: Iterator[Batch]
) -> tuple[int | None, list[str]]:
    """Return the number of windows from the fault to the first alarm, and the alarm."""
    monitor.clear()
    for drift in monitor.readings_of(before, every=BEFORE):
        if alarms(drift):
            return 0, alarms(drift)
    for i, drift in enumerate(monitor.readings_of(after, every=EVERY)):
        if raised := alarms(drift):
            return (i + 1) * EVERY, raised
    return None, []


def curve(
    session: Session, manifest: Manifest, units: Sequence[Trajectory], stream: Sequence[Place]
) -> Curve:
    """The index of sensor_11 over windows, healthy and two standard deviations high."""
    fault = next(f for f in column_faults(manifest) if (f.kind, f.where) == ("bias +2 sd", "sensor_11"))
    made = Curve()
    monitor = Monitor(manifest)
    shown = stream[: BEFORE + 2000]
    for drift in monitor.readings_of(answered(session, manifest, units, shown), every=EVERY):
        made.healthy.append(drift.columns["sensor_11"].psi)
        made.limit.append(drift.columns["sensor_11"].limit)
    monitor.clear()
    faulty = changed(units, stream, fault.change, since=BEFORE)
    for drift in monitor.readings_of(answered(session, manifest, faulty, shown), every=EVERY):
        made.faulty.append(drift.columns["sensor_11"].psi)
    return made


if __name__ == "__main__":
    typer.run(main)
