import numpy as np
import pytest

from export.attention import head_redundancy, heads_of, report_head, sinks
from export.bundle import EntropyReference
from model.domain import InvalidData
from model.faithfulness import (
    FEWEST_CYCLES,
    Reply,
    faithfulness_figures,
    measure_faithfulness,
    rank_correlation,
    typical_readings,
)
from model.regimes import Regimes
from tests.fleets import windows_of

pytestmark = pytest.mark.usefixtures("one_thread")

T = 20
BAND = EntropyReference(head="mean", low=0.3, median=0.6, high=0.9).limits(T)


def uniform(lengths, cycles=T):
    valid = np.arange(cycles) < np.asarray(lengths)[:, None]
    return valid / valid.sum(1, keepdims=True)


def one_hot(count, at):
    attention = np.zeros((count, T))
    attention[:, at] = 1.0
    return attention


def test_uniform_attention_is_reported_as_uniform():
    lengths = np.array([5, 20])

    report = report_head("mean", uniform(lengths), lengths, BAND)

    assert report.entropy_ratio == pytest.approx(1.0)
    assert report.effective_cycles == pytest.approx(12.5)  # median of 5 and 20
    assert (report.collapsed, report.uniform) == (0.0, 1.0)
    assert report.first_over_equal == pytest.approx(1.0)
    assert report.last_over_equal == pytest.approx(1.0)


def test_attention_on_one_cycle_is_collapsed():
    report = report_head("mean", one_hot(3, at=7), np.full(3, T), BAND)

    assert report.entropy_ratio == 0.0
    assert report.effective_cycles == 1.0
    assert report.peak_weight == 1.0
    assert (report.collapsed, report.uniform) == (1.0, 0.0)


def test_sinks_are_the_first_and_the_last_valid_cycle():
    attention = np.array([[0.7, 0.1, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4]])

    first, last = sinks(attention, np.array([3, 4]))

    assert first.tolist() == [0.7, 0.1]
    assert last.tolist() == [0.2, 0.4]


def test_without_a_band_neither_collapse_nor_uniformity_is_claimed():
    report = report_head("0", uniform([T]), np.array([T]), None)

    assert np.isnan(report.collapsed)
    assert np.isnan(report.uniform)


def test_windows_of_one_cycle_leave_no_choice_and_do_not_count():
    lengths = np.array([1, T])

    alone = report_head("mean", uniform([1]), np.array([1]), BAND)
    beside = report_head("mean", np.concatenate([one_hot(1, at=0), one_hot(1, at=3)]), lengths, BAND)

    assert np.isnan(alone.entropy_ratio)
    assert np.isnan(alone.peak_weight)
    assert beside.first_mass == 0.0


def test_heads_are_reported_one_by_one_before_any_averaging():
    heads = np.stack([one_hot(2, at=0), one_hot(2, at=5)], axis=1)

    found = heads_of({"attention": heads.mean(1), "head_attention": heads})

    assert list(found) == ["mean", "0", "1"]
    assert report_head("0", found["0"], np.full(2, T), None).entropy_ratio == 0.0
    assert report_head("mean", found["mean"], np.full(2, T), None).effective_cycles == pytest.approx(2.0)


def test_redundancy_of_known_weights_is_the_jensen_shannon_divergence():
    heads = np.array([[[1.0, 0.0], [0.5, 0.5]]])

    apart = head_redundancy(heads, np.array([2]))

    middle = -(0.75 * np.log2(0.75) + 0.25 * np.log2(0.25))
    assert apart[0, 1] == pytest.approx(middle - 0.5)
    assert apart[0, 1] == apart[1, 0]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3], [2, 4, 9], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 1, 2], [1, 2, 3], np.sqrt(3) / 2),  # ties share their ranks: 1.5, 1.5, 3
        ([1, 1, 1], [1, 2, 3], 0.0),
    ],
)
def test_rank_correlation_is_spearmans(a, b, expected):
    assert rank_correlation(np.array(a, float), np.array(b, float)) == pytest.approx(expected)


class Weighted:
    """Answers 100 * sum of weight_t * reading_t, and says that it attends as it likes."""

    def __init__(self, weight, attention):
        self.weight, self.attention, self.asked = weight, attention, 0

    def __call__(self, windows):
        readings = windows.readings
        assert (windows.lengths == readings.shape[1]).all()
        self.asked += 1
        return Reply(
            100 * (readings[:, :, 0] * self.weight).sum(1),
            np.broadcast_to(self.attention, readings.shape[:2]),
        )


PEAK = np.array([0.25, 0.25, 0.2, 0.1] + [0.2 / 16] * 16)
"""The first four of twenty cycles carry four fifths of the answer."""


def measured(ask, **options):
    windows = windows_of(np.ones((6, T, 1)), unit=["a", "a", "b", "b", "c", "c"])
    return measure_faithfulness(ask, windows, np.zeros((6, T, 1), np.float32), **options)


