"""`rul inspect` and `rul fleet init`: from data to a fleet file that suits it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from model.domain import RulError
from model.fleet import FORMATS, fleet_named
from model.outputs import whole_file, writing
from model.screen import say

INSPECT_HELP: Final = """
Inspect a fleet's data before training.

Prints units, lives and columns, what would ruin or weaken a training, and suggested values of cap,
context and horizons. The exit code is 1 if a training cannot begin.

Example: rul inspect pumps.toml pumps.csv
"""

INIT_HELP: Final = """
Write a commented fleet file from data, with guessed columns.

Prints what was guessed and what could not be. Check the file, then run `rul inspect`.

Example: rul fleet init pumps.csv --output pumps.toml
"""


class FleetExists(RulError):
    """The file would be overwritten."""


def register(app: typer.Typer) -> None:
    """Add `inspect` and `fleet init`."""
    app.command(help=INSPECT_HELP)(inspect)
    fleet = typer.Typer(no_args_is_help=True, help="Describe a fleet in a TOML file.", rich_markup_mode=None)
    fleet.command(help=INIT_HELP)(init)
    fleet.callback()(_group)
    app.add_typer(fleet, name="fleet")


def _group() -> None:
    """Describe a fleet in a TOML file."""


def inspect(
    fleet: Annotated[str, typer.Argument(help="TOML file, or name of a shipped fleet.")],
    data: Annotated[list[Path], typer.Argument(help="Files or folders of readings.")],
    *,
    folds: Annotated[int, typer.Option(help="Folds of the training that follows.", min=2)] = 5,
) -> None:
    """Inspect data before training; see INSPECT_HELP."""
    from model.findings import print_inspection  # noqa: PLC0415 with PyArrow

    if not print_inspection(data, fleet_named(fleet), folds=folds):
        raise typer.Exit(1)


def init(
    data: Annotated[list[Path], typer.Argument(help="Files or folders of readings.")],
    *,
    out: Annotated[Path, typer.Option("--output", "--out", help="TOML file to write.")] = Path("fleet.toml"),
    name: Annotated[
        str | None, typer.Option(help="Name of the fleet. Default: that of the TOML file.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the TOML file.")] = False,
) -> None:
    """Write a fleet file; see INIT_HELP."""
    from model.files import files_with  # noqa: PLC0415 with PyArrow
    from model.fleet_draft import draft_fleet  # noqa: PLC0415 with PyArrow
    from model.fleet_draft_text import draft_toml, guesses  # noqa: PLC0415 with PyArrow

    if out.exists() and not overwrite:
        raise FleetExists(f"{out}: the file exists: choose another --output, or use --overwrite")
    with Console(stderr=True).status("reading data"):
        draft = draft_fleet(files_with(data, FORMATS))
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(out) as part:
        part.write_text(draft_toml(draft, name=name or out.stem), encoding="utf-8")
    fleet_named(out)  # what is written can be read
    following = shlex.join(["rul", "inspect", str(out), *map(str, data)])
    say(*guesses(draft), f"{out}: written; check it. Next: {following}")
