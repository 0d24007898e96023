"""Spreadsheets: the first sheet of an `.xlsx` file as CSV."""

from __future__ import annotations

import csv
import io
import logging
import re
import zipfile
import zlib
from pathlib import Path
from typing import Final

from python_calamine import CalamineError, CalamineWorkbook

from model.domain import InvalidData

logger = logging.getLogger(__name__)

MOST_CELLS: Final = 10**9
"""Of the rectangle from A1 to the last cell; the library allocates all of it."""
MOST_BYTES: Final = 2**31
"""Of a sheet's XML, unpacked."""
BAD_ZIP: Final = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)  # RuntimeError: it has a password
ROW: Final = rb'(?:<row [^>]*?r="|r="[A-Z]+(?=\d{8}))(\d{1,18})"'
BEYOND: Final = b'r="AAA99999999"'
WIDTHS: Final = ((rb'r="[A-Z]{3,}\d', 16_384), (rb'r="[A-Z]{2}\d', 702), (rb"", 26))
"""Columns that a reference of so many letters may have."""


def csv_of_sheet(path: Path, data: bytes) -> bytes:
    """Convert the first sheet of a workbook; row i of the sheet is line i.

    Raises:
        InvalidData: the file is no workbook, or a cell stands far outside of its table.
    """
    try:
        _check_extent(path, data)
        book = CalamineWorkbook.from_filelike(io.BytesIO(data))
        rows = book.get_sheet_by_index(0).to_python(skip_empty_area=False)
    except (CalamineError, IndexError, ValueError, *BAD_ZIP) as error:
        raise InvalidData(f"{path}: cannot be read as a spreadsheet: {error}") from error
    if len(book.sheet_names) > 1:
        logger.warning("%s: only the first sheet is read, %r", path, book.sheet_names[0])
    text = io.StringIO(newline="")
    cells = ([_cell(value) for value in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(row if any(row) else [] for row in cells)
    return text.getvalue().encode()


def _check_extent(path: Path, data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as parts:
        for part in parts.infolist():
            if not part.filename.startswith("xl/worksheets/sheet"):
                continue
            text = parts.read(part) if part.file_size < MOST_BYTES else BEYOND
            rows = max(map(int, re.findall(ROW, text)), default=1)
            width = next(columns for pattern, columns in WIDTHS if re.search(pattern, text))
            if rows * width > MOST_CELLS:
                raise InvalidData(
                    f"{path}: too large for a spreadsheet, up to row {rows:,}: delete what stands far "
                    "outside of the table, or save it as CSV"
                )


def _cell(value: object) -> str:
    """Format a cell; a spreadsheet has no whole numbers, so 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).replace("\n", " ")
