"""Environments for tests of what is installed and what is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

WITHOUT_PANDAS: Final = str(Path(__file__).with_name("without_pandas"))


def clean_environment(**variables: str) -> dict[str, str]:
    """The variables of a command that is run as by a user: no settings of ours but these, and no pandas.

    Users serve and train without pandas. Where it is installed, pyarrow loads it: a second of CPU a command.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUL_")}
    path = os.pathsep.join(filter(None, (WITHOUT_PANDAS, kept.get("PYTHONPATH"))))
    return kept | {"PYTHONPATH": path} | variables


def borrowing_environment(folder: Path) -> Path:
    """Make an environment with the third-party packages of this one, and without our source tree.

    A `.pth` file lends the packages; other `.pth` files, such as that of an editable installation, have no
    effect in a borrowed folder.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    (packages,) = folder.glob("lib/*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed), encoding="utf-8")
    return folder
