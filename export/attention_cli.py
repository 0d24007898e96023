"""`rul attention`: where a bundle looks, and whether that is where its answers come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from export.bundle import Manifest, find_bundle
from export.drawing import require_matplotlib, save_picture
from export.held_out import fleet_for
from model.domain import FloatArray, InvalidData, Trajectory, WindowSet
from model.fleet import Fleet, fleet_of_schema

if TYPE_CHECKING:
    from export.attention import HeadReport
    from export.session import Session
    from model.evaluation import Figure
    from model.faithfulness import Faithfulness

HELP = """
Show where a bundle's attention lies, for each head, and how far it can be trusted.

Windows end all over the units' lives. Cycles are then hidden (they take the training mean of their
regime): the most attended ones, random ones, and simply the last ones. Attention that carries the
answer moves the RUL further than both. --out draws one unit: at each cycle of its life, the cycles
it looked at.

Example: rul attention fd001 --input test_FD001.txt --unit 17 --out attention.png
"""

WINDOWS: Final = 300
"""In all, unless told: what `hide` takes seconds for."""
ODD: Final = 0.05
"""More windows than this outside the band, where one in a hundred is expected, deserve a word."""
EVEN: Final = 0.98
"""A median entropy ratio above this tells no cycles apart, whatever calibration saw."""
ALONE: Final = 1.5
"""Fewer effective cycles than this are one."""
SAME: Final = 0.01
"""Heads that are less than this apart, in bits, are one head twice."""


def add_attention(app: typer.Typer) -> None:
    """Add the command to `rul`."""
    app.command("attention", help=HELP)(attention)


def attention(
    bundle: Annotated[str, typer.Argument(help="Name of a shipped bundle, or a folder.")],
    *,
    data: Annotated[Path, typer.Option("--input", help="File or folder of readings.")],
    fleet: Annotated[
        str | None,
        typer.Option(help="A TOML file or a shipped fleet; left out: columns named as the model does."),
    ] = None,
    unit: Annotated[str | None, typer.Option(help="This unit alone; --out draws it.")] = None,
    windows: Annotated[int, typer.Option(help="Most windows, over all units.", min=1)] = WINDOWS,
    hide: Annotated[bool, typer.Option(help="Hide cycles, to see what the answers rest on.")] = True,
    seed: Annotated[int, typer.Option(help="Of the random cycles.", min=0)] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Picture to write, of --unit or the longest. Needs matplotlib.")
    ] = None,
) -> None:
    """Show a bundle's attention; see HELP."""
    from export.attention import bundle_faithfulness, head_redundancy, report_heads  # noqa: PLC0415
    from export.session import open_bundle  # noqa: PLC0415 with ONNX Runtime
    from model.faithfulness import fewest_cycles  # noqa: PLC0415

    if out is not None:
        require_matplotlib()
    session, manifest = open_bundle(find_bundle(bundle))
    units, chosen = _windows(manifest, data, fleet=fleet, unit=unit, most=windows)
    answers = session.answer_all(chosen.readings, chosen.lengths, chosen.last_cycle)
    console, screen = Console(), Console(stderr=True)
    console.print(heads_table(manifest, report_heads(answers, chosen.lengths, manifest), chosen))
    if "head_attention" in answers and answers["head_attention"].shape[1] > 1:
        apart = head_redundancy(answers["head_attention"], chosen.lengths)
        console.print(redundancy_table(apart))
        console.print(redundant_pairs(apart), highlight=False)
    if hide and (chosen.lengths >= fewest_cycles(chosen)).any():
        with Progress(console=screen, transient=True) as progress:
            task = progress.add_task("hiding cycles", total=None)
            found = bundle_faithfulness(
                session,
                manifest,
                chosen,
                seed=seed,
                watch=lambda done, total: progress.update(task, completed=done, total=total),
            )
        console.print(faithfulness_table(manifest, found))
    elif hide:
        screen.print(f"No window has {fewest_cycles(chosen)} cycles: nothing was hidden.", highlight=False)
    if out is not None:
        _draw(session, manifest, max(units, key=len), out)
        console.print(str(out), soft_wrap=True, highlight=False)


def heads_table(manifest: Manifest, reports: Sequence[HeadReport], windows: WindowSet) -> Table:
    """One row a head: how even, how wide, how much on the ends, and how often out of its band."""
    names = set(windows.unit.tolist())
    whose = f"unit {names.pop()}" if len(names) == 1 else f"{len(names)} units"
    table = Table(title=f"{manifest.name}: attention in {len(windows)} windows of {whose}")
    table.add_column("head")
    for title in ("entropy\nratio", "effective\ncycles", "first cycle\nweight", "last cycle\nweight"):
        table.add_column(title, justify="right")
    table.add_column("calibration's\nband")
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
    """How far apart each two heads look; 0 is the same, 1 shares no cycle."""
    table = Table(title="heads apart, bits")
    table.add_column("head")
    for head in range(len(apart)):
        table.add_column(str(head), justify="right")
    for head, row in enumerate(apart):
        table.add_row(
            str(head), *("" if other == head else f"{value:.2f}" for other, value in enumerate(row))
        )
    return table


