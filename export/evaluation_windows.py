"""Windows to evaluate a bundle on, spread over lives or the last with a true RUL, and answers to whole lives.

This module must not know torch or screens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from export.bundle import Manifest
from model.cells import counted
from model.dataset import answerable, group_of, join_windows, make_windows, windows_ending_at
from model.domain import NOVELTY_LIMIT, InvalidData, Trajectory, WindowSet
from model.files import data_sha256, format_of
from model.fleet import Fleet, fleet_named
from model.prognostics import Life

if TYPE_CHECKING:
    from export.session import Session

ALIVE_SHARE: Final = 0.1
"""A unit whose interval starts above this share of the cap has not failed."""
OF_LIVES: Final = ("rul", "rul_interval", "failure_probability")
"""Outputs that a life keeps."""
CHECKED_AT_ONCE: Final = 100
"""Windows of a life that are cut together to count what they miss."""


def matching_fleet(manifest: Manifest, name_or_path: str) -> Fleet:
    """Find a fleet and check that it has the model's columns."""
    kind = fleet_named(name_or_path)
    if kind.schema.names != manifest.schema_of_columns.names:
        raise InvalidData(
            f"fleet {kind.name!r} has the columns {', '.join(kind.schema.names)}; "
            f"{manifest.name!r} reads {', '.join(manifest.schema_of_columns.names)}: "
            "give the fleet file of its training, --fleet FILE"
        )
    return kind


def is_training_data(manifest: Manifest, data: Sequence[Path], kind: Fleet) -> bool:
    """Compare files with the data that trained the bundle."""
    from model.readers import data_files  # noqa: PLC0415 with PyArrow

    return data_sha256(data_files(data, kind)) == manifest.training.data_sha256


def spread_windows(trajectories: Sequence[Trajectory], manifest: Manifest, *, per_unit: int) -> WindowSet:
    """Cut at most `per_unit` windows, evenly spread over each unit's life, its end included.

    `rul` is NaN if the unit has not failed.
    """
    parts: list[WindowSet] = []
    for trajectory in trajectories:
        cycles = len(trajectory)
        ends = np.unique(np.linspace(cycles - 1, 0, min(per_unit, cycles)).round().astype(int))
        parts.append(windows_ending_at(trajectory, ends, length=manifest.context))
    return join_windows(parts)


def life_windows(trajectory: Trajectory, manifest: Manifest) -> WindowSet:
    """Cut a window at each cycle of one unit."""
    return spread_windows([trajectory], manifest, per_unit=len(trajectory))


def answer_lives(session: Session, manifest: Manifest, units: Iterable[Trajectory]) -> list[Life]:
    """Predict units at each cycle where the service would; a unit without such a cycle is left out.

    The truth is NaN if a unit has not failed.

    Raises:
        InvalidData: no unit has such a cycle.
    """
    lives: list[Life] = []
    for unit in units:
        # Cut when they are asked for: all windows of a long life together may be gigabytes.
        windows = make_windows([unit], length=manifest.context)
        known = [answerable(part, manifest.max_missing_fraction) for part in windows.batches(CHECKED_AT_ONCE)]
        which = np.flatnonzero(np.concatenate(known))
        if len(which):
            answers = session.answer_some(windows, which, OF_LIVES)
            truth = windows.rul[which] if unit.failed else np.full(len(which), np.nan, np.float32)
            lower, upper = answers["rul_interval"].T
            answered = truth, answers["rul"], lower, upper, answers["failure_probability"]
            lives.append(Life(unit.unit, windows.last_cycle[which], *answered, group_of(unit)))
    if not lives:
        raise nothing_to_answer(manifest)
    return lives


def nothing_to_answer(manifest: Manifest) -> InvalidData:
    """Make the error for data whose windows the service would all refuse."""
    most = f"{manifest.max_missing_fraction:.0%}"
    return InvalidData(f"expected windows with at most {most} of their readings missing; no unit has one")


