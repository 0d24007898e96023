"""The threat model: each of its tests exists, so that no row promises more than is shown."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line
    for line in (ROOT / "docs" / "security.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| attack")
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_a_row_of_the_threat_model_names_a_test_that_exists(row):
    *_, shown, _ = row.split("|")
    file, name = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", shown.strip()).groups()

    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), shown


def test_the_threat_model_has_rows():
    assert len(ROWS) > 15
