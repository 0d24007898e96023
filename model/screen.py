"""Text and tables on a screen, as all commands print them."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from model.evaluation import Figure


def say(*lines: str) -> None:
    """Print lines on standard output as they are; a terminal wraps them."""
    Console().print(*lines, sep="\n", soft_wrap=True, highlight=False, markup=False)


def tell(*lines: str) -> None:
    """Print lines on standard error as they are."""
    Console(stderr=True).print(*lines, sep="\n", soft_wrap=True, highlight=False, markup=False)


def number_table(title: str, name: str, *numbers: str) -> Table:
    """Create an empty table: names at the left, columns of numbers aligned right."""
    table = Table(title=title)
    table.add_column(name)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def cells(figure: Figure, factor: float = 1.0, *, digits: int = 2, unit: str = "") -> tuple[str, str]:
    """Format a figure and its interval."""
    value, low, high = (factor * each for each in (figure.value, figure.low, figure.high))
    return f"{value:.{digits}f}{unit}", f"{low:.{digits}f} .. {high:.{digits}f}{unit}"


def shown(figure: Figure, digits: int = 2) -> str:
    """Format a figure before its interval."""
    return f"{figure.value:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"


def stacked(figure: Figure, *, digits: int) -> str:
    """Format a figure above its interval."""
    return f"{figure.value:.{digits}f}\n{figure.low:.{digits}f}..{figure.high:.{digits}f}"
