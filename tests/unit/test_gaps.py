"""Gaps that training and calibration put into windows."""

import numpy as np
import torch

from model.domain import WindowSet
from model.gaps import LATE_CYCLES, gaps, with_gaps

WINDOWS, CYCLES = 4000, 40


def drawn(lengths):
    return gaps(lengths, CYCLES, torch.Generator().manual_seed(1))


def test_a_window_has_at_most_one_gap_and_keeps_two_fifths_of_its_cycles():
    lengths = torch.arange(WINDOWS) % CYCLES + 1

    lost = drawn(lengths)

    begins = lost[:, :1].sum(1) + (lost[:, 1:] & ~lost[:, :-1]).sum(1)
    assert begins.max() == 1
    assert (lost.sum(1) <= 0.6 * lengths).all()
    assert not lost[torch.arange(CYCLES)[None] >= lengths[:, None]].any()


def test_half_of_the_gaps_end_within_the_last_cycles():
    lost = drawn(torch.full((WINDOWS,), CYCLES))

    long = lost[lost.sum(1) >= 5]
    late = long[:, -LATE_CYCLES:].any(1)
    assert 0.5 < late.float().mean() < 0.65  # some of the others by chance
    assert 0.1 < long[:, -1].float().mean() < 0.25


def test_readings_beside_a_gap_stay():
    readings = np.arange(2 * 10 * 3, dtype=np.float32).reshape(2, 10, 3)
    numbers = np.full(2, 10.0, np.float32)
    windows = WindowSet(readings, np.full(2, 10), numbers, numbers, *[np.array(["a", "b"])] * 2, np.ones(2))

    gapped = with_gaps(windows, torch.Generator().manual_seed(2)).readings

    missing = np.isnan(gapped)
    assert missing.any(axis=(1, 2)).all()
    assert (missing == missing[:, :, :1]).all()
    assert (gapped[~missing] == readings[~missing]).all()
    assert not np.isnan(readings).any()
