"""Tables of Markdown, and files of benchmark results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path


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
