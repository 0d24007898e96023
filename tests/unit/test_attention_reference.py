"""Score functions, softmax and masks against NumPy, torch and the worked examples of the texts."""

import math

import numpy as np
import pytest
import torch

from model.attention import SCORES, MultiHeadSelfAttention, Score, UnknownScore, causal_mask, padding_mask
from model.layers import cycles_after, masked_softmax, valid_cycles
from tests.attention_reference import SEED, TOLERANCE, drawn, reference_score, reference_softmax

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", SCORES)
def test_scores_of_many_heads_and_windows_equal_those_of_each(kind):
    query, key = torch.from_numpy(drawn(2, 3, 5, 4, seed=1)), torch.from_numpy(drawn(2, 3, 6, 4, seed=2))
    torch.manual_seed(SEED)
    score = Score(kind, width=4, heads=3).double()

    with torch.no_grad():
        together = score(query, key)

    for window, head in np.ndindex(2, 3):
        vector = score.vector[head].detach().numpy().reshape(-1) if kind == "additive" else None
        alone = reference_score(kind, query[window, head].numpy(), key[window, head].numpy(), vector)
        np.testing.assert_allclose(together[window, head].numpy(), alone, atol=TOLERANCE)


def test_only_the_additive_score_has_parameters():
    counts = {kind: sum(p.numel() for p in Score(kind, width=64).parameters()) for kind in SCORES}

    assert counts == {"additive": 64, "dot": 0, "scaled_dot": 0}


def test_an_unknown_score_is_refused_by_name():
    with pytest.raises(
        UnknownScore, match="no score function 'cosine', there are: additive, dot, scaled_dot"
    ):
        Score("cosine", width=4)


# Softmax and masks.


def masks():
    """[5, 5] each: row is the query, column the key."""
    everything = np.ones((5, 5), bool)
    padded = everything & (np.arange(5) < 3)
    causal = np.tril(everything)
    hole = everything.copy()
    hole[2] = False
    return {"none": everything, "padding": padded, "causal": causal, "both": padded & causal, "a row": hole}


