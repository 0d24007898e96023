"""Documents: links lead somewhere, decisions are whole and in the index, lists name everything there is."""

import re
from pathlib import Path
from typing import get_args

import pytest
from typer.main import get_command

from service.core.queries import CautionCode
from tests.commands import application

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "adr").glob("0*.md"))


def commands(command, name="rul"):
    """Each command with its help."""
    for word, found in getattr(command, "commands", {}).items():
        yield from commands(found, f"{name} {word}")
    if not hasattr(command, "commands"):
        yield name, command.help


COMMANDS = dict(commands(get_command(application())))


def anchors(page: Path) -> set[str]:
    """What a link may name behind its #, as GitHub makes it from headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_to_files_and_headings_that_exist(page):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text("utf-8")):
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page

        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_context_decision_and_consequences_unless_another_supersedes_it(page):
    text = page.read_text("utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)

    assert headings == ["Context", "Decision", "Consequences"] or "**Superseded by [" in text


def test_every_decision_is_in_the_index():
    index = (ROOT / "docs" / "adr" / "README.md").read_text("utf-8")

    assert re.findall(r"^\| \[\d+\]\((.+?)\)", index, re.MULTILINE) == [page.name for page in DECISIONS]


def test_the_page_of_answers_says_when_each_warning_is_given():
    page = (ROOT / "docs" / "rul_states.md").read_text("utf-8")

    [table] = re.findall(r"^\| warning \|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [*get_args(CautionCode)]


def test_contributing_lists_every_long_run():
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    hostile = (ROOT / "tests" / "hostile").glob("*.py")
    runs = {path.stem for path in hostile if "__main__" in path.read_text("utf-8")}

    assert set(re.findall(r"python -m tests\.hostile\.(\w+)", page)) == runs


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command):
    assert f"{command} " in COMMANDS[command]
