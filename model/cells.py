"""Cells of text tables, in files and request bodies: delimiters and numbers; counts in words.

This module must not know files, tables or columns.
"""

from __future__ import annotations

import contextlib
from typing import Final

DELIMITERS: Final = ",;\t|"
MISSING: Final = (
    "", "NaN", "nan", "NAN", "-nan", "NA", "N/A", "n/a", "<NA>", "null", "NULL", "None", "none", "-",
    "#N/A", "#NV", "#DIV/0!", "#VALUE!", "#WERT!", "#NUM!", "#ZAHL!", "#REF!", "#BEZUG!",
)  # fmt: skip
"""Cells without a reading: blanks, words of several tools, and errors of spreadsheets."""
TRUTHS: Final = {"true": 1.0, "false": 0.0}
HINTS: Final = {
    ".": ": this file has decimal commas, so write no point",
    ",": ": write a decimal point; decimal commas are read where ; separates columns",
}
"""End of the error, by the decimal sign that the table does not use."""
MOST_SHOWN: Final = 64
"""Characters of a cell in an error."""


def delimiter_of(head: str) -> str:
    """Tell the delimiter of a table from its header.

    >>> delimiter_of("cycle;heat (C, inside);speed")
    ';'
    """
    return max(DELIMITERS, key=head.count)


def number_of(cell: str, *, decimal: str = ".") -> float | None:
    """Read a stripped cell; return None if it has no reading. True and false are 1 and 0.

    Raises:
        ValueError: the cell is no number; the message is fit for a user.

    >>> number_of("2,5", decimal=","), number_of("#N/A"), number_of("TRUE")
    (2.5, None, 1.0)
    """
    if cell in MISSING:
        return None
    if (truth := TRUTHS.get(cell.lower())) is not None:
        return truth
    # Only Python reads 1_000. Beside decimal commas 1.000 may be 1000, and between commas "1,000" too.
    other = "." if decimal == "," else ","
    if "_" not in cell and other not in cell and cell.isascii():
        with contextlib.suppress(ValueError):
            return float(cell.replace(decimal, "."))
    hint = HINTS[other] if other in cell else ""
    raise ValueError(f"expected a number, got {cell[:MOST_SHOWN]!r}{hint}")


def plain_number(value: float) -> str:
    """Format a number with four significant digits, from 1000 on with all digits before the point.

    >>> plain_number(200 / 3), plain_number(20_000.4)
    ('66.67', '20000')
    """
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def counted(count: int, noun: str) -> str:
    """Format a count of things.

    >>> counted(1, "unit"), counted(1200, "unit")
    ('1 unit', '1,200 units')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