def read_true_ruls(path: Path, units: Sequence[str]) -> dict[str, float]:
    """Read the RUL of each unit at its last reading, in cycles.

    Tables, such as CSV and Parquet, have the columns `unit` and `rul`. Other files, such as NASA's
    RUL_FD001.txt, have one number per line, for the units of the data in order of their numbers or names.

    Raises:
        InvalidData: the file cannot be read, or its units are not those of the data.
    """
    from model.tables import read_table  # noqa: PLC0415 with PyArrow

    form = format_of(path, "cmapss")
    if form is None or form == "cmapss":
        return _one_a_line(path, units)
    table = read_table(path, form=form, numbers=["rul"], text="unit")
    found: dict[str, float] = {}
    for row, (code, rul) in enumerate(zip(table.codes.tolist(), table.numbers["rul"].tolist(), strict=True)):
        unit = table.labels[code]
        if unit in found:
            raise InvalidData(f"{table.locate(row)}: unit {unit} has a RUL already")
        found[unit] = _checked(rul, f"{rul:g}", f"{table.locate(row)}, column 'rul'")
    for name, missing in (
        ("the file has no RUL for", [unit for unit in units if unit not in found]),
        ("the data has no", sorted(found.keys() - set(units))),
    ):
        if missing:
            raise InvalidData(f"{path}: {name} unit {missing[0]} ({len(missing)} such)")
    return found


def last_windows(trajectories: Sequence[Trajectory], ruls: Mapping[str, float], *, context: int) -> WindowSet:
    """Cut the last window of each unit, with its true RUL."""
    windows = join_windows(
        [windows_ending_at(unit, np.array([len(unit) - 1]), length=context) for unit in trajectories]
    )
    rul = np.array([ruls[unit.unit] for unit in trajectories], dtype=np.float32)
    return replace(windows, rul=rul)


def require_failures(
    session: Session, manifest: Manifest, units: Sequence[Trajectory], *, instead: str
) -> None:
    """Refuse units that should have failed if most of their last answers say otherwise.

    A fleet with `run_to_failure = true` takes the last reading of any file for a failure. For truncated
    units the truth would be too low, and every figure wrong. Windows unlike the training data do not
    count, because their answer may be wrong.
    """
    windows = last_windows(units, {unit.unit: 0.0 for unit in units}, context=manifest.context)
    answers = session.answer_all(windows)
    late = answers["rul_interval"][:, 0] > ALIVE_SHARE * manifest.cap
    alive = int((late & (answers["novelty"] <= NOVELTY_LIMIT)).sum())
    if alive > len(units) / 2:
        raise InvalidData(
            f"{alive} of {len(units)} units are far from failure at their last reading, by the model's own "
            f"intervals: {instead}"
        )


def _one_a_line(path: Path, units: Sequence[str]) -> dict[str, float]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidData(f"{path}: cannot be read: {error}") from error
    numbers = [(n, line.strip()) for n, line in enumerate(lines, start=1) if line.strip()]
    if len(numbers) != len(units):
        expected = f"expected {counted(len(units), 'number')}, one a unit"
        raise InvalidData(f"{path}: {expected}, got {counted(len(numbers), 'line')}")
    if [*units] not in (sorted(units), sorted(units, key=_by_number)):
        first, second = next((a, b) for a, b in pairwise(units) if _by_number(a) > _by_number(b))
        raise InvalidData(
            f"{path}: one number a line is for units in order, and in the data unit {first} comes before "
            f"unit {second}: give a CSV with the columns unit and rul"
        )
    return {
        unit: _checked(_number(text), repr(text[:40]), f"{path}: line {n}")
        for unit, (n, text) in zip(units, numbers, strict=True)
    }


def _by_number(name: str) -> list[tuple[int, str]]:
    """Order names as people do: pump 9 before pump 10."""
    return [(int(part), "") if n % 2 else (0, part) for n, part in enumerate(re.split(r"([0-9]+)", name))]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _checked(rul: float, text: str, place: str) -> float:
    if not (math.isfinite(rul) and rul >= 0):
        raise InvalidData(f"{place}: expected a RUL of 0 cycles or more, got {text}")
    return rul
