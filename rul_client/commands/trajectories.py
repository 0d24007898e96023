"""`rul trajectories`: stored readings and failures as a file that trains the next model."""

from __future__ import annotations

import csv
import io
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from model.domain import InvalidData
from rul_client.commands.outcomes import opened_store
from rul_client.commands.output import csv_cell, open_output


def trajectories(
    *,
    output: Annotated[Path | None, typer.Option(help="CSV file to write; default: standard output.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model whose units are written; default: the store's only one.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Address of the database; default: RUL_STORE_URL.")
    ] = None,
) -> None:
    """Write stored readings and failures as CSV, to train the next model.

    One row per reading, with the columns unit, cycle, failed and those of the model. `failed` is 1 in the row
    of a failure; removed and running units have no such row. `rul fleet init` and `rul train` read the file.

    Example: rul trajectories --model fd001 --output units.csv
    """
    from service.store.trajectories import models_of, read_trajectories  # noqa: PLC0415 loads SQLAlchemy

    units, failed, readings = set[object](), 0, 0
    with opened_store(store, "writing stored readings") as database:
        models = models_of(database)
        chosen = model or (models[0] if len(models) == 1 else None)
        if chosen not in models:
            known = ", ".join(models) or "the store has none"
            raise typer.BadParameter(f"expected a model of the store: {known}", param_hint="--model")
        rows = read_trajectories(database, chosen)
        header, first = next(rows), next(rows, None)
        if first is None:
            raise InvalidData(
                f"the store has no readings of {chosen}: it keeps those sent to a unit's cycles"
            )
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
    said = f"{output or 'standard output'}: {len(units):,} units, {failed:,} failed, {readings:,} readings"
    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(said)
