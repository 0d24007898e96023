import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_module_is_on_the_map():
    named = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")))

    modules = {
        path.stem for package in ("model", "export", "service") for path in (ROOT / package).glob("*.py")
    }

    assert modules - named == {"__init__"}
