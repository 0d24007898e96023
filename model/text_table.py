"""Text tables: rows of C-MAPSS text, CSV or a spreadsheet as columns of numbers and texts.

A fast pass parses whole columns. If it fails, a tolerant pass parses cell by cell: it treats blank
cells as missing values, or names the line and column of the error.
"""

from __future__ import annotations

import codecs
import csv
import io
import logging
import re
import shlex
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv as pacsv

from model.cells import MISSING, counted, delimiter_of, number_of
from model.domain import InvalidData
from model.files import HEAD_BYTES, content
from model.fleet import Format

logger = logging.getLogger(__name__)

CMAPSS_COLUMNS: Final = (
    "unit",
    "cycle",
    *(f"setting_{i}" for i in range(1, 4)),
    *(f"sensor_{i}" for i in range(1, 22)),
)
CYCLE: Final = "a whole number, or a date such as 2026-03-01 or 01.03.2026"
"""Content of a column of cycles, for errors."""
DATE: Final = "a date such as 2026-03-01, 2026-03-01 13:00 or 01.03.2026"
"""Content of a column of dates, likewise."""
DECIMAL_COMMA: Final = re.compile(rb'(?:^|[;\t|\n]) *"?[-+]?\d+,\d+(?:[eE][-+]?\d+)?"? *(?=[;\t|\n]|$)')
MOST_CELLS: Final = 10**9
"""Maximum cells of the rectangle from A1 to the last cell, which the library allocates."""
MOST_BYTES: Final = 2**31
"""Maximum size of a sheet's XML, unpacked."""
BAD_ZIP: Final = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)  # RuntimeError: it has a password
ROW: Final = rb'(?:<row [^>]*?r="|r="[A-Z]+(?=\d{8}))(\d{1,18})"'
BEYOND: Final = b'r="AAA99999999"'
WIDTHS: Final = ((rb'r="[A-Z]{3,}\d', 16_384), (rb'r="[A-Z]{2}\d', 702), (rb"", 26))
"""Patterns of cell references by number of letters, and the number of columns that these letters name."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of a text file: bytes without header, byte-order mark, CR or trailing blanks."""

    path: Path
    body: bytes
    header: tuple[str, ...]
    delimiter: str
    lines_before: int
    decimal: str = "."

    @classmethod
    def of(cls, path: Path, form: Format) -> TextTable:
        """Read a file that is neither Parquet nor Feather."""
        data = content(path)
        if form == "cmapss":
            return cls.of_cmapss(path, data)
        if form == "xlsx":
            data = csv_of_sheet(path, data)
        return cls.of_csv(path, data)

    @classmethod
    def of_cmapss(cls, path: Path, data: bytes) -> TextTable:
        """Split C-MAPSS text: 26 numbers between blanks, no header."""
        body = b"\n" + _plain_lines(data).replace(b"\t", b" ")
        for blanks, short in ((b"  ", b" "), (b" \n", b"\n"), (b"\n ", b"\n")):
            while blanks in body:
                body = body.replace(blanks, short)
        return cls(path, body[1:].rstrip(b" "), CMAPSS_COLUMNS, " ", 0)

    @classmethod
    def of_csv(cls, path: Path, data: bytes) -> TextTable:
        """Split CSV; the header tells its delimiter."""
        body = _plain_lines(data)
        while b" \n" in body:
            body = body.replace(b" \n", b"\n")
        start = len(body) - len(body.lstrip(b"\n "))
        lines = io.BytesIO(body)
        lines.seek(start)
        delimiter = delimiter_of(_decoded(path, lines.readline()))
        lines.seek(start)
        reader = csv.reader((_decoded(path, line) for line in lines), delimiter=delimiter)
        try:
            header = tuple(name.replace("\n", " ").strip() for name in next(reader, []))
        except csv.Error as error:
            raise InvalidData(f"{path}: the header cannot be read as text: {error}") from error
        if not any(header):
            raise InvalidData(f"{path}: expected a header with column names, got an empty file")
        lines_before = body[:start].count(b"\n") + reader.line_num
        rest = lines.read().rstrip(b" \n")
        empty, end = b"\n" + delimiter.encode() * (len(header) - 1), len(rest)
        while rest.endswith(empty, 0, end):  # rows that Excel writes below a table
            end -= len(empty)
        decimal = _decimal(path, rest) if delimiter != "," else "."
        return cls(path, rest[:end] + b"\n", header, delimiter, lines_before, decimal)

    def line(self, row: int) -> int:
        """Return the 1-based line of a 0-based row; blank lines are no rows."""
        return next(line for i, (line, _) in enumerate(self.rows()) if i == row)

    def parse(self, columns: Sequence[str], text: str | None, date: str | None) -> pa.Table:
        """Parse these columns as float64, and as string the `text` column and that of dates."""
        if not self.body.strip():
            raise InvalidData(f"{self.path}: the file has no reading")
        texts = {text} | ({date} if date and date in columns and self._is_dated(date) else set())
        types = {name: pa.string() if name in texts else pa.float64() for name in columns}
        try:
            return self.parse_strictly(types)
        except pa.ArrowInvalid:
            return self._parse_cell_by_cell(types, date)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the 1-based line and the cells of each row."""
        for line, cells in self.lines():
            if len(cells) != len(self.header):
                expected = f"expected {counted(len(self.header), 'column')}"
                raise InvalidData(
                    f"{self.path}: line {line}: {expected}, got {len(cells)}: "
                    f"{self.delimiter.join(cells)[:200]!r}"
                )
            yield line, cells

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the 1-based line and the cells of each row, however many these are."""
        lines = io.StringIO(_decoded(self.path, self.body), newline="")
        quoting = csv.QUOTE_NONE if self.delimiter == " " else csv.QUOTE_MINIMAL
        reader = csv.reader(lines, delimiter=self.delimiter, quoting=quoting, strict=True)
        try:
            for cells in reader:
                if cells:
                    yield self.lines_before + reader.line_num, cells
        except csv.Error as error:
            line = self.lines_before + reader.line_num
            raise InvalidData(f"{self.path}: line {line}: cannot be read as text: {error}") from error

    def parse_strictly(self, types: dict[str, pa.DataType]) -> pa.Table:
        """Parse these columns; without types, all columns as what they hold.

        Raises:
            InvalidData: a quote has no end.
            pa.ArrowInvalid: a cell is of another type, or a row has other columns.
        """
        is_quoted = b'"' in self.body and self.delimiter != " "
        table = pacsv.read_csv(
            pa.BufferReader(self.body),
            read_options=pacsv.ReadOptions(column_names=_distinct(self.header)),
            parse_options=pacsv.ParseOptions(
                delimiter=self.delimiter,
                quote_char='"' if is_quoted else False,
                newlines_in_values=is_quoted,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=list(MISSING),
                strings_can_be_null=False,  # a unit may be called NA
                decimal_point=self.decimal,
            ),
        )
        if is_quoted and table.num_rows != sum(map(bool, self.body.split(b"\n"))):
            self.check()  # Arrow takes the rows below an open quote for its text
        return table

    def check(self) -> None:
        """Refuse the first row that is no CSV."""
        for _ in self.rows():
            pass

    def _parse_cell_by_cell(self, types: dict[str, pa.DataType], date: str | None) -> pa.Table:
        columns: dict[str, list[float | str | None]] = {name: [] for name in types}
        places = [(name, self.header.index(name), types[name] == pa.string()) for name in types]
        for line, cells in self.rows():
            for name, place, is_text in places:
                cell = cells[place].strip()
                if is_text:
                    columns[name].append(cell)
                else:
                    columns[name].append(self._number(cell, name, line, wanted=CYCLE if name == date else ""))
        return pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})

    def _is_dated(self, column: str) -> bool:
        """Say whether the first cell of this column that is not blank is a date."""
        place, head = self.header.index(column), self.body[:HEAD_BYTES]
        few = replace(self, body=head[: head.rfind(b"\n") + 1] or self.body)
        known = (cells[place] for _, cells in few.rows() if cells[place].strip())
        return next((seconds_of(cell) is not None for cell in known), False)

    def _number(self, cell: str, name: str, line: int, *, wanted: str) -> float | None:
        try:
            return number_of(cell, decimal=self.decimal)
        except ValueError as error:
            said = str(error).replace("a number", wanted or "a number", 1)
            raise InvalidData(f"{self.path}: line {line}, column {name!r}: {said}") from None


