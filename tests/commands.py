"""Commands in this process, and files of pumps for them."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from export import cli as export_cli
from model import cli as model_cli
from model.usage import QuotingGroup
from rul_client import cli as client_cli
from service import cli as service_cli
from tests.fleets import write_fleet
from tests.tiny_bundle import FLEET, pumps


def application() -> typer.Typer:
    """Every command of `rul`."""
    app = typer.Typer(cls=QuotingGroup, rich_markup_mode=None)
    for package in (model_cli, export_cli, client_cli, service_cli):
        package.register(app)
    return app


def rul(*arguments: object) -> Result:
    """Run `rul` with these arguments."""
    return CliRunner().invoke(application(), list(map(str, arguments)))


def write_pumps(folder: Path, *, units: int, seed: int) -> tuple[Path, Path]:
    """Write pumps and the fleet that reads them."""
    return write_fleet(folder, pumps(units=units, seed=seed), FLEET)
