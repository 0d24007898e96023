"""`rul simulate`: plausible units for any bundle, as a file that the other commands read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from export.bundle import Manifest, find_bundle
from model.domain import RulError, Trajectory
from model.fleet import Fleet, fleet_of_schema, fleet_toml

HELP = """
Make plausible units from a bundle's reference statistics: for demos, load and tests without data.

Example: rul simulate --bundle fd001 --units 100 --output units.csv

To train on simulated units, add --fleet fleet.toml, which describes the file to `rul train`.

Units that have not failed yet, for `rul predict`: add --truncate.

A request body for POST /v1/predict: rul simulate --bundle fd001 --units 3 --truncate --format json
"""


class OutputFormat(StrEnum):
    """What the command writes."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"


class CannotWrite(RulError):
    """An output file that cannot be written."""


def add_simulate(app: typer.Typer) -> None:
    """Add the command to `rul`."""
    app.command("simulate", help=HELP)(simulate_command)


def simulate_command(
    *,
    bundle: Annotated[str, typer.Option(help="Name of a shipped bundle, or a bundle's folder.")],
    units: Annotated[int, typer.Option(min=1, help="How many units to make.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same units.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="File to write; standard output where it is left out.")
    ] = None,
    form: Annotated[
        OutputFormat | None,
        typer.Option("--format", help="Left out: what the output's suffix says, else csv."),
    ] = None,
    last_cycles: Annotated[
        int | None,
        typer.Option(
            min=1, help="Keep the last cycles of each unit; json: the model's context, unless given."
        ),
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Stop each unit at a random cycle before its failure.")
    ] = False,
    fleet: Annotated[
        Path | None, typer.Option(help="Also write a fleet's TOML file, to train on the output with.")
    ] = None,
) -> None:
    """Simulate units and write them."""
    form = form or _format_of(output)
    if form is OutputFormat.PARQUET and output is None:
        raise typer.BadParameter("parquet needs --output FILE", param_hint="--format")
    if fleet is not None and (truncate or form is OutputFormat.JSON):
        raise typer.BadParameter(
            "training needs csv or parquet of units that ran to failure: leave out --truncate and json",
            param_hint="--fleet",
        )
    from export.session import open_bundle  # noqa: PLC0415 - loads ONNX Runtime
    from model.simulation import simulate  # noqa: PLC0415

    _, manifest = open_bundle(find_bundle(bundle))
    made = simulate(manifest, manifest.schema_of_columns, units=units, seed=seed, truncate=truncate)
    keep = last_cycles or (manifest.context if form is OutputFormat.JSON else None)
    made = [_last(trajectory, keep) for trajectory in made]
    try:
        _write(made, manifest, form=form, output=output)
        if fleet is not None:
            fleet.write_text(fleet_toml(fleet_of_bundle(manifest, form)), encoding="utf-8")
    except OSError as error:
        where = error.filename or "standard output"
        raise CannotWrite(f"{where}: cannot be written: {error.strerror}") from error


def fleet_of_bundle(manifest: Manifest, form: OutputFormat) -> Fleet:
    """The fleet that a bundle was trained for, as a simulated file shows it."""
    plain = fleet_of_schema(manifest.name, manifest.schema_of_columns)
    return replace(
        plain,
        format="parquet" if form is OutputFormat.PARQUET else "csv",
        cap=manifest.cap,
        context=manifest.context,
        horizons=tuple(manifest.horizons),
        nominal_coverage=manifest.nominal_coverage,
        critical_below=manifest.health_bounds.critical_below,
        degrading_below=manifest.health_bounds.degrading_below,
        max_missing_fraction=manifest.max_missing_fraction,
    )


def request_body(manifest: Manifest, trajectories: Sequence[Trajectory]) -> bytes:
    """The body of POST /v1/predict that asks about these units; missing readings are null."""
    windows = [
        {
            "unit": trajectory.unit,
            "last_cycle": int(trajectory.cycles[-1]),
            "columns": {
                # A float32 written with as many digits as it takes, and no more.
                column.name: [None if x != x else float(str(x)) for x in trajectory.readings[:, i]]  # noqa: PLR0124
                for i, column in enumerate(manifest.columns)
            },
        }
        for trajectory in trajectories
    ]
    return json.dumps({"model": manifest.name, "windows": windows}).encode() + b"\n"


def _format_of(output: Path | None) -> OutputFormat:
    suffixes = {".parquet": OutputFormat.PARQUET, ".pq": OutputFormat.PARQUET, ".json": OutputFormat.JSON}
    return OutputFormat.CSV if output is None else suffixes.get(output.suffix.lower(), OutputFormat.CSV)


def _last(trajectory: Trajectory, cycles: int | None) -> Trajectory:
    if cycles is None:
        return trajectory
    return replace(trajectory, cycles=trajectory.cycles[-cycles:], readings=trajectory.readings[-cycles:])


def _write(
    trajectories: Sequence[Trajectory], manifest: Manifest, *, form: OutputFormat, output: Path | None
) -> None:
    from model.writers import csv_text, write_parquet  # noqa: PLC0415 - loads pyarrow

    if form is OutputFormat.PARQUET and output is not None:
        write_parquet(output, trajectories, manifest.schema_of_columns)
        return
    data = (
        request_body(manifest, trajectories)
        if form is OutputFormat.JSON
        else csv_text(trajectories, manifest.schema_of_columns)
    )
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        output.write_bytes(data)
