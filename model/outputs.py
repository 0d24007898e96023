"""Files that commands write: a failure is one clear line."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from model.domain import RulError


class CannotWrite(RulError):
    """The output file cannot be written."""


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
