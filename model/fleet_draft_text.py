"""A draft of a fleet as a commented TOML file, and what a user should know about it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from model.cells import counted
from model.fleet import ONE_FILE_A_UNIT, column_lines, failure_lines, toml_string
from model.fleet_draft import Draft
from model.fleet_keys import key

WIDTH: Final = 108


def draft_toml(draft: Draft, *, name: str) -> str:
    """Write the draft with a comment above each key.

    The text is that of docs/fleet.md.
    """
    suggested = draft.suggested
    values: dict[str, object] = {
        "name": toml_string(name),
        "format": toml_string(draft.form),
        "unit": toml_string(draft.unit_column),
        "cycle": None if draft.cycle_column is None else toml_string(draft.cycle_column),
        "cap": f"{suggested.cap:g}",
        "context": suggested.context,
        "horizons": list(suggested.horizons),
        "critical_below": f"{draft.critical_below:g}",
        "degrading_below": f"{draft.degrading_below:g}",
    }
    lines = ["# Guessed by `rul fleet init`: check every value. docs/fleet.md lists all keys."]
    for each, value in values.items():
        lines += ["", *_comment(each)]
        lines.append(f"{each} = {value}" if value is not None else f'# {each} = ".."')
    return "\n".join([*lines, *_failure(draft), *_left_out(draft), *_columns(draft)]) + "\n"


def guesses(draft: Draft) -> list[str]:
    """List what was guessed and what could not be, one line each."""
    by_role = {
        role: ", ".join(column.name for column in draft.columns.values() if column.role == role)
        for role in ("setting", "sensor")
    }
    unit = "each file" if draft.unit_column == ONE_FILE_A_UNIT else repr(draft.unit_column)
    lines = [
        f"unit: {unit}, {counted(draft.units, 'unit')}",
        f"cycle: {repr(draft.cycle_column) if draft.cycle_column else 'the row'}",
        *(f"{role}s: {names}" for role, names in by_role.items() if names),
        *(f"left out: {source} ({reason})" for source, reason in draft.left_out),
        *(f"not guessed: {text}" for text in draft.unsure),
    ]
    if draft.failed is not None:
        lines.append(f"failure: {draft.failed} of {counted(draft.units, 'unit')}, {_whose_last(draft)}")
    elif draft.failure is not None:
        lines.append(f"most units end near one value of {draft.failure.column!r}: see [failure] in the file")
    return lines


def _comment(name: str) -> list[str]:
    about = key(name)
    return textwrap.wrap(
        f"{about.meaning} {about.advice}", WIDTH, initial_indent="# ", subsequent_indent="# "
    )


def _whose_last(draft: Draft) -> str:
    rule = draft.failure
    assert rule is not None  # noqa: S101 units are counted by it
    bound = rule.at_least if rule.at_least is not None else rule.at_most
    return f"those whose last {rule.column!r} is {bound:g}"


def _failure(draft: Draft) -> Iterator[str]:
    yield ""
    if draft.failed is not None:
        yield f"# When has a unit failed? Found: {draft.failed} of {draft.units}, {_whose_last(draft)}."
        yield "[failure]"
        yield from failure_lines(draft.failure)
        return
    yield "# When has a unit failed? NOT GUESSED. As written: every unit ran to failure at its last cycle."
    yield "# Where some still run, name the column whose last value decides, with at_most or at_least."
    yield "[failure]"
    yield "run_to_failure = true"
    if draft.failure is not None:
        yield "# Most units end near one value of this column; in place of run_to_failure it may be:"
        yield from (f"# {line}" for line in failure_lines(draft.failure))


def _left_out(draft: Draft) -> Iterator[str]:
    if draft.left_out:
        yield ""
        yield "# Columns that are left out, and why:"
        for source, reason in draft.left_out:
            yield f"#   {toml_string(source)}: {reason}"


def _columns(draft: Draft) -> Iterator[str]:
    yield ""
    yield "# [[settings]]: how a unit is run. [[sensors]]: what it reports. Delete what tells no wear."
    yield "# Add `unit` and `description` for the people who read answers."
    for source, column in draft.columns.items():
        yield from column_lines(column, source)
