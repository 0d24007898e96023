"""Tables: one file of readings (C-MAPSS text, CSV or Parquet) as named columns of numbers.

A fast pass parses whole columns. If it fails, a tolerant pass parses cell by cell: it treats blank
cells as missing values, or names the line and column of the error. This module must not know units,
cycles or failures (`model.readers`).
"""

# pyright: reportUnknownParameterType=false
# pyarrow publishes no types.

from __future__ import annotations

import contextlib
import csv
import difflib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from model.domain import FloatArray, IntArray, InvalidData
from model.fleet import Format

CMAPSS_COLUMNS: Final = (
    "unit",
    "cycle",
    *(f"setting_{i}" for i in range(1, 4)),
    *(f"sensor_{i}" for i in range(1, 22)),
)
SUFFIXES: Final[dict[str, Format]] = {
    ".txt": "cmapss",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
MISSING: Final = ("", "NaN", "nan", "NAN", "NA", "N/A", "n/a", "null", "NULL", "None", "none", "-nan", "#N/A")
_NUMERIC: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
DELIMITERS: Final = ",;\t|"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Requested columns of one file, n rows each."""

    numbers: dict[str, FloatArray]  # float64 [n] by name; missing values are NaN, infinite ones stay infinite
    labels: tuple[str, ...]  # Distinct values of the text column, in order of appearance; empty without one
    codes: IntArray  # int64 [n], index of each row in `labels`; all 0 without a text column
    locate: Callable[[int], str]  # Returns the place of a row (0-based), such as `pumps.csv: line 7`


def read_table(
    path: Path,
    *,
    form: Format,
    numbers: Sequence[str],
    text: str | None,
    optional: Sequence[str] = (),
    keys: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """Read columns of a file; missing `optional` columns are NaN.

    `keys` names the key of the fleet file that asks for a column, for errors.
    """
    try:
        if form == "parquet":
            return _read_parquet(path, numbers=numbers, text=text, optional=optional, keys=keys)
        data = path.read_bytes()
    except (OSError, pa.ArrowException) as error:
        raise InvalidData(f"{path}: cannot be read: {error}") from error
    source = _Text.of_cmapss(path, data) if form == "cmapss" else _Text.of_csv(path, data)
    wanted = [*numbers, *([] if text is None else [text])]
    present = _present(path, source.header, wanted, optional, keys)
    table = source.parse(present, text)
    return _table(path, table, numbers, text, lambda row: f"{path}: line {source.line(row)}")


def read_columns(path: Path, *, form: Format) -> dict[str, FloatArray | list[str]]:
    """Read all columns of a file whose names are unknown: float64 numbers, or texts.

    Raises:
        InvalidData: the file cannot be read, or has no row.
    """
    try:
        if form == "parquet":
            table = pq.ParquetFile(path).read()
        else:
            data = path.read_bytes()
            source = _Text.of_cmapss(path, data) if form == "cmapss" else _Text.of_csv(path, data)
            table = source.parse_strictly({})
    except (OSError, pa.ArrowException) as error:
        raise InvalidData(f"{path}: cannot be read as a table: {error}") from error
    if table.num_rows == 0:
        raise InvalidData(f"{path}: the file has no reading")
    columns = {name: table[name] for name in table.column_names if name and "\0" not in name}
    return {
        name: _float64(column) if any(is_kind(column.type) for is_kind in _NUMERIC) else _texts_of(column)
        for name, column in columns.items()
    }


@dataclass(frozen=True, slots=True)
class _Text:
    """Rows of a text file: bytes without header, byte-order mark, CR or trailing blanks."""

    path: Path
    body: bytes
    header: tuple[str, ...]
    delimiter: str
    lines_before: int

    @classmethod
    def of_cmapss(cls, path: Path, data: bytes) -> _Text:
        body = b"\n" + _plain_lines(data).replace(b"\t", b" ")
        for blanks, short in ((b"  ", b" "), (b" \n", b"\n"), (b"\n ", b"\n")):
            while blanks in body:
                body = body.replace(blanks, short)
        return cls(path, body[1:].rstrip(b" "), CMAPSS_COLUMNS, " ", 0)

    @classmethod
    def of_csv(cls, path: Path, data: bytes) -> _Text:
        body = _plain_lines(data)
        while b" \n" in body:
            body = body.replace(b" \n", b"\n")
        start = len(body) - len(body.lstrip(b"\n "))
        first, _, rest = body[start:].partition(b"\n")
        head = _decoded(path, first)
        delimiter = max(DELIMITERS, key=head.count)
        try:
            header = tuple(name.strip() for name in next(csv.reader([head], delimiter=delimiter), []))
        except csv.Error as error:
            raise InvalidData(f"{path}: the header cannot be read as text: {error}") from error
        if not any(header):
            raise InvalidData(f"{path}: expected a header with column names, got an empty file")
        lines_before = body[:start].count(b"\n") + 1
        return cls(path, rest.rstrip(b" "), header, delimiter, lines_before)

    def line(self, row: int) -> int:
        """Return the 1-based line of a 0-based row; blank lines are no rows."""
        return next(line for i, (line, _) in enumerate(self.rows()) if i == row)

    def parse(self, columns: Sequence[str], text: str | None) -> pa.Table:
        """Parse these columns as float64, and the `text` column as string."""
        if not self.body.strip():
            raise InvalidData(f"{self.path}: the file has no reading")
        types = {name: pa.string() if name == text else pa.float64() for name in columns}
        try:
            return self.parse_strictly(types)
        except pa.ArrowInvalid:
            return self._parse_cell_by_cell(types)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the 1-based line and the cells of each row."""
        lines = io.StringIO(_decoded(self.path, self.body), newline="")
        quoting = csv.QUOTE_NONE if self.delimiter == " " else csv.QUOTE_MINIMAL
        reader = csv.reader(lines, delimiter=self.delimiter, quoting=quoting, strict=True)
        try:
            for cells in reader:
                line = self.lines_before + reader.line_num
                if cells and len(cells) != len(self.header):
                    raise InvalidData(
                        f"{self.path}: line {line}: expected {len(self.header)} columns, got {len(cells)}: "
                        f"{self.delimiter.join(cells)[:200]!r}"
                    )
                if cells:
                    yield line, cells
        except csv.Error as error:
            line = self.lines_before + reader.line_num
            raise InvalidData(f"{self.path}: line {line}: cannot be read as text: {error}") from error

    def parse_strictly(self, types: dict[str, pa.DataType]) -> pa.Table:
        """Parse these columns; without types, all columns as what they hold."""
        return pacsv.read_csv(
            pa.BufferReader(self.body),
            read_options=pacsv.ReadOptions(column_names=_distinct(self.header)),
            parse_options=pacsv.ParseOptions(
                delimiter=self.delimiter, quote_char=False if self.delimiter == " " else '"'
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=list(MISSING),
                strings_can_be_null=False,  # a unit may be called NA
            ),
        )

    def _parse_cell_by_cell(self, types: dict[str, pa.DataType]) -> pa.Table:
        columns: dict[str, list[float | str | None]] = {name: [] for name in types}
        places = [(name, self.header.index(name), types[name] == pa.string()) for name in types]
        for line, cells in self.rows():
            for name, place, is_text in places:
                cell = cells[place].strip()
                if is_text:
                    columns[name].append(cell)
                else:
                    columns[name].append(None if cell in MISSING else self._number(cell, name, line))
        return pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})

    def _number(self, cell: str, name: str, line: int) -> float:
        try:
            return float(cell.replace("_", "?"))  # refuse 1_000, which only Python accepts
        except ValueError:
            raise InvalidData(
                f"{self.path}: line {line}, column {name!r}: expected a number, got {cell!r}"
            ) from None


