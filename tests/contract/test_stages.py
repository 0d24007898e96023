"""A stage is the time between two lines: between them nothing may be waited for, but the store in its own."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAGED = {
    path.relative_to(ROOT).as_posix(): source
    for path in sorted((ROOT / "service").rglob("*.py"))
    if "stages.append(" in (source := path.read_text(encoding="utf-8"))
}
OWN_WAITS = {"Stage.STORE": 1}
"""Waits that a stage consists of."""
WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)


def ends_a_stage(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("stages.append")


def stages(source: str) -> list[list[int]]:
    """Of each stage, from `start = perf_counter()` to `stages.append(...)`, the lines of foreign waits."""
    found: list[list[int]] = []
    parents = list(ast.walk(ast.parse(source)))
    for block in [getattr(parent, name, None) for parent in parents for name in ("body", "orelse")]:
        begun = None
        for i, statement in enumerate(block if isinstance(block, list) else ()):
            if isinstance(statement, ast.Assign) and "perf_counter()" in ast.unparse(statement):
                begun = i
            elif begun is not None and any(map(ends_a_stage, ast.walk(statement))):
                inside = [node for each in block[begun : i + 1] for node in ast.walk(each)]
                own = sum(n for stage, n in OWN_WAITS.items() if stage in ast.unparse(statement))
                found.append([node.lineno for node in inside if isinstance(node, WAITS)][own:])
                begun = None
    return found


@pytest.mark.parametrize("path", STAGED)
def test_nothing_is_waited_for_inside_a_stage(path):
    found = stages(STAGED[path])

    assert len(found) == sum(map(ends_a_stage, ast.walk(ast.parse(STAGED[path]))))
    assert not any(found)


def test_a_second_wait_inside_the_stage_of_the_store_is_found():
    body = "    start = perf_counter()\n    await g()\n{}    stages.append((Stage.STORE, start))"

    assert stages("async def f():\n" + body.format("")) == [[]]
    assert stages("async def f():\n" + body.format("    await h()\n")) == [[4]]


def test_a_wait_inside_a_stage_is_found():
    source = "async def f():\n    start = perf_counter()\n    await g()\n    stages.append((1, start))"

    assert stages(source) == [[3]]
