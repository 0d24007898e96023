"""`rul outcomes --report FILE`: outcomes of a file, reported to a service line by line."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from model.cells import counted, number_of
from model.domain import LARGEST_CYCLE, InvalidData, RulError, printable
from model.files import format_of
from model.tables import whole_names
from model.text_table import TextTable, date_of
from rul_client.api import AsyncClient
from rul_client.errors import Rejected, RemoteFailed
from service.store.judgement import OutcomeKind

NEEDED: Final = ("unit", "kind", "cycle")
FURTHER: Final = ("model", "time")


class LinesRefused(RulError):
    """Some lines were not reported."""


async def report_file(client: AsyncClient, path: Path, *, replace: bool) -> None:
    """Report each line of a file; list lines that cannot be read or that the service refuses.

    Raises:
        InvalidData: the file cannot be read, or has no such columns.
        LinesRefused: some lines were not reported.
        RemoteFailed: the service failed; the error says how many outcomes were reported before.
    """
    errors, results = Console(stderr=True, highlight=False, markup=False, soft_wrap=True), Counter[str]()
    header, lines = _lines(path)
    async with client:
        for line, cells in lines:
            try:
                reply = await client.outcome(**_outcome(header, cells), replace=replace)
                results[reply.result.value] += 1
            except (InvalidData, Rejected) as error:
                errors.print(f"rul: {path}: line {line}: {printable(str(error))}")
                results["refused"] += 1
            except RemoteFailed as error:
                raise RemoteFailed(
                    f"{error}; {path}: stopped at line {line} after {_said(results)}"
                ) from error
    if refused := results["refused"]:
        raise LinesRefused(
            f"{path}: {_said(results)}; {refused:,} of {counted(results.total(), 'line')} refused"
        )
    Console(highlight=False, markup=False, soft_wrap=True).print(f"{path}: {_said(results)}")


def _said(results: Counter[str]) -> str:
    """Count the reported outcomes, in all and by result."""
    reported = {result: count for result, count in sorted(results.items()) if result != "refused"}
    counts = ", ".join(f"{count:,} {result}" for result, count in reported.items())
    return counted(sum(reported.values()), "outcome") + f" ({counts})" * bool(counts)


def _lines(path: Path) -> tuple[tuple[str, ...], list[tuple[int, list[str]]]]:
    """Return the columns, and the number of each line and its cells; blank lines are left out."""
    form = format_of(path) or "csv"
    if form not in {"csv", "xlsx"}:
        raise InvalidData(f"{path}: expected CSV or .xlsx with the columns {', '.join(NEEDED)}")
    table = TextTable.of(path, form)
    if lacking := [name for name in NEEDED if name not in table.header]:
        raise InvalidData(
            f"{path}: no column {', '.join(lacking)}: expected {', '.join(NEEDED)} and, if wanted, "
            f"{' and '.join(FURTHER)}; the file has {', '.join(table.header)}"
        )
    every = [(line, [cell.strip() for cell in cells]) for line, cells in table.lines()]
    lines = [(line, cells) for line, cells in every if any(cells)]
    unit = table.header.index("unit")
    named = [cells for _, cells in lines if len(cells) > unit]
    for cells, name in zip(named, whole_names([cells[unit] for cells in named]), strict=True):
        cells[unit] = name
    return table.header, lines


def _outcome(header: Sequence[str], row: Sequence[str]) -> dict[str, Any]:
    if any(row[len(header) :]):
        raise InvalidData(f"expected {len(header)} columns, got {len(row)}")
    cells = dict(zip(header, row, strict=False))
    unit, kind, cycle = (cells.get(name, "") for name in NEEDED)
    kinds, number = [each.value for each in OutcomeKind], _whole(cycle)
    for name, value, wanted, holds in (
        ("unit", unit, "a name", bool(unit)),
        ("kind", kind, " or ".join(kinds), kind in kinds),
        ("cycle", cycle, f"a whole number from 0 to {LARGEST_CYCLE}", number is not None),
    ):
        if not holds:
            raise InvalidData(f"column {name!r}: expected {wanted}, got {value!r}")
    return {
        "unit": unit, "kind": kind, "cycle": number,
        "model": cells.get("model") or None, "time": _time(cells.get("time", "")),
    }  # fmt: skip


def _whole(cell: str) -> int | None:
    """Read a cycle number, also 10.0; return None if it is not one."""
    with contextlib.suppress(ValueError):
        number = number_of(cell)
        if number is not None and number.is_integer() and 0 <= number <= LARGEST_CYCLE:
            return int(number)
    return None


def _time(text: str) -> datetime | None:
    """Read a time; one without a zone is local."""
    found = date_of(text)
    with contextlib.suppress(ValueError, OverflowError):  # no zone is known of the first and last year
        if found is not None or not text:
            return found and found.astimezone()
    wanted = "a time such as 2026-03-01T12:00:00Z or 01.03.2026 12:00"
    raise InvalidData(f"column 'time': expected {wanted}, got {text!r}")
