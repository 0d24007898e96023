"""Files that commands write: their format by suffix, and a failure as one clear line."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
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
        BadParameter: the output is "-", its suffix says another format or one that is not written, or Parquet
            has no file.
    """
    if output == Path("-"):
        raise typer.BadParameter("without --output, standard output is written", param_hint="--output")
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


def require_writable(folder: Path) -> None:
    """Make a folder, unless it exists, and a file in it that has no name.

    Raises:
        CannotWrite: the file system refuses.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()


@contextmanager
def whole_file(output: Path) -> Generator[Path]:
    """Yield the path of a new file that replaces the output when it is complete.

    A symbolic link stays: the file to which it leads is replaced. A device or a pipe is written as it is.

    Raises:
        CannotWrite: the file system refuses.
    """
    if output.exists() and not output.is_file():  # such as /dev/null
        with writing(output):
            yield output
        return
    target = Path(os.path.realpath(output))  # /dev/stdout leads to a file where the shell redirects it
    part = target.with_name(f".part-{token_hex(4)}-{target.name}")  # another command may write the same
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise CannotWrite(f"{output}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # a part that could not be made
            part.unlink()
