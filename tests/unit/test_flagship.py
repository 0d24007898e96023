"""`flagship`: what its contributions promise, with random weights and after training."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from model.flagship import (
    LAG_CYCLES,
    LEADING_SLOPE,
    deviation,
    first_gain,
    first_mix,
    first_slopes,
    share_of_cycles,
)
from model.layers import cycles_after, valid_cycles
from model.losses import rul_loss
from model.networks import build_network, network_config
from model.readout import Pools, ReadOut, secant
from tests.unit.test_networks_of_the_texts import FLEET, network, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT_CYCLES = 1e-3


@pytest.fixture(scope="module", params=["random weights", "trained"])
def net(request):
    trainer, *_ = trainer_of("flagship", steps=20, batch=32, check_every=20, learning_rate=1e-2)
    while request.param == "trained" and not trainer.done:
        trainer.update()
    return trainer.net.eval()


def batch(net, windows=24, seed=0):
    """Ragged windows around the training mean; some readings are missing, and one column of one window."""
    generator = torch.Generator().manual_seed(seed)
    cycles, columns = net.config.context, net.config.columns
    mean, deviation = net.standardise.mean[0], net.standardise.standard_deviation[0]
    readings = mean + deviation * 2.0 * torch.randn(windows, cycles, columns, generator=generator)
    lengths = torch.randint(1, cycles + 1, (windows,), generator=generator)
    lengths[0] = cycles
    readings[torch.rand(readings.shape, generator=generator) < 0.1] = torch.nan
    readings[1, :, -1] = torch.nan
    readings[~valid_cycles(cycles_after(readings, lengths))] = torch.nan
    last_cycle = lengths + 7.0
    last_cycle[2] = torch.nan
    return readings, lengths, last_cycle


def answered(net, windows):
    with torch.no_grad():
        return net(*windows), net.estimate(*windows).unclipped.double()


def test_a_cycles_contribution_is_that_of_its_readings_and_its_place(net):
    """What is left, the cycle's place, is linear in where the heads look."""
    readings, lengths, last_cycle = batch(net)
    got, _ = answered(net, (readings, lengths, last_cycle))

    own = got.contribution - got.sensor_contribution.sum(-1)

    last = (lengths - 1)[:, None]
    torch.testing.assert_close(own.gather(1, last), torch.zeros(len(lengths), 1), rtol=0, atol=EXACT_CYCLES)
    assert own.abs().max() > 1e-3


def test_a_reading_contributes_its_z_score_times_a_gate(net):
    """Beyond the gates, no reading of another cycle enters."""
    windows = batch(net)
    with torch.no_grad():
        scaled = net.standardise(windows[0], windows[1])
        count, cycles, columns = scaled.z.shape
        attention = torch.rand(count, net.config.heads, cycles).softmax(-1) * scaled.valid[:, None]
        lag = scaled.after[:, None].double()
        pools, values = net.pool(scaled.known, scaled.observed, attention.double(), lag)
        slope = torch.randn(count, net.config.heads + 1, columns, dtype=torch.float64)
        other = values.clone()
        other[:, 3:] *= -2.0

        one, two = pools.shares(slope, values), pools.shares(slope, other)

    torch.testing.assert_close(one[:, :3], two[:, :3], rtol=0, atol=0)
    torch.testing.assert_close(-2.0 * one[:, 3:], two[:, 3:])


def test_evidence_is_each_cycles_share_and_sums_to_one_without_any_reading(net):
    readings, lengths, last_cycle = batch(net)
    readings[3] = torch.nan
    got, _ = answered(net, (readings, lengths, last_cycle))

    weight = got.sensor_contribution.abs().sum(-1)

    torch.testing.assert_close(got.evidence.sum(-1), torch.ones(len(lengths)))
    some = torch.arange(len(lengths)) != 3
    torch.testing.assert_close(got.evidence[some], (weight / weight.sum(-1, keepdim=True))[some])
    torch.testing.assert_close(got.evidence[3], got.attention[3])


