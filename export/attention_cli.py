"""`rul attention`: where a bundle's attention lies, and whether its answers depend on it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from export.bundle import BundleFolder, Manifest, find_bundle
from export.card import meanings
from export.evaluation_windows import matching_fleet, spread_windows
from export.pictures import require_matplotlib
from export.regime_readings import Typical
from model.cells import counted
from model.domain import FloatArray, InvalidData, Trajectory, WindowSet
from model.faithfulness import (
    CHOICES,
    Faithfulness,
    faithfulness_figures,
    fewest_cycles,
    long_enough,
    measure_faithfulness,
)
from model.fleet import fleet_of_schema
from model.screen import number_table, save_picture, say, stacked, tell
from model.sensitivity import sensitivity_figures

if TYPE_CHECKING:
    from export.attention import HeadReport
    from export.session import Session
    from model.evaluation import Figure

HELP = """
Show where a bundle's attention lies, for each head, and whether its answers depend on it.
`rul experiment --silence-heads` measures the error without each head.

Windows are spread over the units' lives. Cycles are hidden (replaced by the training mean of their
regime): those with most evidence, or attention where a network has no evidence; random ones; and the
last ones. Further figures measure the explanation; each is printed with its meaning. Hiding the first or
last cycle shows whether it is a sink: a sink has weight but no effect. --output draws one unit: the
attended cycles of each prediction over its life. For networks with self-attention between cycles,
exported with --with-map, --cycle shows where one cycle of the last window looks, and --output then draws
the map of each head.

Given a run's folder, the command exports and measures its final network. The run and the model card have
the figures on held-out units, each by a network that has not seen the unit.

Example: rul attention fd001 --input test_FD001.txt --unit 17 --output attention.png

Example: rul attention bundles/self --input pumps.csv --unit 17 --cycle 95 --output map.png
"""

WINDOWS: Final = 300
ODD: Final = 0.05
"""A larger share of windows outside the band is reported; one in a hundred is expected."""
EVEN: Final = 0.98
"""A median entropy ratio above this means uniform attention, whatever the band."""
ALONE: Final = 1.5
"""A median of fewer effective cycles means attention to one cycle."""
HARD: Final = 0.9
"""A mean largest weight from this on means it too: the head has degenerated to hard attention."""
LOOKED_AT: Final = 5
"""Number of cycles listed for --cycle, in each head."""
SAME: Final = 0.01
"""Heads with a smaller divergence than this, in bits, are redundant."""


def attention(
    bundle: Annotated[str, typer.Argument(help="Name of a shipped bundle, or a bundle's or run's folder.")],
    *,
    data: Annotated[Path, typer.Option("--input", help="File or folder of readings.")],
    fleet: Annotated[
        str | None,
        typer.Option(help="TOML file or name of a shipped fleet. Default: columns named as in the model."),
    ] = None,
    unit: Annotated[str | None, typer.Option(help="Only this unit; --output draws it.")] = None,
    windows: Annotated[int, typer.Option(help="Maximum number of windows.", min=1)] = WINDOWS,
    hide: Annotated[bool, typer.Option(help="Hide cycles to measure faithfulness.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random cycles.", min=0)] = 0,
    cycle: Annotated[
        int | None,
        typer.Option(help="Show only where this cycle of the unit looks; see `rul export --with-map`."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--output", "--out", help="Picture of --unit, or of the longest unit. Needs matplotlib."
        ),
    ] = None,
) -> None:
    """Show a bundle's attention; see HELP."""
    from export.attention import head_redundancy, report_heads  # noqa: PLC0415 with ONNX Runtime

    if out is not None:
        require_matplotlib()
    session, manifest = _opened(bundle)
    units, chosen = _windows(manifest, data, fleet=fleet, unit=unit, most=windows)
    if cycle is not None:
        _show_cycle(session, manifest, max(units, key=len), cycle=cycle, out=out)
        return
    answers = session.answer_all(chosen)
    console = Console()
    console.print(heads_table(manifest, report_heads(answers, chosen.lengths, manifest), chosen))
    if "head_attention" in answers and answers["head_attention"].shape[1] > 1:
        apart = head_redundancy(answers["head_attention"], chosen.lengths)
        console.print(redundancy_table(apart))
        console.print(redundant_pairs(apart), highlight=False)
    if long_enough(chosen).any():
        _measure(session, manifest, chosen, answers, hide=hide, seed=seed)
    else:
        tell(f"No window has {fewest_cycles(chosen)} cycles with readings: faithfulness was not measured.")
    if out is not None:
        from export.attention_picture import attention_picture  # noqa: PLC0415 with matplotlib

        save_picture(attention_picture(session, manifest, max(units, key=len)), out)
        say(str(out))


