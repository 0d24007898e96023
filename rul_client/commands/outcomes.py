"""`rul outcomes`: report the accuracy of stored predictions, or send outcomes in bulk.

SQLAlchemy and the settings load when the command runs: `rul serve` imports this module too.
"""

from __future__ import annotations

import asyncio
import csv
import sys
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from model.domain import printable
from rul_client.address import LOCAL, OF_CREDENTIALS, Credentials, asks_a_service, http_address
from rul_client.commands.options import refuse_options
from rul_client.commands.output import csv_cell
from service.store.url import SQLITE, InvalidStoreUrl, store_url

if TYPE_CHECKING:
    from service.store.database import Database


class ReportFormat(StrEnum):
    """Format of the output."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def local_time(given: datetime | None) -> datetime | None:
    """Give a time without a zone the local zone.

    Raises:
        BadParameter: Python knows no zone for its year.
    """
    try:
        return given and given.astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"expected a year from 2 to 9998, got {given}") from None


@asks_a_service
def outcomes(
    *,
    context: typer.Context,
    report: Annotated[
        Path | None, typer.Option(help="File of outcomes to send: unit, kind, cycle[, model, time].")
    ] = None,
    url: Annotated[
        str, typer.Option(help="With --report: http:// or https://HOST:PORT.", callback=http_address)
    ] = LOCAL,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --report: replace outcomes that differ.")
    ] = False,
    store: Annotated[
        str | None, typer.Option(help="Address of the database; default: RUL_STORE_URL.")
    ] = None,
    form: Annotated[
        ReportFormat | None, typer.Option("--format", help="Default: a table on a terminal, otherwise csv.")
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(help="Only outcomes from this day on, in local time.", callback=local_time),
    ] = None,
    credentials: Credentials,
) -> None:
    """Compare stored predictions with failures and removals: one row per model version.

    Errors and coverage are those of units that failed. An error is the predicted minus the true RUL, in
    cycles: a bias above 0 means late predictions. Coverage has its 95 % interval. `contradicted` counts
    predictions of removed units that ran past the upper bound of the interval; other predictions of removed
    units are not evaluated.

    Example: rul outcomes --since 2026-01-01 --format csv

    With --report, send failures and removals to a service instead, from CSV or .xlsx with the columns unit,
    kind (failed or removed), cycle and optionally model and time. Lines that cannot be sent are listed.

    Example: rul outcomes --report ends.csv --url http://localhost:3000
    """
    if report is None:
        refuse_options(context, "url", "replace", *OF_CREDENTIALS, why="needs --report")
    else:
        refuse_options(context, "store", "form", "since", why="does nothing with --report")
        _report_file(url, credentials, report, replace=replace)
        return
    _print(_accuracy(store, since), form)


def _accuracy(store: str | None, since: datetime | None) -> list[dict[str, Any]]:
    from service.store.report import report  # noqa: PLC0415 as above

    with opened_store(store, "comparing predictions with outcomes") as database:
        found = report(database, since=None if since is None else since.timestamp())
    return [{name: version[name] for name in COLUMNS} for version in found]


@contextmanager
def opened_store(store: str | None, status: str) -> Generator[Database]:
    """Open the store at an address, by default that of the service; show what is done with it meanwhile."""
    from service.errors import StoreUnavailable  # noqa: PLC0415 as above
    from service.settings import Settings  # noqa: PLC0415 as above
    from service.store.database import Database, engine_of  # noqa: PLC0415 loads SQLAlchemy
    from service.store.rows import reason_of  # noqa: PLC0415 as above

    given = Settings.read().store_url.get_secret_value() if store is None else store
    url = store_url(given, name="RUL_STORE_URL" if store is None else "--store")
    with closing(Database(engine_of(existing(url)))) as opened, Console(stderr=True).status(status):
        try:
            yield opened
        except StoreUnavailable as error:
            if error.__cause__ is None:
                raise
            raise StoreUnavailable(f"the store does not answer: {reason_of(error)}") from error


def _print(rows: Sequence[dict[str, Any]], form: ReportFormat | None) -> None:
    form = form or (ReportFormat.TABLE if sys.stdout.isatty() else ReportFormat.CSV)
    if form is ReportFormat.JSON:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())  # noqa: T201 the output
    elif form is ReportFormat.CSV:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    else:
        Console(width=WIDEST, highlight=False, markup=False).print(_table(rows))


def _report_file(url: str, credentials: Credentials, path: Path, *, replace: bool) -> None:
    from rul_client.api import AsyncClient  # noqa: PLC0415 loads gRPC
    from rul_client.commands.outcomes_file import report_file  # noqa: PLC0415 as above

    client = AsyncClient(url, api_key=credentials.api_key, tls=credentials.tls)
    asyncio.run(report_file(client, path, replace=replace))


def existing(url: str) -> str:
    """Check that the file of a SQLite address exists, so that a report creates no database."""
    path = url.removeprefix(SQLITE)
    if path != url and not Path(path).is_file():
        raise InvalidStoreUrl(
            f"no store at {path}: start a service that stores its predictions there, or pass --store"
        )
    return url


COLUMNS: Final[tuple[str, ...]] = (
    "model", "version", "failed", "removed", "predictions", "with_error", "contradicted", "rmse",
    "mean_absolute_error", "bias", "nasa_score", "coverage", "coverage_low", "coverage_high",
    "nominal_coverage", "mean_width",
)  # fmt: skip
_SHOWN: Final = {
    "model": "model", "version": "version", "failed": "failed", "removed": "removed",
    "predictions": "predictions", "contradicted": "contradicted", "rmse": "RMSE",
    "mean_absolute_error": "MAE", "bias": "bias", "nasa_score": "NASA",
    "coverage": "coverage", "nominal_coverage": "nominal", "mean_width": "width",
}  # fmt: skip
WIDEST: Final = 160


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, heading in _SHOWN.items():
        left = name in {"model", "version"}
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(name, row) for name in _SHOWN))
    return table


def _cell(name: str, row: dict[str, Any]) -> str:
    value = row[name]
    if value is None:
        return "-"
    if name == "coverage" and row["coverage_low"] is not None:
        return f"{value:.1%} ({row['coverage_low']:.1%} to {row['coverage_high']:.1%})"
    if name in {"coverage", "nominal_coverage"}:
        return f"{value:.1%}"
    return f"{value:.2f}" if isinstance(value, float) else printable(str(value))
