"""Files of readings: their format by suffix or content, and their bytes, unpacked.

`.gz` after any suffix is unpacked. The first line of a `.txt` tells C-MAPSS text from CSV. This module must
not know columns or units (`model.tables`, `model.readers`).
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import logging
import stat
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from model.cells import delimiter_of
from model.domain import InvalidData
from model.fleet import Format

logger = logging.getLogger(__name__)

SUFFIXES: Final[dict[str, Format]] = {
    ".txt": "cmapss",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
    ".xlsx": "xlsx",
}
MAGIC: Final[dict[bytes, Format]] = {
    b"PAR1": "parquet",
    b"ARROW1": "feather",
    b"PK\3\4": "xlsx",
    b"\xd0\xcf\x11\xe0": "xlsx",  # .xls, which its reader refuses
}
PACKED: Final = ".gz"
HEAD_BYTES: Final = 65536


def bare_path(path: Path) -> Path:
    """Return the path without `.gz`.

    >>> bare_path(Path("pumps.csv.gz")).name
    'pumps.csv'
    """
    return path.with_suffix("") if path.suffix.lower() == PACKED else path


def format_of(path: Path, default: Format | None = None) -> Format | None:
    """Tell the format of a file by its suffix, else `default`, else by its content; None: no readings.

    A `.txt` whose first line is neither numbers nor a header holds no readings.

    Raises:
        InvalidData: the path is neither a file nor a folder; a pipe's bytes can be read once only.
    """
    _refuse_special(path)
    suffix = bare_path(path).suffix.lower()
    known = SUFFIXES[suffix] if suffix in SUFFIXES else default  # noqa: SIM401 get() has a wider type
    if known is not None and suffix != ".txt":
        return known
    try:
        with gzip.open(path) if path.suffix.lower() == PACKED else path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error):  # the reader of the file reports it
        return known
    magic: Format | None = next((form for magic, form in MAGIC.items() if head.startswith(magic)), None)
    return magic or _text_format(head)


def folder_files(folder: Path) -> dict[Path, Format | None]:
    """List files with known suffixes in a folder and the folders in it, and their formats, by path."""
    inside = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    shown = [file for file in inside if not any(part[0] == "." for part in file.relative_to(folder).parts)]
    return {file: format_of(file) for file in shown if bare_path(file).suffix.lower() in SUFFIXES}


def files_with(paths: Sequence[Path], formats: Collection[Format]) -> list[Path]:
    """List files, and those of these formats in folders and the folders in them.

    Raises:
        InvalidData: no file is given, one does not exist, or a folder has none of these formats.
    """
    files: list[Path] = []
    for each in paths:
        _refuse_special(each)
        if each.is_dir():
            files += _files_within(each, formats)
        elif each.exists():
            files.append(each)
        else:
            raise InvalidData(f"{each}: no such file")
    if not files:
        raise InvalidData("no file to read was given")
    return files


def _files_within(folder: Path, formats: Collection[Format]) -> list[Path]:
    inside = folder_files(folder)
    files = [file for file, form in inside.items() if form in formats]
    if not files:
        kinds = Counter(form or "text without readings" for form in inside.values())
        there = ", ".join(f"{count} {form}" for form, count in kinds.items()) or "no file of readings"
        advice = ": describe them in a fleet file, --fleet FILE" if any(inside.values()) else ""
        wanted = " or ".join(sorted(formats))
        raise InvalidData(f"{folder}: no {wanted} file in this folder; it has {there}{advice}")
    if skipped := [file for file, form in inside.items() if form is None]:
        logger.warning("skipped, neither C-MAPSS text nor CSV: %s", ", ".join(map(str, skipped)))
    return files


def content(path: Path) -> bytes:
    """Read a file, unpacked.

    Raises:
        InvalidData: the file cannot be read.
    """
    _refuse_special(path)
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix.lower() == PACKED else data
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidData(f"{path}: cannot be read: {error}") from error


def _refuse_special(path: Path) -> None:
    with contextlib.suppress(OSError):  # the reader of the file reports it
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            got = "a pipe" if stat.S_ISFIFO(kind) else "a socket" if stat.S_ISSOCK(kind) else "a device"
            raise InvalidData(f"{path}: expected a file or a folder, got {got}: save it first")


def _text_format(head: bytes) -> Format | None:
    """Tell C-MAPSS text from CSV by the first two lines; None: prose, or a number a line."""
    first, *others = [line.decode("utf-8", "replace") for line in head.splitlines() if line.strip()] or [""]
    try:
        return "cmapss" if len([float(cell) for cell in first.split()]) != 1 else None
    except ValueError:
        delimiter = delimiter_of(first)
        cells = {line.count(delimiter) for line in (first, *others[:1])}  # of prose they differ
        return "csv" if len(cells) == 1 and max(cells) > 0 else None


def data_sha256(paths: Iterable[Path]) -> str:
    """Compute the digest of files' contents, whatever their names and order.

    For one file it is the output of `sha256sum`.
    """
    digests: list[str] = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()
