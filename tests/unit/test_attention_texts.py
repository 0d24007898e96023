"""What the texts say about attention, with their numbers: scaling, masks, shapes, sizes and first weights."""

import math

import numpy as np
import pytest
import torch

from model.attention import MultiHeadSelfAttention, Score, TemporalScore, padding_mask
from model.layers import masked_softmax, valid_cycles
from tests.attention_reference import SEED, TOLERANCE, drawn, entropy, reference_softmax, self_attention
from tests.unit.test_networks_of_the_texts import batch, network

pytestmark = pytest.mark.usefixtures("one_thread")


def weights_of_scores(score):
    return masked_softmax(score, torch.ones(score.shape, dtype=torch.bool))


def test_the_softmax_of_one_score_of_ten_is_near_one_hot_to_the_digits_of_the_text():
    weight = weights_of_scores(torch.tensor([[10.0, 0.0, 0.0, 0.0]]))

    assert weight.numpy().round(4).tolist() == [pytest.approx([0.9999, 0.0, 0.0, 0.0])]


def test_scores_of_64_numbers_are_eight_times_too_large_without_the_scale():
    query, key = (torch.from_numpy(drawn(400, 64, seed=seed)) for seed in (1, 2))

    plain, scaled = Score("dot", width=64)(query, key), Score("scaled_dot", width=64)(query, key)

    assert plain.std().item() == pytest.approx(8.0, rel=0.05)
    torch.testing.assert_close(plain, 8.0 * scaled)


@pytest.mark.parametrize("width", [64, 512])
def test_without_the_scale_softmax_saturates_and_its_gradient_vanishes(width):
    def gradient(name):
        query, key = (torch.from_numpy(drawn(64, width, seed=seed)) for seed in (1, 2))
        score = Score(name, width=width)(query, key).requires_grad_()
        weight = weights_of_scores(score)
        weight.square().sum().backward()
        return entropy(weight.detach().numpy()).mean(), score.grad.abs().median().item()

    (sharp, vanished), (spread, alive) = gradient("dot"), gradient("scaled_dot")

    assert sharp < 0.25
    assert spread > 0.85
    assert vanished < 0.01 * alive


def test_dividing_by_the_width_itself_would_make_attention_even():
    query, key = (torch.from_numpy(drawn(64, 64, seed=seed)) for seed in (1, 2))
    score = Score("dot", width=64)(query, key)

    evenness = [entropy(weights_of_scores(score / by).numpy()).mean() for by in (1.0, 8.0, 64.0)]

    assert evenness[0] < 0.3
    assert 0.85 < evenness[1] < 0.95
    assert evenness[2] > 0.995


def test_the_worked_example_collapses_at_a_scale_of_a_half_and_is_nearly_even_at_eight():
    """np.random.seed(0), six cycles, d_k = 4: the row of query 0, whose usual scale is 2."""
    legacy = np.random.RandomState(0)
    query, key = (torch.from_numpy(legacy.randn(6, 4)) for _ in range(2))
    score = Score("dot", width=4)(query, key)[:1]

    top = {scale: weights_of_scores(score / scale).max().item() for scale in (0.5, 2.0, 8.0)}

    assert top[0.5] > 0.9
    assert top[2.0] == pytest.approx(0.4863, abs=1e-4)
    assert top[8.0] < 0.3