def test_attention_that_carries_the_answer_beats_random_cycles_and_the_last_ones():
    figures = faithfulness_figures(measured(Weighted(PEAK, PEAK), draws=200))

    assert figures["hidden_20_attended"].value == pytest.approx(80.0)
    assert figures["hidden_20_last"].value == pytest.approx(5.0)
    assert figures["hidden_20_random"].value == pytest.approx(20.0, rel=0.1)
    assert figures["hidden_20_over_last"].value == pytest.approx(16.0)
    assert figures["kept_20_attended"].value == pytest.approx(20.0)
    assert figures["kept_20_last"].value == pytest.approx(95.0)
    assert figures["hidden_5_attended"].value == pytest.approx(25.0)


def test_attention_that_points_elsewhere_is_found_out():
    figures = faithfulness_figures(measured(Weighted(PEAK, PEAK[::-1])))

    assert figures["hidden_20_over_random"].value < 0.5
    assert figures["hidden_20_over_last"].value == pytest.approx(1.0)
    assert figures["agreement"].value < 0


def test_agreement_is_one_where_attention_ranks_cycles_as_hiding_them_does():
    weight = np.linspace(0.01, 0.09, T)

    assert measured(Weighted(weight, weight**2)).agreement == pytest.approx(1.0)


def test_uniform_attention_is_no_better_than_random():
    figures = faithfulness_figures(measured(Weighted(PEAK, np.full(T, 1 / T)), draws=200, seed=1))

    assert figures["hidden_50_over_random"].value == pytest.approx(1.0, abs=0.35)
    assert figures["agreement"].value == 0.0


def test_a_figure_over_a_move_of_nothing_has_no_value():
    """The answer does not depend on the readings at all."""
    figures = faithfulness_figures(measured(Weighted(np.zeros(T), PEAK)))

    assert np.isnan(figures["hidden_20_over_random"].value)
    assert figures["hidden_20_attended"].value == 0.0


def test_windows_too_short_to_hide_a_share_of_are_left_out():
    windows = windows_of(np.ones((2, 30, 1)), lengths=[FEWEST_CYCLES - 1, 30])

    def ask(asked):
        valid = np.arange(30) < asked.lengths[:, None]
        return Reply((asked.readings[:, :, 0] * valid).sum(1), valid / valid.sum(1, keepdims=True))

    assert measure_faithfulness(ask, windows, np.zeros((2, 30, 1), np.float32)).group.tolist() == ["1"]
    with pytest.raises(InvalidData, match="20 cycles or more"):
        measure_faithfulness(ask, windows.take(np.array([0])), np.zeros((1, 30, 1), np.float32))


def test_cycles_without_a_reading_are_neither_hidden_nor_ranked():
    readings = np.ones((1, 40, 1), np.float32)
    readings[0, ::2] = np.nan
    rng = np.random.default_rng(5)
    ranking, effect = rng.random((2, 40))
    ranking[::2] = 0.0

    def ask(asked):
        assert len(asked) > 0  # also where no window has a reading to hide
        assert np.isnan(asked.readings[:, ::2]).all()
        rul = np.nansum(asked.readings[:, :, 0] * effect, axis=1)
        return Reply(rul, np.tile(ranking, (len(asked), 1)))

    found = measure_faithfulness(ask, windows_of(readings), np.zeros((1, 40, 1), np.float32), draws=1)

    ranks = [values[1::2].argsort().argsort() for values in (ranking, effect)]
    assert found.agreement == pytest.approx(np.corrcoef(*ranks)[0, 1])
    few = windows_of(readings[:, :38])
    with pytest.raises(InvalidData, match="20 cycles or more"):
        measure_faithfulness(ask, few, np.zeros((1, 38, 1), np.float32))


def test_padding_is_never_hidden():
    windows = windows_of(np.ones((1, 30, 1)), lengths=[20])

    def ask(asked):
        assert (asked.readings[:, 20:] == 1).all()
        return Reply(asked.readings[:, :, 0].sum(1), uniform(asked.lengths, 30))

    measure_faithfulness(ask, windows, np.zeros((1, 30, 1), np.float32), draws=1)


def test_a_hidden_cycle_reads_its_own_regimes_mean_and_misses_what_it_missed():
    regimes = Regimes(np.array([[0.0], [10.0]]), np.ones(1))
    mean = np.array([[0.1, 5.0], [9.9, 50.0]])
    readings = np.array([[[0.0, 1.0], [11.0, np.nan], [np.nan, 3.0]]])

    typical = typical_readings(readings, regimes, settings=(0,), mean=mean)

    np.testing.assert_allclose(typical, [[[0.1, 5.0], [9.9, np.nan], [np.nan, 5.0]]], rtol=1e-6)
