"""`rul evaluate`: how good a bundle's answers are on units whose failure is known."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from export.bundle import Manifest, find_bundle
from model.dataset import truncated_windows
from model.domain import InvalidData, Trajectory, WindowSet
from model.evaluation import Answered, figures
from model.fleet import Fleet, fleet_named
from model.parts import deal

HELP = """
Judge a bundle on units whose failure is known.

Windows are cut at random cycles of each unit. On the very data that a bundle was trained on, say
which part: the units that selected (validation) or those that did neither (calibration).

Example: rul evaluate fd001 --fleet cmapss --data train_FD001.txt --part validation
"""


class Part(StrEnum):
    """Which units to judge on."""

    ALL = "all"
    VALIDATION = "validation"
    CALIBRATION = "calibration"


def add_evaluate(app: typer.Typer) -> None:
    """Add the command to `rul`."""
    app.command("evaluate", help=HELP)(evaluate)


def evaluate(
    bundle: Annotated[str, typer.Argument(help="Name of a shipped bundle, or a folder.")],
    *,
    data: Annotated[list[Path], typer.Option(help="File or folder of readings; may be repeated.")],
    fleet: Annotated[str, typer.Option(help="A TOML file, or the name of a fleet that ships.")] = "cmapss",
    part: Annotated[Part, typer.Option(help="Which units to judge on.")] = Part.ALL,
    truncations: Annotated[int, typer.Option(help="Windows that each unit gives.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Of where the units are cut, with --part all.", min=0)] = 0,
) -> None:
    """Judge a bundle; see HELP."""
    from export.session import open_bundle  # noqa: PLC0415 with ONNX Runtime
    from model.readers import data_files, data_sha256, read_trajectories  # noqa: PLC0415 with PyArrow

    session, manifest = open_bundle(find_bundle(bundle))
    kind = fleet_named(fleet)
    if kind.schema.names != manifest.schema_of_columns.names:
        raise InvalidData(
            f"fleet {kind.name!r} has the columns {', '.join(kind.schema.names)}; "
            f"{manifest.name!r} reads {', '.join(manifest.schema_of_columns.names)}"
        )
    same_data = data_sha256(data_files(data, kind)) == manifest.training.data_sha256
    if part is not Part.ALL and not same_data:
        raise InvalidData(
            f"--part {part}: {manifest.name!r} was not trained on this data, so it has no parts"
        )
    trajectories = read_trajectories(data, kind)
    windows = _windows(trajectories, kind, manifest, part=part, truncations=truncations, seed=seed)
    with Console(stderr=True).status(f"answering {len(windows)} windows"):
        answers = session.answer_all(windows.readings, windows.lengths, windows.last_cycle)
    lower, upper = answers["rul_interval"].T
    found = figures(Answered(windows.rul, answers["rul"], lower, upper, windows.unit), cap=manifest.cap)
    units = len(set(windows.unit.tolist()))
    table = Table(
        title=f"{manifest.name}: {len(windows)} windows of {units} units, RUL capped at {manifest.cap:g}"
    )
    for title in ("figure", "value", "95 % by bootstrap over units"):
        table.add_column(title)
    for name, figure in found.items():
        table.add_row(TITLES[name], f"{figure.value:.3f}", f"{figure.low:.3f} .. {figure.high:.3f}")
    Console().print(table)
    if part is Part.ALL and same_data:
        Console(stderr=True).print(
            "Most of these units trained the network: the figures flatter it. See --part.", highlight=False
        )


TITLES = {
    "rmse": "RMSE, cycles",
    "mae": "MAE, cycles",
    "bias": "bias, cycles",
    "score": "NASA score, mean a window",
    "coverage": "coverage of the interval",
    "width": "width of the interval, cycles",
}


def _windows(
    trajectories: list[Trajectory],
    fleet: Fleet,
    manifest: Manifest,
    *,
    part: Part,
    truncations: int,
    seed: int,
) -> WindowSet:
    """Truncated windows of the units that are asked for, and whose failure is known."""
    if part is Part.ALL:
        known = [trajectory for trajectory in trajectories if trajectory.failed]
        if not known:
            raise InvalidData("no unit's failure is known: there is nothing to compare answers with")
        return truncated_windows(
            known,
            length=manifest.context,
            per_unit=truncations,
            rng=np.random.default_rng(seed),
            shortest=manifest.min_cycles,
        )
    kept = manifest.training.config.get("truncations", truncations)
    parts = deal(trajectories, fleet, seed=manifest.training.seed, truncations=kept)
    return parts.validation if part is Part.VALIDATION else parts.calibration
