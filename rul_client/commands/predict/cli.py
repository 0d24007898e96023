"""`rul predict`: a file of readings in, the remaining useful life of its units out.

What the command needs is imported when it runs: `rul serve` must not pay for it.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

SCHEMES: Final = ("http", "https", "grpc", "grpcs")
HELP = """
Say how many cycles the units of a file have left: one row a cycle, or with --last one row a unit.

In this process, no server needed: rul predict --bundle fd001 --input test_FD001.txt --last

By a service: rul predict --url http://localhost:3000 --input units.csv --last (or grpc://localhost:3000)

Readings may be C-MAPSS text, CSV or Parquet with columns `unit`, `cycle` and those of the model; where a
file calls them otherwise, --fleet names the TOML file that says how.
"""


class TableFormat(StrEnum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"


def predict(
    *,
    source: Annotated[Path, typer.Option("--input", help="C-MAPSS text, CSV or Parquet; or a folder.")],
    bundle: Annotated[
        str | None, typer.Option(help="Answer here, with a shipped bundle's name or a bundle's folder.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Ask a service: http://, https://, grpc:// or grpcs://HOST:PORT.")
    ] = None,
    fleet: Annotated[
        str | None, typer.Option(help="What the file calls its columns: a fleet's name or TOML file.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="One row a unit, for its last cycle.")] = False,
    model: Annotated[
        str | None, typer.Option(help="With --url: which model, where the service has several.")
    ] = None,
    form: Annotated[
        TableFormat | None,
        typer.Option(
            "--format", help="Left out: what the output's suffix says; a table on a terminal, else csv."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write; standard output where it is left out.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="With --url, where the service asks for one.", envvar="RUL_API_KEY")
    ] = None,
) -> None:
    """See HELP."""
    if (bundle is None) == (url is None):
        raise typer.BadParameter("give one of --bundle and --url", param_hint="--bundle / --url")
    if url is not None and not _is_address(url):
        raise typer.BadParameter(f"expected one of {', '.join(SCHEMES)}://HOST:PORT", param_hint="--url")
    if model is not None and url is None:
        raise typer.BadParameter("a bundle holds one model: --model goes with --url", param_hint="--model")
    form = form or format_of(output, terminal=sys.stdout.isatty())
    if form is TableFormat.PARQUET and output is None:
        raise typer.BadParameter("parquet needs --output FILE", param_hint="--format")
    from rul_client.commands.predict.run import local, predict_file, remote  # noqa: PLC0415 loads pyarrow

    answerer = remote(url, model=model, api_key=api_key) if url is not None else local(bundle or "")
    predict_file(answerer, source, fleet=fleet, last_only=last, form=form, output=output)


def format_of(output: Path | None, *, terminal: bool) -> TableFormat:
    """The format where none was asked for: what a file's suffix says; a table for people, CSV for programs.

    >>> format_of(Path("rul.parquet"), terminal=True).value
    'parquet'
    """
    if output is None:
        return TableFormat.TABLE if terminal else TableFormat.CSV
    suffixes = {
        ".parquet": TableFormat.PARQUET,
        ".pq": TableFormat.PARQUET,
        ".json": TableFormat.JSON,
        ".txt": TableFormat.TABLE,
    }
    return suffixes.get(output.suffix.lower(), TableFormat.CSV)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False