def test_the_baseline_is_the_answer_to_typical_readings(net):
    unclipped = torch.zeros(1)
    with torch.no_grad():
        net.baseline.copy_(net.reference_rul(unclipped))
        everything = net.read_out(
            torch.zeros(1, net.read_out.first.in_features).double(), net.head, unit=net.config.cap
        )

    torch.testing.assert_close(net.baseline, everything.value[0].float())


def test_pools_are_means_and_the_trend_of_what_was_observed():
    attention = torch.tensor([[[0.2, 0.3, 0.5], [1 / 3, 1 / 3, 1 / 3]]], dtype=torch.float64)
    place = torch.tensor([[[-1.0, -0.5, 0.0]]], dtype=torch.float64)
    observed = torch.tensor([[[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]], dtype=torch.float64)
    z = torch.tensor([[[1.0, 6.0], [2.0, 0.0], [3.0, -6.0]]], dtype=torch.float64)

    pooled = Pools.of(attention, place, observed).of_readings(z) * 0.6

    torch.testing.assert_close(pooled[0, 0], torch.tensor([2.3, (1.2 - 3.0) / 0.7], dtype=torch.float64))
    torch.testing.assert_close(pooled[0, 1], torch.tensor([2.0, 0.0], dtype=torch.float64))
    rising, falling = pooled[0, 2].tolist()
    assert rising > 0 > falling


def test_shares_of_pools_are_their_gradient_times_the_readings():
    torch.manual_seed(0)
    attention, place = torch.rand(3, 4, 6, dtype=torch.float64).softmax(-1), -torch.rand(3, 1, 6).double()
    observed = (torch.rand(3, 6, 5) < 0.8).double()
    z = (torch.randn(3, 6, 5).double() * observed).requires_grad_()
    slope = torch.randn(3, 5, 5, dtype=torch.float64)
    pools = Pools.of(attention, place, observed)

    (gradient,) = torch.autograd.grad((slope * pools.of_readings(z)).sum(), z)

    torch.testing.assert_close(pools.shares(slope, z), gradient * z)


def test_a_read_out_divides_its_answer_among_its_inputs_exactly():
    torch.manual_seed(0)
    read_out, head = ReadOut(7, 16).double(), nn.Linear(16, 1).double()
    x = 3.0 * torch.randn(20, 7, dtype=torch.float64)
    x[0] = 0.0

    answer = read_out(x, head, unit=2.0)

    torch.testing.assert_close(answer.reference + (answer.slope * x).sum(-1), answer.value)
    torch.testing.assert_close(answer.value[0], answer.reference)


def test_a_secant_is_the_slope_of_the_relu_between_two_points():
    u = torch.tensor([[3.0, -2.0, 1.0, 2.0, -2.0]])
    reference = torch.tensor([1.0, -1.0, -1.0, 2.0, -2.0])

    assert secant(u, reference).tolist() == [[1.0, 0.0, 0.5, 1.0, 0.0]]


def test_gradients_of_pools_and_read_out_are_those_of_finite_differences():
    torch.manual_seed(0)
    read_out, head = ReadOut(5, 6).double(), nn.Linear(6, 1).double()
    score, place = torch.randn(2, 3, 4).double().requires_grad_(), -torch.rand(2, 1, 4).double()
    observed = (torch.rand(2, 4, 3) < 0.7).double()
    z = torch.randn(2, 4, 3).double().requires_grad_()
    x = torch.randn(3, 5).double().requires_grad_()

    def pooled(score, z):
        pools = Pools.of(score.softmax(-1), place, observed)
        return pools.of_readings(z * observed), pools.shares(torch.ones(2, 4, 3).double(), z * observed)

    assert gradcheck(pooled, (score, z))
    assert gradcheck(lambda x: read_out(x, head, unit=2.0).value, (x,))
    assert gradcheck(lambda x: read_out(x, head, unit=2.0).slope, (x,))
    assert gradcheck(lambda z: share_of_cycles(z, torch.ones(2, 4).double() / 4), (z,))


@pytest.mark.parametrize("reads", [False, True])
def test_settings_contribute_where_they_are_read_and_not_where_they_only_tell_the_regime(reads):
    net = build_network(
        network_config(FLEET, network="flagship", regimes=2, options={"reads_settings": reads})
    ).eval()
    net.standardise.centre.copy_(torch.tensor([[40.0], [60.0]]))
    net.standardise.setting_scale.fill_(10.0)
    net.standardise.mean[:, 0] = torch.tensor([40.0, 60.0])
    with torch.no_grad():
        net.baseline.copy_(net.reference_rul(torch.zeros(1)))
    readings = torch.zeros(2, 12, len(FLEET.schema))
    readings[:, :, 0] = torch.tensor([[40.0], [60.0]])

    got, unclipped = answered(net, (readings, torch.tensor([12, 12]), torch.tensor([30.0, 30.0])))

    assert got.sensor_contribution[:, :, 0].sum(-1).bool().tolist() == [reads, reads]
    assert not got.sensor_contribution[:, :, 1:].any()  # typical readings of their regimes
    total = net.baseline + got.contribution.double().sum(-1) + got.window_contribution
    torch.testing.assert_close(total, unclipped, rtol=0, atol=EXACT_CYCLES)


def test_of_a_setting_that_is_read_the_mean_over_the_window_alone_counts():
    config = network("flagship", reads_settings=True).config

    gain = first_gain(config)

    assert gain[:, 0].tolist() == [0.0] * (config.heads - 1) + [1.0, 0.0]  # the last row is the trend
    assert (gain[:, 1:] == 1.0).all()


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8])
def test_any_number_of_heads_starts_from_steep_to_flat(heads):
    slopes, mix = first_slopes(heads), first_mix(heads, long_scale=0.1)

    assert slopes.shape == (heads - 1,)
    assert (slopes.diff() < 0).all()
    assert torch.linalg.matrix_rank(mix) == heads + 1
    assert mix.diag()[-2:].tolist() == pytest.approx([0.1, 0.1])  # mean and trend under the last head


