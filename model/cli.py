"""`rul train` and `rul plot`, and the registration of the package's commands."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from model import experiment_cli, fleet_cli
from model.cluster import Cluster, RayAddress, connected
from model.comparison import BOOSTING_TITLES, boosting_caution
from model.domain import RulError, Trajectory
from model.evaluation import TITLES
from model.fleet import Fleet, fleet_named
from model.progress import progress

if TYPE_CHECKING:
    from model.run import Source
    from model.training import Check, TrainConfig

TRAIN_HELP = """
Train a network on units that ran to failure.

The seed splits the units into folds. One network per fold trains on the other folds and predicts its
own units. These predictions calibrate and evaluate the final network, which trains on all units. To
continue an interrupted run, repeat the command with --resume. --ray trains all networks at once on a Ray
cluster, with the same result.

Networks: flagship (exact contributions of each reading); amnl (additive
temporal attention, with the health state as a second task); selfattention (eight heads between cycles). --set
changes options of the network or its training: score (additive, dot, scaled_dot), attention_dropout,
learnable_temperature, entropy_weight, heads_apart, causal, positions, relative_positions, age, hidden,
learning_rate and more. An unknown name lists all options with their defaults.

At each check the run logs its gradient norm, and the entropy and the weight of the first and last cycle
of each head: curve.csv, curve.png and a table at the end.

Example: rul train --fleet cmapss --data train_FD001.txt --name fd001 --out runs/fd001

Example: rul train --network amnl --set score=dot --data train_FD001.txt --name dot --out runs/dot
"""


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Option of network or training; may be repeated."),
]
Steps = Annotated[
    int | None,
    typer.Option(help="Updates of each network. Default: 500, doubled while the first fold gains.", min=1),
]
Threads = Annotated[
    int,
    typer.Option(
        help="CPU threads, with --ray of each task; other values can change the last digits.", min=1
    ),
]


class RunExists(RulError):
    """The folder has a run that would be overwritten, or no run to resume."""


def register(app: typer.Typer) -> None:
    """Add `inspect`, `fleet`, `train`, `plot` and `experiment`."""
    fleet_cli.register(app)
    app.command(help=TRAIN_HELP)(train)
    app.command()(plot)
    app.command(help=experiment_cli.HELP)(experiment_cli.experiment)


def train(
    *,
    data: Annotated[list[Path], typer.Option(help="File or folder of readings; may be repeated.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    name: Annotated[str, typer.Option(help="Name of the model: lower-case letters, digits, - and _.")],
    fleet: Annotated[str, typer.Option(help="TOML file, or name of a shipped fleet.")] = "cmapss",
    network: Annotated[str, typer.Option(help="Name of the network.")] = "flagship",
    seed: Annotated[int, typer.Option(help="Seed of folds, weights and training.", min=0)] = 0,
    steps: Steps = None,
    set_: Settings = None,
    folds: Annotated[int, typer.Option(help="Number of folds; each trains another network.", min=2)] = 5,
    threads: Threads = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in the folder.")] = False,
    ray: RayAddress = None,
) -> None:
    """Train a network; see TRAIN_HELP."""
    import torch  # noqa: PLC0415 takes seconds

    from model.options import read_options  # noqa: PLC0415 with torch
    from model.run import train_run  # noqa: PLC0415 with torch
    from model.training import TrainConfig  # noqa: PLC0415 with torch

    _check_folder(out, resume=resume, overwrite=overwrite)
    torch.set_num_threads(threads)
    options, training = read_options(set_ or [], network=network)
    given = {"fleet": fleet, "data": [str(path) for path in data], "set": set_ or [], "threads": threads}
    kind, trajectories, source = _read(data, fleet, folds=folds, given=given)
    config, run = TrainConfig(seed=seed, **training), out if resume else None
    with connected(ray, threads=threads, start=partial(torch.set_num_threads, threads)) as cluster:
        steps = steps or _updates(
            trajectories,
            kind,
            network=network,
            config=config,
            folds=folds,
            options=options,
            run=run,
            cluster=cluster,
        )
        with _interruptible(out), progress(steps * (folds + 1)) as watch:
            checkpoint, curve = train_run(
                trajectories,
                kind,
                name=name,
                network=network,
                config=replace(config, steps=steps),
                folds=folds,
                source=source,
                folder=out,
                watch=watch,
                resume=resume,
                options=options,
                cluster=cluster,
            )
    _report(name, checkpoint.facts["metrics"], curve, out)


def _read(
    data: Sequence[Path], fleet: str, *, folds: int, given: Mapping[str, Any]
) -> tuple[Fleet, list[Trajectory], Source]:
    """Read the fleet and its units; print the findings of the inspection."""
    from model.inspection_report import inspected_trajectories  # noqa: PLC0415 with PyArrow
    from model.readers import data_files, data_sha256  # noqa: PLC0415 with PyArrow
    from model.run import Source  # noqa: PLC0415 with torch

    kind = fleet_named(fleet)
    files = data_files(data, kind)
    trajectories = inspected_trajectories(data, kind, fleet=fleet, folds=folds)
    return kind, trajectories, Source(", ".join(file.name for file in files), data_sha256(files), given)


def _updates(
    trajectories: Sequence[Trajectory],
    fleet: Fleet,
    *,
    network: str,
    config: TrainConfig,
    folds: int,
    options: Mapping[str, Any],
    run: Path | None,
    cluster: Cluster | None,
) -> int:
    """Choose the number of updates, or read that of the interrupted run in this folder."""
    from model.checkpoint import STATE_FILE  # noqa: PLC0415 with torch
    from model.stages import stored_updates  # noqa: PLC0415 with torch
    from model.updates import choose_updates  # noqa: PLC0415 with torch

    if run is not None:
        return stored_updates(run / STATE_FILE)
    screen = Console(stderr=True)

    def tell(steps: int, rmse: float) -> None:
        screen.print(f"first fold, {steps} updates: held-out RMSE {rmse:.2f}", highlight=False)

    return choose_updates(
        trajectories,
        fleet,
        network=network,
        config=config,
        folds=folds,
        options=options,
        tell=tell,
        cluster=cluster,
    )


def plot(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    out: Annotated[Path | None, typer.Option(help="Picture to write. Default: curve.png in the run.")] = None,
) -> None:
    """Draw a run's learning curve from its curve.csv, and tabulate the attention of each head.

    Example: rul plot runs/fd001 --out curve.svg
    """
    from model.curve import picture, read_curve  # noqa: PLC0415 with matplotlib

    target, curve = out or run / "curve.png", read_curve(run)
    picture(curve, run.resolve().name).savefig(target, dpi=120)
    _print_curve(curve)
    Console().print(str(target), soft_wrap=True, highlight=False)


@contextmanager
def _interruptible(out: Path) -> Generator[None]:
    """Say how to continue where the user interrupts."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(
            f"{out}: to continue, repeat the command with --resume", soft_wrap=True, highlight=False
        )
        raise


