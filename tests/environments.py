"""Environments for tests of what is installed and what is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


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
