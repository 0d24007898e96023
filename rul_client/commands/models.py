"""`rul models`: list and change the models of a running service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from model.domain import printable
from rul_client.address import LOCAL, Credentials, asks_a_service, http_address, in_path, in_place_of

if TYPE_CHECKING:
    from rul_client.answers import Candidate
    from rul_client.api import AsyncClient

Result = TypeVar("Result")
CHANGE_SECONDS: Final = 180.0
"""Maximum seconds to wait for a change: longer than the service takes to check a bundle."""

Url = Annotated[str, typer.Option(help="The service: http or https://HOST:PORT.", callback=http_address)]
Bundle = Annotated[str, typer.Argument(help="A shipped bundle, or a folder on the service's machine.")]
Name = Annotated[str, typer.Argument(help="Name of a loaded model.")]

models = typer.Typer(
    no_args_is_help=True, help="List, load, swap, shadow, canary and unload the models of a running service."
)


class Connection(NamedTuple):
    """The service that a command calls."""

    url: str
    credentials: Credentials


@asks_a_service
def _connection(*, url: Url = LOCAL, credentials: Credentials) -> Connection:
    return Connection(url, credentials)


_connected: Final = in_place_of("to", _connection)


@models.command("list")
@_connected
def list_models(*, to: Connection) -> None:
    """List the serving models.

    Example: rul models list --url http://localhost:3000
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("model", "version", "sha256", "provider", "candidate"):
        table.add_column(heading, no_wrap=True)
    for found in _ask(to, lambda client: client.models()):
        row = found.name, found.version, found.sha256[:12], found.provider
        table.add_row(*map(printable, (*row, _candidate(found.candidate))))
    Console(width=160, highlight=False, markup=False).print(table)


@models.command()
@_connected
def load(bundle: Bundle, *, to: Connection) -> None:
    """Load another model.

    Example: rul models load fd002
    """
    _change(to, "POST", "", {"bundle": bundle})


@models.command()
@_connected
def swap(name: Name, bundle: Bundle, *, to: Connection) -> None:
    """Replace a model by another version; requests and streams in flight end with the old one.

    Example: rul models swap fd001 /bundles/fd001-v2
    """
    _change(to, "POST", f"/{in_path(name)}", {"bundle": bundle})


@models.command()
@_connected
def unload(name: Name, *, to: Connection) -> None:
    """Unload a model; the last one cannot be unloaded.

    Example: rul models unload fd002
    """
    _change(to, "DELETE", f"/{in_path(name)}", None)


@models.command()
@_connected
def shadow(
    name: Name,
    bundle: Bundle,
    *,
    share: Annotated[float, typer.Option(help="Share of requests that the candidate gets too.")] = 0.1,
    to: Connection,
) -> None:
    """Shadow a model with a candidate and measure the difference; no answer changes.

    Example: rul models shadow fd001 /bundles/fd001-v2 --share 0.1
    """
    _change(to, "POST", f"/{in_path(name)}/shadow", {"bundle": bundle, "share": share})


@models.command()
@_connected
def unshadow(name: Name, *, to: Connection) -> None:
    """Stop the shadow.

    Example: rul models unshadow fd001
    """
    _change(to, "DELETE", f"/{in_path(name)}/shadow", None)


@models.command()
@_connected
def canary(
    name: Name,
    bundle: Bundle,
    *,
    share: Annotated[float, typer.Option(help="Share of requests that the candidate answers.")] = 0.05,
    failed: Annotated[int, typer.Option(help="Maximum requests that the candidate may fail.")] = 0,
    difference: Annotated[
        float, typer.Option(help="Maximum mean difference from the serving model, in cycles.")
    ] = 10.0,
    novel: Annotated[
        float, typer.Option(help="Maximum share of windows out of distribution for the candidate only.")
    ] = 0.05,
    windows: Annotated[int, typer.Option(help="Windows to compare before the last two bounds apply.")] = 100,
    to: Connection,
) -> None:
    """Let a candidate answer a share of the requests until it passes a bound.

    Example: rul models canary fd001 /bundles/fd001-v2 --share 0.05
    """
    bounds = {"failed": failed, "difference": difference, "novel": novel, "windows": windows}
    given = {"bundle": bundle, "share": share, **bounds}
    _change(to, "POST", f"/{in_path(name)}/canary", given)


@models.command()
@_connected
def uncanary(name: Name, *, to: Connection) -> None:
    """Stop the canary: the serving model answers all requests.

    Example: rul models uncanary fd001
    """
    _change(to, "DELETE", f"/{in_path(name)}/canary", None)


def _candidate(found: Candidate | None) -> str:
    if found is None:
        return ""
    answers = f"returned: {found.returned}" if found.returned else f"share {found.share:g}"
    return f"{found.kind} {found.model.version}, {answers}"


def _change(to: Connection, method: str, path: str, body: Mapping[str, object] | None) -> None:
    from rul_client.answers import Change  # noqa: PLC0415 every `rul` command loads this module

    def ask(client: AsyncClient) -> Awaitable[Change]:
        return client.request(method, f"/v1/models{path}", Change, body, repeatable=False)

    done = _ask(to, ask)
    of = done.model
    typer.echo(printable(f"{done.action}: {of.name} {of.version}; models: {', '.join(done.models)}"))


def _ask(to: Connection, question: Callable[[AsyncClient], Awaitable[Result]]) -> Result:
    from rul_client.api import AsyncClient  # noqa: PLC0415 as above

    async def ask() -> Result:
        key, tls = to.credentials
        async with AsyncClient(
            to.url, api_key=key, tls=tls, timeout_seconds=CHANGE_SECONDS, attempts=1
        ) as client:
            return await question(client)

    return asyncio.run(ask())
