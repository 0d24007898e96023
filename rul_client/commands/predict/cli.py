"""The options of `rul predict`. Its dependencies are imported when it runs."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from model.outputs import output_format
from rul_client.address import OF_CREDENTIALS, Credentials, any_address, asks_a_service
from rul_client.commands.options import FleetFile, Source, refuse_options
from rul_client.commands.output import discard_output

if TYPE_CHECKING:
    from model.decision import Costs


class TableFormat(StrEnum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"


SUFFIXES: Final = {
    ".csv": TableFormat.CSV,
    ".parquet": TableFormat.PARQUET,
    ".pq": TableFormat.PARQUET,
    ".json": TableFormat.JSON,
    ".txt": TableFormat.TABLE,
}


Url = Annotated[
    str | None,
    typer.Option(help="Ask a service: http, https, grpc or grpcs://HOST:PORT.", callback=any_address),
]
Last = Annotated[bool, typer.Option("--last", help="One row per unit, for its last cycle, with trust.")]
Store = Annotated[bool, typer.Option("--store", help="With --url: store the predictions in the service.")]
Form = Annotated[
    TableFormat | None,
    typer.Option("--format", help="Default: by the suffix of --output; a table on a terminal, else csv."),
]
PlannedAndFailure = Annotated[
    str | None,
    typer.Option(
        metavar="PLANNED:FAILURE", help="Costs of a planned stop and of a failure: add when to stop."
    ),
]


@asks_a_service
def predict(
    *,
    context: typer.Context,
    source: Source,
    bundle: Annotated[
        str | None, typer.Option(help="Predict in this process: a bundle's name or folder.")
    ] = None,
    url: Url = None,
    fleet: FleetFile = None,
    last: Last = False,
    model: Annotated[str | None, typer.Option(help="With --url: the model, if there are several.")] = None,
    store: Store = False,
    form: Form = None,
    output: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    costs: PlannedAndFailure = None,
    credentials: Credentials,
) -> None:
    """Predict the remaining useful life of units: one row per cycle, or with --last one row per unit.

    In this process, without a server: rul predict --bundle fd001 --input test_FD001.txt --last

    With a running service (http or grpc): rul predict --url http://localhost:3000 --input units.csv --last

    With the cheapest time to stop each unit, if a failure costs as much as ten planned stops: --costs 1:10

    The input is CSV, C-MAPSS text, .xlsx, Parquet or Feather, or .gz of these, with the columns `unit`,
    `cycle` and those of the model. If your file names its columns differently, describe it in a TOML file
    (`rul fleet init` writes a first one) and pass that as --fleet.
    """
    if (bundle is None) == (url is None):
        raise typer.BadParameter("give one of --bundle and --url", param_hint="--bundle / --url")
    if url is None:
        refuse_options(context, "model", "store", *OF_CREDENTIALS, why="needs --url")
    form = format_of(output, form, terminal=sys.stdout.isatty())
    read_costs = _read_costs(costs)
    from rul_client.commands.predict.run import predict_file  # noqa: PLC0415 heavy

    if url is None:
        from rul_client.commands.predict.offline import open_offline  # noqa: PLC0415 loads ONNX Runtime

        answerer = open_offline(bundle or "", costs=read_costs)
    else:
        from rul_client.commands.predict.remote import open_remote  # noqa: PLC0415 loads gRPC

        answerer = open_remote(url, credentials, model=model, store=store, costs=read_costs)
    try:
        asyncio.run(predict_file(answerer, source, fleet=fleet, last_only=last, form=form, output=output))
    except BrokenPipeError:  # the reader of standard output is gone
        discard_output()


def _read_costs(text: str | None) -> Costs | None:
    from model.decision import Costs, InvalidCosts  # noqa: PLC0415 heavy

    try:
        return None if text is None else Costs.read(text)
    except InvalidCosts as error:
        raise typer.BadParameter(str(error), param_hint="--costs") from None


def format_of(output: Path | None, form: TableFormat | None, *, terminal: bool) -> TableFormat:
    """Choose the format by `output_format`; the default is a table on a terminal, else CSV."""
    default = TableFormat.TABLE if output is None and terminal else TableFormat.CSV
    return output_format(output, form, SUFFIXES, default=default)
