"""Temporal attention against NumPy and its text, and what keeps attention from collapsing."""

import numpy as np
import pytest
import torch

from model.attention import CycleDropout, Temperature, TemporalScore, entropy_ratio
from model.domain import attention_entropy_ratio
from model.layers import cycles_after, masked_softmax, valid_cycles
from tests.attention_reference import (
    SEED,
    TOLERANCE,
    drawn,
    entropy,
    reference_score,
    reference_softmax,
    self_attention,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def temporal(score="additive", *, inputs=128, width=64):
    torch.manual_seed(SEED)
    return TemporalScore(inputs, width, score=score).double().eval()


def test_additive_temporal_attention_is_tanh_of_a_projection_times_a_vector():
    layer, h = temporal(), drawn(2, 30, 128)
    w_a = layer.key.weight.detach().numpy()  # [d_a, 2H]
    b_a = layer.query.detach().numpy()  # [d_a]
    v_a = layer.score.vector.detach().numpy().reshape(-1)  # [d_a]
    u = np.tanh(h @ w_a.T + b_a)  # [B, T, d_a]
    e = u @ v_a  # [B, T]
    alpha = reference_softmax(e, np.ones_like(e, bool))
    context = (alpha[..., None] * h).sum(1)  # [B, 2H]

    with torch.no_grad():
        got = layer(torch.from_numpy(h))
        weight = masked_softmax(got, torch.ones(2, 30, dtype=torch.bool))

    np.testing.assert_allclose(got, e, atol=TOLERANCE)
    np.testing.assert_allclose(weight, alpha, atol=TOLERANCE)
    np.testing.assert_allclose((weight.unsqueeze(-1) * torch.from_numpy(h)).sum(1), context, atol=TOLERANCE)
    assert context.shape == (2, 128)


@pytest.mark.parametrize("score", ["dot", "scaled_dot"])
def test_temporal_attention_by_products_asks_one_learnt_query(score):
    layer, h = temporal(score, inputs=12, width=6), drawn(3, 9, 12)
    query = layer.query.detach().numpy()[None]

    with torch.no_grad():
        got = layer(torch.from_numpy(h))

    for window in range(3):
        key = h[window] @ layer.key.weight.detach().numpy().T
        np.testing.assert_allclose(got[window], reference_score(score, query, key)[0], atol=TOLERANCE)


# What keeps attention from collapsing.


def test_a_fixed_temperature_has_no_parameter_and_changes_nothing():
    score = torch.from_numpy(drawn(2, 3, 4))
    temperature = Temperature(learnable=False)

    assert list(temperature.parameters()) == []
    assert temperature(score) is score


def test_a_learnable_temperature_starts_at_one_and_divides_each_heads_scores():
    score = torch.from_numpy(drawn(2, 3, 4, 4))
    temperature = Temperature(learnable=True, heads=3).double()

    at_first = temperature(score)
    with torch.no_grad():
        temperature.logarithm.copy_(torch.tensor([0.5, 1.0, 4.0]).log())
    later = temperature(score)

    torch.testing.assert_close(at_first, score)
    divided = score / torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(later, divided)
    spread = entropy(later.softmax(-1).detach().numpy()).mean(axis=(0, 2))
    plain = entropy(score.softmax(-1).numpy()).mean(axis=(0, 2))
    assert spread[0] < plain[0]
    assert spread[2] > plain[2]


def test_attention_dropout_zeroes_weights_and_scales_the_rest_as_torch_does():
    torch.manual_seed(SEED)
    layer = self_attention(8, heads=2, head_width=4, dropout=0.25).train()
    with torch.no_grad():
        for linear in (layer.value, layer.out):
            linear.weight.copy_(torch.eye(8))
            linear.bias.zero_()
    x = torch.zeros(400, 5, 8, dtype=torch.float64) + torch.tensor([1.0] + [0.0] * 7)

    out, _ = layer(x, torch.ones(400, 1, 5, dtype=torch.bool))

    survived = out[:, 0, 0] * 0.75 * 5  # every key weighs a fifth here: how many were left
    torch.testing.assert_close(survived, survived.round())
    assert survived.mean().item() / 5 == pytest.approx(0.75, abs=0.03)
    assert out[:, 0, 0].mean().item() == pytest.approx(1.0, abs=0.04)


def test_dropped_cycles_get_nothing_and_the_rest_still_sums_to_one():
    torch.manual_seed(SEED)
    valid = valid_cycles(cycles_after(torch.zeros(100, 12, 1), torch.tensor([12] * 50 + [3] * 50)))
    score = torch.from_numpy(drawn(100, 12))

    kept = CycleDropout(0.4)(valid)
    weight = masked_softmax(score, kept)

    assert not (kept & ~valid).any()
    assert (weight[~kept] == 0).all()
    torch.testing.assert_close(weight.sum(-1), torch.ones(100, dtype=torch.float64))
    assert kept[:50].double().mean().item() == pytest.approx(0.6, abs=0.06)


def test_a_window_never_loses_all_of_its_cycles():
    torch.manual_seed(SEED)
    valid = valid_cycles(cycles_after(torch.zeros(80, 4, 1), torch.tensor([1] * 40 + [4] * 40)))

    kept = CycleDropout(0.95)(valid)

    assert kept.any(-1).all()
    assert torch.equal(kept[:40], valid[:40])


def test_the_differentiable_entropy_is_the_domains():
    weight = masked_softmax(
        torch.from_numpy(drawn(4, 7, scale=2.0)),
        valid_cycles(cycles_after(torch.zeros(4, 7, 1), torch.tensor([7, 4, 2, 1]))),
    )
    lengths = torch.tensor([7, 4, 2, 1])

    got = entropy_ratio(weight, lengths)

    expected = attention_entropy_ratio(weight.numpy(), lengths.numpy())
    np.testing.assert_allclose(got[:3], expected[:3], atol=TOLERANCE)
    assert got[3] == 1.0
    assert np.isnan(expected[3])


def test_entropy_of_attention_on_one_cycle_is_zero_with_a_finite_gradient():
    weight = torch.tensor([[1.0, 0.0, 0.0]], requires_grad=True)

    ratio = entropy_ratio(weight, torch.tensor([3]))
    ratio.sum().backward()

    assert ratio.item() == 0.0
    assert weight.grad.isfinite().all()