def _read_parquet(
    path: Path, *, numbers: Sequence[str], text: str | None, optional: Sequence[str], keys: Mapping[str, str]
) -> Table:
    file = pq.ParquetFile(path)
    wanted = [*numbers, *([] if text is None else [text])]
    present = _present(path, file.schema_arrow.names, wanted, optional, keys)
    table = file.read(columns=present)
    for name in present:
        kind = table.schema.field(name).type
        if name != text and not any(is_kind(kind) for is_kind in _NUMERIC):
            raise InvalidData(f"{path}: column {name!r}: expected numbers, got {kind}")
    return _table(path, table, numbers, text, lambda row: f"{path}: row {row + 1}")


def _table(
    path: Path, table: pa.Table, numbers: Sequence[str], text: str | None, locate: Callable[[int], str]
) -> Table:
    count = table.num_rows
    if count == 0:
        raise InvalidData(f"{path}: the file has no reading")
    names = set(table.column_names)
    columns: dict[str, FloatArray] = {
        name: _float64(table[name]) if name in names else np.full(count, np.nan) for name in numbers
    }
    if text is None:
        return Table(columns, (), np.zeros(count, dtype=np.int64), locate)
    encoded = _texts(table[text]).fill_null("").dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    places: dict[str, int] = {}
    own = [places.setdefault(label.strip(), len(places)) for label in encoded.dictionary.to_pylist()]
    codes = np.array(own, dtype=np.int64)[codes]
    if "" in places:
        row = int(np.flatnonzero(codes == places[""])[0])
        raise InvalidData(f"{locate(row)}, column {text!r}: expected a name, got nothing")
    return Table(columns, tuple(places), codes, locate)


