from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from model.layers import (
    RECENT_CYCLES,
    RaggedBiLstm,
    Standardise,
    change_weights,
    cycle_age,
    cycles_after,
    features_of_change,
    valid_cycles,
)
from model.network import Distribution, NetworkConfig
from model.networks import build_network

CONFIG = NetworkConfig(
    network="flagship",
    columns=4,
    settings=(0,),
    regimes=2,
    context=15,
    cap=100.0,
    horizons=(10, 30),
    coverage=0.9,
    critical_below=20.0,
    degrading_below=60.0,
    hidden=8,
    heads=5,
    perceptron=8,
    attention=5,
)
NAN = torch.nan
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def net():
    torch.manual_seed(0)
    net = build_network(CONFIG)
    net.standardise.centre.copy_(torch.tensor([[0.0], [10.0]]))
    net.oldest.fill_(200.0)
    return net.eval()


def batch(windows=5, cycles=15, seed=0):
    """Ragged windows, NaN past their ends."""
    generator = torch.Generator().manual_seed(seed)
    readings = torch.randn(windows, cycles, CONFIG.columns, generator=generator)
    lengths = torch.randint(1, cycles + 1, (windows,), generator=generator)
    lengths[0] = cycles
    readings[~valid_cycles(cycles_after(readings, lengths))] = torch.nan
    last_cycle = lengths + torch.arange(windows, dtype=torch.float32)
    last_cycle[-1] = torch.nan
    return readings, lengths, last_cycle


def test_the_rul_of_a_cycle_network_depends_on_a_cycle_through_its_attention_alone():
    """Give one cycle all the attention: the answer is what that cycle alone says, whatever the rest says."""
    torch.manual_seed(0)
    net = build_network(replace(CONFIG, network="amnl")).eval()
    score = torch.full((5, 15), -1e4)
    score[:, 0] = 0.0
    read_cycles = net.read_cycles
    net.read_cycles = lambda inputs: read_cycles(inputs)._replace(score=score)

    with torch.no_grad():
        estimate = net.estimate(*batch())

    torch.testing.assert_close(estimate.unclipped, net.baseline + estimate.contribution[:, 0])


def test_the_gradient_of_the_scale_stops_at_the_attention_weighted_sum(net):
    estimate = net.estimate(*batch())
    net.error_scale(estimate.context, estimate.unclipped.detach()[:, None]).sum().backward()

    touched = {name.split(".")[0] for name, p in net.named_parameters() if p.grad is not None}
    assert touched == {"scale"}


def standardise():
    layer = Standardise(columns=3, settings=(0,), regimes=2)
    layer.centre.copy_(torch.tensor([[0.0], [10.0]]))
    layer.setting_scale.fill_(10.0)
    layer.mean.copy_(torch.tensor([[0.0, 1.0, 2.0], [10.0, 5.0, 6.0]]))
    layer.standard_deviation.copy_(torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 4.0]]))
    return layer


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([[0.5, 2.0, 2.0], [10.0, 9.0, 2.0]], [[0.5, 1.0, 0.0], [0.0, 2.0, -1.0]]),
        ([[0, 2, 2], [0, 4, 2], [0, NAN, 2]], [[0, 1, 0], [0, 3, 0], [0, 2, 0]]),
        ([[0.0, NAN, 7.0], [0.0, NAN, 7.0]], [[0.0, 0.0, 5.0], [0.0, 0.0, 5.0]]),
        ([[0.0, 1e30, -1e30]], [[0.0, 10.0, -10.0]]),
    ],
    ids=["two regimes", "missing: the mean so far", "no reading: the regime's mean", "clipped"],
)
def test_readings_are_scaled_within_the_regime_of_their_settings(readings, expected):
    given = torch.tensor([readings])

    scaled = standardise()(given, torch.tensor([len(readings)]))

    assert scaled.z.tolist() == [expected]
    assert torch.equal(scaled.observed, ~torch.isnan(given))


