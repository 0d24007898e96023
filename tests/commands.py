"""Commands in this process, and pumps for them to read."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from export import cli as export_cli
from model import cli as model_cli
from model.fleet import fleet_toml
from model.writers import csv_text
from rul_client import cli as client_cli
from tests.tiny_bundle import FLEET, pumps


def rul(*arguments: object) -> Result:
    """Run `rul` with these arguments."""
    app = typer.Typer(rich_markup_mode=None)
    model_cli.register(app)
    export_cli.register(app)
    client_cli.register(app)
    return CliRunner().invoke(app, list(map(str, arguments)))


def write_pumps(folder: Path, *, units: int, seed: int) -> tuple[Path, Path]:
    """Write pumps and the fleet that reads them: pumps.csv and pumps.toml."""
    (folder / "pumps.csv").write_bytes(csv_text(pumps(units=units, seed=seed), FLEET.schema))
    (folder / "pumps.toml").write_text(fleet_toml(FLEET), encoding="utf-8")
    return folder / "pumps.csv", folder / "pumps.toml"
