"""Output of commands: terminals, files, and texts that are safe in spreadsheets."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from rich.console import Console

from model.domain import RulError
from model.outputs import CannotWrite, whole_file, writing

HEALTH_STYLES: Final = {
    "healthy": "green",
    "degrading": "yellow",
    "critical": "bold red",
    "unknown": "magenta",
}
FILE_WIDTH: Final = 200
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters of texts that spreadsheets run as formulas."""


class NothingAnswered(RulError):
    """No request was answered."""


@contextmanager
def open_output(output: Path | None) -> Generator[IO[bytes], None, None]:
    """Open a file that appears only when complete, or standard output."""
    if output is None:
        try:
            with writing("standard output"):
                yield sys.stdout.buffer
                sys.stdout.buffer.flush()
        except CannotWrite:
            discard_output()
            raise
        return
    with whole_file(output) as part, part.open("wb") as file:
        yield file


def discard_output() -> None:
    """Let the interpreter flush into nothing at exit, after a reader such as `head` has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def wide_console(file: IO[str], *, is_file: bool = False) -> Console:
    """A console as wide as the terminal; 200 columns for a file or a pipe."""
    width = FILE_WIDTH if is_file else shutil.get_terminal_size(fallback=(FILE_WIDTH, 50)).columns
    return Console(file=file, width=width, highlight=False, markup=False)


def csv_cell(value: object) -> object:
    """Keep a spreadsheet from running a text as a formula: an apostrophe goes before it.

    >>> csv_cell("=1+1"), csv_cell("-1"), csv_cell("pump-1"), csv_cell(-1.5)
    ("'=1+1", '-1', 'pump-1', -1.5)
    """
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
