"""What the texts say about attention, with their numbers: many heads, first weights and the residual."""

import math

import numpy as np
import pytest
import torch

from model.attention import MultiHeadSelfAttention
from tests.attention_reference import SEED, TOLERANCE, reference_softmax
from tests.unit.test_networks_of_the_texts import batch, network

pytestmark = pytest.mark.usefixtures("one_thread")


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
