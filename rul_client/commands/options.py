"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[
    Path, typer.Option("--input", help="CSV, text, .xlsx, Parquet, Feather, packed or not; or a folder.")
]
FleetFile = Annotated[str | None, typer.Option(help="Describes the columns: a fleet's name or TOML file.")]
