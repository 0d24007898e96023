"""`rul experiment`: one row of docs/experiments.md, by cross-validation over units."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

if TYPE_CHECKING:
    from model.ablation import Silenced
    from model.domain import Trajectory
    from model.experiments import Found
    from model.fleet import Fleet

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

    from model.experiments import require_row  # noqa: PLC0415 with torch
    from model.fleet import fleet_named  # noqa: PLC0415
    from model.inspection_report import inspected_trajectories  # noqa: PLC0415 with PyArrow
    from model.training import TrainConfig  # noqa: PLC0415 with torch

    torch.set_num_threads(threads)
    wanted = [Wanted(row, set_ or [], heads=silence_heads)]
    if against is not None:
        wanted.append(Wanted(against, [], heads=False))
    for each in wanted:
        require_row(each.row, each.settings, heads=each.heads)
    kind = fleet_named(fleet)
    trajectories = inspected_trajectories(data, kind, fleet=fleet, folds=folds)
    how: dict[str, Any] = {
        "folds": folds,
        "config": TrainConfig(seed=seed),
        "only": only,
        "attention": attention,
    }
    with Progress(console=Console(stderr=True)) as progress:
        found = [_run(each, trajectories, kind, progress, how) for each in wanted]
    _report(wanted, found, cap=kind.cap)


class Wanted(NamedTuple):
    """A row to run, with its options NAME=VALUE, and whether its heads are silenced."""

    row: str
    settings: Sequence[str]
    heads: bool

    @property
    def label(self) -> str:
        """Return how the row is called in what is printed."""
        return " ".join([self.row, *self.settings])


def _run(
    wanted: Wanted, trajectories: Sequence[Trajectory], fleet: Fleet, progress: Progress, how: dict[str, Any]
) -> Found:
    from model.experiments import row_named, run_row, updates  # noqa: PLC0415 with torch

    of_fold = updates(row_named(wanted.row, wanted.settings), how["config"])
    task = progress.add_task(wanted.label, total=(how["only"] or how["folds"]) * of_fold)
    return run_row(
        wanted.row,
        trajectories,
        fleet,
        watch=lambda done, _loss, _check: progress.update(task, completed=done),
        settings=wanted.settings,
        heads=wanted.heads,
        **how,
    )


def _report(wanted: Sequence[Wanted], found: Sequence[Found], *, cap: float) -> None:
    """Print the rows, the heads of the first, and the difference of the first from the second."""
    from model.evaluation import rmse_difference  # noqa: PLC0415

    console = Console()
    for each, result in zip(wanted, found, strict=True):
        console.print(markdown(each.label, result), soft_wrap=True, highlight=False)
        if result.silenced:
            console.print(silenced_table(each.label, result.silenced))
    if len(found) > 1:
        apart = rmse_difference(*(each.answered for each in found), cap=cap)
        between = " - ".join(each.label for each in wanted)
        console.print(
            f"{between}: {apart.value:.2f} [{apart.low:.2f}, {apart.high:.2f}] cycles of RMSE",
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
