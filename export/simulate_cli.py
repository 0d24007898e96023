"""`rul simulate`: simulated units for any bundle, as a file that the other commands read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from export.bundle import Manifest, find_bundle
from export.fleets import write_fleet_of
from model.domain import Trajectory
from model.outputs import output_format, whole_file, writing
from model.simulation import json_columns, simulate

HELP = """
Simulate units from a bundle's reference statistics, for demos, load and tests without data.

Example: rul simulate --bundle fd001 --units 100 --output units.csv

To train on simulated units, add --fleet fleet.toml: it describes the file to `rul train`.

For units that have not failed yet, as `rul predict` reads them, add --truncate.

For a body of POST /v1/predict: rul simulate --bundle fd001 --units 3 --truncate --format json
"""


class OutputFormat(StrEnum):
    """Output format."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"


SUFFIXES: Final = {
    ".csv": OutputFormat.CSV,
    ".txt": OutputFormat.CSV,
    ".parquet": OutputFormat.PARQUET,
    ".pq": OutputFormat.PARQUET,
    ".json": OutputFormat.JSON,
}


def simulate_command(
    *,
    bundle: Annotated[str, typer.Option(help="Name of a shipped bundle, or a bundle's folder.")],
    units: Annotated[int, typer.Option(min=1, help="Number of units.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same units.")] = 0,
    output: Annotated[Path | None, typer.Option(help="File to write. Default: standard output.")] = None,
    form: Annotated[
        OutputFormat | None, typer.Option("--format", help="Default: the output's suffix, else csv.")
    ] = None,
    last_cycles: Annotated[
        int | None,
        typer.Option(min=1, help="Keep only the last cycles of each unit. Default for json: the context."),
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Stop each unit at a random cycle before its failure.")
    ] = False,
    fleet: Annotated[
        Path | None, typer.Option(help="Also write the TOML file of a fleet that reads the output.")
    ] = None,
) -> None:
    """Simulate units and write them."""
    form = output_format(output, form, SUFFIXES, default=OutputFormat.CSV)
    if fleet is not None and (truncate or form is OutputFormat.JSON):
        raise typer.BadParameter(
            "training needs csv or parquet of units that ran to failure: omit --truncate and json",
            param_hint="--fleet",
        )
    from export.session import open_bundle  # noqa: PLC0415 - loads ONNX Runtime

    _, manifest = open_bundle(find_bundle(bundle))
    made = simulate(manifest, manifest.schema_of_columns, units=units, seed=seed, truncate=truncate)
    keep = last_cycles or (manifest.context if form is OutputFormat.JSON else None)
    if keep is not None:
        made = [replace(t, cycles=t.cycles[-keep:], readings=t.readings[-keep:]) for t in made]
    if output is not None:
        with writing(output):
            output.parent.mkdir(parents=True, exist_ok=True)
    _write(made, manifest, form=form, output=output)
    if fleet is not None:
        write_fleet_of(manifest, fleet, form="parquet" if form is OutputFormat.PARQUET else "csv")


def request_body(manifest: Manifest, trajectories: Sequence[Trajectory]) -> bytes:
    """Build the body of POST /v1/predict for these units; missing readings are null."""
    windows = [
        {
            "unit": trajectory.unit,
            "last_cycle": int(trajectory.cycles[-1]),
            "columns": json_columns(trajectory, manifest.schema_of_columns),
        }
        for trajectory in trajectories
    ]
    return json.dumps({"model": manifest.name, "windows": windows}).encode() + b"\n"


def _write(
    trajectories: Sequence[Trajectory], manifest: Manifest, *, form: OutputFormat, output: Path | None
) -> None:
    from model.writers import csv_text, write_parquet  # noqa: PLC0415 - loads pyarrow

    schema = manifest.schema_of_columns
    if form is OutputFormat.PARQUET and output is not None:
        with whole_file(output) as part:
            write_parquet(part, trajectories, schema)
        return
    is_json = form is OutputFormat.JSON
    data = request_body(manifest, trajectories) if is_json else csv_text(trajectories, schema)
    if output is None:
        with writing("standard output"):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    else:
        with whole_file(output) as part:
            part.write_bytes(data)