def _opened(name: str) -> tuple[Session, Manifest]:
    """Open a bundle, or a run's network as export would write it."""
    from export.session import open_bundle  # noqa: PLC0415 with ONNX Runtime

    if not (Path(name) / "run.json").is_file():
        return open_bundle(find_bundle(name))
    import torch  # noqa: PLC0415 takes seconds

    from export.handover import export_bundle  # noqa: PLC0415 with torch
    from model.checkpoint import Checkpoint  # noqa: PLC0415 with torch

    torch.set_num_threads(1)  # as in `rul export`
    with tempfile.TemporaryDirectory() as folder:
        export_bundle(Checkpoint.load(Path(name)), Path(folder) / "bundle")
        return open_bundle(BundleFolder(Path(folder) / "bundle"))


def _measure(
    session: Session,
    manifest: Manifest,
    windows: WindowSet,
    answers: Mapping[str, FloatArray],
    *,
    hide: bool,
    seed: int,
) -> None:
    """Print figures of the evidence, or of the attention without it."""
    from export.attention import asked, bundle_sensitivity, end_weights, sentences  # noqa: PLC0415

    console, figures = Console(), sensitivity_figures(bundle_sensitivity(session, manifest, windows))
    if hide:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("hiding cycles", total=None)

            def watch(done: int, total: int) -> None:
                progress.update(task, completed=done, total=total)

            ask, typical = asked(session, manifest), Typical(manifest).of(windows.readings)
            found = measure_faithfulness(ask, windows, typical, seed=seed, watch=watch)
        hidden = faithfulness_figures(found)
        console.print(faithfulness_table(manifest, found, hidden))
        figures |= hidden
        for said in sentences(end_weights(answers, windows.lengths, found)):
            console.print(said, highlight=False)
    console.print(figures_table(manifest, figures))


def figures_table(manifest: Manifest, figures: Mapping[str, Figure]) -> Table:
    """Tabulate figures with their intervals and meanings; figures without a value are omitted."""
    table = Table(title=f"{manifest.name}: what the explanation is worth", show_lines=True)
    for heading in ("figure", "value, 95 %\ninterval", "meaning"):
        table.add_column(heading)
    known = {name: figure for name, figure in figures.items() if np.isfinite(figure.value)}
    for name, meaning in meanings(known, explains_readings=manifest.explains_readings).items():
        table.add_row(meaning.title, stacked(known[name], digits=2), meaning.sentence)
    return table


def _show_cycle(
    session: Session, manifest: Manifest, trajectory: Trajectory, *, cycle: int, out: Path | None
) -> None:
    """Print where one cycle looks, and draw the map of its window."""
    from export.attention import map_of  # noqa: PLC0415 with ONNX Runtime

    found = map_of(session, manifest, trajectory)
    looks = found.looks(cycle)
    table = number_table(f"{manifest.name}: where cycle {cycle} of unit {found.unit} looks", "head", "cycles")
    for head, weights in looks.items():
        best = np.argsort(-weights, kind="stable")[:LOOKED_AT]
        table.add_row(head, ", ".join(f"{found.cycles[i]} ({weights[i]:.0%})" for i in best.tolist()))
    Console().print(table)
    if out is not None:
        from export.attention_picture import map_picture  # noqa: PLC0415 with matplotlib

        save_picture(map_picture(manifest, found, cycle), out)
        say(str(out))


