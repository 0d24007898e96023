"""How the lines of a terminal are shared out among what there is to show. Numbers only.

Traffic is always there. Then come the units in danger and what the models answer: a few lines of each
before more of any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TABLE_HEAD: Final = 2
"""Headings, and the rule below them."""
URGENT_UNITS: Final = 3
FIRST_FIGURES: Final = 3
MORE_UNITS: Final = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """What there is, in lines.

    Attributes:
        head: What is always there, but for the traffic.
        protocols: Of the traffic.
        stages: Beside it, where its time went.
        models: Around the figures of the models: headings, and what is said below.
        figures: Of each model.
        units: The most urgent ones.
    """

    head: int
    protocols: int
    stages: int
    models: int
    figures: int
    units: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How many lines of each are shown; a table without any is left out, headings and all."""

    stages: int
    figures: int
    units: int


def layout(height: int, sizes: Sizes) -> Layout:
    """The most important of what there is, in so many lines.

    What matters less waits until all that matters more is there, so a taller terminal shows no less of
    anything.

    >>> layout(24, Sizes(head=2, protocols=2, stages=5, models=3, figures=16, units=10))
    Layout(stages=5, figures=4, units=5)
    """
    free_stages = min(sizes.protocols, sizes.stages)
    most = {"stages": sizes.stages, "figures": sizes.figures, "units": sizes.units}
    headings = {"stages": 0, "figures": sizes.models, "units": 1 + TABLE_HEAD}
    shown = {"stages": free_stages, "figures": 0, "units": 0}
    left = height - sizes.head - TABLE_HEAD - sizes.protocols
    for wanted in _by_importance(sizes, free_stages):
        if shown[wanted] == most[wanted]:
            continue
        left -= 1 + (0 if shown[wanted] else headings[wanted])
        if left < 0:
            break
        shown[wanted] += 1
    return Layout(**shown)


def _by_importance(sizes: Sizes, free_stages: int) -> list[str]:
    """What each further line should be of."""
    return [
        *["units"] * URGENT_UNITS,
        *["figures"] * FIRST_FIGURES,
        *["units"] * MORE_UNITS,
        *["stages"] * (sizes.stages - free_stages),
        *["figures"] * sizes.figures,
        *["units"] * sizes.units,
    ]