@pytest.mark.parametrize(
    ("centres", "scale", "cycles", "expected"),
    [
        ([[300.0], [300.3]], 0.1, [[299.9], [300.4], [1e30], [-1e30]], [0, 1, 1, 0]),
        ([[0.0, 0.0], [1.0, 1.0]], 1.0, [[NAN, 1.0], [0.1, NAN], [NAN, NAN]], [1, 0, 0]),
    ],
    ids=["far from zero with a small spread", "missing settings"],
)
def test_the_known_settings_tell_the_regime(centres, scale, cycles, expected):
    layer = Standardise(columns=len(cycles[0]), settings=(*range(len(cycles[0])),), regimes=2)
    layer.centre.copy_(torch.tensor(centres))
    layer.setting_scale.fill_(scale)
    readings = torch.tensor([cycles])

    assert layer.regime(readings, ~torch.isnan(readings)).tolist() == [expected]


def test_rounding_does_not_choose_between_centres_that_the_known_settings_cannot_tell():
    layer = Standardise(columns=2, settings=(0, 1), regimes=2)
    layer.centre.copy_(torch.tensor([[35.0, 0.8403], [42.0, 0.84029999]]))
    readings = torch.tensor([[[torch.nan, mach] for mach in torch.linspace(0.8, 0.9, 99).tolist()]])

    single = layer.regime(readings, ~torch.isnan(readings))
    double = layer.double().regime(readings.double(), ~torch.isnan(readings))

    assert single.tolist() == double.tolist() == [[0] * 99]


@pytest.mark.parametrize("length", [1, 2, 8, 13, 25])
def test_features_of_change_agree_with_numpy(length):
    z = torch.randn(2, 25, 3, generator=torch.Generator().manual_seed(1))

    lengths = torch.full((2,), length)
    change = features_of_change(z, cycles_after(z, lengths), change_weights(25)[lengths])
    mean, recent, trend = change.chunk(3, dim=-1)

    x = z[:, :length].double().numpy()
    slope = np.stack([np.polyfit(np.arange(length), w, 1)[0] for w in x]) if length > 1 else np.zeros((2, 3))
    np.testing.assert_allclose(mean, x.mean(1), atol=1e-5)
    np.testing.assert_allclose(recent, x[:, -RECENT_CYCLES:].mean(1), atol=1e-5)
    np.testing.assert_allclose(trend, slope * length, atol=1e-4)


def test_features_of_change_keep_their_digits_far_from_zero():
    place = torch.arange(100.0, dtype=torch.float64)[None, :, None]
    z = 9.0 + torch.cat((0.0 * place, 0.001 * place, torch.sin(place)), dim=-1)  # float64 [1, T, 3]
    after = cycles_after(z, torch.tensor([100]))

    weights = change_weights(100)[[100]]

    change = features_of_change(z.float(), after.float(), weights).double()

    expected = features_of_change(z.float().double(), after, weights)
    torch.testing.assert_close(change, expected, atol=1e-6, rtol=0)


def test_each_cycle_knows_its_own_number():
    after = torch.tensor([[2.0, 1.0, 0.0, -1.0], [1.0, 0.0, -1.0, -2.0]])

    age = cycle_age(after, torch.tensor([7.0, torch.nan]), oldest=torch.tensor(100.0))

    expected = np.log1p([5.0, 6.0, 7.0]) / np.log1p(100.0)
    np.testing.assert_allclose(age[0, :3, 0], expected, rtol=1e-6)
    assert age[0, :, 1].tolist() == [1, 1, 1, 0]
    assert not age[1].any()
    assert not age[0, 3].any()


@pytest.mark.parametrize(
    ("last", "expected"),
    [(60.0, (1.0, 1.0)), (63.0, (0.0, 0.0)), (1e30, (0.0, 0.0)), (-1e30, (0.0, 1.0)), (0.0, (0.0, 1.0))],
)
def test_cycle_numbers_far_beyond_those_of_training_are_unknown_and_nearer_ones_the_oldest(last, expected):
    age = cycle_age(torch.tensor([[0.0]]), torch.tensor([last]), oldest=torch.tensor(50.0))

    assert tuple(age[0, 0].tolist()) == expected


