"""`rul train` and `rul plot`; registers the commands of this package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from model import experiment_cli, fleet_cli
from model.cluster import Cluster, RayAddress, connected
from model.domain import MODEL_NAME, RulError, printable
from model.evaluation import BOOSTING_TITLES, TITLES, boosting_caution, named_figure
from model.experiment_cli import Seed, Settings, Threads
from model.files import data_sha256
from model.fleet import fleet_named
from model.outputs import CannotWrite, require_writable
from model.screen import cells, number_table, progress, save_picture, say, tell

if TYPE_CHECKING:
    from model.run import Plan
    from model.training import Check

TRAIN_HELP = """
Train a network on units that ran to failure.

The seed splits the units into folds. One network per fold trains on the other folds and predicts its
own units. These predictions calibrate and evaluate the final network, which trains on all units. Without
--steps, held-out units decide the number of updates, and whether the network reads the settings
(reads_settings) or only finds the regime by them. To continue an interrupted run, repeat the command with
--resume. --ray trains all networks at once on a Ray cluster, with the same result.

Networks: flagship (exact contributions of each reading); amnl (additive
temporal attention, with the health state as a second task); selfattention (eight heads between cycles). --set
changes options of the network or its training: score (additive, dot, scaled_dot), attention_dropout,
learnable_temperature, entropy_weight, heads_apart, causal, positions, relative_positions, age, hidden,
learning_rate and more. An unknown name lists all options with their defaults.

At each check the run logs its gradient norm, and the entropy and the weight of the first and last cycle
of each head: curve.csv, curve.png and a table at the end.

Example: rul train --fleet cmapss --data train_FD001.txt --name fd001 --output runs/fd001

