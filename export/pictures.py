"""How all pictures look: colours that colour-blind eyes tell apart, quiet axes."""

from __future__ import annotations

from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito, "Color universal design" (2008).
BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
VERMILLION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
SKY: Final = "#56B4E9"
BLACK: Final = "#000000"
GREY: Final = "#888888"


def new_picture(*, width: float, height: float, title: str) -> Figure:
    """An empty picture in inches, which lays itself out."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=12)
    return figure


def quiet(axes: Axes) -> Axes:
    """No frame where there is no scale, and a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes
