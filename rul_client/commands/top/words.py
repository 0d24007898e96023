"""Figures and names as a terminal shows them: short, on one line, nothing that it would obey."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

NONE: Final = "-"


def table(*headings: str, left: Sequence[str] = ()) -> Table:
    """Numbers to the right; the first column, and those named, to the left."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for i, heading in enumerate(headings):
        named = i == 0 or heading in left
        made.add_column(heading, justify="left" if named else "right", no_wrap=True, overflow="ellipsis")
    return made


def number(value: float) -> str:
    """A figure with three digits that count, or as many as stand before the point.

    >>> number(1234.5), number(98.76), number(0.8125), number(0.0), number(math.nan)
    ('1,234', '98.8', '0.81', '0', '-')
    """
    if math.isnan(value):
        return NONE
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def milliseconds(seconds: float) -> str:
    """A duration.

    >>> milliseconds(0.00123), milliseconds(2.5)
    ('1.23', '2,500')
    """
    return number(1000 * seconds)


def percent(share: float) -> str:
    """A share.

    >>> percent(0.071), percent(1.0), percent(math.nan)
    ('7.1 %', '100 %', '-')
    """
    if math.isnan(share):
        return NONE
    return f"{100 * share:.0f} %" if share in {0.0, 1.0} or share >= 0.1 else f"{100 * share:.1f} %"


def shown(name: str, width: int) -> str:
    r"""A name as a terminal may have it: on one line, no control characters, not too long.

    >>> shown("pump\x1b[2J-17", 24)
    'pump?[2J-17'
    """
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return plain if len(plain) <= width else plain[: width - 2] + ".."
