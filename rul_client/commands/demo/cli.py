"""The command `rul demo`. Its dependencies are imported when it runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import typer

from rul_client.address import LOCAL, Credentials, any_address, asks_a_service


@asks_a_service
def demo(
    *,
    url: Annotated[
        str, typer.Option(help="http, https, grpc or grpcs://HOST:PORT.", callback=any_address)
    ] = LOCAL,
    units: Annotated[int, typer.Option(help="Units that run at the same time.", min=1, max=1000)] = 50,
    speed: Annotated[
        float, typer.Option(help="Cycles per second, of each unit.", min=0.01, max=1000.0)
    ] = 1.0,
    seconds: Annotated[float | None, typer.Option(help="Duration; default: until Ctrl+C.", min=0.1)] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of all units; default: all models in turn.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same units; default: new ones.", min=0)
    ] = None,
    credentials: Credentials,
) -> None:
    """Simulate a fleet in fast motion and send its readings and outcomes to a running service.

    Example: rul demo --url http://localhost:3000

    Units begin at random ages. A unit that fails or is removed is reported as an outcome, and a new one
    replaces it. Watch the fleet on the page of the service, with `rul top`, or in Grafana. Names of units
    begin with the seed.
    """
    from rul_client.api import AsyncClient  # noqa: PLC0415 heavy
    from rul_client.commands.demo.run import run  # noqa: PLC0415 as above

    client = AsyncClient(url, api_key=credentials.api_key, tls=credentials.tls)
    with suppress(KeyboardInterrupt):
        asyncio.run(run(client, units=units, speed=speed, seconds=seconds, model=model, seed=seed))
