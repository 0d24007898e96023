"""Commands in this process, and pumps for them to read."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from export import cli as export_cli
from model import cli as model_cli
from model.usage import QuotingGroup
from rul_client import cli as client_cli
from tests.fleets import write_fleet
from tests.tiny_bundle import FLEET, pumps


def rul(*arguments: object) -> Result:
    """Run `rul` with these arguments."""
    app = typer.Typer(cls=QuotingGroup, rich_markup_mode=None)
    model_cli.register(app)
    export_cli.register(app)
    client_cli.register(app)
    return CliRunner().invoke(app, list(map(str, arguments)))


def write_pumps(folder: Path, *, units: int, seed: int) -> tuple[Path, Path]:
    """Write pumps and the fleet that reads them."""
    return write_fleet(folder, pumps(units=units, seed=seed), FLEET)
