"""Tables of Markdown, files of benchmark results, and pages that show them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

END: Final = "<!-- end -->"


def table(heads: Sequence[object], rows: Iterable[Sequence[object]], *, texts: int = 1) -> str:
    """Make a table whose first columns are texts; figures are aligned right."""
    aligned = f"|{'---|' * texts}{'---:|' * (len(heads) - texts)}"
    return "\n".join([line(heads), aligned, *map(line, rows)])


def line(cells: Sequence[object]) -> str:
    """Make one line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def keep(folder: Path, name: str, text: str, figures: object) -> None:
    """Print a report; write it to NAME.md, and its figures to NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    (folder / f"{name}.md").write_text(f"{text}\n", encoding="utf-8")
    print(text)


def publish(text: str, command: str, page: Path | None) -> None:
    """Print the report of a command; put it between the command's markers in a page, if there is one."""
    print(text)
    if page is not None:
        page.write_text(replaced(page.read_text("utf-8"), text, command), "utf-8")


def replaced(page: str, text: str, command: str) -> str:
    """Replace what a command made in a page.

    Raises:
        ValueError: the page has no markers.
    """
    begin = f"<!-- made by python -m {command} -->"
    made, found = re.subn(f"{begin}.*?{END}", lambda _: f"{begin}\n\n{text}\n\n{END}", page, flags=re.DOTALL)
    if not found:
        raise ValueError(f"expected a page with the markers {begin} and {END}")
    return made
