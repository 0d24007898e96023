"""Columns of the files that a fleet is drafted from: joined, numbered by dates, and named.

This module must not know which column is the unit, the cycle or a sensor (`model.fleet_draft`).
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from model.cells import number_of
from model.cycle_numbers import number_within
from model.domain import FloatArray, IntArray, InvalidData, printable
from model.tables import seconds_of

FAILED_WORDS: Final = frozenset({"failure", "failed"})
"""Columns of these names may mark a failure in several last rows of a unit; others may only warn of it."""
MOST_WORDS: Final = 20
"""Words of a column that may be states or modes; more are names or remarks."""
MOST_LISTED: Final = 40
"""Columns of a file in an error."""
MOST_SHOWN: Final = 5


def column_name(source: str, taken: Sequence[str]) -> tuple[str, str]:
    """Derive a name and an engineering unit from a column of a file.

    >>> column_name("Vib. (mm/s)", ["speed"])
    ('vib', 'mm/s')
    >>> column_name("Öltemp", [])
    ('oltemp', '')
    """
    bracketed = re.fullmatch(r"(.*\S)\s*[(\[]([^()\[\]]+)[)\]]\s*", source)
    plain, unit = (bracketed[1], bracketed[2]) if bracketed else (source, "")
    ascii_only = unicodedata.normalize("NFKD", plain.lower()).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "_", ascii_only).strip("_") or "column"
    numbered = name
    while numbered in taken:
        numbered = f"{name}_{int(numbered.removeprefix(name).strip('_') or 1) + 1}"
    return numbered, printable(unit)


def joined(
    files: Sequence[Path], tables: Sequence[Mapping[str, FloatArray | list[str]]]
) -> tuple[dict[str, FloatArray | list[str]], IntArray, list[str]]:
    """Join files; a column that is text in one file is text, and one that a file lacks is omitted.

    Raises:
        InvalidData: the files have no column in common.
    """
    shared = [*tables[0]]
    for file, table in zip(files, tables, strict=True):
        before, shared = shared, [name for name in shared if name in table]
        if not shared:
            raise InvalidData(
                f"{file}: no column that all files before it have: expected one of "
                f"{', '.join(before[:MOST_LISTED])}, got {', '.join([*table][:MOST_LISTED])}"
            )
    names = dict.fromkeys(name for table in tables for name in table)
    whole: dict[str, FloatArray | list[str]] = {}
    for name in shared:
        parts = [table[name] for table in tables]
        if any(isinstance(part, list) for part in parts):
            whole[name] = [_text(cell) for part in parts for cell in part]
        else:
            whole[name] = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
    sizes = [len(next(iter(table.values()))) for table in tables]
    return whole, np.repeat(np.arange(len(tables)), sizes), [name for name in names if name not in shared]


def _text(cell: float | str) -> str:
    return cell if isinstance(cell, str) else f"{cell:.15g}"


def rows_of(unit: IntArray) -> list[IntArray]:
    """Return the rows of each unit, in file order."""
    order = np.argsort(unit, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(unit[order])) + 1)


def numbered_dates(values: FloatArray | list[str], unit: IntArray) -> FloatArray | None:
    """Number the rows of each unit in order of a column of dates; None: it holds no dates."""
    if not isinstance(values, list):
        return None
    known = {text: seconds_of(text) for text in set(values)}
    if None in known.values():
        return None
    return number_within(unit, np.array([known[text] for text in values])).astype(np.float64)


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, with a decimal point or comma, or has no reading."""
    with contextlib.suppress(ValueError):
        number_of(cell.replace(",", "."))
        return True
    return False


def about_words(words: Collection[str]) -> str:
    """Say what to do with a column of text that has these words, if they are few.

    >>> about_words({"eco", "boost"})
    "text of 2 words ('boost', 'eco'): write each as a number if it matters"
    """
    if not 1 < len(words) <= MOST_WORDS:
        return "text"
    quoted = [repr(printable(word)[:32]) for word in sorted(words)]
    failures = [text for text in quoted if words_of(text) & FAILED_WORDS]
    listed = ", ".join(quoted[:MOST_SHOWN]) + ", .." * (len(quoted) > MOST_SHOWN)
    said = f"text of {len(words)} words ({listed}): write each as a number if it matters"
    return f"{said}; if {failures[0]} is a failure, write a column failed of 1 and 0" if failures else said


def words_of(name: str) -> set[str]:
    """Split the name of a column into its words, in lower case.

    >>> sorted(words_of("oilTemp (in)"))
    ['in', 'oil', 'temp']
    """
    return set(re.sub(r"[^a-z]+", " ", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()).split())
