"""Many heads, masks and positions against NumPy and torch; what the texts say of them, with their numbers."""

import math

import numpy as np
import pytest
import torch

from model.attention import (
    MultiHeadSelfAttention,
    RelativePositions,
    causal_mask,
    padding_mask,
    sinusoidal_positions,
)
from model.layers import cycles_after, valid_cycles
from tests.attention_reference import (
    SEED,
    TOLERANCE,
    drawn,
    reference_heads,
    reference_positions,
    reference_softmax,
    self_attention,
    torch_twin,
    weights_of,
)
from tests.unit.test_networks_of_the_texts import batch, network

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", ["none", "padding", "causal"])
@pytest.mark.parametrize(("inputs", "heads"), [(8, 2), (16, 4), (64, 8)])
def test_many_heads_agree_with_numpy_and_with_torch(inputs, heads, kind):
    layer = self_attention(inputs, heads=heads, head_width=inputs // heads)
    x = torch.from_numpy(drawn(3, 6, inputs))
    lengths = torch.tensor([6, 4, 1]) if kind != "none" else torch.tensor([6, 6, 6])
    valid = valid_cycles(cycles_after(x, lengths))
    allowed = causal_mask(valid) if kind == "causal" else padding_mask(valid).expand(3, 6, 6)

    with torch.no_grad():
        out, weight = layer(x, allowed)
        twin_out, twin_weight = torch_twin(layer, inputs)(
            x, x, x, attn_mask=~allowed.repeat_interleave(heads, dim=0), average_attn_weights=False
        )

    for window in range(3):
        expected_out, expected_weight = reference_heads(
            x[window].numpy(), allowed[window].numpy(), weights_of(layer), heads=heads
        )
        np.testing.assert_allclose(out[window], expected_out, atol=TOLERANCE)
        np.testing.assert_allclose(weight[window], expected_weight, atol=TOLERANCE)
    torch.testing.assert_close(out, twin_out, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(weight, twin_weight, rtol=0, atol=TOLERANCE)


def test_a_query_that_may_read_nothing_reads_nothing_where_torch_answers_nan():
    layer = self_attention(8, heads=2, head_width=4)
    x = torch.from_numpy(drawn(1, 4, 8))
    allowed = torch.ones(1, 4, 4, dtype=torch.bool)
    allowed[0, 1] = False

    with torch.no_grad():
        out, weight = layer(x, allowed)
        expected, _ = torch_twin(layer, 8)(x, x, x, attn_mask=~allowed[0])

    assert (weight[0, :, 1] == 0).all()
    torch.testing.assert_close(out[0, 1], layer.out.bias)
    assert expected[0, 1].isnan().all()
    rest = [0, 2, 3]
    torch.testing.assert_close(out[0, rest], expected[0, rest], rtol=0, atol=TOLERANCE)
    reference, _ = reference_heads(x[0].numpy(), allowed[0].numpy(), weights_of(layer), heads=2)
    np.testing.assert_allclose(out[0], reference, atol=TOLERANCE)


@pytest.mark.parametrize("furthest", [2, 5])
def test_relative_positions_add_one_number_per_head_and_distance_to_the_scores(furthest):
    relative, score = RelativePositions(heads=3, furthest=furthest).double(), drawn(2, 3, 6, 6)
    with torch.no_grad():
        relative.bias.normal_()
        bias = relative.bias.numpy()
        got = relative(torch.from_numpy(score))

    expected = score.copy()
    for head, query, key in np.ndindex(3, 6, 6):
        distance = min(max(key - query, -furthest), furthest)  # Shaw et al. (2018): clip(j - i, k)
        expected[:, head, query, key] += bias[head, distance + furthest]
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


@pytest.mark.parametrize(("cycles", "width"), [(50, 64), (30, 128), (60, 512), (1, 2)])
def test_positions_equal_the_formula(cycles, width):
    got = sinusoidal_positions(cycles, width)

    np.testing.assert_allclose(got, reference_positions(cycles, width), atol=TOLERANCE)
    assert got[0].tolist() == [0.0, 1.0] * (width // 2)


# The texts


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
