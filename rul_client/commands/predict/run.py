"""What `rul predict` does: open who answers, read the file, write rows as they come."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from model.domain import RulError
from rul_client.commands.predict.asking import Answerer, Unanswered, rows, window_count
from rul_client.commands.predict.cli import TableFormat
from rul_client.commands.predict.input_file import ReadUnits, read_units
from rul_client.commands.predict.people_table import WITHOUT_TERMINAL, PeopleTable, people_console
from rul_client.commands.predict.tables import (
    CsvWriter,
    JsonWriter,
    ParquetWriter,
    RowWriter,
    discard_output,
    written,
)
from service.settings import Settings


class NothingAnswered(RulError):
    """Not one window could be answered."""


def local(bundle: str) -> AbstractAsyncContextManager[Answerer]:
    """A bundle, opened in this process."""
    from export.bundle import find_bundle  # noqa: PLC0415 what only this branch needs
    from rul_client.commands.predict.offline import open_offline  # noqa: PLC0415 loads ONNX Runtime

    return open_offline(find_bundle(bundle), Settings.read())


def remote(url: str, *, model: str | None, api_key: str | None) -> AbstractAsyncContextManager[Answerer]:
    """A service, asked over the network."""
    from rul_client.client import open_remote  # noqa: PLC0415 what only this branch needs

    return open_remote(url, model=model, api_key=api_key)


def predict_file(
    opened: AbstractAsyncContextManager[Answerer],
    source: Path,
    *,
    fleet: str | None,
    last_only: bool,
    form: TableFormat,
    output: Path | None,
) -> None:
    """Read a file, ask about its units, and write what comes.

    Raises:
        RulError: the file, the model, the server or the output is not what it should be.
    """
    work = _predict(opened, source, fleet=fleet, last_only=last_only, form=form, output=output)
    try:
        asyncio.run(work)
    except BrokenPipeError:
        discard_output()


async def _predict(
    opened: AbstractAsyncContextManager[Answerer],
    source: Path,
    *,
    fleet: str | None,
    last_only: bool,
    form: TableFormat,
    output: Path | None,
) -> None:
    errors = Console(stderr=True, highlight=False)
    unanswered: list[Unanswered] = []
    async with opened as answerer:
        units = read_units(source, answerer.manifest, fleet=fleet)
        if units.absent:
            _tell(errors, f"{source} has nothing of {', '.join(units.absent)}: answered without")
        total = window_count(units, last_only=last_only)
        # Where the rows themselves run over the terminal they are progress enough.
        shown = output is not None or form is not TableFormat.TABLE or not sys.stdout.isatty()
        with written(output) as file, _progress(errors, total, shown=shown) as progress:
            writer = _writer(form, file, answerer, units, last_only=last_only)
            async for made in rows(units, answerer, last_only=last_only, unanswered=unanswered):
                writer.write(made)
                progress.advance(progress.task_ids[0], len(made))
            if len(unanswered) == total:
                raise NothingAnswered(f"no window has an answer; {_why(unanswered)}")
            writer.close()
    if unanswered:
        _tell(errors, f"{len(unanswered):,} of {total:,} windows have no answer; {_why(unanswered)}")


def _writer(
    form: TableFormat, file: IO[bytes], answerer: Answerer, units: ReadUnits, *, last_only: bool
) -> RowWriter:
    match form:
        case TableFormat.CSV:
            return CsvWriter(file)
        case TableFormat.JSON:
            return JsonWriter(file)
        case TableFormat.PARQUET:
            return ParquetWriter(file, answerer.name)
        case TableFormat.TABLE:
            pass
    to_stdout = file is sys.stdout.buffer
    text = sys.stdout if to_stdout else io.TextIOWrapper(file, encoding="utf-8", write_through=True)
    console = people_console(text, width=None if to_stdout else WITHOUT_TERMINAL)
    return PeopleTable(console, answerer.manifest, answerer.name, units, last_only=last_only)


@contextmanager
def _progress(errors: Console, total: int, *, shown: bool) -> Generator[Progress, None, None]:
    progress = Progress(
        TextColumn("Predicting"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not (shown and errors.is_terminal),
    )
    progress.add_task("windows", total=total)
    with progress:
        yield progress


def _why(unanswered: list[Unanswered]) -> str:
    unit, last_cycle, detail = unanswered[0]
    return f"the first: unit {unit}, cycle {last_cycle}: {detail}"


def _tell(errors: Console, line: str) -> None:
    errors.print(f"rul: {line}", markup=False, soft_wrap=True)
