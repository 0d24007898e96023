"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[
    Path, typer.Option("--input", help="CSV, text, .xlsx, Parquet, Feather, packed or not; or a folder.")
]
FleetFile = Annotated[str | None, typer.Option(help="Describes the columns: a fleet's name or TOML file.")]


def refuse_options(context: typer.Context, *names: str, why: str) -> None:
    """Refuse these options of the running command where its caller typed one that would do nothing.

    Raises:
        BadParameter: one of them was typed; an environment's value is no request.
    """
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(why, param_hint=option.opts[0])
