"""Values that are no numbers, in a file that a user asks about: told once, and answered without."""

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

from model.writers import csv_text
from tests.tiny_bundle import FLEET, pumps


def rul_predict(*options):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RUL_")}
    return subprocess.run(
        [str(Path(sys.executable).with_name("rul")), "predict", *map(str, options)],
        env=clean, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip


def test_infinite_and_missing_values_are_told_once_on_stderr_and_answered_without(tiny_bundle, tmp_path):
    lines = csv_text(pumps(units=2, seed=5), FLEET.schema).decode().splitlines()
    for line, broken in ((1, "inf"), (3, "-inf"), (4, "")):
        lines[line] = ",".join([*lines[line].split(",")[:-1], broken])
    path = tmp_path / "pumps.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    done = rul_predict("--bundle", tiny_bundle.path, "--input", path, "--last", "--format", "csv")

    assert done.stderr.splitlines() == [
        "infinite values, read as missing: 2",
        f"  {path}, column 'current': 2, the first in line 2",
        f"missing values, of {len(lines) - 1} readings: current 1",
    ]
    assert [float(row["rul"]) >= 0 for row in csv.DictReader(io.StringIO(done.stdout))] == [True, True]
