"""`rul experiment`: one row of docs/experiments.md, by cross-validation over units."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

if TYPE_CHECKING:
    from model.ablation import Silenced
    from model.experiments import Found
    from model.training import Check

HELP: Final = """
Cross-validate one row of docs/experiments.md and print it.

Every unit is held out once and cut at random cycles, as in a test set; all rows use the same units and
cuts. Rows are networks, their variants and baselines; an unknown name lists them. --set changes options
of the row's network and training, as in rul train.

Example: rul experiment --row gradient_boosting --data train_FD001.txt

Example: rul experiment --row last_state --against amnl --data train_FD001.txt

Example: rul experiment --row selfattention --set heads=4 --silence-heads --data train_FD001.txt
"""


def experiment(
    *,
    row: Annotated[str, typer.Option(help="Name of the row.")],
    data: Annotated[list[Path], typer.Option(help="File or folder of readings; may be repeated.")],
    fleet: Annotated[str, typer.Option(help="TOML file, or name of a shipped fleet.")] = "cmapss",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Option of the row; may be repeated."),
    ] = None,
    folds: Annotated[int, typer.Option(help="Number of folds.", min=2)] = 5,
    only: Annotated[int | None, typer.Option(help="Run only the first folds.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of folds, weights and training.", min=0)] = 0,
    attention: Annotated[
        bool, typer.Option("--attention", help="Also measure faithfulness by hiding cycles.")
    ] = False,
    silence_heads: Annotated[
        bool, typer.Option("--silence-heads", help="Also measure the RMSE without each head of the row.")
    ] = False,
    against: Annotated[
        str | None, typer.Option(help="Another row, without --set; the difference of RMSE is printed.")
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 1,
) -> None:
    """Cross-validate a row; see HELP."""
    import torch  # noqa: PLC0415 takes seconds

    from model.experiments import require_row, row_named, run_row, updates  # noqa: PLC0415 with torch
    from model.fleet import fleet_named  # noqa: PLC0415
    from model.inspection_report import inspected_trajectories  # noqa: PLC0415 with PyArrow
    from model.training import TrainConfig  # noqa: PLC0415 with torch

    torch.set_num_threads(threads)
    wanted = [(row, set_ or [], silence_heads)] + ([] if against is None else [(against, list[str](), False)])
    for name, settings, heads in wanted:
        require_row(name, settings, heads=heads)
    kind, config = fleet_named(fleet), TrainConfig(seed=seed)
    trajectories = inspected_trajectories(data, kind, fleet=fleet, folds=folds)
    options: dict[str, Any] = {"folds": folds, "config": config, "only": only, "attention": attention}
    found: dict[str, Found] = {}
    with Progress(console=Console(stderr=True)) as progress:
        for name, settings, heads in wanted:
            label = " ".join([name, *settings])
            total = (only or folds) * updates(row_named(name, settings), config)
            task = progress.add_task(label, total=total)

            def watch(done: int, _loss: float, _check: Check | None, task: TaskID = task) -> None:
                progress.update(task, completed=done)

            found[label] = run_row(
                name, trajectories, kind, watch=watch, settings=settings, heads=heads, **options
            )
    _report(found, cap=kind.cap)


def _report(found: dict[str, Found], *, cap: float) -> None:
    """Print the rows, the heads of the first, and the difference of the first from the second."""
    from model.evaluation import rmse_difference  # noqa: PLC0415

    console = Console()
    for label, each in found.items():
        console.print(markdown(label, each), soft_wrap=True, highlight=False)
    (label, first), *others = found.items()
    if first.silenced:
        console.print(silenced_table(label, first.silenced))
    for other, each in others:
        apart = rmse_difference(first.answered, each.answered, cap=cap)
        console.print(
            f"{label} - {other}: {apart.value:.2f} [{apart.low:.2f}, {apart.high:.2f}] cycles of RMSE",
            soft_wrap=True,
            highlight=False,
        )


def silenced_table(label: str, silenced: Sequence[Silenced]) -> Table:
    """Tabulate the RMSE without each head."""
    table = Table(title=f"{label}: held-out RMSE without one head, cycles; 95 % over units")
    for heading in ("silenced head", "RMSE", "more than with all heads"):
        table.add_column(heading, justify="right")
    for each in silenced:
        cells = (
            f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]" for figure in (each.rmse, each.more)
        )
        table.add_row(str(each.head), *cells)
    return table


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