def _float64(column: pa.ChunkedArray) -> NDArray[np.float64]:
    return column.cast(pa.float64(), safe=False).combine_chunks().to_numpy(zero_copy_only=False)


def _texts(column: pa.ChunkedArray) -> pa.StringArray:
    """Convert names to text; whole numbers have no decimal point, so 1.0 is unit 1."""
    cells = column.combine_chunks()
    if pa.types.is_floating(cells.type):
        with contextlib.suppress(pa.ArrowInvalid):
            cells = cells.cast(pa.int64())
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    return cells.cast(pa.string())


def _texts_of(column: pa.ChunkedArray) -> list[str]:
    return ["" if cell is None else str(cell).strip() for cell in column.to_pylist()]


def _present(
    path: Path, header: Sequence[str], wanted: Sequence[str], optional: Sequence[str], keys: Mapping[str, str]
) -> list[str]:
    repeated = sorted({name for name in wanted if header.count(name) > 1})
    if repeated:
        raise InvalidData(f"{path}: the header has {', '.join(repeated)} more than once")
    absent = [name for name in wanted if name not in header]
    lacking = [name for name in absent if name not in optional]
    if lacking:
        raise InvalidData(
            f"{path}: {len(lacking)} {'column' if len(lacking) == 1 else 'columns'} missing: "
            f"{', '.join(_hint(n, header, keys.get(n)) for n in lacking)}; "
            f"the file has {', '.join(header[:40])}"
        )
    return list(dict.fromkeys(name for name in wanted if name in header))


def _hint(name: str, header: Sequence[str], key: str | None) -> str:
    close = difflib.get_close_matches(name, header, n=1, cutoff=0.8)
    said = [*([key] if key else []), *([f"did you mean {close[0]}?"] if close else [])]
    return f"{name} ({'; '.join(said)})" if said else name


def _plain_lines(data: bytes) -> bytes:
    return data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _distinct(header: Sequence[str]) -> list[str]:
    """Make names unique, as pyarrow needs it for ignored columns too."""
    return [name if header.index(name) == i else f"{name}\0{i}" for i, name in enumerate(header)]


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidData(f"{path}: expected UTF-8 text, got another encoding: {error}") from error
