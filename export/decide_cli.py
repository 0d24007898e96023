"""`rul decide`: cost of acting on predictions, compared with a fixed age and run to failure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import track

from export.bundle import BundleFolder, find_bundle
from export.evaluate_cli import CAUTION, reliability_table, with_known_failure
from export.evaluation_windows import answer_lives, is_training_data, matching_fleet
from model.cells import counted
from model.decision import Costs, FleetLife, InvalidCosts
from model.replay import HELD_OUT_FILE, POLICIES, Comparison, HeldOut, compare, load_held_out
from model.screen import cells, number_table, tell

HELP = """
Compare the cost per cycle of four ways to maintain units that ran to failure.

"ours" stops a unit when its prediction advises it, "fixed age" stops every unit at the age that is best
for the training units, "run to failure" never stops one, and "foresight" stops each one cycle before
its failure, the lowest possible cost. Costs are per 1000 cycles, with 95 % intervals by bootstrap over
units, or over their groups where the fleet has the key `group`.

For a run's folder, the units are its training units (some of them where lives are many and long), each
predicted by a network that never saw it. For a bundle, give --data of units that did not train it. The
last table compares failures with the predicted probabilities.

Example: rul decide runs/fd001 --costs 1:5 --costs 1:20

Example: rul decide bundles/pumps --fleet pumps.toml --data retired.csv --costs 800:12000
"""
USUAL_COSTS: Final = ("1:3", "1:10", "1:50")
PER: Final = 1000
"""Costs are shown per this number of cycles."""


def decide(
    source: Annotated[str, typer.Argument(help="A run's folder, or a bundle: a folder or a shipped name.")],
    *,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="File or folder of readings of units that failed; may be repeated. For bundles."),
    ] = None,
    fleet: Annotated[
        str | None, typer.Option(help="TOML file, or name of a shipped fleet, of --data. Default: cmapss.")
    ] = None,
    costs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLANNED:FAILURE",
            help=f"Costs of a planned stop and a failure; repeatable. Default: {', '.join(USUAL_COSTS)}.",
        ),
    ] = None,
) -> None:
    """Compare policies of maintenance; see HELP."""
    try:
        pairs = [Costs.read(text) for text in costs or USUAL_COSTS]
    except InvalidCosts as error:
        raise typer.BadParameter(str(error), param_hint="--costs") from None
    if (Path(source) / HELD_OUT_FILE).is_file():
        for option, given in (("--data", data), ("--fleet", fleet)):
            if given:
                raise typer.BadParameter("a run brings its own: give a bundle", param_hint=option)
        name, held = Path(source).name, load_held_out(Path(source))
    else:
        name, held = source, _predicted(find_bundle(source), data, fleet or "cmapss")
    with Console(stderr=True).status(f"replaying {counted(len(held.lives), 'unit')}"):
        found = [compare(held, pair) for pair in pairs]
    _print(name, found)
    Console().print(reliability_table(name, held.lives, held.horizons))


def _predicted(bundle: BundleFolder, data: list[Path] | None, fleet: str) -> HeldOut:
    """Predict every cycle of units with a known failure."""
    if not data:
        raise typer.BadParameter(
            f"expected units that did not train the bundle, or a run's folder with {HELD_OUT_FILE}",
            param_hint="--data",
        )
    from export.session import open_bundle  # noqa: PLC0415 with ONNX Runtime
    from model.findings import inspected_trajectories  # noqa: PLC0415 with PyArrow

    session, manifest = open_bundle(bundle)
    kind = matching_fleet(manifest, fleet)
    found = inspected_trajectories(data, kind, fleet=fleet)
    units = with_known_failure(session, manifest, found, kind, instead="give --data of units that failed")
    if is_training_data(manifest, data, kind):
        tell(CAUTION)
    shown = track(units, "predicting every cycle", console=Console(stderr=True), transient=True)
    lives = answer_lives(session, manifest, shown)
    known = FleetLife(manifest.degradation.life_quantiles)
    fleets = [known] * len(lives)
    return HeldOut(lives, fleets, fleets, tuple(manifest.horizons), manifest.nominal_coverage, manifest.cap)


def _print(name: str, found: list[Comparison]) -> None:
    console = Console()
    for each in found:
        costs = f"planned stop {each.costs.planned:g}, failure {each.costs.failure:g}"
        title = f"{name}: {counted(each.units, 'unit')}, {costs}"
        headings = (f"cost per {PER} cycles", "95 % interval", "failed", "mean life")
        table = number_table(title, "policy", *headings)
        for policy in POLICIES:
            cost = each.cost_per_cycle[policy]
            table.add_row(
                policy,
                *cells(cost, PER),
                f"{each.failures[policy]:.1%}",
                f"{each.cycles[policy]:.0f}",
            )
        table.add_row("saved by ours", *cells(each.saved, 100, unit=" %"), "", "")
        console.print(table)
