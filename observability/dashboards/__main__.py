"""Write every dashboard's JSON: `python -m observability.dashboards`.

With `--check`, write nothing and exit with 1 if a file is not what would be written.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from observability.dashboards.render import rendered

FOLDER: Final = Path(__file__).parents[1] / "grafana" / "dashboards"


def main(arguments: list[str]) -> int:
    """Write or check the files; the exit code."""
    wanted = {FOLDER / f"{uid}.json": text for uid, text in rendered().items()}
    present = {path: path.read_text("utf-8") for path in FOLDER.glob("*.json")}
    stale = sorted(path for path in wanted | present if wanted.get(path) != present.get(path))
    if "--check" in arguments:
        for path in stale:
            sys.stderr.write(f"{path} is not current: run python -m observability.dashboards\n")
        return 1 if stale else 0
    for path in stale:
        if path in wanted:
            path.write_text(wanted[path], "utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
