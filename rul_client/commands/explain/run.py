"""Runs `rul explain`: one unit of a file through a bundle in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import typer

from export.explanation_picture import Explained, explanation_picture
from export.pictures import require_matplotlib, save_picture
from model.domain import InvalidData, Trajectory, printable
from rul_client.commands.predict.input_file import read_units
from rul_client.commands.predict.offline import open_offline

NAMES_SHOWN = 10


def explain_unit(
    bundle: str, source: Path, *, unit: str | None, cycle: int | None, fleet: str | None, out: Path | None
) -> None:
    """Print the answer, its sentence and its trust, and write the picture."""
    if out is not None:
        require_matplotlib()
    explained = asyncio.run(_explained(bundle, source, unit=unit, cycle=cycle, fleet=fleet))
    for line in (explained.title, explained.sentence, explained.trust):
        typer.echo(printable(line))
    if out is not None:
        save_picture(explanation_picture(explained), out)
        typer.echo(str(out))


async def _explained(
    bundle: str, source: Path, *, unit: str | None, cycle: int | None, fleet: str | None
) -> Explained:
    async with open_offline(bundle) as model:
        units, _ = read_units(source, model.manifest, fleet=fleet)
        return await model.explained(up_to(chosen(units, unit, source), cycle))


def chosen(units: Sequence[Trajectory], name: str | None, source: Path) -> Trajectory:
    """Find the unit of this name; without a name, the only one."""
    found = [each for each in units if name in {None, each.unit}]
    if len(found) == 1:
        return found[0]
    some = ", ".join(each.unit for each in units[:NAMES_SHOWN]) + (" .." if len(units) > NAMES_SHOWN else "")
    wrong = f"{source} has {len(units)} units" if name is None else f"{source} has no unit {name!r}"
    raise InvalidData(f"{wrong}: name one of them with --unit ({some})")


def up_to(trajectory: Trajectory, cycle: int | None) -> Trajectory:
    """Cut a trajectory after this cycle."""
    if cycle is None:
        return trajectory
    kept = trajectory.cycles <= cycle
    if not kept.any() or trajectory.cycles[-1] < cycle:
        raise InvalidData(
            f"unit {trajectory.unit} has the cycles {trajectory.cycles[0]} to {trajectory.cycles[-1]}, "
            f"got --cycle {cycle}"
        )
    return Trajectory(trajectory.unit, trajectory.cycles[kept], trajectory.readings[kept], failed=False)
