"""Lines, tables and progress on a screen, as all commands print them, and files of pictures.

Progress is a bar on a terminal and lines in a log.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from model.domain import RulError
from model.evaluation import Figure
from model.outputs import whole_file, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from model.training import Check, Watcher

NO_INTERVAL: Final = "none"
"""Interval of a figure of a single unit, or of a single group of units."""
LINES: Final = 20
"""Number of log lines of a whole training."""


class CannotDraw(RulError):
    """The picture cannot be drawn."""


def save_picture(picture: Picture, path: Path) -> None:
    """Write a picture in the format of the path's suffix; without one in PNG."""
    from matplotlib.text import Text  # noqa: PLC0415 only pictures need it

    for text in picture.findobj(Text):
        text.set_parse_math(False)  # a unit may be called $1$
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            picture.savefig(part, dpi=130, format=path.suffix.strip(".") or "png")
    except ValueError as error:
        raise CannotDraw(f"{path}: the picture cannot be written: {error}") from error


def say(*lines: str) -> None:
    """Print lines on standard output as they are; a terminal wraps them."""
    Console().print(*lines, sep="\n", soft_wrap=True, highlight=False, markup=False)


def tell(*lines: str) -> None:
    """Print lines on standard error as they are."""
    Console(stderr=True).print(*lines, sep="\n", soft_wrap=True, highlight=False, markup=False)


def number_table(title: str, name: str, *numbers: str) -> Table:
    """Create an empty table: names at the left, columns of numbers aligned right."""
    table = Table(title=escape(title))  # a unit may be called [1]
    table.add_column(name)
    for heading in numbers:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def cells(figure: Figure, factor: float = 1.0, *, digits: int = 2, unit: str = "") -> tuple[str, str]:
    """Format a figure and its interval; see `NO_INTERVAL`."""
    value, low, high = (factor * each for each in (figure.value, figure.low, figure.high))
    return f"{value:.{digits}f}{unit}", _interval(f"{low:.{digits}f} .. {high:.{digits}f}{unit}", low)


def shown(figure: Figure, digits: int = 2) -> str:
    """Format a figure before its interval, if it has one."""
    bounds = "" if math.isnan(figure.low) else f" [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"
    return f"{figure.value:.{digits}f}{bounds}"


def stacked(figure: Figure, *, digits: int) -> str:
    """Format a figure above its interval; see `NO_INTERVAL`."""
    interval = _interval(f"{figure.low:.{digits}f}..{figure.high:.{digits}f}", figure.low)
    return f"{figure.value:.{digits}f}\n{interval}"


def _interval(shown: str, low: float) -> str:
    return NO_INTERVAL if math.isnan(low) else shown


def digits_apart(low: float, high: float) -> int:
    """Return how many significant digits tell values between two bounds apart, at least 4.

    >>> digits_apart(2387.9, 2388.2)
    6
    """
    spread, size = high - low, max(abs(low), abs(high))
    return max(4, 2 + math.ceil(math.log10(size / spread))) if spread > 0 else 4


@contextmanager
def progress(steps: int) -> Generator[Watcher]:
    """Show progress with the loss and the held-out RMSE."""
    screen = Console(stderr=True)
    if screen.is_terminal:
        with _bar(steps, screen) as watch:
            yield watch
    else:
        yield log_lines(steps, tell)


def log_lines(
    steps: int, write: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
) -> Watcher:
    """Write a line after each twentieth of the updates, and one before calibration."""
    began, written, rmse = clock(), 0, "-"
    first: int | None = None

    def watch(step: int, loss: float, check: Check | None) -> None:
        nonlocal began, first, written, rmse
        if first is None:
            first = 0
            if step > 1:  # A resumed run: the time before its first update tells no rate.
                began, first, written = clock(), step, step * LINES // steps
        rmse = rmse if check is None else _shown(check)
        part = step * LINES // steps
        if part > written:
            written = part
            spent = clock() - began
            left = spent * (steps - step) / (step - first)
            write(
                f"training: {step} of {steps} updates, loss {loss:.4f}, held-out RMSE {rmse}, "
                f"{spent:.0f} s, about {left:.0f} s left"
            )
        if step == steps:
            write("training: all updates done, calibrating on all units")

    return watch


@contextmanager
def _bar(steps: int, screen: Console) -> Generator[Watcher]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} updates"),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("held-out RMSE {task.fields[rmse]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen) as bar:
        task = bar.add_task("training", total=steps, loss="-", rmse="-")

        def watch(step: int, loss: float, check: Check | None) -> None:
            bar.update(task, completed=step, loss=f"{loss:.4f}")
            if check is not None:
                bar.update(task, rmse=_shown(check))

        yield watch


def _shown(check: Check) -> str:
    return "-" if math.isnan(check.held_out_rmse) else f"{check.held_out_rmse:.2f}"


def percent(share: float) -> str:
    """Format a share above 0; only all of it is 100 %.

    >>> percent(1e-6), percent(0.9999), percent(1.0)
    ('0.1 %', '99.9 %', '100 %')
    """
    return "100 %" if share == 1 else f"{max(0.1, min(100 * share, 99.9)):.1f} %"
