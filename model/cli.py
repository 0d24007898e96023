"""`rul train`, `rul plot`; `rul experiment`. Torch is imported when a command runs, not before."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from model.domain import RulError
from model.experiment_cli import add_experiment

if TYPE_CHECKING:
    from model.training import Check

TRAIN_HELP = """
Train a network on units that ran to failure.

Units are dealt into folds by the seed. A network for each fold learns from the others and answers its
units, so that every unit is answered by a network that has not seen it: that calibrates, and says
what to expect, of the network that is kept, which learns from all. An interrupted run goes on with
the same command and --resume.

Networks: flagship; amnl (additive temporal attention, with a second task: the health state);
selfattention (eight heads between cycles). --set changes what one goes by, or its training: score
(additive, dot, scaled_dot), attention_dropout, learnable_temperature, entropy_weight, causal,
positions, age, hidden, learning_rate and more; an unknown name lists them all with their defaults.

Example: rul train --fleet cmapss --data train_FD001.txt --name fd001 --out runs/fd001

Example: rul train --network amnl --set score=dot --data train_FD001.txt --name dot --out runs/dot
"""


class RunExists(RulError):
    """A folder that holds a run which this command would overwrite, or lacks the one to resume."""


def register(app: typer.Typer) -> None:
    """Add `train`, `plot` and `experiment`."""
    app.command(help=TRAIN_HELP)(train)
    app.command()(plot)
    add_experiment(app)


def train(
    *,
    data: Annotated[list[Path], typer.Option(help="File or folder of readings; may be repeated.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    name: Annotated[str, typer.Option(help="Of the model: small letters, digits, - and _.")],
    fleet: Annotated[str, typer.Option(help="A TOML file, or the name of a fleet that ships.")] = "cmapss",
    network: Annotated[str, typer.Option(help="Which network.")] = "flagship",
    seed: Annotated[int, typer.Option(help="Of the split, the weights and every draw.", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="Updates of each network.", min=1)] = 500,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Of the network or its training; may be repeated."),
    ] = None,
    folds: Annotated[
        int, typer.Option(help="Parts that the units are dealt into; each is another network.", min=2)
    ] = 5,
    threads: Annotated[
        int, typer.Option(help="Of the processor; more can change the last digits.", min=1)
    ] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in the folder.")] = False,
) -> None:
    """Train a network; see TRAIN_HELP."""
    import torch  # noqa: PLC0415 takes seconds

    from model.curve import write_curve  # noqa: PLC0415 with matplotlib
    from model.fleet import fleet_named  # noqa: PLC0415
    from model.options import read_options  # noqa: PLC0415 with torch
    from model.readers import data_files, data_sha256, read_trajectories  # noqa: PLC0415
    from model.run import Source, train_run  # noqa: PLC0415 with torch
    from model.training import TrainConfig  # noqa: PLC0415 with torch

    _refuse_to_lose(out, resume=resume, overwrite=overwrite)
    torch.set_num_threads(threads)
    options, training = read_options(set_ or [], network=network)
    kind = fleet_named(fleet)
    files = data_files(data, kind)
    trajectories = read_trajectories(data, kind)
    config = TrainConfig(seed=seed, steps=steps, **training)
    source = Source(", ".join(file.name for file in files), data_sha256(files))
    console = Console(stderr=True)
    try:
        with Watched(console, steps * (folds + 1)) as watched:
            checkpoint, curve = train_run(
                trajectories,
                kind,
                name=name,
                network=network,
                config=config,
                folds=folds,
                source=source,
                folder=out,
                watch=watched,
                resume=resume,
                options=options,
            )
    except KeyboardInterrupt:
        console.print(f"{out}: go on with the same command and --resume", soft_wrap=True, highlight=False)
        raise
    write_curve(curve, out)
    Console().print(_metrics_table(name, checkpoint.facts["metrics"]))
    Console().print(
        f"{out}: the run, with curve.csv and curve.png. Next: rul export {out} --out bundles/{name}",
        soft_wrap=True,
        highlight=False,
    )


def plot(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    out: Annotated[Path | None, typer.Option(help="Picture to write; default: curve.png in the run.")] = None,
) -> None:
    """Draw a run's learning curve again, from its curve.csv.

    Example: rul plot runs/fd001 --out curve.svg
    """
    from model.curve import picture, read_curve  # noqa: PLC0415 with matplotlib

    target = out or run / "curve.png"
    picture(read_curve(run)).savefig(target, dpi=120)
    Console().print(str(target))


class Watched:
    """A progress bar with the loss and the RMSE on held-out units; what `train_run` tells as it goes."""

    def __init__(self, console: Console, steps: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} updates"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("held-out RMSE {task.fields[rmse]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("training", total=steps, loss="-", rmse="-")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, step: int, loss: float, check: Check | None) -> None:
        """One update is done."""
        self._progress.update(self._task, completed=step, loss=f"{loss:.4f}")
        if check is not None:
            rmse = "-" if math.isnan(check.held_out_rmse) else f"{check.held_out_rmse:.2f}"
            self._progress.update(self._task, rmse=rmse)


def _refuse_to_lose(out: Path, *, resume: bool, overwrite: bool) -> None:
    interrupted, finished = (out / "state.pt").is_file(), (out / "run.json").is_file()
    if resume and not interrupted:
        raise RunExists(f"{out}: no interrupted run to resume" + (", it is finished" if finished else ""))
    if interrupted and not (resume or overwrite):
        raise RunExists(f"{out}: an interrupted run is there: go on with --resume, or --overwrite it")
    if finished and not (resume or overwrite):
        raise RunExists(f"{out}: a finished run is there: choose another --out, or --overwrite it")


def _metrics_table(name: str, metrics: dict[str, float]) -> Table:
    table = Table(title=f"{name}: truncated windows, each answered by a network that has not seen its unit")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("95 % over units", justify="right")
    for figure in ("rmse", "mae", "bias", "score", "coverage", "width"):
        value, low, high = (metrics[f"crossvalidation_{figure}{end}"] for end in ("", "_low", "_high"))
        table.add_row(figure, f"{value:.2f}", f"{low:.2f} .. {high:.2f}")
    return table
