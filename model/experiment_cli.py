"""`rul experiment`: one row of docs/experiments.md, by cross-validation over units."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from model.experiments import Found
    from model.training import Check

HELP: Final = """
Cross-validate one row of docs/experiments.md, and print it.

Every unit is held out once and cut at random cycles, as a test set has them; the same units and
cuts for every row. Rows are networks, their variants and baselines: an unknown name lists them.

Example: rul experiment --row gradient_boosting --data train_FD001.txt
"""


def add_experiment(app: typer.Typer) -> None:
    """Add `experiment`."""
    app.command("experiment", help=HELP)(experiment)


def experiment(
    *,
    row: Annotated[str, typer.Option(help="Of the table.")],
    data: Annotated[list[Path], typer.Option(help="File or folder of readings; may be repeated.")],
    fleet: Annotated[str, typer.Option(help="A TOML file, or the name of a fleet that ships.")] = "cmapss",
    folds: Annotated[int, typer.Option(help="Parts that the units are dealt into.", min=2)] = 5,
    only: Annotated[int | None, typer.Option(help="Of the folds: the first so many.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the folds, the weights and every draw.", min=0)] = 0,
    attention: Annotated[bool, typer.Option("--attention", help="Also hide cycles.")] = False,
    against: Annotated[
        str | None, typer.Option(help="Another row, to say by how much this one's RMSE is lower.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Of the processor.", min=1)] = 1,
) -> None:
    """Cross-validate a row; see HELP."""
    import torch  # noqa: PLC0415 takes seconds

    from model.experiments import difference, row_named, run_row, updates  # noqa: PLC0415 with torch
    from model.fleet import fleet_named  # noqa: PLC0415
    from model.readers import read_trajectories  # noqa: PLC0415
    from model.training import TrainConfig  # noqa: PLC0415 with torch

    torch.set_num_threads(threads)
    names = [row] if against is None else [row, against]
    for name in names:
        row_named(name)
    kind = fleet_named(fleet)
    config = TrainConfig(seed=seed)
    trajectories = read_trajectories(data, kind)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
    )
    found: list[Found] = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for name in names:
            task = progress.add_task(name, total=(only or folds) * updates(name, config))

            def watch(done: int, _loss: float, _check: Check | None, task: TaskID = task) -> None:
                progress.update(task, completed=done)

            found.append(
                run_row(
                    name,
                    trajectories,
                    kind,
                    folds=folds,
                    config=config,
                    watch=watch,
                    only=only,
                    attention=attention,
                )
            )
    console = Console()
    for name, each in zip(names, found, strict=True):
        console.print(markdown(name, each), soft_wrap=True, highlight=False)
    if against is not None:
        apart = difference(*found, cap=kind.cap)
        console.print(
            f"{row} less {against}: {apart.value:.2f} [{apart.low:.2f}, {apart.high:.2f}] cycles of RMSE",
            highlight=False,
        )


def markdown(row: str, found: Found) -> str:
    """A line of the table: name, RMSE, score, coverage, width, hidden ratios, microseconds, training."""

    def figure(name: str, digits: int = 2) -> str:
        known = {**found.figures, **found.attention}
        if name not in known:
            return ""
        value, low, high = known[name].value, known[name].low, known[name].high
        return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"

    cells = (
        row,
        *(figure(name) for name in ("rmse", "score", "coverage")),
        *(figure(name, 1) for name in ("width", "hidden_20_over_random", "hidden_20_over_last")),
        f"{found.microseconds:.0f}",
        f"{found.training_seconds:.0f}",
    )
    return "| " + " | ".join(cells) + " |"
