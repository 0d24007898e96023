"""`rul inspect` and `rul fleet init`: from data to a fleet file that suits it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from model.fleet import fleet_named

INSPECT_HELP: Final = """
Inspect a fleet's data before training.

Prints units, lives and columns, what would ruin or weaken a training, and suggested values of cap,
context and horizons. The exit code is 1 if a training cannot begin.

Example: rul inspect pumps.toml pumps.csv
"""


def inspect(
    fleet: Annotated[str, typer.Argument(help="TOML file, or name of a shipped fleet.")],
    data: Annotated[list[Path], typer.Argument(help="Files or folders of readings.")],
    *,
    folds: Annotated[int, typer.Option(help="Folds of the training that follows.", min=2)] = 5,
) -> None:
    """Inspect data before training; see INSPECT_HELP."""
    from model.inspection_report import print_inspection  # noqa: PLC0415 with PyArrow

    if not print_inspection(data, fleet_named(fleet), folds=folds):
        raise typer.Exit(1)