def test_a_gap_before_the_last_cycle_is_not_one_long_ago(net):
    readings, lengths, last_cycle = (each[:1].repeat(2, *[1] * (each.ndim - 1)) for each in batch(net))
    readings = readings.nan_to_num(0.5)
    readings[0, 2:5] = torch.nan
    readings[1, -4:-1] = torch.nan

    with torch.no_grad():
        scaled = net.standardise(readings, lengths)
        lag, _, attention = net.look(scaled)
        pools, _ = net.pool(scaled.known, scaled.observed, attention.double(), lag.double())
        of_head = net.window(lengths, last_cycle, pools)[:, -net.config.heads :]

    steepest = 1
    assert of_head[1, steepest] > 3 * of_head[0, steepest]


def test_heads_but_the_searching_one_go_by_lag_alone(net):
    readings, lengths, last_cycle = batch(net)
    shuffled = readings.flip(0)
    shuffled[~valid_cycles(cycles_after(readings, lengths))] = torch.nan
    with torch.no_grad():
        one, two = (net(given, lengths, last_cycle).head_attention for given in (readings, shuffled))

    torch.testing.assert_close(one[:, 1:], two[:, 1:], rtol=0, atol=0)
    assert (one[:, 0] - two[:, 0]).abs().max() > 1e-3


def test_heads_but_the_searching_one_start_from_the_first_slopes():
    net = network("flagship")

    with torch.no_grad():
        heads = net(*batch(net)).head_attention

    falls = (-first_slopes(net.config.heads)).exp()[:, None].expand(-1, 11)
    torch.testing.assert_close(heads[0, 1:, :-1] / heads[0, 1:, 1:], falls)


