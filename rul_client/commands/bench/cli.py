"""The command `rul bench`. Its dependencies are imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from rul_client.address import Credentials, asks_a_service, http_address

PROTOCOLS: Final = ("json", "binary", "grpc", "oip-grpc")
PROTOCOL_HELP: Final = "Comma-separated: json, binary or oip-grpc (Open Inference Protocol), grpc."

Store = Annotated[bool, typer.Option("--store", help="Store the predictions in the service.")]


@asks_a_service
def bench(
    *,
    url: Annotated[str, typer.Argument(help="http:// or https://HOST:PORT.", callback=http_address)],
    protocol: Annotated[str, typer.Option(help=PROTOCOL_HELP)] = "json",
    callers: Annotated[str, typer.Option(help="Concurrent callers, comma-separated.")] = "1,16,64",
    windows: Annotated[str, typer.Option(help="Windows per request, comma-separated.")] = "1,64",
    seconds: Annotated[float, typer.Option(help="Duration of each combination.", min=0.1)] = 5.0,
    model: Annotated[str | None, typer.Option(help="Model to ask; default: all in turn.")] = None,
    identical: Annotated[bool, typer.Option("--identical", help="Repeat one request without an id.")] = False,
    store: Store = False,
    grpc: Annotated[str | None, typer.Option(help="HOST:PORT of gRPC; default: that of the URL.")] = None,
    processes: Annotated[int, typer.Option(help="Processes that send requests.", min=1, max=64)] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    credentials: Credentials,
) -> None:
    """Put a running service under load; print windows per second, latency and errors.

    Example: rul bench http://localhost:3000 --protocol json,grpc --callers 1,16,64 --windows 1,64

    Each caller has its own connection and sends its next request when it has an answer (a closed loop).
    Requests resemble those of real clients: simulated windows, readings by column with 15 digits, a request
    id in each, all models in turn. For comparison, --identical repeats one compact request by rows.

    The load comes from Python processes, which take CPU from a service on the same machine. `client CPU` is
    the number of cores that they used. If a star marks it, the clients may have been the bottleneck: raise
    --processes.
    """
    protocols = _protocols(protocol)
    many = _counts(callers, "--callers"), _counts(windows, "--windows")
    from rul_client.commands.bench.run import Target, run_bench  # noqa: PLC0415 only this command needs it

    run_bench(
        Target(url, http_address(f"{url.partition(':')[0]}://{grpc}") if grpc else url, *credentials),
        [(name, count, size) for name in protocols for size in many[1] for count in many[0]],
        model=model,
        seconds=seconds,
        processes=processes,
        identical=identical,
        store=store,
        json_file=json_file,
    )


def _protocols(text: str) -> list[str]:
    protocols = text.split(",")
    if unknown := [name for name in protocols if name not in PROTOCOLS]:
        message = f"{unknown[0]!r} is not one of {', '.join(PROTOCOLS)}"
        raise typer.BadParameter(message, param_hint="--protocol")
    return protocols


def _counts(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"expected numbers above 0, as in 1,16,64, got {text!r}", param_hint=option)
    return [int(part) for part in parts]
