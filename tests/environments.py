"""Environments for tests of installed and missing packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

WITHOUT_PANDAS: Final = str(Path(__file__).with_name("without_pandas"))


def clean_environment(**variables: str) -> dict[str, str]:
    """Return the variables of a command as for a user: only these settings, and no pandas.

    Users serve and train without pandas. If it is installed, pyarrow loads it, a second of CPU per command.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUL_")}
    path = os.pathsep.join(filter(None, (WITHOUT_PANDAS, kept.get("PYTHONPATH"))))
    return kept | {"PYTHONPATH": path} | variables


def borrowing_environment(folder: Path) -> Path:
    """Make an environment with the third-party packages of this one, but without this source tree.

    A `.pth` file adds the folder of the packages; `.pth` files in that folder, such as that of an editable
    installation, have no effect.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    (packages,) = folder.glob("lib/*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed), encoding="utf-8")
    return folder
