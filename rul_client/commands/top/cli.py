"""`rul top`: a running service, looked at from outside, again and again.

What the command needs is imported when it runs: `rul serve` must not pay for it.
"""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

HELP: Final = """
Watch a running service: traffic, latency, batches, what each model answers, the most urgent units.

Example: rul top http://localhost:3000

Rates and latencies are those since the frame before. What a model answers is shown dim where it was asked
nothing in the meantime: it is then of all time. `collapsed` and `uniform` say that the attention lies outside
the band that the model's manifest has of its training. A short terminal shows what matters most: traffic, the
most urgent units, a few figures of each model; a taller one, and `--once`, all. Ctrl+C ends it.
"""


def top(
    *,
    url: Annotated[str, typer.Argument(help="http:// or https://HOST:PORT of a running service.")],
    once: Annotated[bool, typer.Option("--once", help="Print one frame, and end.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two frames.", min=0.1, max=3600.0)] = 1.0,
    api_key: Annotated[
        str | None, typer.Option(help="Where the service asks for one.", envvar="RUL_API_KEY")
    ] = None,
) -> None:
    """See HELP."""
    if not _is_address(url):
        raise typer.BadParameter("expected http:// or https://HOST:PORT", param_hint="URL")
    from rul_client.commands.top.run import watch  # noqa: PLC0415 what only this command needs

    watch(url, once=once, interval_seconds=interval, api_key=api_key)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False