def test_a_mask_acts_before_the_softmax_because_zeroing_afterwards_loses_weight():
    score, valid = torch.from_numpy(drawn(1, 6)), torch.tensor([[True] * 4 + [False] * 2])

    before, afterwards = masked_softmax(score, valid), score.softmax(-1) * valid

    torch.testing.assert_close(before.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert afterwards.sum() < 0.95
    torch.testing.assert_close(before, afterwards / afterwards.sum())


@pytest.mark.parametrize(("lowest", "same"), [(-1e9, True), (-math.inf, True), (0.0, False)])
def test_masked_scores_have_no_weight_whatever_the_text_fills_them_with(lowest, same):
    score, valid = torch.from_numpy(drawn(1, 6)), torch.tensor([[True] * 4 + [False] * 2])

    filled = score.masked_fill(~valid, lowest).softmax(-1)

    assert torch.allclose(masked_softmax(score, valid), filled) is same


def test_one_head_of_32_on_64_numbers_has_8192_weights():
    layer = MultiHeadSelfAttention(64, heads=1, head_width=32, bias=False)

    assert [p.numel() for p in layer.parameters()] == [2048] * 4
    assert sum(p.numel() for p in layer.parameters()) == 8192


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_the_number_of_weights_does_not_depend_on_the_number_of_heads(heads):
    layer = MultiHeadSelfAttention(64, heads=heads, head_width=64 // heads, bias=False)

    assert sum(p.numel() for p in layer.parameters()) == 4 * 64 * 64


@pytest.mark.parametrize(
    ("windows", "cycles", "inputs", "heads"), [(2, 30, 64, 8), (2, 5, 8, 1), (1, 6, 16, 4), (1, 1, 8, 2)]
)
def test_shapes_are_those_of_the_texts(windows, cycles, inputs, heads):
    layer = self_attention(inputs, heads=heads, head_width=inputs // heads)
    x = torch.from_numpy(drawn(windows, cycles, inputs))

    with torch.no_grad():
        out, weight = layer(x, torch.ones(windows, 1, cycles, dtype=torch.bool))

    assert out.shape == (windows, cycles, inputs)
    assert weight.shape == (windows, heads, cycles, cycles)
    torch.testing.assert_close(weight.sum(-1), torch.ones(windows, heads, cycles, dtype=torch.float64))


@pytest.mark.parametrize(("tokens", "inputs", "heads", "seeds"), [(4, 8, 2, (42, 0)), (6, 16, 4, (42, 42))])
def test_the_class_of_the_text_gives_the_same_for_its_own_draws(tokens, inputs, heads, seeds):
    """MultiHeadAttention(d_model, n_heads, seed) of the text: matrices per head, times 0.1, no biases."""
    x = np.random.RandomState(seeds[0]).randn(tokens, inputs)
    legacy = np.random.RandomState(seeds[1])
    width = inputs // heads
    w_q, w_k, w_v = (0.1 * legacy.randn(heads, inputs, width) for _ in range(3))
    w_o = 0.1 * legacy.randn(heads * width, inputs)
    score = [(x @ w_q[h]) @ (x @ w_k[h]).T / np.sqrt(width) for h in range(heads)]
    expected = np.stack([reference_softmax(each, np.ones_like(each, bool)) for each in score])
    joined = np.concatenate([expected[h] @ (x @ w_v[h]) for h in range(heads)], axis=1)
    layer = MultiHeadSelfAttention(inputs, heads=heads, head_width=width, bias=False).double()
    with torch.no_grad():
        for linear, matrices in ((layer.query, w_q), (layer.key, w_k), (layer.value, w_v)):
            linear.weight.copy_(torch.from_numpy(np.concatenate(matrices, axis=1).T))
        layer.out.weight.copy_(torch.from_numpy(w_o.T))

        out, weight = layer(torch.from_numpy(x)[None], torch.ones(1, 1, tokens, dtype=torch.bool))

    np.testing.assert_allclose(weight[0], expected, atol=TOLERANCE)
    np.testing.assert_allclose(out[0], joined @ w_o, atol=TOLERANCE)


def test_the_first_cycle_reaches_the_last_in_one_step():
    layer = self_attention(8, heads=2, head_width=4)
    x = torch.from_numpy(drawn(1, 30, 8)).requires_grad_()

    out, weight = layer(x, padding_mask(valid_cycles(torch.tensor([30]), x)))
    out[0, 29].sum().backward()

    size = x.grad[0].abs().sum(-1)
    assert size[0] > 0.1 * size[1:29].median()  # no decay over 29 cycles
    assert weight[0, :, 29, 0].min() > 0


def test_weights_depend_on_the_readings_unlike_those_of_a_fixed_filter():
    torch.manual_seed(SEED)
    score, h = TemporalScore(8, 4, score="additive").double(), torch.from_numpy(drawn(2, 9, 8))

    with torch.no_grad():
        first, second = weights_of_scores(score(h))

    assert (first - second).abs().max() > 0.001


def test_projections_start_from_xavier_and_layer_norms_from_one_and_zero():
    torch.manual_seed(SEED)
    layer = MultiHeadSelfAttention(64, heads=4, head_width=8)
    net = network("selfattention")

    for linear in (layer.query, layer.key, layer.value, layer.out):
        bound = math.sqrt(6 / (64 + 32))
        assert 0.99 * bound < linear.weight.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    for norm in (net.before, net.after):
        assert (norm.weight == 1).all()
        assert (norm.bias == 0).all()


def test_the_residual_carries_each_cycle_past_its_heads():
    net = network("selfattention")
    seen = {}
    net.before.register_forward_hook(lambda layer, inputs, output: seen.update(before=output))
    net.after.register_forward_hook(lambda layer, inputs, output: seen.update(after=output))
    with torch.no_grad():
        net.between.out.weight.zero_()
        net.between.out.bias.zero_()

        net.estimate(*batch())

    torch.testing.assert_close(seen["after"], net.after(seen["before"]))
