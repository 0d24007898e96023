"""The commands `rul keys add`, `list` and `revoke`: they write the key file, which services follow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from service.edge.keys import GRANTABLE, InvalidKeys, add_key, read_keys, revoke_key
from service.settings import Settings

NAME_HELP = "Name of the key, in logs and for `revoke`."
File = Annotated[Path | None, typer.Option("--file", help="The key file; default: RUL_KEYS_FILE.")]


def register(app: typer.Typer) -> None:
    """Add `keys`."""
    keys = typer.Typer(no_args_is_help=True, help="API keys of a service, with scopes and tenants.")
    for command in (add, show, revoke):
        keys.command("list" if command is show else None)(command)
    app.add_typer(keys, name="keys")


def add(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    scope: Annotated[list[str], typer.Option(help=f"One of {', '.join(GRANTABLE)}; repeatable.")],
    tenant: Annotated[str, typer.Option(help="Owner of the units that the key names.")] = "",
    file: File = None,
) -> None:
    """Add a key and print it, once: the file keeps its SHA-256 only.

    Example: rul keys add line-1 --scope predict --scope ingest --tenant plant-a
    """
    path = _file(file)
    print(add_key(path, name, scope, tenant))  # noqa: T201 the output
    print(f"rul: {path} has the key {name!r}; it is shown this once", file=sys.stderr)  # noqa: T201


def show(file: File = None) -> None:
    """List the keys: name, scopes, tenant and day, separated by tabs."""
    for name, entry in read_keys(_file(file)).items():
        created = "-" if entry.created is None else entry.created.isoformat()
        print(name, ",".join(entry.scopes), entry.tenant or "-", created, sep="\t")  # noqa: T201 the output


def revoke(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    file: File = None,
) -> None:
    """Remove a key: services refuse it within a second and end its streams.

    Example: rul keys revoke line-1
    """
    revoke_key(_file(file), name)


def _file(given: Path | None) -> Path:
    path = given or Path(Settings.read().keys_file)
    if path == Path():
        raise InvalidKeys("expected a key file: set RUL_KEYS_FILE, or pass --file")
    return path
