"""Values that are no numbers, in a file that a user asks about: told once, and answered without."""

import csv
import io

from model.writers import csv_text
from tests.integration.conftest import rul
from tests.tiny_bundle import FLEET, pumps


def test_infinite_and_missing_values_are_told_once_on_stderr_and_answered_without(tiny_bundle, tmp_path):
    lines = csv_text(pumps(units=2, seed=5), FLEET.schema).decode().splitlines()
    for line, broken in ((1, "inf"), (3, "-inf"), (4, "")):
        lines[line] = ",".join([*lines[line].split(",")[:-1], broken])
    path = tmp_path / "pumps.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    done = rul("predict", "--bundle", tiny_bundle.path, "--input", path, "--last", "--format", "csv")

    assert done.stderr.splitlines() == [
        "infinite values, read as missing: 2",
        f"  {path}, column 'current': 2, the first in line 2",
        f"missing values, of {len(lines) - 1} readings: current 1",
    ]
    assert [float(row["rul"]) >= 0 for row in csv.DictReader(io.StringIO(done.stdout))] == [True, True]
