"""Reads a file or DataFrame of readings, and decides which of its columns are the model's."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from export.bundle import Manifest
from model.domain import InvalidData, Trajectory
from model.files import folder_files, format_of
from model.fleet import Fleet, Format, fleet_named, fleet_of_schema
from model.readers import Rows, read_with_report
from model.tables import table_of
from model.text_table import CMAPSS_COLUMNS
from rul_client.readings import Frame

logger = logging.getLogger(__name__)


def read_units(path: Path, manifest: Manifest, *, fleet: str | None) -> tuple[list[Trajectory], list[str]]:
    """Read the units of a file or folder; name columns of the model that have no reading.

    `fleet` is a fleet's name or TOML file that describes the columns; None: they have the model's
    names, or the file is C-MAPSS text.
    """
    described = described_by(manifest, fleet) if fleet is not None else _recognised(path, manifest)
    units, report = read_with_report(path, described, run_to_failure=False, allow_absent=fleet is None)
    absent = [name for name, count in report.missing.items() if count == report.rows]
    if len(absent) == len(manifest.columns):
        raise InvalidData(f"{path} has no reading in the columns of {manifest.name}: {', '.join(absent)}")
    if absent:
        logger.warning("%s has no readings of %s: treated as missing", path, ", ".join(absent))
    return units, absent


def read_frame(frame: Frame, manifest: Manifest) -> tuple[list[Trajectory], list[str]]:
    """Read the units of a DataFrame; name columns of the model that it lacks.

    Without a column `unit` it is one unit without a name; without `cycle` its rows are in order.
    """
    fleet = described_by(manifest, None)
    absent = [name for name in fleet.sources if name not in frame.columns]
    if len(absent) == len(fleet.sources):
        raise InvalidData(f"the frame has none of the columns that {manifest.name} reads")
    names = [name for name in (*fleet.sources, fleet.unit_column, "cycle") if name in frame.columns]
    fleet = replace(fleet, cycle_column="cycle" if "cycle" in names else None)
    try:
        table = pa.Table.from_pandas(frame[names], preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:  # several types, sparse, or a column twice
        raise InvalidData(f"the frame cannot be read: {error}") from error
    read = table_of(
        Path("the frame"),
        table,
        lambda row: f"the frame: row {row + 1}",
        numbers=[name for name in (*fleet.sources, fleet.cycle_column) if name],
        text=fleet.unit_column if fleet.unit_column in names else None,
        date=fleet.cycle_column,
    )
    named = read if read.labels else replace(read, labels=("",))
    return Rows.of([named], fleet).trajectories(fleet, run_to_failure=False), absent


def described_by(manifest: Manifest, fleet: str | None) -> Fleet:
    """Describe a model's columns: as a fleet's name or TOML file does, or by the model's names."""
    if fleet is not None:
        return _narrowed(fleet_named(fleet), manifest)
    return fleet_of_schema(manifest.name, manifest.schema_of_columns)


def _narrowed(fleet: Fleet, manifest: Manifest) -> Fleet:
    """Reduce a fleet to the columns that the model reads, in the model's order."""
    known = {column.name: i for i, column in enumerate(fleet.schema.columns)}
    lacking = [column.name for column in manifest.columns if column.name not in known]
    if lacking:
        raise InvalidData(
            f"fleet {fleet.name} has no {', '.join(lacking)}, which {manifest.name} reads: "
            f"was the model trained for this fleet?"
        )
    for column in manifest.columns:
        unit = fleet.schema.columns[known[column.name]].unit
        if unit and column.unit and unit != column.unit:
            raise InvalidData(
                f"{column.name} is in {unit} in fleet {fleet.name}, the model reads {column.unit}"
            )
    sources = tuple(fleet.sources[known[column.name]] for column in manifest.columns)
    return replace(fleet, schema=manifest.schema_of_columns, sources=sources, failure=None)


def _recognised(path: Path, manifest: Manifest) -> Fleet:
    """Make a fleet for a file whose columns have the model's names."""
    form = _format_of(path)
    names = manifest.schema_of_columns.names
    if form == "cmapss":
        foreign = [name for name in names if name not in CMAPSS_COLUMNS]
        if foreign:
            raise InvalidData(
                f"{path} is C-MAPSS text, and {manifest.name} reads {', '.join(foreign[:5])}, which C-MAPSS "
                "lacks: choose another bundle, or describe the file with --fleet"
            )
    return replace(described_by(manifest, None), format=form)


def _format_of(path: Path) -> Format:
    """Tell the format of a file, or that of all files in a folder."""
    if not path.is_dir():
        return format_of(path) or "csv"
    found: set[Format] = {form for form in folder_files(path).values() if form is not None}
    if len(found) == 1:
        return found.pop()
    raise InvalidData(
        f"{path}: expected files of one format in this folder, got {', '.join(sorted(found)) or 'none'}"
    )
