"""Files that commands write: their format by suffix, and a failure as one clear line."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import typer

from model.domain import RulError

Form = TypeVar("Form", bound=StrEnum)
NOT_WRITTEN: Final = (".xlsx", ".xls", ".feather", ".arrow", ".gz", ".zip")
"""Suffixes that no output format has."""


class CannotWrite(RulError):
    """The output file cannot be written."""


def output_format(
    output: Path | None, form: Form | None, suffixes: Mapping[str, Form], *, default: Form
) -> Form:
    """Choose the format of an output: the given one, that of its suffix, or `default` without one.

    Raises:
        BadParameter: the suffix says another format or one that is not written, or Parquet has no file.
    """
    suffix = "" if output is None else output.suffix.lower()
    named = suffixes.get(suffix, form) if suffix else form or default
    if named is None or suffix in NOT_WRITTEN or named is not (form or named):
        wanted = ", ".join(each for each, of in suffixes.items() if of is (form or of))
        raise typer.BadParameter(f"{output}: expected {wanted}, got {suffix}", param_hint="--output")
    if named.value == "parquet" and output is None:
        raise typer.BadParameter("parquet needs --output FILE", param_hint="--format")
    return named


@contextmanager
def writing(output: Path | str) -> Generator[None]:
    """Word a failure of the file system while this output is written.

    Raises:
        CannotWrite: the file system refuses.
    """
    try:
        yield
    except BrokenPipeError:  # the reader of standard output is gone
        raise
    except OSError as error:
        where = error.filename or output
        raise CannotWrite(f"{where}: cannot be written: {error.strerror or error}") from error