def _check_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    interrupted, finished = (out / "state.pt").is_file(), (out / "run.json").is_file()
    if resume and not interrupted:
        raise RunExists(f"{out}: no interrupted run to resume" + (", it is finished" if finished else ""))
    if interrupted and not (resume or overwrite):
        raise RunExists(f"{out}: the folder has an interrupted run: use --resume or --overwrite")
    if finished and not (resume or overwrite):
        raise RunExists(f"{out}: the folder has a finished run: choose another --out, or use --overwrite")


def _print_curve(curve: Sequence[Check]) -> None:
    from model.curve_table import curve_table  # noqa: PLC0415 with torch

    if table := curve_table(curve):
        Console().print(table)


def _report(name: str, metrics: dict[str, float], curve: Sequence[Check], out: Path) -> None:
    """Save the curve of a finished run; print its figures, also beside boosting, and the next command."""
    from model.curve import write_curve  # noqa: PLC0415 with matplotlib

    write_curve(curve, out)
    console = Console()
    console.print(_metrics_table(name, metrics))
    if caution := boosting_caution(metrics):
        console.print(caution, soft_wrap=True, highlight=False)
    _print_curve(curve)
    saved = f"{out}: run saved, with curve.csv and curve.png. Next: rul export {out} --out bundles/{name}"
    console.print(saved, soft_wrap=True, highlight=False)


def _metrics_table(name: str, metrics: dict[str, float]) -> Table:
    table = Table(title=f"{name}: cross-validation on truncated windows of held-out units")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("95 % over units", justify="right")
    titles = {f"crossvalidation_{name}": title for name, title in TITLES.items()} | BOOSTING_TITLES
    for figure, title in titles.items():
        if figure in metrics:
            value, low, high = (metrics[figure + end] for end in ("", "_low", "_high"))
            table.add_row(title, f"{value:.2f}", f"{low:.2f} .. {high:.2f}")
    return table
