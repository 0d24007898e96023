"""Writes rows for programs, as they come: CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rul_client.answers import ModelName
from rul_client.commands.output import csv_cell
from rul_client.commands.predict.rows import Row

DECIMALS: Final = 5
"""Decimals of numbers in CSV and JSON; further digits depend on the processor."""
ROWS_PER_GROUP: Final = 65536
TYPES: Final = {name: pa.int64() for name in ("last_cycle", "top_cycle", "act_at_cycle")} | dict.fromkeys(
    ("unit", "rul_state", "health_state", "top_sensor", "second_sensor", "trust"), pa.string()
)


class RowWriter(ABC):
    """Writes rows in order; `close` finishes the output."""

    @abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Write some rows."""

    def close(self) -> None:  # noqa: B027 not every format has an end
        """Write the end of the output."""


class CsvWriter(RowWriter):
    """Writes a header and one line per row; None is empty."""

    def __init__(self, file: IO[bytes], columns: Sequence[str]) -> None:
        self._file = file
        self._write([columns])

    def write(self, rows: Sequence[Row]) -> None:  # noqa: D102 inherited
        self._write([*map(csv_cell, _rounded(row).values())] for row in rows)

    def _write(self, lines: Iterable[Sequence[object]]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(lines)
        self._file.write(text.getvalue().encode())
        self._file.flush()


class JsonWriter(RowWriter):
    """Writes a list of objects, one per line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._separator = b"["

    def write(self, rows: Sequence[Row]) -> None:  # noqa: D102 inherited
        for row in rows:
            self._file.write(self._separator + b"\n" + msgspec.json.encode(_rounded(row)))
            self._separator = b","

    def close(self) -> None:  # noqa: D102 inherited
        self._file.write(b"[]\n" if self._separator == b"[" else b"\n]\n")


class ParquetWriter(RowWriter):
    """Typed columns; the metadata holds the model's name, version and digest."""

    def __init__(self, file: IO[bytes], columns: Sequence[str], model: ModelName) -> None:
        self._writer: Any = pq.ParquetWriter(file, parquet_schema(columns, model))
        self._rows: list[Row] = []

    def write(self, rows: Sequence[Row]) -> None:  # noqa: D102 inherited
        self._rows += rows
        if len(self._rows) >= ROWS_PER_GROUP:
            self._flush()

    def close(self) -> None:  # noqa: D102 inherited
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._writer.schema))
        self._rows = []


def parquet_schema(columns: Sequence[str], model: ModelName) -> Any:  # noqa: ANN401 pyarrow is untyped
    """Return the Arrow schema of rows with these columns; its metadata names the model."""
    fields = [(name, TYPES.get(name, pa.float64())) for name in columns]
    metadata = {"rul.name": model.name, "rul.version": model.version, "rul.sha256": model.sha256}
    return pa.schema(fields, metadata=metadata)


def _rounded(row: Row) -> Row:
    return {
        name: round(value, DECIMALS) if isinstance(value, float) else value for name, value in row.items()
    }
