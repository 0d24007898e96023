"""Tables: one file of readings (text, spreadsheet or columns of Arrow) as named columns of numbers.

One column may hold dates instead of numbers. This module must not know units, cycles or failures
(`model.readers`).
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import feather

from model.cells import counted, number_of
from model.domain import FloatArray, IntArray, InvalidData
from model.files import bare_path, content
from model.fleet import Format
from model.text_table import CYCLE, DATE, TextTable, seconds_of

_DECIMAL: Final = re.compile(r"\d{1,15}\.\d*(?:[eE][-+]?\d\d?)?")
_NUMERIC: Final = (
    pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null, pa.types.is_boolean
)  # fmt: skip


OTHER_NAMES: Final = (
    ". If its columns have other names, describe them in a fleet file: `rul fleet init` writes a first one, "
    "--fleet FILE uses it; in Python, rename the columns of a DataFrame"
)
"""Advice for a file that is read by the names of a model's columns."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Requested columns of one file, n rows each."""

    numbers: dict[str, FloatArray]  # float64 [n] by name; missing values are NaN, infinite ones stay infinite
    labels: tuple[str, ...]  # Distinct values of the text column, in order of appearance; empty without one
    codes: IntArray  # int64 [n], index of each row in `labels`; all 0 without a text column
    locate: Callable[[int], str]  # Returns the place of a row (0-based), such as `pumps.csv: line 7`
    is_dated: bool = False  # The column of dates holds dates: its numbers are seconds since 1970
    header: tuple[str, ...] = ()  # All columns of the file


