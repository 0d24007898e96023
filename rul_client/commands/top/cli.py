"""The command `rul top`. Its dependencies are imported when it runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import typer

from rul_client.address import Credentials, asks_a_service, http_address


@asks_a_service
def top(
    *,
    url: Annotated[str, typer.Argument(help="http:// or https://HOST:PORT.", callback=http_address)],
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two frames.", min=0.1, max=3600.0)] = 1.0,
    credentials: Credentials,
) -> None:
    """Watch a running service: traffic, latency, most urgent units, answers of each model.

    Example: rul top http://localhost:3000

    Rates and latencies cover the time since the last frame. A model without requests in that time is dimmed
    and shows figures since start. `collapsed`, `uniform`: attention outside the band that it had in training.
    `drift`: the column furthest from training, and its population stability index. A terminal with few lines
    shows only the top. Ctrl+C exits.
    """
    from rul_client.commands.top.screen import watch  # noqa: PLC0415 only this command needs it

    with suppress(KeyboardInterrupt):
        asyncio.run(watch(url, credentials, once=once, interval_seconds=interval))
