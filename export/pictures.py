"""Style of pictures; `model.screen` writes them. Matplotlib is imported only when a picture is drawn."""

from __future__ import annotations

import textwrap
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from model.screen import CannotDraw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours for colour-blind readers: Okabe and Ito, "Color universal design" (2008).
BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
VERMILLION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
SKY: Final = "#56B4E9"
BLACK: Final = "#000000"
GREY: Final = "#888888"
LETTERS: Final = 9
"""Letters of a title per inch."""
LEGEND: Final[dict[str, Any]] = {"frameon": True, "framealpha": 0.9, "edgecolor": "none"}


def require_matplotlib() -> None:
    """Fail early if matplotlib is missing."""
    try:
        found = find_spec("matplotlib")
    except ValueError:  # hidden on purpose
        found = None
    if found is None:
        raise CannotDraw("pictures need matplotlib: pip install 'rulserve[train]'")


def new_picture(*, width: float, height: float, title: str) -> Figure:
    """Create an empty picture with a title; sizes in inches."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(textwrap.fill(title, int(LETTERS * width)), fontsize=12)
    return figure


def quiet(axes: Axes, title: str = "", x: str = "", y: str = "") -> Axes:
    """Name a panel and its axes, remove the right and top frame and draw a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, fontsize=10)
    return axes