Example: rul train --network amnl --set score=dot --data train_FD001.txt --name dot --output runs/dot
"""


Steps = Annotated[
    int | None,
    typer.Option(
        help="Updates of each network, which then reads no settings. "
        "Default: held-out units choose 125 to 2,000, and whether settings are read.",
        min=1,
    ),
]


def _model_name(name: str) -> str:
    if not MODEL_NAME.fullmatch(name):
        raise typer.BadParameter(
            "expected 1 to 63 lower-case letters, digits, - and _, the first a letter or a digit, "
            f"got {name!r}"
        )
    return name


Name = Annotated[
    str, typer.Option(help="Name of the model: lower-case letters, digits, - and _.", callback=_model_name)
]


class RunExists(RulError):
    """The folder holds a run already, or no run to resume."""


def register(app: typer.Typer) -> None:
    """Add `inspect`, `fleet`, `train`, `plot` and `experiment`."""
    fleet_cli.register(app)
    app.command(help=TRAIN_HELP)(train)
    app.command()(plot)
    app.command(help=experiment_cli.HELP)(experiment_cli.experiment)


def train(
    *,
    data: Annotated[list[Path], typer.Option(help="File or folder of readings; may be repeated.")],
    out: Annotated[Path, typer.Option("--output", "--out", help="Folder of the run.")],
    name: Name,
    fleet: Annotated[str, typer.Option(help="TOML file, or name of a shipped fleet.")] = "cmapss",
    network: Annotated[str, typer.Option(help="Name of the network.")] = "flagship",
    seed: Seed = 0,
    steps: Steps = None,
    set_: Settings = None,
    folds: Annotated[int, typer.Option(help="Number of folds; each trains one network.", min=2)] = 5,
    threads: Threads = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
    ray: RayAddress = None,
) -> None:
    """Train a network; see TRAIN_HELP."""
    import torch  # noqa: PLC0415 takes seconds

    from model.checkpoint import STATE_FILE  # noqa: PLC0415 with torch
    from model.curve import write_curve  # noqa: PLC0415 with matplotlib
    from model.findings import inspected_trajectories  # noqa: PLC0415 with PyArrow
    from model.options import read_options  # noqa: PLC0415 with torch
    from model.readers import data_files  # noqa: PLC0415 with PyArrow
    from model.run import Plan, Source, train_run  # noqa: PLC0415 with torch
    from model.training import TrainConfig  # noqa: PLC0415 with torch

    _check_folder(out, resume=resume, overwrite=overwrite)
    torch.set_num_threads(threads)
    options, training = read_options(set_ or [], network=network)
    given = {"fleet": fleet, "data": [str(path) for path in data], "set": set_ or [], "threads": threads}
    kind, config = fleet_named(fleet), TrainConfig(seed=seed, **training)
    files = data_files(data, kind)
    source = Source(", ".join(printable(file.name) for file in files), data_sha256(files), given)
    trajectories = inspected_trajectories(data, kind, fleet=fleet, folds=folds, seed=seed)
    plan = Plan(trajectories, kind, network, config, folds, options)
    require_writable(out)  # not only after the updates are chosen, which takes minutes
    with connected(ray, threads=threads, start=partial(torch.set_num_threads, threads)) as cluster:
        plan = _with_choice(plan, steps, out / STATE_FILE if resume else None, cluster)
        try:
            with progress(plan.config.steps * (folds + 1)) as watch:
                keep = partial(write_curve, folder=out)
                checkpoint, curve = train_run(
                    plan, name=name, source=source, folder=out, watch=watch, keep=keep, resume=resume,
                    cluster=cluster,
                )  # fmt: skip
        except KeyboardInterrupt:
            tell(f"{out}: to continue, repeat the command with --resume")
            raise
    _report(name, checkpoint.facts["metrics"], curve, out)


def _with_choice(plan: Plan, steps: int | None, state: Path | None, cluster: Cluster | None) -> Plan:
    """Return the plan with these updates, with the choice of an interrupted run, or with a new one."""
    from model.run import LENGTHS, READS, choose  # noqa: PLC0415 with torch
    from model.stages import stored_choice  # noqa: PLC0415 with torch

    if state is not None:
        stored, form = stored_choice(state)
        plan = plan.with_options(**{READS: form.get(READS, False)}) if plan.may_read_settings else plan
        steps = steps or stored
    if steps:
        return plan.with_updates(steps)
    tell(f"trying {', '.join(map(str, LENGTHS))} updates on held-out units, until more gain too little")
    return choose(plan, tell=_tell, cluster=cluster)


def _tell(plan: Plan, rmse: float) -> None:
    how = ", settings read" if plan.options.get("reads_settings") else ""
    tell(f"{plan.config.steps} updates{how}: held-out RMSE {rmse:.2f}")


def plot(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    out: Annotated[
        Path | None,
        typer.Option("--output", "--out", help="Picture to write. Default: curve.png in the run."),
    ] = None,
) -> None:
    """Draw a run's learning curve from its curve.csv, and tabulate the attention of each head.

    Example: rul plot runs/fd001 --output curve.svg
    """
    from model.curve import picture, read_curve  # noqa: PLC0415 with matplotlib

    target, curve = out or run / "curve.png", read_curve(run)
    save_picture(picture(curve, run.resolve().name), target)
    _print_curve(curve)
    say(str(target))


def _check_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise CannotWrite(f"{out}: cannot be written: a file, expected a folder")
    interrupted, finished = (out / "state.pt").is_file(), (out / "run.json").is_file()
    if resume and not interrupted:
        nothing = "nothing is stored before the number of updates is chosen, so start without --resume"
        raise RunExists(f"{out}: no interrupted run to resume: {'it is finished' if finished else nothing}")
    if interrupted and not (resume or overwrite):
        raise RunExists(f"{out}: the folder has an interrupted run: use --resume or --overwrite")
    if finished and not (resume or overwrite):
        raise RunExists(f"{out}: the folder has a finished run: choose another --output, or use --overwrite")


def _print_curve(curve: Sequence[Check]) -> None:
    from model.curve import curve_table  # noqa: PLC0415 with matplotlib

    if table := curve_table(curve):
        Console().print(table)


def _report(name: str, metrics: dict[str, float], curve: Sequence[Check], out: Path) -> None:
    """Print the figures of a finished run, also beside boosting, and the next command."""
    Console().print(_metrics_table(name, metrics))
    if caution := boosting_caution(metrics):
        say(caution)
    _print_curve(curve)
    say(f"{out}: run saved, with curve.csv and curve.png. Next: rul export {out} --output bundles/{name}")


def _metrics_table(name: str, metrics: dict[str, float]) -> Table:
    title = f"{name}: cross-validation on truncated windows of held-out units"
    table = number_table(title, "figure", "value", "95 % interval")
    titles = {f"crossvalidation_{name}": title for name, title in TITLES.items()} | BOOSTING_TITLES
    for figure, title in titles.items():
        if figure in metrics:
            table.add_row(title, *cells(named_figure(metrics, figure)))
    return table