def redundant_pairs(apart: FloatArray) -> str:
    """A line that names the heads which look at the same, or says that none do."""
    first, second = np.nonzero(np.triu(apart < SAME, k=1))
    pairs = ", ".join(f"{a} and {b}" for a, b in zip(first, second, strict=True))
    meaning = "Jensen-Shannon divergence: 0 the same, 1 no cycle shared."
    return f"{meaning} Redundant (below {SAME:g}): {pairs or 'none'}."


def faithfulness_table(manifest: Manifest, found: Faithfulness) -> Table:
    """How far the RUL moves when cycles are hidden, and when all but those are."""
    from model.faithfulness import CHOICES, faithfulness_figures  # noqa: PLC0415

    figures = faithfulness_figures(found)
    several = len(set(found.unit.tolist())) > 1  # one unit says nothing of others
    doubt = "; 95 % over units below" if several else ""
    agreement = figures["agreement"]
    table = Table(
        title=f"{manifest.name}: how far the RUL moves, cycles, {len(found.unit)} windows{doubt}",
        caption=f"rank correlation of attention with hiding each cycle alone: {agreement.value:.2f}"
        + (f" ({agreement.low:.2f}..{agreement.high:.2f})" if several else ""),
    )
    table.add_column("cycles")
    for title in ("most\nattended", "random", "the last", "attended /\nrandom", "attended /\nthe last"):
        table.add_column(title, justify="right")
    for kind, verb in (("hidden", "hidden"), ("kept", "alone kept")):
        for share in found.shares:
            name = f"{kind}_{share * 100:g}"
            ratios = [figures[f"{name}_over_{other}"] for other in ("random", "last")]
            table.add_row(
                f"{share:.0%} {verb}",
                *(f"{figures[f'{name}_{choice}'].value:.1f}" for choice in CHOICES),
                *(_brief(ratio) if several else f"{ratio.value:.2f}" for ratio in ratios),
            )
        table.add_section()
    return table


def _windows(
    manifest: Manifest, data: Path, *, fleet: str | None, unit: str | None, most: int
) -> tuple[list[Trajectory], WindowSet]:
    """The units that are asked for, and at most so many windows of them."""
    from export.lives import spread_windows  # noqa: PLC0415 with ONNX Runtime
    from model.readers import read_trajectories  # noqa: PLC0415 with PyArrow

    kind = _plain_fleet(manifest) if fleet is None else fleet_for(manifest, fleet)
    # Without a fleet nothing says whether units have failed.
    units = read_trajectories(
        data, kind, run_to_failure=False if fleet is None else None, allow_absent=fleet is None
    )
    if unit is not None:
        units = [each for each in units if each.unit == unit]
        if not units:
            raise InvalidData(f"{data}: there is no unit {unit!r} to look at")
    windows = spread_windows(units, manifest, per_unit=max(1, most // len(units)))
    if len(windows) > most:
        windows = windows.take(np.linspace(0, len(windows) - 1, most).round().astype(np.int64))
    return units, windows


def _plain_fleet(manifest: Manifest) -> Fleet:
    return fleet_of_schema(manifest.name, manifest.schema_of_columns)


def _verdict(report: HeadReport) -> str:
    """First what is so in itself, for a band that calibration found even is even; then the band."""
    where = "no band"
    if report.reference is not None:
        where = f"{report.reference.low:.2f}..{report.reference.high:.2f}"
    if report.entropy_ratio > EVEN:
        return f"{where}\nEVEN everywhere"
    if report.effective_cycles < ALONE:
        return f"{where}\nONE CYCLE alone"
    if report.collapsed > ODD:
        return f"{where}\n{report.collapsed:.0%} COLLAPSED"
    if report.uniform > ODD:
        return f"{where}\n{report.uniform:.0%} UNIFORM"
    return (
        where if report.reference is None else f"{where}\n{1 - report.collapsed - report.uniform:.1%} inside"
    )


def _brief(figure: Figure) -> str:
    return f"{figure.value:.2f}\n{figure.low:.2f}..{figure.high:.2f}"


def _draw(session: Session, manifest: Manifest, unit: Trajectory, out: Path) -> None:
    from export.attention_picture import attention_picture  # noqa: PLC0415 with matplotlib

    save_picture(attention_picture(session, manifest, unit), out)
