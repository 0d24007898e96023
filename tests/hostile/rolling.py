"""Restart two services, one after the other, behind HAProxy under load: no request may fail.

    .venv/dev/bin/python -m tests.hostile.rolling [--rounds 1] [--callers 4] [--lame-duck 5] [--bundle fd001]

HAProxy asks each service's /readyz twice a second and repeats no request. `--lame-duck 0` shows the failures
without the lame-duck time. Exit status: 0 without a failed request, 1 otherwise.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

import typer

from tests.commands import rul
from tests.hostile.balancer import PATIENCE_SECONDS, Load, asks_of, balanced, is_used
from tests.waiting import wait_until


def roll(
    *, rounds: int, callers: int, lame_duck: float, bundle: str, folder: Path, pace: float = 0.0
) -> Load:
    """Restart both services in turn, in rounds, under load."""
    simulated = folder / "request.json"
    made = rul(
        "simulate", "--bundle", bundle, "--units", 1, "--truncate", "--format", "json", "--output", simulated
    )
    assert made.exit_code == 0, made.output
    given = json.loads(simulated.read_text())["windows"][0]
    load = Load(pace=pace)
    settings = {"lame_duck_seconds": str(lame_duck), "store": "false"}
    with (
        balanced(folder, bundle, **settings) as pair,
        ExitStack() as opened,
        load.running(asks_of(given, pair, callers, opened)),
    ):
        for server in pair.servers:
            wait_until(lambda server=server: is_used(server), PATIENCE_SECONDS, what="requests at both")
        for number in [0, 1] * rounds:
            assert pair.stop(number) == 0
            pair.start(number)
    return load


def main(*, rounds: int = 1, callers: int = 4, lame_duck: float = 5.0, bundle: str = "fd001") -> None:
    """Run, and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        load = roll(rounds=rounds, callers=callers, lame_duck=lame_duck, bundle=bundle, folder=Path(folder))
    print(f"{2 * rounds} restarts, {callers} callers a protocol, lame-duck time {lame_duck:g} s")
    load.show()
    raise typer.Exit(load.failed > 0)


if __name__ == "__main__":
    typer.run(main)
