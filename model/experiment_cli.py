"""`rul experiment`: one row of docs/experiments.md, by cross-validation over units."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from model.cluster import RayAddress, connected
from model.evaluation import rmse_difference
from model.screen import number_table, say, shown

if TYPE_CHECKING:
    from model.experiments import Found, RowWatcher, Silenced, Wanted
    from model.training import TrainConfig

    Run = Callable[[Sequence[Wanted]], Iterator[Found]]
    Rows = Callable[[Run], Iterator[tuple[Wanted, Found]]]
    """Runs checked rows, by a function that runs any rows."""

HELP: Final = """
Cross-validate one row of docs/experiments.md and print it.

Every unit is held out once and cut at random cycles, as in a test set; all rows use the same units and
cuts. Rows are networks, their variants and baselines; an unknown name lists them. --set changes options
of the row's network and training, as in rul train. --search runs the row with options that Optuna chooses
from ranges, prints each trial and names the one of lowest RMSE. --ray runs the folds of rows and trials on a
Ray cluster, with the same figures.

Example: rul experiment --row gradient_boosting --data train_FD001.txt

Example: rul experiment --row last_state --against amnl --data train_FD001.txt

Example: rul experiment --row selfattention --set heads=4 --silence-heads --data train_FD001.txt

Example: rul experiment --row flagship --search 20 --set learning_rate=0.001..0.01 --data train_FD001.txt
"""

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Option of network or training; may be repeated."),
]
Seed = Annotated[
    int,
    typer.Option(
        help="Seed of folds, weights and training.",
        min=0,
        max=2**32 - 1,  # Optuna takes no larger one
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        help="CPU threads (with --ray: of each task); other values can change the last digits.",
        min=1,
        max=256,  # OpenMP aborts the process if it cannot start them
    ),
]


def experiment(
    *,
    row: Annotated[str, typer.Option(help="Name of the row.")],
    data: Annotated[list[Path], typer.Option(help="File or folder of readings; may be repeated.")],
    fleet: Annotated[str, typer.Option(help="TOML file, or name of a shipped fleet.")] = "cmapss",
    set_: Settings = None,
    folds: Annotated[int, typer.Option(help="Number of folds.", min=2)] = 5,
    only: Annotated[int | None, typer.Option(help="Run only the first folds.", min=1)] = None,
    seed: Seed = 0,
    attention: Annotated[
        bool, typer.Option("--attention", help="Also measure faithfulness by hiding cycles.")
    ] = False,
    silence_heads: Annotated[
        bool, typer.Option("--silence-heads", help="Also measure the RMSE without each head of the row.")
    ] = False,
    against: Annotated[
        str | None, typer.Option(help="Row to compare with, without --set: print the difference of RMSE.")
    ] = None,
    threads: Threads = 1,
    ray: RayAddress = None,
    search: Annotated[
        int | None,
        typer.Option(help="Number of trials; --set NAME=LOW..HIGH or NAME=A,B,C is searched.", min=1),
    ] = None,
) -> None:
    """Cross-validate a row; see HELP."""
    import torch  # noqa: PLC0415 takes seconds

    from model.experiments import run_rows  # noqa: PLC0415 with torch
    from model.findings import inspected_trajectories  # noqa: PLC0415 with PyArrow
    from model.fleet import fleet_named  # noqa: PLC0415
    from model.training import TrainConfig  # noqa: PLC0415 with torch

    torch.set_num_threads(threads)
    rows = _rows(row, set_ or [], against=against, heads=silence_heads, trials=search, seed=seed)
    kind, config = fleet_named(fleet), TrainConfig(seed=seed)
    trajectories = inspected_trajectories(data, kind, fleet=fleet, folds=folds, seed=seed)
    measured = partial(run_rows, folds=folds, config=config, only=only, attention=attention)
    with (
        connected(ray, threads=threads, start=partial(torch.set_num_threads, threads)) as cluster,
        _progress(config, folds=only or folds) as watch,
    ):
        run = partial(measured, trajectories=trajectories, fleet=kind, watch=watch, cluster=cluster)
        done = [_printed(each, found) for each, found in rows(run)]
    if search is not None:
        best, _ = min(done, key=lambda trial: trial[1].rmse)
        say(f"lowest RMSE: {best.label}; held-out units chose it, so expect a higher one on new units")
    elif against is not None:
        apart = rmse_difference(*(found.answered for _, found in done), cap=kind.cap)
        say(f"{' - '.join(wanted.label for wanted, _ in done)}: {shown(apart)} cycles of RMSE")


def _rows(
    row: str, settings: Sequence[str], *, against: str | None, heads: bool, trials: int | None, seed: int
) -> Rows:
    """Check the rows, or the space of a search."""
    from model.experiments import Wanted, require_row  # noqa: PLC0415 with torch

    if trials is not None:
        if heads or against is not None:
            raise typer.BadParameter("excludes --silence-heads and --against", param_hint="--search")
        from model.search import read_space, search_rows  # noqa: PLC0415 an extra

        return partial(search_rows, read_space(row, settings), trials=trials, seed=seed)
    wanted = [Wanted(row, settings, heads)] + ([] if against is None else [Wanted(against)])
    for each in wanted:
        require_row(each)
    return lambda run: zip(wanted, run(wanted), strict=True)


@contextmanager
def _progress(config: TrainConfig, *, folds: int) -> Generator[RowWatcher]:
    """Show a bar for each row that runs."""
    from model.experiments import updates  # noqa: PLC0415 with torch

    # Rows are printed meanwhile: above the bars on a terminal, else where standard output goes.
    with Progress(console=Console(stderr=True), redirect_stdout=sys.stdout.isatty()) as progress:
        tasks: dict[str, TaskID] = {}

        def watch(wanted: Wanted, done: int) -> None:
            if wanted.label not in tasks:
                tasks[wanted.label] = progress.add_task(wanted.label)
            total = folds * updates(wanted.row, config)
            progress.update(tasks[wanted.label], total=total, completed=done, visible=done < total)

        yield watch


def _printed(wanted: Wanted, found: Found) -> tuple[Wanted, Found]:
    """Print a row and its heads."""
    say(markdown(wanted.label, found))
    if found.silenced:
        Console().print(silenced_table(wanted.label, found.silenced))
    return wanted, found


def silenced_table(label: str, silenced: Sequence[Silenced]) -> Table:
    """Tabulate the RMSE without each head."""
    title = f"{label}: held-out RMSE without one head, cycles, with 95 % intervals"
    table = number_table(title, "silenced head", "RMSE", "more than with all heads")
    for each in silenced:
        table.add_row(str(each.head), shown(each.rmse), shown(each.more))
    return table


def markdown(row: str, found: Found) -> str:
    """Format a row in Markdown: its figures, the microseconds of a window and the seconds of training."""
    known = {**found.figures, **found.attention}
    digits = {"rmse": 2, "score": 2, "coverage": 2, "width": 1}
    digits |= {"hidden_20_over_random": 1, "hidden_20_over_last": 1}
    figures = [shown(known[name], n) if name in known else "" for name, n in digits.items()]
    cells = (row, *figures, f"{found.microseconds:.0f}", f"{found.training_seconds:.0f}")
    return "| " + " | ".join(cells) + " |"
