"""The figures of docs/explanations.md: what is true is found true, what is not is not."""

import asyncio

import pytest
from msgspec.structs import replace

from export.bundle import find_bundle
from model.simulation import simulate
from rul_client.commands.predict.offline import open_offline
from service.core.queries import Trust
from tests.benchmarks.sentences import Checker, explained, leads
from tests.benchmarks.shuffled import shuffled_bundle


async def explain(bundle):
    async with open_offline(str(bundle)) as model:
        units = simulate(model.manifest, model.manifest.schema_of_columns, units=1, seed=4)
        return (await explained(model, units))[0]


@pytest.fixture(scope="module")
def case():
    """A simulated unit at its failure, as fd001 explains it: one sensor alone changes its answer."""
    return asyncio.run(explain("fd001"))


@pytest.fixture(scope="module")
def checker():
    return Checker("fd001")


def test_what_the_service_says_is_true(case, checker):
    assert len(checker.verdicts(case)) == 4  # three sensors, and all at once
    assert all(checker.verdicts(case))


@pytest.mark.parametrize(
    "change",
    [
        lambda clause: {"without": clause.without + 1},
        lambda clause: {"cycles": -clause.cycles},
        lambda clause: {"since_cycle": clause.since_cycle + 5},
        lambda clause: {"side": "below" if clause.side == "above" else "above"},
        lambda clause: {"text": clause.text.replace(" not ", " not 1")},
    ],
)
def test_a_clause_that_says_another_thing_is_false(case, checker, change):
    first, *others = case.explanation.clauses
    changed = replace(case.explanation, clauses=[replace(first, **change(first)), *others])

    assert checker.verdicts(case._replace(explanation=changed)) == [False, True, True, True]


def test_the_sensors_with_the_largest_contributions_lead(case):
    changed = replace(
        case.explanation, contributions={"a": [1.0, -5.0], "b": [4.0, 0.0], "c": [2.0], "d": [0.1]}
    )
    case = case._replace(explanation=changed)

    assert leads(case, frozenset("abc")) == (True, True)
    assert leads(case, frozenset("ad")) == (True, False)
    assert leads(case, frozenset("bcd")) == (False, False)


def test_shuffled_weights_are_unsupported(case, tmp_path):
    shuffled = asyncio.run(explain(shuffled_bundle(find_bundle("fd001"), tmp_path / "fd001", seed=0).path))

    assert case.prediction.trust == Trust.SUPPORTED
    assert shuffled.prediction.trust == Trust.UNSUPPORTED
    assert shuffled.explanation.skill < 0
