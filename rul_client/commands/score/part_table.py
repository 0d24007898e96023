"""The two Parquet files of a part: its answers with its counts, and what was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from export.bundle import Manifest
from model.domain import FloatArray, IntArray, InvalidData
from rul_client.answers import ModelName
from rul_client.commands.predict.rows import columns_of
from rul_client.commands.predict.writers import parquet_schema
from rul_client.commands.score.job import Job, Tally
from rul_client.commands.score.locations import Location
from rul_client.commands.score.part_readings import Refusal
from rul_client.commands.score.plan import Part, open_parquet

REFUSED: Final = "_refused"
"""Folder of the side tables; readers of datasets pass over names that begin with an underscore."""
COUNTS: Final = "rul.counts"
RUN: Final = "rul.run"
BY_CYCLE: Final = frozenset({"attention", "evidence", "contributions"})
"""Columns with a number for each cycle of the window."""
LISTS: Final = pa.list_(pa.float32())
REFUSALS: Final = pa.schema(
    [
        ("file", pa.string()), ("row", pa.int64()), ("unit", pa.string()), ("cycle", pa.float64()),
        ("column", pa.string()), ("reason", pa.string()),
    ]
)  # fmt: skip


def schema_of(manifest: Manifest, name: ModelName, job: Job) -> Any:  # noqa: ANN401 pyarrow is untyped
    """Return the schema of answers: the columns of `rul predict` without trust, novelty, wanted lists."""
    columns = [column for column in columns_of(manifest) if column != "trust"]
    schema = parquet_schema([*columns, "novelty"], name)
    explains = manifest.explains_readings
    lists = {
        "attention": job.attention,
        "evidence": job.attention and explains,
        "contributions": job.contributions,
        "sensor_contributions": job.contributions and explains,
    }
    for column in (column for column, is_wanted in lists.items() if is_wanted):
        schema = schema.append(pa.field(column, LISTS))
    return schema.with_metadata({**schema.metadata, RUN: job.run})


def table_of(columns: Mapping[str, Any], schema: Any) -> Any:  # noqa: ANN401 pyarrow is untyped
    """Make a table of arrays; NaN is null, and so is a column that is not given."""
    count = len(columns["unit"])
    arrays = [
        pa.array(columns[field.name], field.type, from_pandas=True)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def labelled(labels: Sequence[str], places: Any) -> Any:  # noqa: ANN401 pyarrow is untyped
    """Return the label at each place, [B]."""
    return pa.array(labels, pa.string()).take(pa.array(places))


def lists(values: FloatArray, lengths: IntArray) -> Any:  # noqa: ANN401 pyarrow is untyped
    """Make lists of the first values of each row: [B, T] and lengths [B] -> B lists."""
    inside = np.arange(values.shape[1]) < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[inside].astype(np.float32)))


class Columns:
    """Numbers of W windows, put in batch by batch: [W] or [W, n]."""

    def __init__(self, windows: int, context: int) -> None:
        self._windows, self._context = windows, context
        self._arrays: Final[dict[str, Any]] = {}

    def put(self, which: IntArray, numbers: Mapping[str, Any]) -> None:
        """Keep the numbers [B] or [B, up to n] of the windows at these places."""
        for name, given in numbers.items():
            values = np.asarray(given)
            if name not in self._arrays:
                width = (self._context,) if name in BY_CYCLE else values.shape[1:]
                self._arrays[name] = np.zeros((self._windows, *width), values.dtype)
            if values.ndim == 1:
                self._arrays[name][which] = values
            else:
                self._arrays[name][which, : values.shape[1]] = values

    def at(self, which: IntArray) -> dict[str, Any]:
        """Return the numbers of some windows."""
        return {name: values[which] for name, values in self._arrays.items()}


def write_part(output: Location, part: Part, table: Any, refused: Sequence[Refusal], tally: Tally) -> None:  # noqa: ANN401
    """Write what was refused, then the answers: a part whose answers are there is finished.

    Raises:
        CannotWrite: the file system refuses.
    """
    if refused:
        rows = [dict(zip(Refusal._fields, each, strict=True)) for each in refused]
        output.write(f"{REFUSED}/{part.file}", _parquet(pa.Table.from_pylist(rows, schema=REFUSALS)))
    metadata = {**table.schema.metadata, COUNTS: msgspec.json.encode(tally)}
    output.write(part.file, _parquet(table.replace_schema_metadata(metadata)))


def read_tally(output: Location, part: Part, *, run: str) -> Tally:
    """Read the counts of a finished part of this run.

    Raises:
        InvalidData: the file is not of this run, or damaged.
    """
    with open_parquet(output, part.file) as file:
        metadata = file.schema_arrow.metadata or {}
        if metadata.get(RUN.encode(), b"").decode() != run:
            raise InvalidData(
                f"{part.file}: another run wrote to {output.url} at the same time; remove the folder and "
                "start one run again"
            )
        try:
            return msgspec.json.decode(metadata[COUNTS.encode()], type=Tally)
        except (KeyError, msgspec.DecodeError) as error:
            raise InvalidData(f"{part.file}: no counts in its metadata; remove it and start again") from error


def _parquet(table: Any) -> Any:  # noqa: ANN401 pyarrow is untyped
    sink = pa.BufferOutputStream()
    names: Any = [field.name for field in table.schema if pa.types.is_string(field.type)]
    pq.write_table(table, sink, compression="zstd", use_dictionary=names)  # numbers hardly repeat
    return sink.getvalue()
