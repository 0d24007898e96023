"""Commands that ask a service, registered under `rul`."""

from __future__ import annotations

import typer

from rul_client.commands.bench.cli import HELP as BENCH_HELP
from rul_client.commands.bench.cli import bench
from rul_client.commands.outcomes import HELP as OUTCOMES_HELP
from rul_client.commands.outcomes import outcomes
from rul_client.commands.predict.cli import HELP as PREDICT_HELP
from rul_client.commands.predict.cli import predict
from rul_client.commands.top.cli import HELP as TOP_HELP
from rul_client.commands.top.cli import top


def register(app: typer.Typer) -> None:
    """Add `predict`, `outcomes`, `bench` and `top`."""
    app.command(help=PREDICT_HELP)(predict)
    app.command(help=OUTCOMES_HELP)(outcomes)
    app.command(help=BENCH_HELP)(bench)
    app.command(help=TOP_HELP)(top)
