"""Progress of a run on standard error: a bar on a terminal, lines in a log."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINES: Final = 20
"""Lines that a log gets over a whole run."""


@contextmanager
def progress(console: Console, windows: int) -> Generator[Callable[[int], None]]:
    """Show how many windows are done, of so many, with rate and time left; yield what adds to them."""
    began, done, lines = monotonic(), 0, 0
    columns = (
        TextColumn("scoring"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} windows, {task.fields[rate]:,.0f} a second"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("scoring", total=windows, rate=0.0)

        def watch(more: int) -> None:
            nonlocal done, lines
            done += more
            rate = done / max(monotonic() - began, 1e-9)
            bar.update(task, advance=more, rate=rate)
            if not console.is_terminal and done * LINES // max(windows, 1) > lines:
                lines = done * LINES // windows
                left = max(0, windows - done) / rate
                console.print(
                    f"scoring: {done:,} of {windows:,} windows, {rate:,.0f} a second, about {left:.0f} s left"
                )

        yield watch
