"""Table of a training: gradient norm, and entropy and sinks of each head, from first to last check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from model.attention_figures import ENTROPY, FIRST, LAST
from model.training import Check

EVEN: Final = 0.98
"""A head with a larger entropy ratio distinguishes no cycles."""
COLLAPSED: Final = 0.1
"""A head with a smaller entropy ratio attends to about one cycle."""


def curve_table(curve: Sequence[Check]) -> Table | None:
    """Tabulate each head at the first and the last check; None where the curve has no heads."""
    first, last = curve[0].figures, curve[-1].figures
    heads = [name.removeprefix(f"{ENTROPY}_") for name in last if name.startswith(f"{ENTROPY}_")]
    if not heads:
        return None
    table = Table(title="training: attention on held-out units, first check .. last check")
    table.add_column("head")
    for heading in ("entropy ratio", "weight of first cycle", "weight of last cycle"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for head in heads:
        names = [f"{kind}_{head}" for kind in (ENTROPY, FIRST, LAST)]
        cells = (f"{first[name]:.2f} .. {last[name]:.2f}" for name in names)
        table.add_row(head, *cells, verdict(last[names[0]]))
    norms = (check.figures["gradient_norm"] for check in (curve[0], curve[-1]))
    table.caption = "gradient norm before clipping, first check .. last check: {:.2g} .. {:.2g}".format(
        *norms
    )
    return table


def verdict(entropy_ratio: float) -> str:
    """Name degenerate attention."""
    if entropy_ratio > EVEN:
        return "even"
    return "collapsed" if entropy_ratio < COLLAPSED else ""