def heads_table(manifest: Manifest, reports: Sequence[HeadReport], windows: WindowSet) -> Table:
    """Tabulate the entropy, width and sinks of each head, and its share outside the band."""
    names = set(windows.unit.tolist())
    whose = f"unit {names.pop()}" if len(names) == 1 else counted(len(names), "unit")
    headings = ("entropy\nratio", "effective\ncycles", "first cycle\nweight", "last cycle\nweight")
    title = f"{manifest.name}: attention in {counted(len(windows), 'window')} of {whose}"
    table = number_table(title, "head", *headings)
    table.add_column("calibration,\nfull windows")
    for each in reports:
        table.add_row(
            each.head,
            f"{each.entropy_ratio:.2f}\n{each.entropy_low:.2f}..{each.entropy_high:.2f}",
            f"{each.effective_cycles:.1f}",
            f"{each.first_mass:.3f}\n{each.first_over_equal:.1f} x equal",
            f"{each.last_mass:.3f}\n{each.last_over_equal:.1f} x equal",
            _verdict(each),
        )
    return table


def redundancy_table(apart: FloatArray) -> Table:
    """Tabulate the divergence of each two heads: 0 is the same, 1 shares no cycle."""
    table = number_table("divergence between heads, bits", "head", *map(str, range(len(apart))))
    for head, row in enumerate(apart):
        cells = ("" if other == head else f"{value:.2f}" for other, value in enumerate(row))
        table.add_row(str(head), *cells)
    return table


def redundant_pairs(apart: FloatArray) -> str:
    """Name the pairs of heads that attend alike."""
    first, second = np.nonzero(np.triu(apart < SAME, k=1))
    pairs = ", ".join(f"{a} and {b}" for a, b in zip(first, second, strict=True))
    meaning = "Jensen-Shannon divergence: 0 the same, 1 no cycle shared."
    return f"{meaning} Redundant (below {SAME:g}): {pairs or 'none'}."


def faithfulness_table(manifest: Manifest, found: Faithfulness, figures: Mapping[str, Figure]) -> Table:
    """Tabulate how far the RUL moves when cycles are hidden, and when all other cycles are."""
    title = f"{manifest.name}: how far the RUL moves, cycles, {counted(len(found.group), 'window')}"
    title += "; 95 % interval below"
    most = "evident" if manifest.explains_readings else "attended"
    headings = (f"most\n{most}", "random", "last", f"{most} /\nrandom", f"{most} /\nlast")
    table = number_table(title, "cycles", *headings)
    for kind, verb in (("hidden", "hidden"), ("kept", "kept alone")):
        for share in found.shares:
            name = f"{kind}_{share * 100:g}"
            ratios = [figures[f"{name}_over_{other}"] for other in ("random", "last")]
            table.add_row(
                f"{share:.0%} {verb}",
                *(f"{figures[f'{name}_{choice}'].value:.1f}" for choice in CHOICES),
                *(stacked(ratio, digits=2) for ratio in ratios),
            )
        table.add_section()
    return table


def _windows(
    manifest: Manifest, data: Path, *, fleet: str | None, unit: str | None, most: int
) -> tuple[list[Trajectory], WindowSet]:
    """Read the units and cut at most `most` windows."""
    from model.readers import read_rows, read_trajectories  # noqa: PLC0415 with PyArrow

    if fleet is None:  # the data does not say which units have failed
        kind = fleet_of_schema(manifest.name, manifest.schema_of_columns)
        units = read_trajectories(data, kind, run_to_failure=False, allow_absent=True)
    else:
        kind = matching_fleet(manifest, fleet)
        units = read_rows(data, kind, with_groups=True)[0].trajectories(kind, run_to_failure=None)
    if unit is not None:
        units = [each for each in units if each.unit == unit]
        if not units:
            raise InvalidData(f"{data}: there is no unit {unit!r}")
    places = np.linspace(0, len(units) - 1, min(most, len(units))).round().astype(np.int64)
    chosen = [units[place] for place in places]
    return units, spread_windows(chosen, manifest, per_unit=most // len(chosen))


def _verdict(report: HeadReport) -> str:
    """Describe a head: uniform or single-cycle attention first, then its share outside the band."""
    band = "no band" if report.band is None else "{:.2f}..{:.2f}".format(*report.band)
    if report.entropy_ratio > EVEN:
        return f"{band}\nUNIFORM"
    if report.effective_cycles < ALONE or report.peak_weight >= HARD:
        return f"{band}\nONE CYCLE"
    if report.collapsed > ODD:
        return f"{band}\n{report.collapsed:.0%} COLLAPSED"
    if report.uniform > ODD:
        return f"{band}\n{report.uniform:.0%} UNIFORM"
    return band if report.band is None else f"{band}\n{1 - report.collapsed - report.uniform:.1%} inside"