@pytest.mark.parametrize("size", [1.0, 300.0], ids=["small readings", "large readings"])
def test_a_ragged_lstm_answers_as_pytorchs_packed_sequences(size):
    torch.manual_seed(0)
    layer = RaggedBiLstm(3, 4).eval()
    x = size * torch.randn(4, 9, 3)
    lengths = torch.tensor([9, 4, 9, 1])

    with torch.no_grad():
        found = layer(x, torch.arange(9) < lengths[:, None])

        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        expected, _ = pad_packed_sequence(layer.lstm(packed)[0], batch_first=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert {f"lstm.{name}" for name in layer.lstm.state_dict()} == set(layer.state_dict())


def test_a_ragged_lstm_computes_in_half_precision():
    layer = RaggedBiLstm(3, 4).eval().half()

    found = layer(torch.ones(2, 3, 3).half(), torch.tensor([[True] * 3, [True, False, False]]))

    assert found.isfinite().all()
    assert not found[1, 1:].any()


def test_the_distribution_inverts_its_own_quantiles():
    distribution = Distribution(CONFIG)

    _, low, steep = distribution.tables(torch.tensor([[0.0], [CONFIG.cap]]))
    below = distribution.probability_below(distribution.quantile, low, steep)

    torch.testing.assert_close(below, distribution.probability.repeat(2, 1))


def test_answers_at_the_cap_have_an_interval_and_a_table_of_their_own():
    distribution = Distribution(CONFIG)
    distribution.interval[1] = torch.tensor([-4.0, 0.0])
    distribution.quantile[1] *= 2.0

    interval, failure, _ = distribution(torch.tensor([[97.0], [99.0]]), torch.tensor([[20.0], [20.0]]))

    assert interval.tolist() == [[57.0, 100.0], [19.0, 100.0]]
    assert failure[0, 1] < 0.01 < failure[1, 1]


@pytest.mark.parametrize(("rul", "upper"), [(87.9, 97.9), (88.1, 100.0)])
def test_an_upper_bound_near_the_cap_is_the_cap(rul, upper):
    interval, _, _ = Distribution(CONFIG)(torch.tensor([[rul]]), torch.tensor([[5.0]]))

    assert interval[0].tolist() == pytest.approx([rul - 10.0, upper])


def test_a_unit_that_runs_has_not_failed_yet():
    """Half of this table's probability is below 0: it is no probability of failing soon."""
    distribution = Distribution(replace(CONFIG, horizons=(10, 30, 60)))

    _, failure, health = distribution(torch.tensor([[0.0], [0.0]]), torch.tensor([[20.0], [1e-6]]))

    below_0 = 0.5 - 0.5 / 120
    expected = [(0.5 + (horizon + 0.5) / 120 - below_0) / (1 - below_0) for horizon in (10, 30, 60)]
    assert failure[0].tolist() == pytest.approx([min(p, 1.0) for p in expected], abs=1e-6)
    assert failure[1].tolist() == pytest.approx([1.0, 1.0, 1.0])
    torch.testing.assert_close(health.sum(-1), torch.ones(2))


def test_interval_probabilities_and_health_come_from_one_distribution():
    distribution = Distribution(CONFIG)

    interval, failure, health = distribution(torch.tensor([[30.0], [99.0]]), torch.tensor([[5.0], [5.0]]))

    assert interval.tolist() == [[20.0, 40.0], [89.0, 100.0]]
    # Within 30 cycles is below 30.5: half a cycle of the 30 of this table is above its median, 30.
    assert failure[0, 1] == pytest.approx(0.5 + 0.5 / 30)
    assert health[0, 1] == pytest.approx(5 / 6 + 0.5 / 30)
    torch.testing.assert_close(health.sum(-1), torch.ones(2))
