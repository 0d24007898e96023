"""`rul bench`: how much a running service takes, measured from outside.

What the command needs is imported when it runs: `rul serve` must not pay for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

PROTOCOLS: Final = ("json", "binary", "grpc", "oip-grpc")
HELP = """
Put a running service under load, and say how many windows a second it answers and how late.

Example: rul bench http://localhost:3000 --protocol json,grpc --callers 1,16,64 --windows 1,64

The windows are simulated from what the model's manifest remembers of its training data. Each caller has a
connection of its own and asks again when it has its answer (a closed loop), so late answers lower the
throughput. The load comes from Python processes, one of which asks some thousand times a second at most and
takes its cores from a service on the same machine. `client CPU` says how many cores they took; a star says
that they may have been the limit: raise --processes, or ask from another machine.
"""


def bench(
    *,
    url: Annotated[str, typer.Argument(help="http:// or https://HOST:PORT of a running service.")],
    protocol: Annotated[
        str,
        typer.Option(
            help="json (POST /v1/predict), binary (Open Inference Protocol by HTTP), grpc (RulService), "
            "oip-grpc (Open Inference Protocol by gRPC); several with commas."
        ),
    ] = "json",
    callers: Annotated[str, typer.Option(help="How many ask at once; several with commas.")] = "1,16,64",
    windows: Annotated[str, typer.Option(help="Windows a call; several with commas.")] = "1,64",
    seconds: Annotated[float, typer.Option(help="How long to measure each combination.", min=0.1)] = 5.0,
    model: Annotated[str | None, typer.Option(help="Which model, where the service has several.")] = None,
    grpc: Annotated[
        str | None, typer.Option(help="HOST:PORT of gRPC, where it is not that of the URL.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes that ask.", min=1, max=64)] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure to a file.")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Where the service asks for one.", envvar="RUL_API_KEY")
    ] = None,
) -> None:
    """See HELP."""
    if not _is_address(url):
        raise typer.BadParameter("expected http:// or https://HOST:PORT", param_hint="URL")
    protocols = protocol.split(",")
    unknown = [name for name in protocols if name not in PROTOCOLS]
    if unknown:
        raise typer.BadParameter(
            f"expected {', '.join(PROTOCOLS)}, got {unknown[0]!r}", param_hint="--protocol"
        )
    many = _counts(callers, "--callers"), _counts(windows, "--windows")
    from rul_client.commands.bench.run import Scenario, run_bench  # noqa: PLC0415 what only this command needs

    run_bench(
        url,
        [Scenario(name, count, size) for name in protocols for size in many[1] for count in many[0]],
        seconds=seconds,
        model=model,
        grpc_target=grpc,
        processes=processes,
        json_file=json_file,
        api_key=api_key,
    )


def _counts(text: str, option: str) -> list[int]:
    """Positive whole numbers between commas.

    >>> _counts("1,16", "--callers")
    [1, 16]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(
            f"expected whole numbers above 0, as in 1,16,64, got {text!r}", param_hint=option
        )
    return [int(part) for part in parts]


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False
