"""`rul outcomes`: kept predictions against what happened. Imports what it needs when it runs."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from service.store.url import SQLITE, InvalidStoreUrl, store_url

if TYPE_CHECKING:
    from service.store.report import VersionReport

COLUMNS: Final[tuple[str, ...]] = (
    "model", "version", "failed", "removed", "predictions", "with_error", "contradicted", "rmse",
    "mean_absolute_error", "bias", "nasa_score", "coverage", "coverage_low", "coverage_high",
    "nominal_coverage", "mean_width",
)  # fmt: skip
HEADINGS: Final = {"rmse": "RMSE", "mean_absolute_error": "MAE", "nasa_score": "NASA"}
HIDDEN: Final = {"with_error", "coverage_low", "coverage_high"}
WIDTH: Final = 160


class ReportFormat(StrEnum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def outcomes(
    *,
    store: Annotated[str | None, typer.Option(help="URL of the database; default: RUL_STORE_URL.")] = None,
    form: Annotated[
        ReportFormat | None, typer.Option("--format", help="Default: a table on a terminal, else csv.")
    ] = None,
    since: Annotated[datetime | None, typer.Option(help="Only outcomes since this day, local time.")] = None,
) -> None:
    """Compare kept predictions with the failures and removals that were reported: one row a model version.

    Errors are prediction minus truth, in cycles, over units that failed: a bias above 0 means too late.
    The coverage, with its 95 % interval, is over the same units. For units that were removed,
    `contradicted` counts the predictions whose interval the unit outlived.

    Example: rul outcomes --since 2026-01-01 --format csv
    """
    from service.settings import Settings  # noqa: PLC0415 only this command needs it
    from service.store.database import Store  # noqa: PLC0415 only this command needs it
    from service.store.report import report  # noqa: PLC0415 loads SQLAlchemy

    url = Settings.read().store_url.get_secret_value() if store is None else store
    opened = Store.open(existing(store_url(url)))
    try:
        found = report(opened, since=None if since is None else since.timestamp())
    finally:
        opened.close()
    form = form or (ReportFormat.TABLE if sys.stdout.isatty() else ReportFormat.CSV)
    rows = [_row(version) for version in found]
    if form is ReportFormat.JSON:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())  # noqa: T201 the output
    elif form is ReportFormat.CSV:
        writer = csv.DictWriter(sys.stdout, [*COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        Console(width=WIDTH, highlight=False, markup=False).print(_table(rows))


def existing(url: str) -> str:
    """Return the address; refuse a SQLite file that does not exist, which opening would create."""
    path = url.removeprefix(SQLITE)
    if path != url and not Path(path).is_file():
        raise InvalidStoreUrl(f"no database at {path}: has a service kept its predictions there?")
    return url


def _row(found: VersionReport) -> dict[str, Any]:
    return {name: getattr(found.figures if hasattr(found.figures, name) else found, name) for name in COLUMNS}


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = [name for name in COLUMNS if name not in HIDDEN]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in shown:
        side = "left" if name in {"model", "version"} else "right"
        table.add_column(HEADINGS.get(name, name.replace("_", " ")), justify=side, no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(name, row) for name in shown))
    return table


def _cell(name: str, row: dict[str, Any]) -> str:
    value = row[name]
    if value is None:
        return "-"
    if name == "coverage" and row["coverage_low"] is not None:
        return f"{value:.1%} ({row['coverage_low']:.1%} to {row['coverage_high']:.1%})"
    if name in {"coverage", "nominal_coverage"}:
        return f"{value:.1%}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