def read_table(
    path: Path,
    *,
    form: Format,
    numbers: Sequence[str],
    text: str | None,
    optional: Sequence[str] = (),
    date: str | None = None,
    keys: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """Read columns of a file; missing `optional` columns are NaN, and column `date` may hold dates.

    `keys` names the key of the fleet file that requests a column, for errors.
    """
    wanted = [*numbers, *([] if text is None else [text])]
    source = None if form in {"parquet", "feather"} else TextTable.of(path, form)
    header: list[str] = []

    def chosen(names: Sequence[str]) -> list[str]:
        header.extend(names)
        return present(path, names, wanted, optional, keys)

    if source is None:
        table = _arrow_table(path, form, chosen)
    else:
        table = source.parse(chosen(source.header), text, date)
    read = table_of(
        path,
        table,
        partial(_place, path, source),
        numbers=numbers,
        text=text,
        date=date,
        is_typed=source is None,
    )
    return replace(read, header=tuple(header))


def place_of(path: Path, row: int, *, form: Format) -> str:
    """Return the place of a row (0-based) of a file, such as `pumps.csv: line 7`."""
    return _place(path, None if form in {"parquet", "feather"} else TextTable.of(path, form), row)


def _place(path: Path, source: TextTable | None, row: int) -> str:
    return f"{path}: row {row + 1}" if source is None else f"{path}: line {source.line(row)}"


def read_columns(path: Path, *, form: Format) -> dict[str, FloatArray | list[str]]:
    """Read all columns of a file whose names are unknown: float64 numbers, or texts.

    Whole numbers that float64 cannot hold exactly are texts, so that different numbers stay different.

    Raises:
        InvalidData: the file cannot be read, has no row, or has a column twice.
    """

    def named(header: Sequence[str]) -> list[str]:
        return present(path, header, [name for name in header if name])

    source = None if form in {"parquet", "feather"} else TextTable.of(path, form)
    try:
        if source is None:
            table = _arrow_table(path, form, named)
        else:
            table = source.parse_strictly({}).select(named(source.header))
    except pa.ArrowException as error:
        if source is not None:
            source.check()  # names the line
        raise InvalidData(f"{path}: cannot be read as a table: {error}") from error
    if table.num_rows == 0:
        raise InvalidData(f"{path}: the file has no reading")
    columns = {name: _values_of(table[name]) for name in table.column_names}
    return {
        name: _float64(column) if _fits_float64(column) else _texts_or_numbers(column, source)
        for name, column in columns.items()
    }


def _texts_or_numbers(column: pa.ChunkedArray, source: TextTable | None) -> FloatArray | list[str]:
    """Convert a column that Arrow takes for text, as it does beside one blank cell."""
    texts = texts_of(column)
    if source is None or not pa.types.is_string(column.type):
        return texts
    try:
        numbers = np.array([number_of(text, decimal=source.decimal) for text in texts], np.float64)
    except ValueError:
        return texts
    return texts if (np.abs(numbers) > 2**53).any() else numbers


def _arrow_table(path: Path, form: Format, choose: Callable[[Sequence[str]], list[str]]) -> pa.Table:
    """Read the chosen columns of a Parquet or Feather file."""
    source = path if bare_path(path) == path else pa.BufferReader(content(path))
    try:
        if form == "parquet":
            file = pq.ParquetFile(source)
            return file.read(columns=choose(file.schema_arrow.names))
        table = feather.read_table(source, memory_map=False)
        table.validate(full=True)  # without this Arrow follows damaged offsets and crashes
        names = table.column_names
    except (OSError, UnicodeError, pa.ArrowException) as error:  # names of a damaged file may be no text
        raise InvalidData(f"{path}: cannot be read: {error}") from error
    return table.select(choose(names))


def table_of(
    path: Path,
    table: pa.Table,
    locate: Callable[[int], str],
    *,
    numbers: Sequence[str],
    text: str | None,
    date: str | None = None,
    is_typed: bool = True,
) -> Table:
    """Convert columns of Arrow that were read from `path`; `locate` names the place of a row.

    `is_typed` as in `names_of`.

    Raises:
        InvalidData: there is no row, a column is not of numbers, or a name is empty.
    """
    count = table.num_rows
    if count == 0:
        raise InvalidData(f"{path}: the file has no reading")
    names = set(table.column_names)
    is_dated = False
    columns: dict[str, FloatArray] = {name: np.full(count, np.nan) for name in numbers}
    for name in names & set(numbers):
        if name == date:
            columns[name], is_dated = cycles_of(table[name])
            wrong = np.flatnonzero(np.isnan(columns[name]))
            if len(wrong) and not is_numeric(table[name]):
                row, wanted = int(wrong[0]), DATE if is_dated else CYCLE
                [got] = texts_of(table[name].slice(row, 1))
                raise InvalidData(f"{locate(row)}, column {name!r}: expected {wanted}, got {got!r}")
        elif is_numeric(column := _values_of(table[name])):
            columns[name] = _float64(column)
        else:
            raise InvalidData(f"{path}: column {name!r}: expected numbers, got {table[name].type}")
    if text is None:
        return Table(columns, (), np.zeros(count, dtype=np.int64), locate, is_dated)
    try:
        labels, codes = names_of(table[text], is_typed=is_typed)
    except InvalidData as error:
        raise InvalidData(f"{path}: column {text!r}: {error}") from error
    if "" in labels:
        row = int(np.flatnonzero(codes == labels.index(""))[0])
        raise InvalidData(f"{locate(row)}, column {text!r}: expected a name, got nothing")
    return Table(columns, labels, codes, locate, is_dated)


def names_of(column: pa.ChunkedArray, *, is_typed: bool = True) -> tuple[tuple[str, ...], IntArray]:
    """Return the distinct names of a column in order of appearance, and each row's index, int64 [n].

    A missing name is empty. A file with types gives a text as it is: the rows that are read with it must
    not change it. In text files (not `is_typed`), names that are all whole numbers have no decimals.

    Raises:
        InvalidData: the column holds neither names nor numbers.
    """
    encoded = _texts(column).fill_null("").dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    places: dict[str, int] = {}
    labels = [label.strip() for label in encoded.dictionary.to_pylist()]
    labels = labels if is_typed else whole_names(labels)
    own = [places.setdefault(label, len(places)) for label in labels]
    return tuple(places), np.array(own, dtype=np.int64)[codes]


def is_numeric(column: pa.ChunkedArray) -> bool:
    """Return whether a column holds numbers or truth values."""
    return any(is_kind(column.type) for is_kind in _NUMERIC)


def cycles_of(column: pa.ChunkedArray) -> tuple[FloatArray, bool]:
    """Read cycles, float64 [n], and say whether they are dates, in seconds; other cells are NaN."""
    column = _values_of(column)
    if is_numeric(column):
        return _float64(column), False
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        zone = column.type.tz if pa.types.is_timestamp(column.type) else None
        instants = column.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
        return _float64(instants) / 1e6, True
    texts = texts_of(column)
    numbers, dates = ({text: read(text) for text in set(texts)} for read in (_number, seconds_of))
    is_number = (numbers[text] is not None for text in texts if numbers[text] != dates[text])
    is_dated = not next(is_number, True)
    return np.array([(dates if is_dated else numbers)[text] for text in texts], dtype=np.float64), is_dated


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return number_of(text)
    return None


def whole_names(labels: list[str]) -> list[str]:
    """Write names that are whole numbers without decimals; unchanged if one of them is not.

    >>> whole_names(["1.0", "2.000e+00"]), whole_names(["1.0", "1.5"]), whole_names(["007"])
    (['1', '2'], ['1.0', '1.5'], ['007'])
    """
    if not all(_DECIMAL.fullmatch(label) and float(label).is_integer() for label in labels):
        return labels
    return [str(int(float(label))) for label in labels]


def _float64(column: pa.ChunkedArray) -> NDArray[np.float64]:
    return column.cast(pa.float64(), safe=False).combine_chunks().to_numpy(zero_copy_only=False)


def _fits_float64(column: pa.ChunkedArray) -> bool:
    """Return whether a column holds numbers that float64 keeps apart."""
    if not pa.types.is_integer(column.type):
        return is_numeric(column)
    try:
        column.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _texts(column: pa.ChunkedArray) -> pa.StringArray:
    """Convert names to text; whole numbers have no decimal point, so 1.0 is unit 1."""
    cells = _values_of(column).combine_chunks()
    if pa.types.is_floating(cells.type):
        cells = pa.array(cells.to_numpy(zero_copy_only=False), from_pandas=True)  # NaN is missing
        with contextlib.suppress(pa.ArrowInvalid):
            cells = cells.cast(pa.int64())
    try:
        texts = cells.cast(pa.string())
    except pa.ArrowException:  # lists, structs, bytes that are no text
        raise InvalidData(f"expected names or numbers, got {column.type}") from None
    if pa.types.is_decimal(cells.type):  # each by itself: the batches of a column must name a unit alike
        zeros = r"\.0+$|^(0)E-\d+$"  # Arrow writes 0 with seven places or more as 0E-7
        return pc.replace_substring_regex(texts, zeros, r"\1")  # pyrefly: ignore[missing-attribute]
    return texts


def _values_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace the categories of a column by their values."""
    if not pa.types.is_dictionary(column.type):
        return column
    kind = column.type.value_type
    if not pa.types.is_string_view(kind):
        return pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], kind)
    names = [pa.array(chunk.dictionary.to_pylist(), pa.string()) for chunk in column.chunks]
    chunks = [of.take(chunk.indices) for of, chunk in zip(names, column.chunks, strict=True)]
    return pa.chunked_array(chunks, pa.string())  # Arrow decodes no views


def texts_of(column: pa.ChunkedArray) -> list[str]:
    """Return the text of each cell, empty without one; of times in UTC."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp(column.type.unit))  # a zone may be unknown here
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        # Times of Python end at the year 9999 and, without pandas, at microseconds.
        column = column.cast(pa.string())
    return ["" if cell is None else str(cell).strip() for cell in column.to_pylist()]


def present(
    path: Path,
    header: Sequence[str],
    wanted: Sequence[str],
    optional: Sequence[str] = (),
    keys: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return which of the wanted columns a file has; some are `optional` where no fleet file names them.

    Raises:
        InvalidData: the file has a column twice, or lacks one that is not optional, or all optional ones.
    """
    repeated = sorted({name for name in wanted if header.count(name) > 1})
    if repeated:
        raise InvalidData(f"{path}: the header has {', '.join(repeated)} more than once: rename all but one")
    absent = [name for name in wanted if name not in header]
    has_some = not optional or any(name in header for name in optional)
    lacking = [name for name in absent if not has_some or name not in optional]
    if lacking:
        raise InvalidData(
            f"{path}: {counted(len(lacking), 'column')} missing: "
            f"{', '.join(_hint(n, header, keys.get(n)) for n in lacking)}; "
            f"the file has {', '.join(header[:40])}{OTHER_NAMES * bool(optional)}"
        )
    return list(dict.fromkeys(name for name in wanted if name in header))


def _hint(name: str, header: Sequence[str], key: str | None) -> str:
    close = difflib.get_close_matches(name, header, n=1, cutoff=0.8)
    said = [*([key] if key else []), *([f"did you mean {close[0]}?"] if close else [])]
    return f"{name} ({'; '.join(said)})" if said else name
