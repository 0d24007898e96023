"""Registers the commands of this package under `rul`."""

from __future__ import annotations

import typer

from rul_client.commands.bench.cli import bench
from rul_client.commands.demo.cli import demo
from rul_client.commands.explain.cli import explain
from rul_client.commands.models import models
from rul_client.commands.outcomes import outcomes
from rul_client.commands.predict.cli import predict
from rul_client.commands.score.cli import score
from rul_client.commands.top.cli import top
from rul_client.commands.trajectories import trajectories


def register(app: typer.Typer) -> None:
    """Add `predict`, `score`, `explain`, `outcomes`, `trajectories`, `bench`, `top`, `demo` and `models`."""
    for command in (predict, score, explain, outcomes, trajectories, bench, top, demo):
        app.command()(command)
    app.add_typer(models, name="models")
