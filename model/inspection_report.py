"""Print an inspection: its tables, its findings, and the findings at the top of other commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from model.domain import Trajectory
from model.findings import Finding, findings, require_trainable
from model.fleet import Fleet
from model.inspection import Inspection, inspect_rows
from model.readers import read_rows
from model.screen import number_table, say, tell

MOST_SHOWN: Final = 5
"""Maximum findings at the top of `rul train` and `rul evaluate`."""
MOST_FILES: Final = 3
"""Maximum files in the command that shows all findings."""


def print_inspection(data: Sequence[Path], kind: Fleet, *, folds: int) -> bool:
    """Print all facts and findings; return whether a training can begin."""
    rows, _ = read_rows(data, kind)
    facts = inspect_rows(rows, kind)
    found = findings(facts, kind, folds=folds)
    Console().print(units_table(facts, kind), columns_table(facts), sep="\n")
    lines = _lines(found) or ["no findings"]
    if facts.suggested is not None:
        lines.append(suggestion(facts, kind))
    say(*lines)
    return all(finding.level != "error" for finding in found)


def inspected_trajectories(
    data: Sequence[Path], kind: Fleet, *, fleet: str, folds: int | None = None
) -> list[Trajectory]:
    """Read every unit, and print the most important findings on standard error.

    `fleet` is what the user called `kind`; `folds` None: no training is planned.

    Raises:
        InvalidData: the data would ruin the training.
    """
    rows, _ = read_rows(data, kind)
    found = findings(inspect_rows(rows, kind), kind, folds=folds)
    if folds is not None:
        require_trainable(found)
    important = [finding for finding in found if finding.level != "note"]
    lines = _lines(important[:MOST_SHOWN])
    if lines:
        shown = [*map(str, data[:MOST_FILES])] + [".."] * (len(data) > MOST_FILES)
        everything = shlex.join(["rul", "inspect", fleet, *shown])
        lines.append(f"{len(found)} findings in all: {everything}")
        tell(*lines)
    return rows.trajectories(kind, run_to_failure=None)


def units_table(facts: Inspection, fleet: Fleet) -> Table:
    """Tabulate units and lives."""
    title = f"{fleet.name}: {facts.rows} readings of {facts.units} units, cycles of life"
    table = number_table(title, "units", "count", "shortest", "5 %", "25 %", "median", "75 %", "longest")
    for name, count, lives in (
        ("failed", facts.failed, facts.lives),
        ("not failed", facts.units - facts.failed, facts.censored),
    ):
        if count:
            table.add_row(name, str(count), *(f"{value:.0f}" for value in lives))
    return table


def columns_table(facts: Inspection) -> Table:
    """Tabulate the columns."""
    table = Table(title="columns")
    table.add_column("name", overflow="fold")
    for heading in ("1 %", "median", "99 %", "missing", "outliers"):
        table.add_column(heading, justify="right", no_wrap=True)
    for column in facts.columns:
        middle = (f"{value:.4g}" for value in (column.low, column.median, column.high))
        missing = f"{100 * column.missing:.1f} %" if column.missing else "-"
        name = column.name + (" (setting)" if column.role == "setting" else "")
        table.add_row(name, *middle, missing, str(column.outliers or "-"))
    return table


def suggestion(facts: Inspection, fleet: Fleet) -> str:
    """Compare the fleet file with the values that suit the lives."""
    assert facts.suggested is not None  # noqa: S101 the caller checked
    wanted = facts.suggested
    return (
        f"suggested for these lives: cap = {wanted.cap:g}, context = {wanted.context}, "
        f"horizons = {list(wanted.horizons)} "
        f"(file: cap = {fleet.cap:g}, context = {fleet.context}, horizons = {list(fleet.horizons)})"
    )


def _lines(found: Sequence[Finding]) -> list[str]:
    return [f"{finding.level}: {finding.text}" for finding in found]
