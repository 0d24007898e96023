"""What follows from a batch's outputs, for all of its windows at once."""

from dataclasses import replace

import numpy as np
import pytest

from model.domain import RulState
from service.core.answers import Answers, entropy_reference
from service.core.batcher import stacked
from tests.fakes import fake_outputs, make_manifest, make_window

MANIFEST = make_manifest(heads=2)


@pytest.fixture
def answers():
    windows = [make_window(30.0, cycles=4), make_window(125.0, cycles=8), make_window(60.0, cycles=1)]
    readings, lengths, last_cycle = stacked(windows)
    return Answers(fake_outputs(readings, lengths, MANIFEST), lengths, MANIFEST, last_cycle=last_cycle)


def test_each_window_has_its_own_state(answers):
    assert answers.states == [
        RulState.ESTIMATED,
        RulState.AT_LEAST_CAP,
        RulState.INSUFFICIENT_HISTORY,
    ]


@pytest.mark.parametrize(
    ("cycles", "last_cycle", "state"),
    [
        (2, 2.0, RulState.ESTIMATED),  # the unit's whole life
        (2, 1.0, RulState.ESTIMATED),  # the same, where cycles are numbered from 0
        (2, 3.0, RulState.INSUFFICIENT_HISTORY),  # its first cycle is missing
        (2, np.nan, RulState.INSUFFICIENT_HISTORY),  # nobody knows
        (3, 90.0, RulState.ESTIMATED),  # an old unit, but enough of it
    ],
)
def test_few_cycles_are_insufficient_unless_they_are_all_that_the_unit_has_lived(cycles, last_cycle, state):
    manifest = make_manifest(min_cycles=3)
    readings, lengths, _ = stacked([make_window(30.0, cycles=cycles)])

    outputs = fake_outputs(readings, lengths, manifest)

    assert Answers(outputs, lengths, manifest, last_cycle=np.array([last_cycle])).states == [state]


def test_entropy_is_over_its_largest_value_for_each_windows_own_length(answers):
    np.testing.assert_allclose(answers.entropy_ratio, [1.0, 1.0, np.nan], rtol=1e-6)
    np.testing.assert_allclose(answers.effective_cycles, [4.0, 8.0, 1.0], rtol=1e-6)


def test_heads_are_measured_before_any_averaging(answers):
    outputs = answers.outputs
    heads = np.zeros_like(outputs.head_attention)
    heads[:, 0, 0] = 1  # one looks at the first cycle alone
    heads[:, 1] = outputs.attention

    looked_at = Answers(
        replace(outputs, head_attention=heads), answers.lengths, MANIFEST, last_cycle=answers.last_cycle
    )

    np.testing.assert_allclose(looked_at.head_entropy_ratio, [[0, 1], [0, 1], [np.nan, np.nan]], atol=1e-6)


def test_some_of_the_answers_are_the_same_answers(answers):
    some = answers.only(np.array([True, False, True]))

    assert some.rul == [answers.rul[0], answers.rul[2]]
    assert some.states == [answers.states[0], answers.states[2]]
    assert some.last_cycle.tolist() == [answers.last_cycle[0], answers.last_cycle[2]]
    assert some.head_entropy_ratio.shape == (2, 2)


def test_a_head_without_a_reference_has_none():
    assert entropy_reference(MANIFEST).head == "mean"
    assert entropy_reference(MANIFEST, "7") is None
