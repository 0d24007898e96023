"""`rul experiment`: one row of docs/experiments.md, by cross-validation over units."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

if TYPE_CHECKING:
    from model.experiments import Found
    from model.training import Check

HELP: Final = """
Cross-validate one row of docs/experiments.md and print it.

Every unit is held out once and cut at random cycles, as in a test set; all rows use the same units and
cuts. Rows are networks, their variants and baselines. An unknown name lists them.

Example: rul experiment --row gradient_boosting --data train_FD001.txt
"""


def experiment(
    *,
    row: Annotated[str, typer.Option(help="Name of the row.")],
    data: Annotated[list[Path], typer.Option(help="File or folder of readings; may be repeated.")],
    fleet: Annotated[str, typer.Option(help="TOML file, or name of a shipped fleet.")] = "cmapss",
    folds: Annotated[int, typer.Option(help="Number of folds.", min=2)] = 5,
    only: Annotated[int | None, typer.Option(help="Run only the first folds.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of folds, weights and training.", min=0)] = 0,
    attention: Annotated[
        bool, typer.Option("--attention", help="Also measure faithfulness by hiding cycles.")
    ] = False,
    against: Annotated[
        str | None, typer.Option(help="Another row; the difference of RMSE is printed.")
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 1,
) -> None:
    """Cross-validate a row; see HELP."""
    import torch  # noqa: PLC0415 takes seconds

    from model.evaluation import rmse_difference  # noqa: PLC0415
    from model.experiments import row_named, run_row, updates  # noqa: PLC0415 with torch
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
    options: dict[str, Any] = {"folds": folds, "config": config, "only": only, "attention": attention}
    found: list[Found] = []
    with Progress(console=Console(stderr=True)) as progress:
        for name in names:
            task = progress.add_task(name, total=(only or folds) * updates(name, config))

            def watch(done: int, _loss: float, _check: Check | None, task: TaskID = task) -> None:
                progress.update(task, completed=done)

            found.append(run_row(name, trajectories, kind, watch=watch, **options))
    console = Console()
    for name, each in zip(names, found, strict=True):
        console.print(markdown(name, each), soft_wrap=True, highlight=False)
    if against is not None:
        apart = rmse_difference(*(each.answered for each in found), cap=kind.cap)
        console.print(
            f"{row} - {against}: {apart.value:.2f} [{apart.low:.2f}, {apart.high:.2f}] cycles of RMSE",
            highlight=False,
        )


def markdown(row: str, found: Found) -> str:
    """Format a line of the table of docs/experiments.md."""
    known = {**found.figures, **found.attention}

    def figure(name: str, digits: int = 2) -> str:
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