def test_a_leading_column_is_read_in_longer_means_and_in_all_cycles_without_a_penalty():
    net = network("flagship")
    readings, lengths, _ = batch(net)

    net.fit_inputs(readings, lengths, leading=1)

    slopes = nn.functional.softplus(net.slope) / LAG_CYCLES
    torch.testing.assert_close(slopes, first_slopes(net.config.heads, flatter=LEADING_SLOPE))
    assert net.long_penalty == 0.0


def test_the_searching_head_weighs_cycles_of_equal_scores_equally_wherever_they_stand(net):
    windows, without_scores = batch(net), deepcopy(net)
    with torch.no_grad():
        without_scores.score[2].weight.zero_()
        heads = without_scores(*windows).head_attention

    even = valid_cycles(cycles_after(windows[0], windows[1])) / windows[1][:, None]
    torch.testing.assert_close(heads[:, 0], even)
    assert heads[0, 1, -1] > 1.5 * heads[0, 0, -1]


def test_the_searching_head_starts_where_the_convolution_responds():
    net = network("flagship")
    quiet = torch.zeros(1, 3 * net.config.hidden)
    loud = quiet.clone()
    loud[:, -net.config.hidden :] = 1.0

    with torch.no_grad():
        assert net.score(loud)[0, 0] > net.score(quiet)[0, 0]


def test_training_penalises_scores_and_what_sees_all_cycles_and_answers_do_not():
    net = network("flagship")
    windows, heads = batch(net), net.config.heads

    with torch.no_grad():
        both = net.train().estimate(*windows).penalty
        net.score[2].weight.zero_()
        of_long = net.estimate(*windows).penalty
        net.mix[heads - 1 :].zero_()
        neither = net.estimate(*windows).penalty

    assert both > of_long > neither == 0
    assert net.eval().estimate(*windows).penalty is None


def test_a_single_event_in_the_scores_costs_less_than_wear_of_the_same_height():
    valid = torch.tensor([[True, True, True, True, False]])
    event = torch.tensor([[0.0, 0.0, 4.0, 0.0, 9.0]])  # the last cycle is padding
    wear = torch.tensor([[-2.0, -2.0, 2.0, 2.0, 9.0]])

    torch.testing.assert_close(deviation(event, valid), torch.tensor(1.5))
    torch.testing.assert_close(deviation(wear, valid), torch.tensor(2.0))


def test_an_answer_above_the_cap_costs_less_where_the_cap_is_the_truth():
    unclipped, rul = torch.tensor([110.0, 110.0, 90.0]), torch.tensor([100.0, 80.0, 100.0])

    def loss(above_cap):
        chosen = {"cap": 100.0, "low_rul_weight": 0.0, "above_cap": above_cap}
        return [float(rul_loss(u[None], r[None], **chosen)) for u, r in zip(unclipped, rul, strict=True)]

    assert loss(1.0) == pytest.approx([0.01, 0.09, 0.01])
    assert loss(0.2) == pytest.approx([0.0004, 0.09, 0.01])


def test_a_single_reading_has_no_trend():
    attention = torch.full((1, 2, 60), 1 / 60)
    observed = torch.zeros(1, 60, 3)
    observed[0, 17, 0] = 1.0  # one reading
    observed[0, 17:19, 1] = 1.0  # two neighbours

    pools = Pools.of(attention, torch.linspace(-1, 0, 60)[None, None], observed)

    assert (pools.scale[0, -1] > 0).tolist() == [False, True, False]


@pytest.mark.parametrize(("units", "width"), [(99, 96), (100, 192)])
def test_the_read_out_is_wide_where_many_units_train(units, width):
    config = network_config(FLEET, network="flagship", regimes=1, units=units)

    assert config.perceptron == width


def test_a_width_that_is_asked_for_holds_for_any_number_of_units():
    config = network_config(FLEET, network="flagship", regimes=1, units=500, options={"perceptron": 24})

    assert config.perceptron == 24
