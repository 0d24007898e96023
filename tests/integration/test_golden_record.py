"""The recorded answers of every door, asked for again from the real process: `tests/golden/README.md`."""

import json
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from export.bundle import BUNDLED
from tests.golden.comparison import ANY, differences
from tests.golden.player import started
from tests.integration.conftest import FRONT_ENDS

FILES = sorted((Path(__file__).parents[1] / "golden").glob("*.json"))
CASES = {
    f"{file.stem}: {case['name']}": case
    for file in FILES
    for case in json.loads(file.read_text(encoding="utf-8"))["cases"]
}


@pytest.fixture(scope="module", params=FRONT_ENDS)
def player_of(request, tmp_path_factory):
    """The player of a service by its name; a service starts when a case first asks for it."""
    if not (BUNDLED / "fd001" / "model.onnx").is_file():
        pytest.skip("the bundles do not ship with this copy")
    with ExitStack() as stack:
        yield cache(
            lambda name: stack.enter_context(started(name, tmp_path_factory.mktemp(name), request.param))
        )


TOO_LARGE = {"refusals: grpc, message too large", "refusals: grpc, message that inflates"}
"""Beside uvicorn the library refuses these before the service knows of them, so they have no request id."""


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_the_recorded_one(player_of, name, request):
    case = CASES[name]

    answers = player_of(case["service"]).play([step["asked"] for step in case["steps"]])

    found = differences(answers, [step["answer"] for step in case["steps"]])
    is_refused_by_library = name in TOO_LARGE and "[uvicorn" in request.node.name
    assert found == (["/0/x-request-id: missing"] if is_refused_by_library else [])


@pytest.mark.parametrize(
    ("got", "place"),
    [
        ({"rul": 38.2001, "detail": "other words", "list": [1]}, "/rul"),
        ({"rul": 38.2, "list": [1]}, "/detail"),
        ({"rul": 38.2, "detail": "", "list": [1], "more": 1}, "/more"),
        ({"rul": 38.2, "detail": "", "list": [1, 2]}, "/list"),
        ({"rul": True, "detail": "", "list": [1]}, "/rul"),
    ],
)
def test_a_difference_is_found_and_named(got, place):
    recorded = {"rul": 38.2, "detail": ANY, "list": [1]}

    (difference,) = differences(got, recorded)

    assert difference.startswith(f"{place}:")
