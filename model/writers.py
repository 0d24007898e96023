"""Writers of trajectories: CSV and Parquet files that `model.readers` reads.

Columns are `unit`, `cycle` and those of the schema; a missing value is an empty cell or a null.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from model.domain import Schema, Trajectory


def csv_text(trajectories: Sequence[Trajectory], schema: Schema) -> bytes:
    """Format CSV in UTF-8 with a header; names are quoted if one of them needs it."""
    table = _arrow(trajectories, schema)
    special = any(set(trajectory.unit) & set(',"\r\n') for trajectory in trajectories)
    body = io.BytesIO()
    options = pacsv.WriteOptions(include_header=False, quoting_style="needed" if special else "none")
    pacsv.write_csv(table, body, options)
    header = ",".join(_quoted(name) for name in table.column_names)
    return f"{header}\n".encode() + body.getvalue()


def write_parquet(path: Path, trajectories: Sequence[Trajectory], schema: Schema) -> None:
    """Write one Parquet file with a row per cycle."""
    pq.write_table(_arrow(trajectories, schema), path)


def _arrow(trajectories: Sequence[Trajectory], schema: Schema) -> pa.Table:
    units = np.repeat([t.unit for t in trajectories], [len(t) for t in trajectories])
    readings = np.concatenate([trajectory.readings for trajectory in trajectories]).astype(np.float32)
    columns = {
        "unit": pa.array(units),
        "cycle": pa.array(np.concatenate([trajectory.cycles for trajectory in trajectories])),
    }
    for i, name in enumerate(schema.names):
        columns[name] = pa.array(np.ascontiguousarray(readings[:, i]), from_pandas=True)  # NaN is null
    return pa.table(columns)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\r\n') else name
