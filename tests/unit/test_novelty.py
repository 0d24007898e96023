"""Four ways to be unlike the training windows, and what must not look like one."""

import numpy as np
import pytest
import torch

from model.layers import Scaled, cycles_after, valid_cycles
from model.novelty import Novelty, Statistics

COLUMNS, CYCLES = 4, 30


def windows(count, *, seed):
    """Four columns: the first two say nearly the same, the fourth is always 7."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, CYCLES, COLUMNS)).astype(np.float32) + rng.normal(size=(count, 1, 1)).astype(
        np.float32
    )
    x[:, :, 1] = x[:, :, 0] + 0.3 * rng.normal(size=(count, CYCLES))
    x[:, :, 3] = 7.0
    return torch.from_numpy(x)


def statistics(readings, lengths=None):
    """Of readings that are their own z-scores, but for the constant column."""
    lengths = torch.full((len(readings),), readings.shape[1]) if lengths is None else lengths
    after = cycles_after(readings, lengths)
    observed = valid_cycles(after).unsqueeze(-1) & ~torch.isnan(readings)
    z = torch.where(observed, readings, 0.0)
    z[:, :, 3] = torch.where(observed[:, :, 3], z[:, :, 3] - 7.0, 0.0)
    scaled = Scaled(z, z, observed, after)
    return Novelty(COLUMNS, context=CYCLES).statistics(scaled, readings, lengths), lengths


@pytest.fixture(scope="module")
def novelty():
    made = Novelty(COLUMNS, context=CYCLES)
    found, lengths = statistics(windows(2000, seed=0))
    made.fit(found.rows().numpy(), lengths.numpy())
    return made


@pytest.fixture
def new():
    return windows(200, seed=1)


def test_new_windows_of_the_same_kind_are_not_novel(novelty, new):
    assert (novelty(*statistics(new)) > 1).float().mean() < 0.03


def frozen(readings):
    readings[:, :, 2] = readings[:, :1, 2]


def scattered(readings):
    readings[:, :, 2] += 3 * torch.randn(readings.shape[:2], generator=torch.Generator().manual_seed(0))


def apart_from_its_companion(readings):
    readings[:, :, 1] += 3.0


def moved_though_constant(readings):
    readings[:, 15:, 3] = 8.0


@pytest.mark.parametrize(
    ("change", "least"),
    [(frozen, 2), (scattered, 2), (apart_from_its_companion, 1.5), (moved_though_constant, 2)],
)
def test_a_column_that_behaves_otherwise_is_novel_within_its_own_range(novelty, new, change, least):
    change(new)

    assert novelty(*statistics(new)).median().item() > least


def test_a_missing_column_is_not_novel(novelty, new):
    new[:, :, 2] = torch.nan

    assert (novelty(*statistics(new)) > 1).float().mean() < 0.1


def test_two_chance_repeats_are_not_novel_where_training_readings_never_repeat(novelty, new):
    new[:, 10:12, 2] = new[:, 9:10, 2]

    assert (novelty(*statistics(new)) > 1).float().mean() < 0.03


def test_what_stands_on_padding_is_not_looked_at(novelty, new):
    lengths = torch.full((len(new),), 10)
    other = new.clone()
    other[:, 10:] = 1e30

    torch.testing.assert_close(novelty(*statistics(new, lengths)), novelty(*statistics(other, lengths)))


def test_a_window_of_one_cycle_has_no_habits(new):
    found, _ = statistics(new[:, :1])

    assert all(each.abs().max() == 0 for each in (found.steps, found.repeats, found.pairs))


def test_short_windows_are_expected_to_scatter_more():
    novelty = Novelty(1, context=60)
    novelty.noise[:] = 8.0
    found = Statistics.of_rows(torch.tensor([[3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]] * 2))

    few, many = novelty(found, torch.tensor([1, 60])).tolist()

    assert few == pytest.approx(1.0)
    assert many > 2.5


@pytest.mark.parametrize("whole", [1, 2])
def test_hardly_a_window_of_full_length_is_completed_by_the_longest_ones(new, whole):
    made, readings = Novelty(COLUMNS, context=CYCLES), windows(500, seed=0)
    lengths = torch.from_numpy(np.random.default_rng(0).integers(5, CYCLES, len(readings)))
    lengths[:whole] = CYCLES
    found, _ = statistics(readings, lengths)

    made.fit(found.rows().numpy(), lengths.numpy())

    assert all(torch.isfinite(buffer).all() for buffer in made.buffers())
    assert (made(*statistics(new)) > 1).float().mean() < 0.1
    apart_from_its_companion(new)
    assert made(*statistics(new)).median().item() > 1.5
