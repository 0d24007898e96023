"""Attention sinks and degenerate heads, by the numbers of the texts."""

import numpy as np
import pytest

from export.attention import end_weights, report_head, sentences
from export.attention_cli import heads_table
from model.faithfulness import Reply, measure_faithfulness
from tests.fakes import make_manifest
from tests.fleets import windows_of
from tests.unit.test_attention_reference import worked_example

T = 20
EVEN = np.full(T, 1 / T)
ON_FIRST = np.array([0.9] + [0.1 / (T - 1)] * (T - 1))
"""The weight on one token from which a head is said to do hard attention or to be degenerate."""


def judged(attention, used):
    """End weights of windows [W, T] whose RUL is the `used`-weighted sum of readings that hiding zeroes."""
    windows = windows_of(np.ones((len(attention), T, 1)))

    def ask(asked):
        readings = asked.readings
        return Reply(100 * (readings[:, :, 0] * used).sum(1), np.broadcast_to(used, readings.shape[:2]))

    found = measure_faithfulness(ask, windows, np.zeros((len(attention), T, 1), np.float32), draws=1)
    return end_weights({"attention": attention}, windows.lengths, found)


def test_weight_on_a_cycle_that_the_answer_does_not_use_is_a_sink():
    (end,) = judged(np.tile(ON_FIRST, (10, 1)), used=EVEN)

    assert (end.head, end.place, end.verdict) == ("mean", "first", "sink")
    assert end.weight == end.steady == pytest.approx(0.9)
    assert end.over_equal == pytest.approx(18.0)
    assert end.effect == pytest.approx(0.05)
    (said,) = sentences([end])
    assert "90% of the weight is on the first cycle (18.0 x equal)" in said
    assert "has 5.0% of the effect" in said
    assert "SINK" in said


@pytest.mark.parametrize(
    ("attention", "used", "verdict"),
    [
        ([ON_FIRST] * 10, ON_FIRST, "earned"),  # hiding the cycle moves the answer as much
        ([ON_FIRST] * 5 + [EVEN] * 5, EVEN, "content decides"),
        ([ON_FIRST] * 10, np.zeros(T), "sink"),  # no cycle moves the answer
    ],
)
def test_the_same_weight_is_judged_by_what_hiding_the_cycle_moves(attention, used, verdict):
    (end,) = judged(np.array(attention), used=used)

    assert end.verdict == verdict
    assert ("rests on this cycle as well" in sentences([end])[0]) is (verdict == "earned")


def test_the_last_cycle_can_be_a_sink_too_and_even_attention_has_none():
    (end,) = judged(np.tile(ON_FIRST[::-1], (10, 1)), used=EVEN)

    assert (end.place, end.verdict) == ("last", "sink")
    assert sentences(judged(np.tile(EVEN, (10, 1)), used=EVEN))[0].startswith("No sinks")


@pytest.mark.parametrize("cycles", [6, 60])
def test_nine_tenths_on_one_cycle_is_attention_to_one_cycle_however_long_the_window(cycles):
    weights = np.array([[0.9] + [0.1 / (cycles - 1)] * (cycles - 1)] * 3)

    assert "ONE CYCLE" in said_of(weights)


def test_the_worked_example_collapses_at_a_scale_of_one_half_and_is_nearly_even_at_eight():
    query, key, _ = worked_example()
    weights = {scale: (query @ key.T / scale).softmax(-1).numpy() for scale in (0.5, 2.0, 8.0)}

    ratio = {
        scale: report_head("0", each, np.full(6, 6), None).entropy_ratio for scale, each in weights.items()
    }

    assert "ONE CYCLE" in said_of(weights[0.5])
    assert "ONE CYCLE" not in said_of(weights[2.0])
    assert ratio[0.5] < 0.35 < ratio[2.0] < 0.93 < ratio[8.0]


def said_of(weights):
    lengths = np.full(len(weights), weights.shape[1])
    windows = windows_of(np.ones((len(weights), weights.shape[1], 1)))
    table = heads_table(make_manifest(), [report_head("0", weights, lengths, None)], windows)
    return next(iter(list(table.columns)[-1].cells))
