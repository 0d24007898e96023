"""Runs `rul score`: plans the parts, scores those that are not finished, and sums up."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec
import typer
from pyarrow.fs import FileSelector
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from model.cells import counted
from model.domain import InvalidData, RulError, printable
from model.fleet import Fleet
from rul_client.commands.output import NothingAnswered
from rul_client.commands.score.job import Job, Tally, total
from rul_client.commands.score.locations import Location
from rul_client.commands.score.part_table import REFUSED, read_tally
from rul_client.commands.score.plan import Part, Plan, make_plan
from rul_client.commands.score.record import differences, digest_of, facts_of
from rul_client.commands.score.scorer import Scorer

RUN: Final = "_run.json"
SUMMARY: Final = "_summary.json"

FILES_NAMED: Final = 5
"""Maximum files that a warning names."""
LINES: Final = 20
"""Lines that a log gets over a whole run."""

Runner = Callable[[Job, Sequence[Part]], Generator[Tally]]
"""Scores parts anywhere; yields the counts of each."""


class OtherRun(RulError):
    """The output folder holds something else."""


def score(job: Job, runner: Runner) -> dict[str, Any]:
    """Score the parts that are not finished; return the summary, which is in the output too.

    Raises:
        InvalidData: the input cannot be read.
        InvalidBundle: there is no such bundle, or it cannot be trusted.
        OtherRun: the folder's run has other options, another model or another input.
        CannotWrite: the output cannot be written.
        NothingAnswered: no window has an answer.
    """
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    scorer = Scorer(job)
    plan = _plan(job, scorer.fleet, console)
    facts = facts_of(scorer, plan)
    finished, job = _prepare(scorer, facts), replace(job, run=digest_of(facts))
    left = [part for part in plan.parts if part.file not in finished]
    if len(left) < len(plan.parts):
        console.print(
            f"rul: {len(plan.parts) - len(left):,} of {len(plan.parts):,} parts are finished already"
        )
    if left:
        windows = sum(part.windows for part in left)
        with _progress(console, windows) as watch, closing(runner(job, left)) as tallies:
            for tally in tallies:
                watch(tally.windows)
    summary = _summary(scorer, plan, job)
    scorer.output.write(SUMMARY, _json(summary))
    if not summary["windows"]:
        raise NothingAnswered(f"no window has an answer; {job.output}/_refused says why")
    return summary


def _plan(job: Job, fleet: Fleet, console: Console) -> Plan:
    """Divide the input into parts; say what is missing in it.

    Raises:
        InvalidData: the input cannot be read.
    """
    with console.status("reading the sizes of all files"):
        plan = make_plan(
            Location.of(job.source),
            fleet,
            every=job.every,
            part_readings=job.part_readings,
            allow_absent=job.fleet is None,
        )
    if plan.absent:
        console.print(f"rul: {job.source} has no readings of {', '.join(plan.absent)}: treated as missing")
    for column, files in plan.lacking.items():
        named = ", ".join([*files[:FILES_NAMED], *["..."] * (len(files) > FILES_NAMED)])
        count = f"{len(files):,} of {plan.files:,} files"
        console.print(printable(f"rul: {column} is not in {count}, treated as missing there: {named}"))
    if plan.is_dated:
        column = fleet.cycle_column
        console.print(
            f"rul: column {column!r} holds dates: readings of each unit are numbered from 1 in order of time"
        )
    return plan


def _prepare(scorer: Scorer, facts: dict[str, Any]) -> set[str]:
    """Check that the output folder is empty or of this run; return its file names.

    Raises:
        OtherRun: it is not.
    """
    output, source = scorer.output, Location.of(scorer.job.source)
    is_within = Path(output.root).resolve().is_relative_to(Path(source.root).resolve())
    if is_within and output.files.equals(source.files):
        raise OtherRun(f"{output.url} lies in the input {source.url}: choose an --output outside of it")
    listed = output.files.get_file_info(FileSelector(output.root, recursive=True, allow_not_found=True))
    names = {output.name(file): file for file in listed if file.is_file}
    stale: set[str] = set()  # What another run refused that finished no part
    if RUN in names:
        with output.open(RUN) as stream:
            said = ", ".join(differences(stream.read(), facts))
        if said and any(name.startswith("part-") for name in names):
            raise OtherRun(
                f"{output.url} holds another run: {said}; choose another --output or remove the folder"
            )
        stale = {name for name in names if name.startswith(f"{REFUSED}/")} if said else stale
    elif names:
        raise OtherRun(f"{output.url}: expected an empty folder or one of rul score, it has {min(names)}")
    for name, file in names.items():
        if name in stale or name.endswith(".tmp"):  # of a run that was killed
            output.files.delete_file(file.path)
    output.write(RUN, _json(facts))
    return set(names)


def _summary(scorer: Scorer, plan: Plan, job: Job) -> dict[str, Any]:
    """Add up the counts of all parts."""
    if not plan.parts:
        raise InvalidData(f"{scorer.job.source}: the files have no reading")
    tally = total(read_tally(scorer.output, part, run=job.run) for part in plan.parts)
    counts = msgspec.to_builtins(tally) | {"drift": scorer.drift_of(tally.drift)}
    return {"model": msgspec.to_builtins(scorer.name), **counts}


def _json(value: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


@contextmanager
def _progress(console: Console, windows: int) -> Generator[Callable[[int], None]]:
    """Show progress with rate and remaining time; yield a function that adds finished windows.

    A terminal gets a bar, a log gets lines.
    """
    began, done, lines = monotonic(), 0, 0
    columns = (
        TextColumn("scoring"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} windows, {task.fields[rate]:,.0f} a second"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("scoring", total=windows, rate=0.0)

        def watch(more: int) -> None:
            nonlocal done, lines
            done += more
            rate = done / max(monotonic() - began, 1e-9)
            bar.update(task, advance=more, rate=rate)
            if not console.is_terminal and done * LINES // max(windows, 1) > lines:
                lines = done * LINES // windows
                left = max(0, windows - done) / rate
                console.print(
                    f"scoring: {done:,} of {windows:,} windows, {rate:,.0f} a second, about {left:.0f} s left"
                )

        yield watch


def print_report(summary: dict[str, Any], job: Job, *, as_json: bool) -> None:
    """Print the summary of a run, for people or as JSON."""
    if as_json:
        typer.echo(_json(summary), nl=False)
        return
    windows = f"{counted(summary['windows'], 'window')} of {counted(summary['units'], 'unit')}"
    lines = [f"{windows}, {counted(summary['readings'], 'reading')}"]
    for name in ("health_states", "rul_states"):
        counts = summary[name]
        lines.append(" · ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in counts.items()))
    if summary["refused_readings"] or summary["refused_windows"]:
        lines.append(
            f"refused: {counted(summary['refused_readings'], 'reading')}, "
            f"{counted(summary['refused_windows'], 'window')} "
            f"(reasons: {job.output.rstrip('/')}/{REFUSED})"
        )
    if summary["infinite"]:
        lines.append(f"infinite readings, counted as missing: {summary['infinite']:,}")
    if summary["missing"]:
        counts = ", ".join(f"{name} {count:,}" for name, count in summary["missing"].items())
        lines.append(f"missing values, of {summary['readings']:,} readings: {counts}")
    indices = summary["drift"]["columns"] | {"the predictions": summary["drift"]["prediction"]}
    is_judged, enough = summary["drift"]["judged"], summary["drift"]["enough"]
    none = "none beyond its limit" if is_judged else f"not judged, no operating regime has {enough} windows"
    lines += [
        f"drift of {name}: {index['psi']:.2f}, limit {index['limit']:.2f}"
        for name, index in indices.items()
        if index["drifting"]
    ] or [f"drift: {none}"]
    lines.append(f"model {summary['model']['name']} {summary['model']['version']}")
    typer.echo("\n".join(map(printable, lines)))
