"""Runs `rul predict`: reads the file, writes rows as they come."""

from __future__ import annotations

import io
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import Progress

from model.domain import Trajectory, printable
from rul_client.answers import Answerer
from rul_client.commands.output import NothingAnswered, open_output, wide_console
from rul_client.commands.predict.cli import TableFormat
from rul_client.commands.predict.input_file import read_units
from rul_client.commands.predict.rows import columns_of, rows
from rul_client.commands.predict.table import PeopleTable
from rul_client.commands.predict.writers import CsvWriter, JsonWriter, ParquetWriter, RowWriter
from rul_client.unit_windows import LAST, UnitWindows


async def predict_file(
    opened: AbstractAsyncContextManager[Answerer],
    source: Path,
    *,
    fleet: str | None,
    last_only: bool,
    form: TableFormat,
    output: Path | None,
) -> None:
    """Read a file, answer its windows, write the rows."""
    errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    unanswered: list[str] = []
    async with opened as answerer:
        units, _ = read_units(source, answerer.manifest, fleet=fleet)
        context = answerer.manifest.context
        windows = UnitWindows(units, context=context, every=LAST if last_only else 1)
        # A table that scrolls over the terminal shows progress by itself.
        scrolls = output is None and form is TableFormat.TABLE and sys.stdout.isatty()
        progress = Progress(console=errors, transient=True, disable=scrolls or not errors.is_terminal)
        with open_output(output) as file, progress:
            task = progress.add_task("Predicting", total=len(windows))
            writer = _writer(form, file, answerer, units, last_only=last_only)
            async for made in rows(windows, answerer, last_only=last_only, unanswered=unanswered):
                writer.write(made)
                progress.advance(task, len(made))
            writer.close()
            if len(unanswered) == len(windows):
                raise NothingAnswered(f"no window has an answer; the first: {unanswered[0]}")
    if unanswered:
        count = f"{len(unanswered):,} of {len(windows):,}"
        errors.print(f"rul: {count} windows have no answer; the first: {printable(unanswered[0])}")
    if answerer.others:
        model, versions = answerer.name, printable(", ".join(sorted(answerer.others)))
        why = "the model was swapped, or has a canary"
        errors.print(f"rul: {model.name} {model.version} did not answer all windows, also {versions}: {why}")


def _writer(
    form: TableFormat, file: IO[bytes], answerer: Answerer, units: list[Trajectory], *, last_only: bool
) -> RowWriter:
    columns = columns_of(answerer.manifest, decides=answerer.costs is not None)
    match form:
        case TableFormat.CSV:
            return CsvWriter(file, columns)
        case TableFormat.JSON:
            return JsonWriter(file)
        case TableFormat.PARQUET:
            return ParquetWriter(file, columns, answerer.name)
        case TableFormat.TABLE:
            is_file = file is not sys.stdout.buffer
            text = io.TextIOWrapper(file, encoding="utf-8", write_through=True) if is_file else sys.stdout
            return PeopleTable(wide_console(text, is_file=is_file), answerer, units, last_only=last_only)
