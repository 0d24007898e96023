"""The walk-throughs are true: their blocks apply to a copy of the repository, their commands pass there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.programs import ROOT, pasted

PAGES = sorted((ROOT / "docs" / "walkthroughs").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CHANGE = re.compile(r" file=(?P<file>\S+)(?: (?P<verb>after|before|replace)='(?P<anchor>.+)')?")
COPIED = ("model", "export", "service", "observability", "rul_client", "tests", "docs", "pyproject.toml")


@pytest.fixture
def copy(tmp_path) -> Path:
    """The parts of the repository that a walk-through changes or runs, with their compiled modules."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name)
        elif (ROOT / name).is_file():
            shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


def apply(change: re.Match[str], text: str, root: Path) -> None:
    """Create the file, or put the block after, before or in place of the one line that has the anchor."""
    path, verb, anchor = root / change["file"], change["verb"], change["anchor"]
    if verb is None:
        assert not path.exists(), f"{path} already exists"
        path.write_text(text, "utf-8")
        return
    lines = path.read_text("utf-8").splitlines(keepends=True)
    (found,) = (i for i, line in enumerate(lines) if anchor in line)
    start, end = {"after": (found + 1,) * 2, "before": (found,) * 2, "replace": (found, found + 1)}[verb]
    lines[start:end] = [text]
    path.write_text("".join(lines), "utf-8")


def run(commands: str, root: Path) -> None:
    """Run in the copy, with its modules before those of the environment."""
    pasted(commands, root, PYTHONPATH=str(root))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_walkthrough_apply_its_commands_pass_and_its_files_are_formatted(page, copy):
    commands, changed = 0, set()

    for language, options, text in BLOCK.findall(page.read_text("utf-8")):
        if change := CHANGE.fullmatch(options):
            apply(change, text, copy)
            changed.add(change["file"])
        elif language == "console":
            run(text, copy)
            commands += 1

    assert commands
    run(f"ruff format --check {' '.join(changed)}; ruff check {' '.join(changed)}", copy)
