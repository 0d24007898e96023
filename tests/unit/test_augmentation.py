"""Scales of columns, and what augmentation makes of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.augmentation import Augmentation, ColumnScales, measure_columns
from model.domain import Trajectory
from model.layers import Standardise
from model.training import TrainConfig

PLAIN = Standardise(columns=2, settings=(), regimes=1)
STILL = TrainConfig(
    age_jitter=0.0, age_missing=0.0, columns_missing=0.0, readings_missing=0.0, history_missing=0.0
)


def lives(units=40, cycles=60):
    """Column 0 keeps a level of its own for life; column 1 falls from one of its own to a common bound."""
    rng = np.random.default_rng(1)
    own = rng.normal(size=units)
    falls = np.linspace(1.0, 0.0, cycles)
    noise = rng.normal(0, (0.05, 0.2), size=(units, cycles, 2))
    readings = np.stack((np.outer(own, np.ones(cycles)), np.outer(2 + own, falls)), axis=-1) + noise
    return [
        Trajectory(str(n), np.arange(1, cycles + 1), unit.astype(np.float32), failed=True)
        for n, unit in enumerate(readings)
    ]


def test_noise_is_measured_from_cycle_to_cycle():
    assert measure_columns(lives(), PLAIN).noise == pytest.approx([0.05, 0.2], rel=0.1)


def test_the_noise_of_a_column_that_is_read_every_second_cycle_is_that_of_its_readings():
    units = lives()
    for unit in units:
        unit.readings[1::2, 0] = np.nan

    assert measure_columns(units, PLAIN).noise == pytest.approx([0.05, 0.2], rel=0.1)


def test_a_level_is_kept_for_life_and_one_that_falls_to_a_bound_is_not():
    kept = measure_columns(lives(), PLAIN).kept

    assert kept[0] == pytest.approx(1.0, abs=0.3)
    assert kept[1] < 0.4 * kept[0]


def test_missing_readings_do_not_spoil_the_scales():
    units = lives()
    for unit in units:
        unit.readings[::4, 0] = np.nan

    scales = measure_columns(units, PLAIN)

    assert np.isfinite([scales.noise, scales.kept]).all()
    assert scales.noise == pytest.approx([0.05, 0.2], rel=0.1)
    assert scales.kept[0] == pytest.approx(1.0, abs=0.3)


def augmented(*, windows, cycles, noise=(0.0, 0.0), kept=(0.0, 0.0), **changes):
    """Augment windows of zeros."""
    scales = ColumnScales(np.float32(noise), np.float32(kept))
    augment = Augmentation(replace(STILL, **changes), scales, torch.Generator().manual_seed(3))
    lengths = torch.full((windows,), cycles)
    return augment(torch.zeros(windows, cycles, 2), lengths, lengths + 4.0, PLAIN)[0]


def test_quiet_columns_get_less_noise_and_kept_levels_are_shifted():
    readings = augmented(windows=4000, cycles=5, noise=(0.0, 0.8), kept=(2.0, 0.0))

    assert readings[:, :, 0].std(1).max() < 1e-6
    assert readings[:, 0, 0].std().item() == pytest.approx(2.0 * STILL.offset, rel=0.05)
    assert readings[:, 0, 1].std().item() == pytest.approx(STILL.noise, rel=0.05)


def test_a_share_of_the_windows_loses_whole_cycles():
    missing = augmented(windows=2000, cycles=50, cycles_missing=0.25).isnan()

    assert torch.equal(missing[:, :, 0], missing[:, :, 1])
    share = missing[:, :, 0].float().mean(1)
    assert (share > 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert share[share > 0].mean().item() == pytest.approx(0.3, abs=0.03)
    assert share.max() < 0.85
    runs = (missing[:, 1:, 0] & ~missing[:, :-1, 0]).sum(1) + missing[:, 0, 0]
    assert (runs[share > 0.1] == 1).float().mean().item() == pytest.approx(0.5, abs=0.06)  # one gap
