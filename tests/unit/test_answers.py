"""What follows from a batch's outputs, for all of its windows at once."""

import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from model.domain import RulState
from service.core.answers import Answers
from tests.fakes import RULES, asked_of, fake_answers, joined, make_manifest, make_windows, window_input

MANIFEST = make_manifest(heads=2)


@pytest.fixture
def answers():
    """Answers to windows of 4, 8 and 1 cycles."""
    windows, _ = joined(*(window_input(rul, cycles=n) for n, rul in ((4, 30.0), (8, 125.0), (1, 60.0))))
    return fake_answers(asked_of(windows), MANIFEST)


@pytest.mark.parametrize(
    ("cycles", "last_cycle", "state"),
    [
        (2, 2.0, RulState.ESTIMATED),  # the unit's whole life
        (2, 1.0, RulState.ESTIMATED),  # the same, where cycles are numbered from 0
        (2, 3.0, RulState.INSUFFICIENT_HISTORY),  # its first cycle is missing
        (2, np.nan, RulState.INSUFFICIENT_HISTORY),  # unknown
        (3, 90.0, RulState.ESTIMATED),  # an old unit, but enough of it
    ],
)
def test_few_cycles_are_insufficient_unless_they_are_all_that_the_unit_has_lived(cycles, last_cycle, state):
    windows = msgspec.structs.replace(make_windows(30.0, cycles=cycles), last_cycle=[last_cycle])

    assert fake_answers(asked_of(windows), make_manifest(min_cycles=3)).states == [state]


@pytest.mark.parametrize(("cycles", "novelty", "place"), [(2, 3.0, -1), (3, 3.0, -2), (3, 0.5, -3)])
def test_of_several_states_the_one_that_is_described_last_is_given(cycles, novelty, place):
    windows = msgspec.structs.replace(make_windows(125.0, cycles=cycles), last_cycle=[90.0])
    manifest = make_manifest(min_cycles=3)
    answers = fake_answers(asked_of(windows), manifest)
    strange = replace(answers.outputs, novelty=np.full(1, novelty, np.float32))

    states = Answers(answers.asked, strange, manifest, RULES).states

    assert states == [re.findall(r"`(\w+)`:", RulState.__doc__)[place]]


@pytest.mark.parametrize("novelty", [0.5, 3.0])
def test_a_rul_near_the_cap_is_the_cap_in_every_state(answers, novelty):
    rul = np.array([122.4, 122.6, 125.0], np.float32)
    near = replace(answers.outputs, rul=rul, novelty=np.full(3, novelty, np.float32))

    reported = Answers(answers.asked, near, MANIFEST, RULES).rul

    assert reported == pytest.approx([122.4, 125.0, 125.0])


def test_entropy_is_over_its_largest_value_for_each_windows_own_length(answers):
    np.testing.assert_allclose(answers.entropy_ratio, [1.0, 1.0, np.nan], rtol=1e-6)
    np.testing.assert_allclose(answers.effective, [4.0, 8.0, 1.0], rtol=1e-6)


def test_even_weights_have_the_largest_entropy_and_no_rounding_error_above_it(answers):
    even = np.full_like(answers.outputs.attention, np.float32(1 / 3 + 1e-7))
    even[:, 3:] = 0.0
    asked = replace(answers.asked, lengths=np.array([3, 3, 3]))

    looked_at = Answers(asked, replace(answers.outputs, attention=even), MANIFEST, RULES)

    assert looked_at.entropy_ratio.tolist() == [1.0, 1.0, 1.0]
    assert looked_at.effective == pytest.approx([3.0, 3.0, 3.0], rel=1e-12)


def test_heads_are_measured_before_any_averaging(answers):
    heads = np.zeros_like(answers.outputs.head_attention)
    heads[:, 0, 0] = 1  # one looks at the first cycle alone
    heads[:, 1] = answers.outputs.attention

    looked_at = Answers(answers.asked, replace(answers.outputs, head_attention=heads), MANIFEST, RULES)

    np.testing.assert_allclose(looked_at.head_entropy_ratio, [[0, 1], [0, 1], [np.nan, np.nan]], atol=1e-6)


def test_some_of_the_answers_are_the_same_answers(answers):
    some = answers.only(np.array([True, False, True]))

    assert some.rul == [answers.rul[0], answers.rul[2]]
    assert some.states == [answers.states[0], answers.states[2]]
    assert some.asked.lengths.tolist() == [4, 1]
    assert some.head_entropy_ratio.shape == (2, 2)
