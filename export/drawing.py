"""Whether pictures can be drawn and written here; for commands, which load matplotlib only to draw."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from model.domain import RulError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class CannotDraw(RulError):
    """Pictures that cannot be drawn or written here."""


def require_matplotlib() -> None:
    """Say at once what is missing, and not after the work is done.

    Raises:
        CannotDraw: matplotlib is not installed.
    """
    try:
        found = find_spec("matplotlib")
    except ValueError:  # hidden on purpose
        found = None
    if found is None:
        raise CannotDraw("pictures need matplotlib: pip install 'rulserve[train]'")


def save_picture(figure: Figure, path: Path) -> None:
    """Write a picture, in the format that its suffix names.

    Raises:
        CannotDraw: the file cannot be written, or no picture has such a suffix.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise CannotDraw(f"{path}: the picture cannot be written: {error}") from error
