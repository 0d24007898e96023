import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_module_is_on_the_map():
    named = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")))

    modules = {
        path.stem for package in ("model", "export", "service") for path in (ROOT / package).glob("*.py")
    }

    assert modules - named == {"__init__"}


PARTS = sorted(
    folder.parent.name
    for folder in (ROOT / "service").glob("*/__init__.py")
    if folder.parent.name not in {"proto", "observability"}  # generated, and named as a whole
)


@pytest.mark.parametrize("part", PARTS)
def test_every_module_of_a_part_is_in_the_parts_row(part):
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith(f"| `{part}/`: "))
    named = re.findall(r"`(\w+)`", row.split("|")[1])

    modules = [path.stem for path in (ROOT / "service" / part).glob("*.py")]

    assert sorted(named) == sorted(set(modules) - {"__init__"})
