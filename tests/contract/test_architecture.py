import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["model", "export", "service", "rul_client"])
def test_every_module_of_a_package_is_in_its_table(package):
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition(f"| in `{package}/` |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}

    modules = {path.stem for path in (ROOT / package).glob("*.py")}

    assert modules - named == {"__init__"}


PARTS = sorted(
    folder.parent
    for root in ("service", "rul_client")
    for folder in (ROOT / root).glob("**/*/__init__.py")
    if folder.parent.name != "proto"  # generated
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.relative_to(ROOT).as_posix())
def test_every_module_of_a_part_is_in_the_parts_row(part):
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    name = part.relative_to(ROOT).parts[0]
    (row,) = (
        line for line in text.splitlines() if line.startswith(f"| `{part.relative_to(ROOT / name)}/`: ")
    )
    named = re.findall(r"`(\w+)`", row.split("|")[1])

    modules = [path.stem for path in part.glob("*.py")]

    assert sorted(named) == sorted(set(modules) - {"__init__"})


def test_modules_have_at_most_350_lines_and_functions_at_most_50():
    paths = [
        path for part in ("model", "export", "service", "rul_client") for path in (ROOT / part).rglob("*.py")
    ]
    texts = {path: path.read_text(encoding="utf-8") for path in paths if path.parent.name != "proto"}

    long = [path.name for path, text in texts.items() if text.count("\n") > 350]
    for path, text in texts.items():
        nodes = ast.walk(ast.parse(text))
        functions = [each for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        long += [f"{path.name}: {each.name}" for each in functions if each.end_lineno - each.lineno > 50]

    assert texts
    assert long == []


def test_the_layers_that_are_drawn_are_the_layers_that_are_checked():
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (checked,) = (c["layers"] for c in contracts if c.get("containers") == ["service"])

    drawn = re.search(r"## Layers.*?```\n(.*?)```", text, re.DOTALL)

    assert drawn is not None
    assert drawn[1].splitlines() == checked


def test_one_window_passes_at_most_twelve_files_and_thirty_changes_of_file():
    environment = os.environ | {"RUL_GRPC_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "tools/count-path"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    # The least of each median: threads take some calls more on a busy machine.
    least = {line[:12].strip(): re.findall(r"\((\d+)\)", line) for line in done.stdout.splitlines()[1:]}

    assert least.keys() == {"JSON", "gRPC", "OIP binary", "OIP gRPC"}
    assert {name: row for name, row in least.items() if int(row[1]) > 12 or int(row[2]) > 30} == {}