@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("kind", SCORES)
def test_weights_agree_with_the_reference_under_every_mask(kind, mask):
    allowed = masks()[mask]
    query, key = drawn(5, 8, seed=1), drawn(5, 8, seed=2)
    score = Score(kind, width=8).double()
    vector = score.vector.detach().numpy().reshape(-1) if kind == "additive" else None
    expected = reference_softmax(reference_score(kind, query, key, vector), allowed)

    with torch.no_grad():
        got = masked_softmax(
            score(torch.from_numpy(query), torch.from_numpy(key)), torch.from_numpy(allowed)
        ).numpy()

    np.testing.assert_allclose(got, expected, atol=TOLERANCE)
    assert (got[~allowed] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("huge", [1e3, -1e3, 1e30])
def test_softmax_is_stable_at_huge_scores(dtype, huge):
    score = torch.tensor([[huge, huge, 0.0], [1e3, 1e3 - 1.0, -1e3]], dtype=dtype)

    weight = masked_softmax(score, torch.ones(2, 3, dtype=torch.bool))

    first = [0.5, 0.5, 0.0] if huge > 0 else [0.0, 0.0, 1.0]
    second = [1 / (1 + math.exp(-1)), 1 / (1 + math.e), 0.0]
    np.testing.assert_allclose(weight, [first, second], atol=TOLERANCE)
    with np.errstate(over="ignore"):
        assert np.exp(np.float64(1000.0)) == np.inf  # what is avoided


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softmax_is_stable_in_half_precision(dtype):
    score = torch.tensor([[1e3, 1e3, -1e3, 6e4]], dtype=dtype)

    weight = masked_softmax(score, torch.tensor([[True, True, True, False]]))

    assert weight.tolist() == [[0.5, 0.5, 0.0, 0.0]]


HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", HALVES)
def test_softmax_of_half_precision_is_rounded_once_whatever_the_number_of_keys(dtype):
    score = torch.from_numpy(drawn(4, 3000, scale=2.0)).to(dtype)

    weight = masked_softmax(score, torch.ones(4, 3000, dtype=torch.bool))

    assert weight.dtype == dtype
    limits, exact = torch.finfo(dtype), score.double().softmax(-1)
    assert ((weight - exact).abs() <= 0.51 * (limits.eps * exact + limits.smallest_normal * limits.eps)).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_a_score_that_overflowed_takes_the_weight_and_no_score_makes_nan(dtype):
    score = torch.tensor([[torch.inf, 1.0, -torch.inf], [-torch.inf] * 3], dtype=dtype)

    weight = masked_softmax(score, torch.ones(2, 3, dtype=torch.bool))

    assert weight[0].tolist() == [1.0, 0.0, 0.0]
    torch.testing.assert_close(weight[1], torch.full((3,), 1 / 3, dtype=dtype))


def test_scaling_comes_before_the_product_so_half_precision_holds_larger_queries_and_keys():
    query = torch.full((1, 64), 60.0, dtype=torch.float16)  # 64 * 60 * 60 is beyond 65504, an eighth is not

    assert Score("scaled_dot", width=1)(query, query).item() == 28800.0
    assert Score("dot", width=1)(query, query).isinf().all()  # what is avoided


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_layer_in_half_precision_gives_finite_weights_that_sum_to_one_and_a_gradient(dtype, scale):
    torch.manual_seed(SEED)
    layer = MultiHeadSelfAttention(64, heads=4, head_width=16).to(dtype)
    x = torch.from_numpy(drawn(2, 30, 64, scale=scale)).to(dtype).requires_grad_()

    out, weight = layer(x, padding_mask(valid_cycles(cycles_after(x, torch.tensor([30, 7])))))
    out.float().square().mean().backward()

    assert out.dtype == weight.dtype == dtype
    assert out.isfinite().all()
    rounding = 30 * torch.finfo(dtype).eps
    torch.testing.assert_close(weight.float().sum(-1), torch.ones(2, 4, 30), rtol=0, atol=rounding)
    assert (weight[1, :, :, 7:] == 0).all()
    assert x.grad.isfinite().all()


def test_a_fully_masked_row_is_zeros_with_zero_gradient_and_not_nan():
    score = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]], requires_grad=True)

    weight = masked_softmax(score, torch.tensor([[True, True], [False, False]]))
    weight.square().sum().backward()

    assert weight[1].tolist() == [0.0, 0.0]
    assert score.grad[1].tolist() == [0.0, 0.0]
    assert score.grad.isfinite().all()
    assert torch.tensor([-torch.inf, -torch.inf]).softmax(-1).isnan().all()  # what is avoided


def test_padding_and_causal_masks_allow_what_they_say():
    valid = valid_cycles(cycles_after(torch.zeros(2, 3, 1), torch.tensor([2, 3])))

    padding, causal = padding_mask(valid), causal_mask(valid)

    assert padding.shape == (2, 1, 3)
    assert padding[:, 0].tolist() == [[True, True, False], [True, True, True]]
    assert causal[1].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert causal[0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]


# One head, as worked in the texts.


def worked_example():
    """np.random.seed(0); six cycles, d_k = 4, float32: the draws of the worked example, in its order."""
    legacy = np.random.RandomState(0)
    return [torch.from_numpy(legacy.randn(6, 4).astype(np.float32)) for _ in range(3)]


def test_the_worked_example_comes_out_to_its_last_printed_digit():
    query, key, value = worked_example()

    score = Score("scaled_dot", width=1)(query, key)
    attention = masked_softmax(score, torch.ones(6, 6, dtype=torch.bool))
    out = attention @ value

    assert score[0].numpy().round(3).tolist() == pytest.approx([1.524, 2.145, -1.174, 0.797, 0.142, -0.279])
    expected = [0.2611, 0.4863, 0.0176, 0.1263, 0.0656, 0.043]
    assert attention[0].numpy().round(4).tolist() == pytest.approx(expected)
    assert round(float(attention[0].sum()), 6) == 1.0
    assert out[0].numpy().round(3).tolist() == pytest.approx([-0.781, -0.694, -0.437, 0.121])
    assert attention[0].argmax() == 1
    assert out.shape == (6, 4)
    assert attention.shape == (6, 6)
