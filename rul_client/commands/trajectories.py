"""`rul trajectories`: stored readings and failures as a file that trains the next model."""

from __future__ import annotations

import csv
import io
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from export.bundle import Manifest, find_bundle
from export.fleets import write_fleet_of
from model.cells import counted
from model.domain import InvalidData
from model.fleet import FAILED
from rul_client.commands.outcomes import opened_store
from rul_client.commands.output import csv_cell, open_output

if TYPE_CHECKING:
    from service.store.database import Database


def trajectories(
    *,
    output: Annotated[Path | None, typer.Option(help="CSV file to write; default: standard output.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model whose units are written; default: the store's only one.")
    ] = None,
    bundle: Annotated[
        str | None, typer.Option(help="The model's bundle, for --fleet: a shipped name or a folder.")
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option(help="Also write the TOML file of the bundle's fleet, which reads the output."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Address of the database; default: RUL_STORE_URL.")
    ] = None,
) -> None:
    """Write stored readings and failures as CSV, to train the next model.

    One row per reading, with the columns unit, cycle, failed and those of the model. `failed` is 1 in the row
    of a failure; removed and running units have no such row. With --bundle and --fleet, the next model has
    the columns, cap, context, horizons and bounds of this one, so it can replace it. `rul fleet init` guesses
    them from the file.

    Example: rul trajectories --bundle fd001 --output units.csv --fleet engines.toml
    """
    if (bundle is None) != (fleet is None):
        raise typer.BadParameter("expected both or neither", param_hint="--bundle and --fleet")
    manifest = None if bundle is None else _manifest_of(bundle)
    named = model if model or manifest is None else manifest.name
    with opened_store(store, "writing stored readings") as database:
        said = _write(database, named, output)
    if fleet is not None and manifest is not None:
        write_fleet_of(manifest, fleet, failure=FAILED)
    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(said)


def _manifest_of(bundle: str) -> Manifest:
    from export.session import open_bundle  # noqa: PLC0415 loads ONNX Runtime

    return open_bundle(find_bundle(bundle))[1]


def _write(database: Database, model: str | None, output: Path | None) -> str:
    """Write the rows of a model's units, and return what was written, in words."""
    from service.store.trajectories import models_of, read_trajectories  # noqa: PLC0415 loads SQLAlchemy

    units, failed, readings = set[object](), 0, 0
    models = models_of(database)
    chosen = model or (models[0] if len(models) == 1 else None)
    if chosen not in models:
        known = ", ".join(models) or "the store has none"
        raise typer.BadParameter(f"expected a model of the store: {known}", param_hint="--model")
    rows = read_trajectories(database, chosen)
    header, first = next(rows), next(rows, None)
    if first is None:
        raise InvalidData(f"the store has no readings of {chosen}: it keeps those sent to a unit's cycles")
    with open_output(output) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        for unit, cycle, has_failed, *values in chain([first], rows):
            writer.writerow([csv_cell(unit), cycle, has_failed, *values])
            units.add(unit)
            failed += has_failed == 1
            readings += any(value is not None for value in values)
        text.detach()
    read = f"{counted(len(units), 'unit')}, {failed:,} failed, {counted(readings, 'reading')}"
    return f"{output or 'standard output'}: {read}"
