"""The command `rul`, and what it serves and asks.

Each package registers its own subcommands under the entry point group `rul.commands`; what a
subcommand needs is imported when it runs, so that `rul serve` never loads torch.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from model.domain import RulError
from service.settings import FrontEnd, LogFormat, LogLevel, ProviderChoice, Settings

SERVE_EXAMPLE = """
Serve bundles by HTTP and gRPC.

Example: rul serve --bundle fd001 --port 3000

Every option has an environment variable (RUL_PORT=3000), and there are more of those than options:
`rul settings` lists them.
"""


def main() -> None:
    """Run `rul`: exit code 2 for wrong usage, 1 for failure, with one clear line on stderr."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Remaining useful life: train, export, check, serve and ask.",
    )
    app.callback()(_root)
    for entry_point in sorted(entry_points(group="rul.commands"), key=lambda found: found.name):
        entry_point.load()(app)
    try:
        app()
    except RulError as error:
        print(f"rul: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


def _root() -> None:
    """A group even while it has one command."""


def register(app: typer.Typer) -> None:
    """Add `serve` and `settings`."""
    app.command(help=SERVE_EXAMPLE)(serve)
    app.command(name="settings")(show_settings)


def serve(
    bundle: Annotated[
        list[str] | None, typer.Option(help="A shipped bundle's name or a folder; may be repeated.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of HTTP and gRPC.", min=0, max=65535)] = None,
    provider: Annotated[ProviderChoice | None, typer.Option(help="Where inference runs.")] = None,
    front_end: Annotated[
        FrontEnd | None,
        typer.Option(help="envoy: HTTP and gRPC on one port; uvicorn: BentoML's own server."),
    ] = None,
    log_level: Annotated[LogLevel | None, typer.Option(help="Minimum log level.")] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="json, console, or auto: console on a terminal.")
    ] = None,
) -> None:
    """Serve bundles by HTTP and gRPC."""
    from service.processes.front_end import run  # noqa: PLC0415 what only this command needs

    given = {
        "bundles": tuple(bundle) if bundle else None,
        "host": host,
        "port": port,
        "provider": provider,
        "front_end": front_end,
        "log_level": log_level,
        "log_format": log_format,
    }
    settings = Settings.read().model_copy(update={k: v for k, v in given.items() if v is not None})
    raise typer.Exit(run(settings))


def show_settings(
    output: Annotated[Path | None, typer.Option(help="Write an .env file instead of printing it.")] = None,
) -> None:
    """Every environment variable that the service reads, with its default and what it does.

    Example: rul settings --output .env
    """
    from service.settings import env_example  # noqa: PLC0415 what only this command needs

    if output is None:
        Console().print(env_example(), markup=False, highlight=False)
    else:
        output.write_text(env_example(), encoding="utf-8")