def seconds_of(text: str) -> float | None:
    """Return the seconds since 1970 of a date, such as 2026-03-01 13:00 or 01.03.2026; None: no date.

    >>> seconds_of("02.01.1970"), seconds_of("1970-01-01T00:01Z"), seconds_of("7")
    (86400.0, 60.0, None)
    """
    found = date_of(text)
    if found is None:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def date_of(text: str) -> datetime | None:
    """Read a date as files have it, with a zone if it has one; None: no date.

    >>> date_of("01.03.2026 12:00")
    datetime.datetime(2026, 3, 1, 12, 0)
    """
    german = re.sub(
        r"^(\d{1,2})\.(\d{1,2})\.(\d{4})", lambda m: f"{m[3]}-{m[2]:0>2}-{m[1]:0>2}", text.strip()
    )
    plain = re.sub(r"^(\d{4})/(\d{2})/(\d{2})", r"\1-\2-\3", german)
    try:
        return datetime.fromisoformat(plain) if "-" in plain else None
    except ValueError:
        return None


def _plain_lines(data: bytes) -> bytes:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", errors="replace").encode()
    return data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _decimal(path: Path, body: bytes) -> str:
    """Find the decimal sign of a text whose delimiter is no comma, and say if it is a comma."""
    found = DECIMAL_COMMA.search(body) if b"," in body else None
    if found is None:
        return "."
    cell = found[0].strip(b' ;\t|\n"').decode()
    logger.warning("%s: decimal commas: %s is read as %s", path, cell, cell.replace(",", "."))
    return ","


def _distinct(header: Sequence[str]) -> list[str]:
    """Make names unique, as pyarrow needs it for ignored columns too."""
    return [name if header.index(name) == i else f"{name}\0{i}" for i, name in enumerate(header)]


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        convert = f"iconv -f WINDOWS-1252 -t UTF-8 {shlex.quote(path.name)} > utf8.csv"
        raise InvalidData(
            f"{path}: expected UTF-8 text, got the byte 0x{data[error.start]:02x}. Save it as UTF-8, or "
            f"convert what Excel saves as CSV: {convert}"
        ) from error


def csv_of_sheet(path: Path, data: bytes) -> bytes:
    """Convert the first sheet of a workbook; row i of the sheet is line i.

    Raises:
        InvalidData: the file is no workbook, or a cell stands far outside of its table.
    """
    from python_calamine import CalamineError, CalamineWorkbook  # noqa: PLC0415 only spreadsheets need it

    try:
        _check_extent(path, data)
        book = CalamineWorkbook.from_filelike(io.BytesIO(data))
        rows = book.get_sheet_by_index(0).to_python(skip_empty_area=False)
    except (CalamineError, IndexError, ValueError, *BAD_ZIP) as error:
        raise InvalidData(
            f"{path}: cannot be read as a spreadsheet: {error}: save it as .xlsx without a password"
        ) from error
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
