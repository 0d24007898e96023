"""Findings: consequences of facts about a fleet's data for training, one line each.

Errors would ruin a training and stop it before it begins; warnings deserve a look; notes are good to
know. `rul inspect` prints all, with the tables of the inspection; other commands print the first ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rich.console import Console
from rich.table import Table

from model.cells import counted
from model.dataset import split_units
from model.domain import InvalidData, Trajectory
from model.fleet import SHORTEST_CONTEXT, FailureRule, Fleet
from model.inspection import QUANTILES, WIDE, BoundFacts, ColumnFacts, Inspection, inspect_rows
from model.readers import read_rows
from model.reference import LARGEST_READING
from model.screen import digits_apart, number_table, percent, say, tell

Level = Literal["error", "warning", "note"]
LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "note")
NEARLY_CONSTANT: Final = 0.995
"""A column with this share of equal readings is nearly constant."""
COARSE: Final = 0.01
"""Rounding by float32, as a share of a column's range, from which wear is lost."""
MANY: Final = 0.001
"""Share of outliers among a column's readings from which they are a warning."""
LATE_START: Final = 0.1
"""Median first cycle, as a share of the median life, from which cycle numbers may be no age."""
OFTEN: Final = 0.1
"""Share of the readings at which windows begin anew, from which skipped cycles leave them short."""
NUMBER: Final = "number the readings 1, 2, 3, .. or leave out the key cycle"
MANY_RUNNING: Final = 0.2
"""Share of units that have not failed, from which the failed ones may not be representative."""
FEW_UNITS: Final = 20
"""Failed units below which errors and intervals have wide bounds."""
FEWEST_FOLDS: Final = 2
MOST_NAMED: Final = 3
"""Maximum number of units that a finding names."""
MOST_SHOWN: Final = 5
"""Maximum findings that `rul train`, `experiment`, `evaluate` and `decide` print."""
MOST_FILES: Final = 3
"""Maximum files in the command that shows all findings."""
MEDIAN, LONGEST = QUANTILES.index(0.5), QUANTILES.index(1.0)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line about the data."""

    level: Level
    text: str


def findings(
    facts: Inspection,
    fleet: Fleet,
    *,
    folds: int | None = None,
    seed: int = 0,
    true_ruls: bool = False,
) -> list[Finding]:
    """List all findings, errors first; `folds` None: no training is planned.

    `seed` is that of the folds. `true_ruls` says that the user gives every unit's RUL, so that failures in
    the data do not matter.
    """
    found = [
        *_of_rows(facts),
        *(() if true_ruls else _of_failures(facts, fleet, folds=folds)),
        *(() if folds is None else _of_lives(facts, fleet)),
        *(() if folds is None else _of_folds(facts, fleet, folds=folds, seed=seed)),
        *(finding for column in facts.columns for finding in _of_column(column, facts, fleet)),
    ]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def require_trainable(found: list[Finding]) -> None:
    """Stop a training that an error would ruin.

    Raises:
        InvalidData: there is an error; the message is its line.
    """
    errors = [finding.text for finding in found if finding.level == "error"]
    if errors:
        raise InvalidData(errors[0])


def print_inspection(data: Sequence[Path], kind: Fleet, *, folds: int) -> bool:
    """Print all facts and findings; return whether a training can begin."""
    with Console(stderr=True).status("reading data"):
        facts = inspect_rows(read_rows(data, kind, with_groups=True)[0], kind)
    found = findings(facts, kind, folds=folds)
    Console().print(units_table(facts, kind), columns_table(facts), sep="\n")
    lines = _lines(found) or ["no findings"]
    if (wanted := facts.suggested) is not None:
        lines.append(
            f"suggested for these lives: cap = {wanted.cap:g}, context = {wanted.context}, "
            f"horizons = {list(wanted.horizons)} "
            f"(file: cap = {kind.cap:g}, context = {kind.context}, horizons = {list(kind.horizons)})"
        )
    say(*lines)
    return all(finding.level != "error" for finding in found)


def inspected_trajectories(
    data: Sequence[Path],
    kind: Fleet,
    *,
    fleet: str,
    folds: int | None = None,
    seed: int = 0,
    true_ruls: bool = False,
) -> list[Trajectory]:
    """Read every unit, and print the most important findings on standard error.

    `fleet` is what the user called `kind`; `folds`, `seed` and `true_ruls` are those of `findings`. With
    `true_ruls` the column of the failure rule is not read, and lives end at their last reading.

    Raises:
        InvalidData: the data would ruin the training.
    """
    with Console(stderr=True).status("reading data"):
        rows, _ = read_rows(data, kind, with_failure=not true_ruls, with_groups=True)
        facts = inspect_rows(rows, kind)
    found = findings(facts, kind, folds=folds, seed=seed, true_ruls=true_ruls)
    if folds is not None:
        require_trainable(found)
    lines = _lines([finding for finding in found if finding.level != "note"][:MOST_SHOWN])
    if lines and not true_ruls:  # `rul inspect` judges failures too
        shown = [*map(str, data[:MOST_FILES])] + [".."] * (len(data) > MOST_FILES)
        everything = shlex.join(["rul", "inspect", fleet, *shown])
        lines.append(f"{counted(len(found), 'finding')} in all: {everything}")
    if lines:
        tell(*lines)
    return rows.trajectories(kind, run_to_failure=None)


def units_table(facts: Inspection, fleet: Fleet) -> Table:
    """Tabulate units and lives."""
    shown = f"{counted(facts.rows, 'reading')} of {counted(facts.units, 'unit')}"
    title = f"{fleet.name}: {shown}, cycles from first reading to last"
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
        digits = digits_apart(column.low, column.high)
        middle = (f"{value:.{digits}g}" for value in (column.low, column.median, column.high))
        missing = f"{100 * column.missing:.1f} %" if column.missing else "-"
        name = column.name + (" (setting)" if column.role == "setting" else "")
        table.add_row(name, *middle, missing, str(column.outliers or "-"))
    return table


def _lines(found: Sequence[Finding]) -> list[str]:
    return [f"{finding.level}: {finding.text}" for finding in found]


def _of_rows(facts: Inspection) -> Iterator[Finding]:
    if all(column.commonest == 1 for column in facts.columns if column.role == "sensor"):
        text = "[[sensors]]: expected readings that change, got one value a column; add one that shows wear"
        yield Finding("error", text)
    if facts.duplicates:
        yield Finding(
            "error",
            f"{facts.duplicate}; {counted(facts.duplicates, 'such row')} of {facts.rows}: "
            "keep one of each, or their mean",
        )
    if facts.gaps:
        text = f"{counted(facts.gaps, 'unit')} with gaps in the cycle numbers: windows count "
        text += f"{facts.skipped:.1%} of the cycles as missing"
        if often := facts.anew > OFTEN:
            text += f", and windows begin anew at {facts.anew:.1%} of the readings: {NUMBER}, if cycles need "
            text += "not count"
        yield Finding("warning" if often else "note", text)
    if facts.refused:
        cure = f"{NUMBER}, if cycles need not count; " if facts.gaps else ""
        cure += "remove columns that they lack or raise max_missing_fraction"
        few = f"{percent(facts.refused)} of the windows have too few readings for an answer"
        yield Finding("warning", f"{few}, and no figure counts them: {cure}")


def _of_failures(facts: Inspection, fleet: Fleet, *, folds: int | None) -> Iterator[Finding]:
    if facts.bound is not None:
        yield from _of_bound(facts, facts.bound)
    yield from _of_early_ends(facts)
    if not facts.failed:
        rule, bound = fleet.failure, facts.bound
        assert rule is not None and bound is not None  # noqa: S101, PT018 without a rule all units have failed
        yield Finding(
            "warning" if folds is None else "error",
            f"[failure] {_shown(rule)}: expected units whose last value reaches it, got none of "
            f"{facts.units}; the closest last value is {bound.nearest:g}",
        )
    elif folds is not None and (count := len(set(facts.ended))) < folds:
        advice = f"choose --folds {count}, or " if count >= FEWEST_FOLDS else ""
        what = "units" if fleet.group_column is None else f"groups (column {fleet.group_column!r}) of units"
        text = (
            f"--folds {folds}: expected at least {folds} {what} with a known failure, got {count} "
            f"(of {counted(facts.units, 'unit')}): {advice}train on more units"
        )
        yield Finding("error", text)
    elif facts.failed < FEW_UNITS:
        only = f"only {counted(facts.failed, 'unit')} with a known failure"
        yield Finding("warning", f"{only}: expect wide bounds on every figure")
    censored = facts.units - facts.failed
    if facts.failed and censored:
        text = f"{censored} of {facts.units} units have not failed: they have no RUL"
        if many := censored > MANY_RUNNING * facts.units:
            text += ", and failed units count for them. Where they were replaced early, answers are too early"
        yield Finding("warning" if many else "note", text)


def _of_bound(facts: Inspection, bound: BoundFacts) -> Iterator[Finding]:
    shown = _shown(bound.rule)
    if bound.nearby is not None:
        yield Finding(
            "warning",
            f"[failure] {shown}: {bound.missed} of {facts.units} units never reach it; "
            f"{bound.reach_nearby} reach {bound.nearby:g}",
        )
    elif facts.failed and bound.missed * 2 > facts.units:
        yield Finding("warning", f"[failure] {shown}: {bound.missed} of {facts.units} units never reach it")
    repaired = "run on long after a value beyond it: if repaired, give each life its own unit, and `group`"
    for units, text in ((bound.begins_beyond, "beyond it at the first reading"), (bound.runs_on, repaired)):
        if units:
            yield Finding("warning", f"[failure] {shown}: {_named(units)} {text}")
    if bound.goes_on >= 1:
        text = f"failed units have their first value beyond it {bound.goes_on:g} cycles before their last"
        yield Finding("note", f"[failure] {shown}: {text} (median)")


def _of_early_ends(facts: Inspection) -> Iterator[Finding]:
    if facts.end is not None and facts.early:
        near, early = _shown(facts.end.rule), _named(facts.early)
        text = f"most units end near {near}, but {early} less than half-way there: do they still run?"
        yield Finding("warning", f"[failure] run_to_failure: {text}")


def _of_lives(facts: Inspection, fleet: Fleet) -> Iterator[Finding]:
    if not facts.lives or facts.suggested is None:
        return
    median, longest = facts.lives[MEDIAN], facts.lives[LONGEST]
    cap, context = facts.suggested.cap, facts.suggested.context
    if facts.window < SHORTEST_CONTEXT and all(column.missing < 1 for column in facts.columns):
        expected = "windows: expected two cycles with enough readings before a failure, got none"
        yield Finding("error", f"{expected}: lives need three readings; {NUMBER}")
    if fleet.context > longest:
        yield Finding(
            "error",
            f"context = {fleet.context}: expected at most {longest:g}, the longest life of a failed unit; "
            f"{context} suits these lives",
        )
    elif fleet.context > max(median, context):
        text = f"context = {fleet.context} is above the median life of {median:g} cycles; {context} suits it"
        yield Finding("warning", text)
    if facts.start > max(1.0, LATE_START * median):
        text = f"the first readings stand at cycle {facts.start:g}, and the model reads the age: number the "
        text += "cycles of each unit from the start of its life, or leave out the key cycle"
        yield Finding("warning", text)
    if fleet.cap > max(median, cap):
        text = f"cap = {fleet.cap:g} is above the median life of {median:g} cycles; {cap:g} suits it"
        yield Finding("warning", text)
    elif fleet.cap < 0.1 * median:
        text = f"cap = {fleet.cap:g} is small beside the median life of {median:g} cycles; {cap:g} tells more"
        yield Finding("note", text)


def _of_folds(facts: Inspection, fleet: Fleet, *, folds: int, seed: int) -> Iterator[Finding]:
    """Yield the columns without a reading in the units that train the network of a fold."""
    if len(set(facts.ended)) < folds:
        return
    noun = "unit" if fleet.group_column is None else "group"
    groups = split_units(facts.ended, parts=folds, seed=seed)
    for column, units in zip(facts.columns, facts.read, strict=True):
        place = f"[[{column.role}s]] {column.name}"
        if not units and column.missing < 1:
            text = (
                f"{place}: expected readings before a failure, got none in any failed unit; remove the column"
            )
            yield Finding("error", text)
        for fold, group in enumerate(groups, start=1):
            if units and set(units) <= set(group):
                text = f"{place}: only fold {fold} has readings, in {_named(units, noun)}, and its network "
                text += "trains on the others: remove the column"
                yield Finding("error", text + " or choose another --seed" * (len(units) > 1))


def _of_column(column: ColumnFacts, facts: Inspection, fleet: Fleet) -> Iterator[Finding]:
    place = f"[[{column.role}s]] {column.name}"
    if column.missing == 1:
        yield Finding("error", f"{place}: expected readings, got none in any unit; remove the column")
        return
    if column.largest > LARGEST_READING:
        text = f"expected readings within ±{LARGEST_READING:g}, got up to {column.largest:g} in magnitude"
        yield Finding("error", f"{place}: {text}: leave the cell empty if it is a code for missing")
    if column.repeats == "RUL":
        yield Finding("warning", f"{place} counts the cycles to failure: the answer; remove the column")
    elif column.repeats == "cycle":
        yield Finding("note", f"{place} repeats the cycle number, which the model reads in any case")
    if column.commonest >= NEARLY_CONSTANT:
        level: Level = "warning" if column.role == "sensor" else "note"
        yield Finding(level, f"{place} is {column.median:g} in {percent(column.commonest)} of its readings")
    if column.rounded > COARSE:
        text = f"float32 rounds it by up to {percent(min(column.rounded, 1.0))} of its range: subtract "
        yield Finding("warning", f"{place}: {text}{column.median:g}, in requests too")
    if column.missing > 0:
        text = f"{place}: {percent(column.missing)} of the readings are missing"
        if unset := facts.unset.get(column.name, 0):
            text += f"; {counted(unset, 'cycle')} with sensor readings lack it, so their regime is a guess: "
            text += "fill it forward, in requests too"
        level = "warning" if unset or column.missing > fleet.max_missing_fraction else "note"
        yield Finding(level, text)
    if column.outliers:
        what = f"{counted(column.outliers, 'outlier')} far from {column.low:g} .. {column.high:g}"
        code = "" if column.code is None else f", most are {column.code:g}: a code for missing?"
        weighs = column.code is not None or column.farthest > WIDE or column.outliers >= MANY * facts.rows
        text = f"{place}: {what}, the first at {column.outlier}{code}"
        yield Finding("warning" if weighs else "note", text)


def _shown(rule: FailureRule) -> str:
    bound = f"<= {rule.at_most:g}" if rule.at_most is not None else f">= {rule.at_least:g}"
    return f"{rule.column} {bound}"


def _named(names: Sequence[str], noun: str = "unit") -> str:
    named = ", ".join(names[:MOST_NAMED]) + ", .." * (len(names) > MOST_NAMED)
    return f"{counted(len(names), noun)} ({named})"
