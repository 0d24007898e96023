"""One timer measures a stage of all requests, so inside it nothing may be waited for."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TIMED = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "service").rglob("*.py")
    if "metrics.stage(" in path.read_text()
)


def waits_inside_a_stage(source: str) -> list[int]:
    return [
        inner.lineno
        for block in ast.walk(ast.parse(source))
        if isinstance(block, ast.With)
        and any("metrics.stage(" in ast.unparse(item.context_expr) for item in block.items)
        for inner in ast.walk(block)
        if isinstance(inner, ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield)
    ]


@pytest.mark.parametrize("path", TIMED)
def test_nothing_is_waited_for_inside_a_stage(path):
    assert waits_inside_a_stage((ROOT / path).read_text()) == []


def test_a_wait_inside_a_stage_is_found():
    source = "async def f():\n    with desk.metrics.stage(1):\n        await g()\n"

    assert waits_inside_a_stage(source) == [3]
