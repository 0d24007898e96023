"""Fleets as streams of windows for the drift monitor.

A stream goes through a fleet cycle by cycle: at each cycle every running unit sends the window that ends
there. Units join at random within the first 200 cycles, so ages are mixed, or all at once, so ages are equal.
Answers come from the bundle, by ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from export.ageing import drift_reference
from export.bundle import Manifest
from export.session import Session
from model.domain import Trajectory, pad_windows
from service.core.answers import Answers
from service.core.rules import WindowRules
from service.core.runtime import Asked, Outputs
from service.drift.counts import BLOCKS, DriftCounts, block_size
from service.drift.monitor import UNSEEN_LIMIT, Drift, drift_of
from tests.benchmarks.drift_faults import Change

JOIN_WITHIN = 200
AT_ONCE = 50

Batch = tuple[Answers, list[str | None]]


@dataclass(frozen=True)
class Place:
    """A window to send: its unit in the fleet, and its last row."""

    unit: int
    row: int


def places(units: Sequence[Trajectory], *, together: bool, rng: np.random.Generator) -> list[Place]:
    """Return the windows of a fleet in the order of sending."""
    joins = [0 if together else int(rng.integers(JOIN_WITHIN)) for _ in units]
    last = max(join + len(unit) for join, unit in zip(joins, units, strict=True))
    return [
        Place(i, now - join)
        for now in range(last)
        for i, (join, unit) in enumerate(zip(joins, units, strict=True))
        if 0 <= now - join < len(unit)
    ]


def changed(
    units: Sequence[Trajectory], stream: Sequence[Place], change: Change, *, since: int
) -> list[Trajectory]:
    """Return the fleet with a fault from index `since` of its stream on."""
    first: dict[int, int] = {}
    for place in stream[since:]:
        first.setdefault(place.unit, place.row)
    return [
        replace(unit, readings=change(unit.readings, first[i])) if i in first else unit
        for i, unit in enumerate(units)
    ]


def answered(
    session: Session, manifest: Manifest, units: Sequence[Trajectory], stream: Sequence[Place]
) -> Iterator[Batch]:
    """Yield batches of a stream with the model's answers."""
    rules = WindowRules.of(manifest, max_window_cycles=manifest.context)
    for start in range(0, len(stream), AT_ONCE):
        these = stream[start : start + AT_ONCE]
        windows = [
            units[place.unit].readings[max(0, place.row + 1 - manifest.context) : place.row + 1]
            for place in these
        ]
        readings = pad_windows(windows)
        lengths = np.array([*map(len, windows)], dtype=np.int64)
        ages = np.array([units[place.unit].cycles[place.row] for place in these], dtype=np.float32)
        outputs = Outputs(**session.answer(readings, lengths, ages))
        names: list[str | None] = [units[place.unit].unit for place in these]
        asked = Asked(readings, lengths, ages)
        yield Answers(asked, outputs, manifest, rules).bare(), names


class Monitor:
    """A drift monitor as one worker has it."""

    def __init__(self, manifest: Manifest) -> None:
        self.reference = drift_reference(manifest)
        self.clear()

    def clear(self) -> None:
        """Reset the monitor."""
        self.storage = np.zeros(BLOCKS * block_size(self.reference))
        self.counts = DriftCounts(self.storage, self.reference)

    def read(self) -> Drift:
        """Return the current report."""
        return drift_of(self.storage, self.reference)

    def readings_of(self, batches: Iterator[Batch] | Sequence[Batch], *, every: int) -> Iterator[Drift]:
        """Yield the report at regular numbers of windows."""
        waiting = 0
        for batch in batches:
            self.counts.count(*batch)
            waiting += len(batch[1])
            if waiting >= every:
                waiting -= every
                yield self.read()


def alarms(drift: Drift) -> list[str]:
    """Return the names beyond their limits: columns, `regime`, `prediction`, `entropy`."""
    others = {
        "regime": drift.unseen > UNSEEN_LIMIT,
        "prediction": drift.prediction.drifting,
        "entropy": any(index.drifting for index in drift.entropy.values()),
    }
    return [*drift.drifting, *(name for name, beyond in others.items() if beyond)]
