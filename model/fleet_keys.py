"""Keys of a fleet's TOML file: what each is for, its default, and advice.

docs/fleet.md lists them, `rul fleet init` writes them as comments, and errors name the table a key
belongs in. `python -m model.fleet_keys` writes docs/fleet.md. This module must not know columns of files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from model.domain import InvalidData

TOP: Final = ""
COLUMNS: Final = ("settings", "sensors")
"""Tables with one entry a column; both have the same keys."""
TABLES: Final = ("failure", *COLUMNS)

PAGE: Final = Path(__file__).parents[1] / "docs" / "fleet.md"
MARK: Final = "<!-- keys: python -m model.fleet_keys -->"
REQUIRED: Final = "required"
WORDS: Final = (REQUIRED, "none", "rows are counted from 1", "the unit", "the name")
"""Defaults that are no TOML values."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file."""

    table: str  # TOP, "failure", or "sensors" for both tables of columns
    name: str
    default: str  # Value in TOML, or the effect of omitting the key
    meaning: str  # What it does, with its unit
    advice: str  # How to choose it: what too high and too low cause


KEYS: Final = (
    Key(TOP, "name", REQUIRED, "Name of the fleet.", "Short, lower case."),
    Key(TOP, "format", REQUIRED, '"csv", "parquet", "feather", "xlsx", or "cmapss": NASA\'s text.',
        "A file with a known suffix is read by it, a `.txt` by its first line; `.gz` is unpacked. A folder "
        "is read for files of this format, with the folders in it."),
    Key(TOP, "unit", REQUIRED, 'Column that names the unit; "file" where each file is one unit.',
        "One machine, or one life of it: a repaired unit that starts a new life needs a new name, and "
        "`group` for what both share."),
    Key(TOP, "cycle", "rows are counted from 1",
        "Column of whole numbers that rise, at most 16777216, or of dates.",
        "RUL and all keys below are in these cycles. Rows may be in any order; no cycle may appear twice, "
        "and a skipped one counts as missing. Dates number each unit's readings 1, 2, .. in order of time, "
        "so files must hold whole lives; those without a zone are in UTC, so write local ones with their "
        "offset."),
    Key(TOP, "group", "the unit",
        "Column; units with the same value are in the same fold, and are left out and resampled together.",
        "The machine if units are its lives; the batch or plant if its units wear alike. Without it, "
        "networks are judged on units like those they trained on, and figures flatter them, with "
        "too narrow intervals."),
    Key(TOP, "cap", "125.0", "RUL in cycles above which an answer is \"at least\".",
        "About where wear begins to show. Too high: the model guesses from the average life. "
        "Too low: it warns late. `rul inspect` suggests one."),
    Key(TOP, "context", "60", "Maximum cycles that the model reads, at least 2.",
        "Longer than the noise, shorter than most lives. Longer costs time and rarely gains above 60. Below "
        "10 `trust` cannot be judged: it is always `unsupported`."),
    Key(TOP, "shortest", "1", "Minimum cycles of an evaluated window.",
        "Raise it if units are never asked about in their first cycles."),
    Key(TOP, "horizons", "[10, 30, 60]", "Horizons of the failure probabilities, in cycles, rising.",
        "The times in which you can act: order a part, plan a stop. None above 0.9 of `cap`."),
    Key(TOP, "nominal_coverage", "0.9", "Share of true RULs that the interval should hold, 0..1.",
        "Higher is wider. Above 0.95 needs hundreds of failed units."),
    Key(TOP, "critical_below", "30.0", "RUL in cycles below which a unit is critical.",
        "The time that the fastest possible intervention takes."),
    Key(TOP, "degrading_below", "100.0", "RUL in cycles below which a unit is degrading.",
        "Above `critical_below`, at most 0.9 of `cap`."),
    Key(TOP, "max_missing_fraction", "0.5",
        "Share of missing readings above which the service refuses a window.",
        "Raise it for sensors that report rarely; answers are less sure then."),
    Key("failure", "run_to_failure", "false", "true: every unit ran to failure at its last cycle.",
        "Either this, or `column` with one bound."),
    Key("failure", "column", "none", "Column of the file that crosses a bound at the failure.",
        "A unit fails at the first cycle after which the column never returns; later cycles are not used. "
        "Read it as a sensor too: its distance to the bound is the best sign of wear."),
    Key("failure", "at_most", "none", "The unit has failed if its last values are at most this.",
        "`rul inspect` shows how many units reach it, and a near bound that more reach."),
    Key("failure", "at_least", "none", "The unit has failed if its last values are at least this.",
        "As `at_most`."),
    Key("sensors", "name", REQUIRED, "Name of the column in requests and answers.",
        "Stable: clients send it. No column may hold the RUL."),
    Key("sensors", "source", "the name", "Name of the column in files.",
        "Give it where files use another name."),
    Key("sensors", "unit", '""', "Engineering unit of the readings.",
        "Shown to clients; nothing is converted."),
    Key("sensors", "description", '""', "What the column measures.", "Shown to clients."),
)  # fmt: skip
_TYPES: Final = {
    "float": "a number",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def check_keys(file: Mapping[str, Any]) -> None:
    """Check that each key of a parsed file is known in its table.

    Raises:
        InvalidData: a key is unknown; the message names the table it belongs in.
    """
    for name, value in file.items():
        entries = value if isinstance(value, list) else [value]
        if name not in TABLES and entries and all(isinstance(entry, Mapping) for entry in entries):
            shown = f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
            raise InvalidData(f"unknown table {shown}: {_table_hint(name, entries[0])}")
        if name in TABLES:
            for entry in entries:
                _check_names(entry if isinstance(entry, Mapping) else {}, table=name)
        else:
            _check_names({name: value}, table=TOP)


def plain_error(message: str) -> str:
    """Word a conversion error of msgspec by the key that it is about.

    >>> plain_error("Expected `float`, got `str` - at `$.failure.at_most`")
    '[failure] at_most: expected a number, got text'
    """
    said, _, path = message.partition(" - at `$")
    parts = re.findall(r"[a-z_]+", path)
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", said):
        where = _shown(parts[0]) if parts else _shown(TOP)
        return f"{where}: missing key {missing[1]}" if missing[1] != "failure" else "missing table [failure]"
    where = f"{_shown(parts[0])} {parts[1]}" if len(parts) > 1 else "".join(parts)
    if said == "Expected `str` of length >= 1":
        return f"{where}: expected text, got nothing"
    if typed := re.fullmatch(r"Expected `([\w| ]+)`, got `(\w+)`", said):
        if parts and parts[0] in COLUMNS and len(parts) == 1:
            return f"[[{parts[0]}]]: expected one table a column, with double brackets"
        wanted = _TYPES.get(typed[1].split(" ")[0], typed[1])
        return f"{where}: expected {wanted}, got {_TYPES.get(typed[2], typed[2])}"
    return message


def reference() -> str:
    """Write the tables of docs/fleet.md."""
    titles = {TOP: "Top of the file", "failure": "[failure]", "sensors": "[[settings]] and [[sensors]]"}
    lines: list[str] = []
    for table, title in titles.items():
        lines += [f"## {title}", "", "| key | default | meaning | advice |", "|---|---|---|---|"]
        for key in KEYS:
            if key.table == table:
                default = key.default if key.default in WORDS else f"`{key.default}`"
                lines.append(f"| `{key.name}` | {default} | {key.meaning} | {key.advice} |")
        lines.append("")
    return "\n".join(lines)


def page(text: str) -> str:
    """Replace the tables of the page by those of the code."""
    head, mark, _ = text.partition(MARK)
    return f"{head}{mark}\n\n{reference()}"


def key(name: str, *, table: str = TOP) -> Key:
    """Find a key by its name."""
    return next(key for key in KEYS if (key.name, key.table) == (name, table))


def _check_names(entry: Mapping[str, Any], *, table: str) -> None:
    own = [key.name for key in KEYS if key.table == ("sensors" if table in COLUMNS else table)]
    for name in entry:
        if name in own:
            continue
        where = f"{_shown(table)}: " if table else ""
        if _homes(name):
            raise InvalidData(f"{where}unknown key {name}: {_place(name)}")
        close = difflib.get_close_matches(name, own, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(own)}"
        raise InvalidData(f"{where}unknown key {name}: {hint}")


def _table_hint(name: str, entry: Mapping[str, Any]) -> str:
    if close := difflib.get_close_matches(name, TABLES, n=1, cutoff=0.6):
        return f"did you mean {_shown(close[0])}?"
    if inner := next((key for key in entry if _homes(key)), None):
        return _place(inner)
    return f"expected {_shown(TABLES[0])}, {_shown(TABLES[1])} or {_shown(TABLES[2])}"


def _homes(name: str) -> list[str]:
    return [key.table for key in KEYS if key.name == name]


def _place(name: str) -> str:
    homes = [
        "at the top of the file, above the first [table]" if table == TOP else
        "in [[settings]] or [[sensors]]" if table == "sensors" else f"in [{table}]"
        for table in _homes(name)
    ]  # fmt: skip
    return f"{name} belongs {', or '.join(homes)}"


def _shown(table: str) -> str:
    return f"[[{table}]]" if table in COLUMNS else f"[{table}]" if table else "top of the file"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
