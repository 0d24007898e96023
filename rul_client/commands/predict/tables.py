"""Rows into a table for people, or into CSV, Parquet or JSON for programs; each as they come.

CSV, Parquet and JSON keep every number; the table for people says "at least" where the model does
and leaves the file's columns in their order. This module must not know where rows come from.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from model.domain import RulError
from rul_client.commands.predict.asking import COLUMNS, Row
from service.core.queries import ModelName

DECIMALS: Final = 5
"""Of a cycle, in CSV and JSON: what is behind them differs from one processor to the next."""


class CannotWrite(RulError):
    """An output file that cannot be written."""


class RowWriter(Protocol):
    """Takes rows in their order, and ends."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write some rows."""
        ...

    def close(self) -> None:
        """Write what comes after the last row."""
        ...


class CsvWriter:
    """A header and one line a row; what is not known is empty."""

    def __init__(self, file: IO[bytes]) -> None:
        # Its text wrapper must not close the file, which may be standard output.
        self._file = file
        self._lines = csv.writer(_Encoded(file), lineterminator="\n")
        self._lines.writerow(COLUMNS)

    def write(self, rows: Sequence[Row]) -> None:
        """Write some rows."""
        self._lines.writerows([_short(value) for value in msgspec.structs.astuple(row)] for row in rows)
        self._file.flush()

    def close(self) -> None:
        """Nothing comes after the last row."""


class JsonWriter:
    """A list of objects, one a line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()
        self._next = b"[\n"

    def write(self, rows: Sequence[Row]) -> None:
        """Write some rows."""
        for row in rows:
            values = dict(zip(COLUMNS, map(_short, msgspec.structs.astuple(row)), strict=True))
            self._file.write(self._next + self._encoder.encode(values))
            self._next = b",\n"

    def close(self) -> None:
        """Close the list."""
        self._file.write(b"[]\n" if self._next == b"[\n" else b"\n]\n")


class ParquetWriter:
    """Typed columns; the model's name, version and digest stand in the file's metadata."""

    ROWS_A_GROUP: Final = 65536

    def __init__(self, file: IO[bytes], model: ModelName) -> None:
        texts, numbers = pa.string(), pa.float64()
        kinds = {"last_cycle": pa.int64(), "top_cycle": pa.int64()}
        kinds |= dict.fromkeys(("unit", "rul_state", "health_state"), texts)
        metadata = {f"rul.{key}": value for key, value in msgspec.structs.asdict(model).items()}
        self._schema: Any = pa.schema(
            [(name, kinds.get(name, numbers)) for name in COLUMNS], metadata=metadata
        )
        self._writer: Any = pq.ParquetWriter(file, self._schema)
        self._held: list[Row] = []

    def write(self, rows: Sequence[Row]) -> None:
        """Keep some rows until they are worth a group."""
        self._held += rows
        if len(self._held) >= self.ROWS_A_GROUP:
            self._flush()

    def close(self) -> None:
        """Write the last group and the footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        columns = {name: [getattr(row, name) for row in self._held] for name in COLUMNS}
        self._writer.write_table(pa.table(columns, schema=self._schema))
        self._held = []


@dataclass(frozen=True, slots=True)
class _Encoded:
    """What `csv` writes to, as UTF-8."""

    file: IO[bytes]

    def write(self, text: str) -> int:
        """Write text."""
        return self.file.write(text.encode())


def _short(value: object) -> object:
    return round(value, DECIMALS) if isinstance(value, float) else value


@contextmanager
def written(output: Path | None) -> Generator[IO[bytes], None, None]:
    """A file to write to, in place only when it is complete; or standard output.

    Raises:
        CannotWrite: the file cannot be written.
    """
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = output if output.exists() and not output.is_file() else output.with_name(f".{output.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        if part != output:
            part.replace(output)
    except OSError as error:
        raise CannotWrite(f"{output}: cannot be written: {error.strerror or error}") from error
    finally:
        if part != output:
            part.unlink(missing_ok=True)


def discard_output() -> None:
    """After a reader like `head` has gone: let the interpreter flush into nothing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
