"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[
    Path, typer.Option("--input", help="CSV, text, .xlsx, Parquet or Feather, or .gz of these; or a folder.")
]
FleetFile = Annotated[str | None, typer.Option(help="Describes the columns: a fleet's name or TOML file.")]


def refuse_options(context: typer.Context, *names: str, why: str) -> None:
    """Refuse these options of the running command if one was typed that would do nothing.

    Raises:
        BadParameter: one was typed; values from the environment are ignored.
    """
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(why, param_hint=option.opts[0])
