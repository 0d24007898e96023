"""Rates of right and wrong RUL states, for docs/rul_states.md.

    python -m tests.benchmarks.rul_states --data FOLDER_OF_CMAPSS

Units of test_FD00N.txt, which trained no shipped model, are cut at random cycles and predicted without and
with the faults of `tests.benchmarks.faults`; states are those of `service.core.answers`. If a unit's file
continues for the cap or more, its RUL is above the cap for sure. RULs below the cap are known only for units
of train_FD00N.txt, which trained the networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from export.bundle import Manifest, find_bundle
from export.evaluate_cli import TRUNCATIONS
from export.evaluation_windows import matching_fleet
from export.session import Session, open_bundle
from model.censoring import failed_units
from model.dataset import truncated_windows
from model.domain import FloatArray, IntArray, RulState, Trajectory, WindowSet
from model.readers import read_trajectories
from service.core.answers import STATES, Answers
from service.core.rules import WindowRules
from service.core.runtime import Asked, Outputs
from tests.benchmarks.fault_kinds import Kind, faulty_kinds
from tests.benchmarks.faults import random_windows
from tests.benchmarks.tables import publish, table

SUBSETS: Final = ("FD001", "FD002", "FD003", "FD004")


@dataclass(frozen=True)
class Row:
    """Answers of one model to one kind of windows."""

    kind: str
    model: str
    windows: int
    shares: dict[RulState, float]
    novelty: float
    novel: float
    moved: float | None


def main(
    *,
    data: Annotated[Path, typer.Option(help="Folder with train_FD001.txt .. test_FD004.txt.")],
    bundles: Annotated[str, typer.Option(help="One a subset, in their order.")] = "fd001,fd002,fd003,fd004",
    windows: Annotated[int, typer.Option(help="Windows of each kind, at least.")] = 500,
    seed: Annotated[int, typer.Option(help="Of cuts and faults.")] = 0,
    doc: Annotated[Path | None, typer.Option(help="Also put the table between the markers here.")] = None,
) -> None:
    """Print the table."""
    opened = [open_bundle(find_bundle(name)) for name in bundles.split(",")]
    kind = matching_fleet(opened[0][1], "cmapss")
    tested = [read_trajectories([data / f"test_{subset}.txt"], kind) for subset in SUBSETS]
    rng = np.random.default_rng(seed)
    cut = [_cut(units, opened[0][1].context, windows, rng) for units in tested]
    rows: list[Row] = []
    for i, (session, manifest) in enumerate(opened):
        own = cut[i]
        kinds = [
            above_the_cap(tested[i], manifest, windows=windows, rng=rng),
            *below_the_cap(read_trajectories([data / f"train_{SUBSETS[i]}.txt"], kind), manifest),
            *faulty_kinds(own, tested[i], dict(zip(SUBSETS, cut, strict=True)), manifest, rng=rng),
        ]
        rows += asked(session, manifest, kinds, own)
    text = f"{overview(rows)}\n\n<details><summary>Every state</summary>\n\n{every_state(rows)}\n\n</details>"
    publish(text, "tests.benchmarks.rul_states", doc)


def above_the_cap(
    units: Sequence[Trajectory], manifest: Manifest, *, windows: int, rng: np.random.Generator
) -> Kind:
    """Return windows of units that ran for the cap or longer afterwards."""
    cap = int(manifest.cap)
    kept = [
        Trajectory(unit.unit, unit.cycles[:-cap], unit.readings[:-cap], failed=False)
        for unit in units
        if len(unit) > cap
    ]
    return Kind(
        f"own units, {cap} cycles or more before their end", _cut(kept, manifest.context, windows, rng)
    )


def below_the_cap(units: Sequence[Trajectory], manifest: Manifest) -> list[Kind]:
    """Return windows of units that trained the network, by RUL."""
    judged = truncated_windows(
        failed_units(units), length=manifest.context, per_unit=TRUNCATIONS, rng=np.random.default_rng(0)
    )
    cap = manifest.cap
    return [
        Kind(
            f"training units, RUL {cap - 25:g} to {cap:g}", judged.take(_between(judged.rul, cap - 25, cap))
        ),
        Kind(f"training units, RUL below {cap - 25:g}", judged.take(_between(judged.rul, 0, cap - 25))),
    ]


def asked(session: Session, manifest: Manifest, kinds: Sequence[Kind], own: WindowSet) -> Iterator[Row]:
    """Return one row per kind; changes of the RUL are relative to the windows without a fault."""
    healthy, rules = answered(session, own).rul, WindowRules.of(manifest, max_window_cycles=manifest.context)
    screen = Console(stderr=True)
    for kind in track(kinds, manifest.name, console=screen):
        if not len(kind.windows):
            continue
        outputs = answered(session, kind.windows)
        windows = Asked(kind.windows.readings, kind.windows.lengths, kind.windows.last_cycle)
        state = Answers(windows, outputs, manifest, rules).state
        yield Row(
            kind.name,
            manifest.name,
            len(kind.windows),
            {each: float((state == i).mean()) for i, each in enumerate(STATES)},
            float(np.median(outputs.novelty)),
            float((outputs.novelty > 1).mean()),
            float(np.median(np.abs(outputs.rul - healthy))) if kind.paired else None,
        )


def answered(session: Session, windows: WindowSet) -> Outputs:
    """Return the graph's answers."""
    return Outputs(**session.answer_all(windows))


def overview(rows: Sequence[Row]) -> str:
    """Tabulate the share out of distribution, one line per kind, one column per model."""
    models = list(dict.fromkeys(row.model for row in rows))
    found = {(row.kind, row.model): row.shares[RulState.OUT_OF_DISTRIBUTION] for row in rows}
    kinds = dict.fromkeys(row.kind for row in rows)
    lines = ([kind, *(_percent(found.get((kind, name))) for name in models)] for kind in kinds)
    return f"Share that is `out_of_distribution`:\n\n{table(['windows', *models], lines)}"


def every_state(rows: Sequence[Row]) -> str:
    """Tabulate all figures, one line per model and kind."""
    shown = [f"`{state}`" for state in STATES]
    heads = ["model", "windows", "number", *shown, "novelty, median", "above 1", "RUL moved"]
    lines = (
        [
            *(row.model, row.kind, row.windows),
            *(_percent(row.shares[state]) for state in STATES),
            *(f"{row.novelty:.2f}", _percent(row.novel), "" if row.moved is None else f"{row.moved:.1f}"),
        ]
        for row in rows
    )
    head = "Share in each state, novelty, and by how many cycles (median) the RUL moved from where it was:"
    return f"{head}\n\n{table(heads, lines, texts=2)}"


def _cut(units: Sequence[Trajectory], context: int, windows: int, rng: np.random.Generator) -> WindowSet:
    return random_windows(units, context=context, per_unit=-(-windows // len(units)), rng=rng)


def _between(rul: FloatArray, low: float, high: float) -> IntArray:
    return np.flatnonzero((rul >= low) & (rul < high))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    typer.run(main)
