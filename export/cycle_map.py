"""Map of self-attention between the cycles of one window: pick a cycle, see where it looks.

Needs a bundle that was exported with the output `export.outputs.MAP`. This module must not know torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from export.attention import MEAN_HEAD
from export.bundle import Manifest
from export.evaluation_windows import spread_windows
from export.pictures import BLUE, VERMILLION, new_picture, quiet
from export.session import Session
from model.domain import FloatArray, IntArray, InvalidData, Trajectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS: Final = "cividis"


@dataclass(frozen=True, slots=True, eq=False)
class CycleMap:
    """Where each cycle of a window looks."""

    unit: str
    cycles: IntArray  # [n], the unit's own numbers
    weights: FloatArray  # [H, n, n]; row: the cycle that looks, column: the cycle that it looks at

    def looks(self, cycle: int) -> dict[str, FloatArray]:
        """Return the weights [n] of one cycle's look: the mean of the heads, then each head.

        Raises:
            InvalidData: the cycle is not in the window.
        """
        (where,) = np.nonzero(self.cycles == cycle)
        if not len(where):
            raise InvalidData(
                f"unit {self.unit} has no cycle {cycle} in its last window, "
                f"which holds {self.cycles[0]} to {self.cycles[-1]}"
            )
        rows = self.weights[:, where[0]]
        return {MEAN_HEAD: rows.mean(axis=0)} | {str(h): row for h, row in enumerate(rows)}


def map_of(session: Session, manifest: Manifest, trajectory: Trajectory) -> CycleMap:
    """Compute the map of a unit's last window."""
    window = spread_windows([trajectory], manifest, per_unit=1)
    length = int(window.lengths[0])
    weights = session.self_attention(window.readings, window.lengths, window.last_cycle)
    return CycleMap(trajectory.unit, trajectory.cycles[-length:], weights[0, :, :length, :length])


def map_picture(manifest: Manifest, found: CycleMap, cycle: int) -> Figure:
    """Draw the mean of the heads as a map, and where the picked cycle looks as bars."""
    looks = found.looks(cycle)[MEAN_HEAD]
    title = f"{manifest.name}: where the cycles of unit {found.unit} look, mean of {len(found.weights)} heads"
    figure = new_picture(width=11, height=5, title=title)
    every, one = figure.subplots(1, 2)
    first, last = found.cycles[0] - 0.5, found.cycles[-1] + 0.5
    image = every.imshow(
        found.weights.mean(axis=0), extent=(first, last, last, first), cmap=COLOURS, interpolation="nearest"
    )
    figure.colorbar(image, ax=every, label="weight")
    every.axhline(cycle, color=VERMILLION, linewidth=1.2)
    every.set_xlabel("cycle that is looked at")
    every.set_ylabel("cycle that looks")
    quiet(one).bar(found.cycles, looks, color=BLUE)
    one.axhline(1 / len(looks), color=VERMILLION, linewidth=1.2, linestyle="--", label="equal weights")
    one.set_xlabel("cycle that is looked at")
    one.set_ylabel("weight")
    one.set_title(f"cycle {cycle}", fontsize=10)
    one.legend(fontsize=8, frameon=False)
    return figure
