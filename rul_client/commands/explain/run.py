"""Runs `rul explain`: one unit of a file through a bundle in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import typer

from export.bundle import Manifest
from export.explanation_picture import Explained, explanation_picture
from export.pictures import require_matplotlib
from model.domain import FloatArray, InvalidData, Trajectory, printable
from model.screen import save_picture
from rul_client.answers import Answerer, Explanation, Prediction, Refused
from rul_client.commands.predict.input_file import read_units
from rul_client.commands.predict.offline import open_offline
from rul_client.readings import Window
from rul_client.unit_windows import UnitWindows

NAMES_SHOWN: Final = 10
MOST_LIFE: Final = 400
"""Maximum answers of the unit's life, the explained one included."""


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
        return await explained(model, up_to(chosen(units, unit, source), cycle))


async def explained(answerer: Answerer, trajectory: Trajectory) -> Explained:
    """Explain the answer at a unit's last cycle, with the answers at the cycles before it."""
    of_unit = UnitWindows([trajectory], context=answerer.manifest.context, every=1)
    windows = of_unit.between(max(0, len(of_unit) - MOST_LIFE), len(of_unit))
    life: list[tuple[float, float, float, float]] = []
    for start in range(0, len(windows), answerer.windows_per_request):
        some = windows[start : start + answerer.windows_per_request]
        for window, answer in zip(some, await answerer.answer(some, "none"), strict=True):
            if isinstance(answer, Prediction) and window.last_cycle is not None:
                life.append((window.last_cycle, answer.rul, answer.interval.lower, answer.interval.upper))
    [last] = await answerer.answer(windows[-1:], "full")
    if isinstance(last, Refused):
        raise InvalidData(f"unit {trajectory.unit} has no answer: {last.detail}")
    return explained_of(last, answerer.manifest, windows[-1], np.array(life))


def explained_of(prediction: Prediction, manifest: Manifest, window: Window, life: FloatArray) -> Explained:
    """Collect the data of the picture; `life` is [N, 4]: cycle, RUL and its interval."""
    given, attention, interval = prediction.explanation, prediction.attention, prediction.interval
    if given is None or attention is None:
        raise AssertionError("a full explanation was asked for and is missing")
    names = given.columns
    column = {each.name: each for each in manifest.columns}
    places = [manifest.schema_of_columns.names.index(name) for name in names]
    state = prediction.rul_state.replace("_", " ")
    at = f"unit {window.unit} at cycle {window.last_cycle:.12g}"
    return Explained(
        title=f"{manifest.name}: {at}: RUL {prediction.cycles_left} "
        f"cycles, {state} ({interval.coverage:.0%}: {interval.lower:.1f} to {interval.upper:.1f})",
        sentence=given.sentence,
        trust=trust_words(prediction.trust, given),
        cap=manifest.cap,
        life=life,
        coverage=interval.coverage,
        cycles=np.array(given.cycles),
        names=names,
        units=[column[name].unit for name in names],
        readings=window.readings[-len(given.cycles) :, places],
        lower=np.array([given.usual[name].lower for name in names]).T,
        upper=np.array([given.usual[name].upper for name in names]).T,
        contributions=np.array([given.contributions[name] for name in names]).T,
        ranking=np.array(attention.evidence or attention.weights),
        ranked_by="evidence" if attention.evidence else "attention",
        since={clause.column: clause.since_cycle for clause in given.clauses},
    )


def trust_words(trust: str | None, given: Explanation) -> str:
    """Word the verdict and its figures."""
    said = f"Trust: {trust or 'not judged'}. "
    if given.agreement is not None:
        said += (
            f"Evidence agrees with hiding each of {given.judged_cycles} cycles: {given.agreement:.2f} "
            f"({given.needed_agreement:g} needed). "
        )
    elif trust is not None:
        said += "Too few cycles with readings to judge it. "
    return f"{said}Skill in the average life: {given.skill:.2f} ({given.needed_skill:g} needed)."


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
    if cycle not in trajectory.cycles:
        before = f"; the last one before it is {trajectory.cycles[kept][-1]}" if kept.any() else ""
        raise InvalidData(
            f"unit {trajectory.unit} has readings of cycles {trajectory.cycles[0]} to "
            f"{trajectory.cycles[-1]}, and none of --cycle {cycle}{before}"
        )
    return Trajectory(trajectory.unit, trajectory.cycles[kept], trajectory.readings[kept], failed=False)
