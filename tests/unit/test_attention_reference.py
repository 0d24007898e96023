"""Our attention against references in plain NumPy, against torch's own, and against worked examples.

The worked examples are those of common texts on (self-)attention for remaining useful life; each
test names the mechanism it checks. References are float64 and as literal as the formulas are.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from model.attention import (
    SCORES,
    AdditiveScore,
    CycleDropout,
    DotScore,
    MultiHeadSelfAttention,
    ScaledDotScore,
    Temperature,
    TemporalScore,
    UnknownScore,
    build_score,
    causal_mask,
    entropy_ratio,
    padding_mask,
    sinusoidal_positions,
)
from model.domain import attention_entropy_ratio
from model.layers import masked_softmax, valid_cycles

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-6
SEED = 20


# The references: NumPy alone, float64.


def reference_softmax(score, allowed):
    """Row by row over the allowed keys; a row that allows none is all zeros."""
    weight = np.zeros_like(score)
    for row in np.ndindex(score.shape[:-1]):
        keys = np.flatnonzero(allowed[row])
        if len(keys):
            shifted = np.exp(score[row][keys] - score[row][keys].max())
            weight[row][keys] = shifted / shifted.sum()
    return weight


def reference_score(kind, query, key, vector=None):
    """One query and one key at a time: [Q, D], [T, D] -> [Q, T]."""
    score = np.zeros((len(query), len(key)))
    for i, q in enumerate(query):
        for j, k in enumerate(key):
            score[i, j] = {
                "additive": lambda q, k: vector @ np.tanh(q + k),
                "dot": lambda q, k: q @ k,
                "scaled_dot": lambda q, k: q @ k / np.sqrt(len(q)),
            }[kind](q, k)
    return score


def reference_heads(x, allowed, weights, *, heads):
    """Concat(head_1 .. head_H) W_O for one window: x [T, D], allowed [T, T] -> [T, D], [H, T, T]."""
    query, key, value = (x @ weights[name] + weights[f"{name}_bias"] for name in ("q", "k", "v"))
    width = query.shape[1] // heads
    read, attention = [], []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        a = reference_softmax(reference_score("scaled_dot", query[:, part], key[:, part]), allowed)
        attention.append(a)
        read.append(a @ value[:, part])
    return np.concatenate(read, axis=1) @ weights["o"] + weights["o_bias"], np.stack(attention)


def reference_positions(cycles, width):
    encoding = np.zeros((cycles, width))
    for t in range(cycles):
        for i in range(width // 2):
            encoding[t, 2 * i] = np.sin(t / 10000 ** (2 * i / width))
            encoding[t, 2 * i + 1] = np.cos(t / 10000 ** (2 * i / width))
    return encoding


def drawn(*shape, seed=SEED, scale=1.0):
    return scale * np.random.default_rng(seed).standard_normal(shape)


def self_attention(inputs, *, heads, head_width, **options):
    torch.manual_seed(SEED)
    layer = MultiHeadSelfAttention(inputs, heads=heads, head_width=head_width, **options).double().eval()
    with torch.no_grad():
        for linear in (layer.query, layer.key, layer.value, layer.out):
            if linear.bias is not None:
                linear.bias.normal_()
    return layer


def weights_of(layer):
    """As the reference takes them: [in, out] matrices."""
    named = {"q": layer.query, "k": layer.key, "v": layer.value, "o": layer.out}
    matrices = {name: linear.weight.detach().numpy().T for name, linear in named.items()}
    return matrices | {f"{name}_bias": linear.bias.detach().numpy() for name, linear in named.items()}


def torch_twin(layer, inputs):
    """`torch.nn.MultiheadAttention` with the weights of our layer."""
    twin = nn.MultiheadAttention(inputs, layer.heads, batch_first=True).double().eval()
    with torch.no_grad():
        projections = (layer.query, layer.key, layer.value)
        twin.in_proj_weight.copy_(torch.cat([linear.weight for linear in projections]))
        twin.in_proj_bias.copy_(torch.cat([linear.bias for linear in projections]))
        twin.out_proj.load_state_dict(layer.out.state_dict())
    return twin


def entropy(weight):
    return attention_entropy_ratio(weight, np.full(weight.shape[:-1], weight.shape[-1]))


# Score functions.


@pytest.mark.parametrize("kind", SCORES)
def test_a_score_function_agrees_with_its_formula(kind):
    query, key = drawn(5, 8, seed=1), drawn(7, 8, seed=2)
    score = build_score(kind, width=8).double()
    vector = score.vector.detach().numpy().reshape(-1) if kind == "additive" else None

    with torch.no_grad():
        got = score(torch.from_numpy(query), torch.from_numpy(key))

    np.testing.assert_allclose(got.numpy(), reference_score(kind, query, key, vector), atol=TOLERANCE)


@pytest.mark.parametrize("kind", SCORES)
def test_scores_of_many_heads_and_windows_are_those_of_each_alone(kind):
    query, key = torch.from_numpy(drawn(2, 3, 5, 4, seed=1)), torch.from_numpy(drawn(2, 3, 6, 4, seed=2))
    torch.manual_seed(SEED)
    score = build_score(kind, width=4, heads=3).double()

    with torch.no_grad():
        together = score(query, key)

    for window, head in np.ndindex(2, 3):
        vector = score.vector[head].detach().numpy().reshape(-1) if kind == "additive" else None
        alone = reference_score(kind, query[window, head].numpy(), key[window, head].numpy(), vector)
        np.testing.assert_allclose(together[window, head].numpy(), alone, atol=TOLERANCE)


def test_only_the_additive_score_has_parameters():
    counts = {kind: sum(p.numel() for p in build_score(kind, width=64).parameters()) for kind in SCORES}

    assert counts == {"additive": 64, "dot": 0, "scaled_dot": 0}


def test_an_unknown_score_is_refused_by_name():
    with pytest.raises(
        UnknownScore, match="no score function 'cosine', there are: additive, dot, scaled_dot"
    ):
        build_score("cosine", width=4)


@pytest.mark.parametrize("width", [4, 64, 512])
def test_scaling_keeps_unit_variance_whatever_the_width(width):
    query, key = (torch.from_numpy(drawn(300, width, seed=seed)) for seed in (1, 2))

    scaled, plain = ScaledDotScore()(query, key), DotScore()(query, key)

    # 90,000 products of 300 queries and keys: their variance is known to about 2 / sqrt(300 * width).
    assert scaled.var().item() == pytest.approx(1.0, abs=0.1)
    assert plain.var().item() == pytest.approx(width, rel=0.1)
    assert scaled.mean().item() == pytest.approx(0.0, abs=0.1)


def test_an_unscaled_product_of_width_64_has_a_standard_deviation_of_8():
    query, key = (torch.from_numpy(drawn(300, 64, seed=seed)) for seed in (1, 2))

    assert DotScore()(query, key).std().item() == pytest.approx(8.0, rel=0.05)


@pytest.mark.parametrize("width", [64, 512])
def test_without_the_scale_softmax_saturates_and_divided_by_the_width_it_is_nearly_uniform(width):
    query, key = (torch.from_numpy(drawn(50, width, seed=seed)) for seed in (1, 2))
    dot = DotScore()(query, key)

    unscaled, scaled, over = (
        entropy((dot / by).softmax(-1).numpy()).mean() for by in (1.0, math.sqrt(width), width)
    )

    assert unscaled < 0.3
    assert 0.8 < scaled < 0.95
    assert over > 0.99


def test_gradients_vanish_through_a_saturated_softmax():
    def gradient(by):
        query = torch.from_numpy(drawn(50, 512, seed=1)).requires_grad_()
        score = DotScore()(query, torch.from_numpy(drawn(50, 512, seed=2))) / by
        (score.softmax(-1)[:, 0]).sum().backward()
        return (query.grad * by).norm().item()  # of the softmax alone

    assert gradient(1.0) < 0.2 * gradient(math.sqrt(512))


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
    score = build_score(kind, width=8).double()
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


def test_softmax_does_not_change_when_all_scores_shift():
    score = torch.from_numpy(drawn(4, 6))
    everything = torch.ones(4, 6, dtype=torch.bool)

    shifted = masked_softmax(score + 777.0, everything)

    torch.testing.assert_close(shifted, masked_softmax(score, everything), rtol=0, atol=TOLERANCE)


def test_one_score_of_ten_takes_nearly_all():
    weight = masked_softmax(torch.tensor([10.0, 0.0, 0.0, 0.0]), torch.ones(4, dtype=torch.bool))

    assert weight.numpy().round(4).tolist() == pytest.approx([0.9999, 0.0, 0.0, 0.0], abs=1e-6)


def test_a_fully_masked_row_is_zeros_with_zero_gradient_and_not_nan():
    score = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]], requires_grad=True)

    weight = masked_softmax(score, torch.tensor([[True, True], [False, False]]))
    weight.square().sum().backward()

    assert weight[1].tolist() == [0.0, 0.0]
    assert score.grad[1].tolist() == [0.0, 0.0]
    assert score.grad.isfinite().all()
    assert torch.tensor([-torch.inf, -torch.inf]).softmax(-1).isnan().all()  # what is avoided


def test_masks_act_before_the_softmax_and_not_after():
    score = torch.from_numpy(drawn(3, 6))
    allowed = torch.tensor([True, True, True, False, False, False]).expand(3, 6)

    before = masked_softmax(score, allowed)
    after = torch.where(allowed, score.softmax(-1), torch.zeros_like(score))

    torch.testing.assert_close(before.sum(-1), torch.ones(3, dtype=torch.float64))
    assert (after.sum(-1) < 0.9).all()
    renormalised = after / after.sum(-1, keepdim=True)
    torch.testing.assert_close(before, renormalised, rtol=0, atol=TOLERANCE)


def test_padding_and_causal_masks_allow_what_they_say():
    valid = valid_cycles(torch.tensor([2, 3]), torch.zeros(2, 3, 1))

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

    score = ScaledDotScore()(query, key)
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


def test_in_the_worked_example_another_scale_collapses_or_flattens_the_row():
    query, key, _ = worked_example()
    dot = DotScore()(query, key)[0]

    sharp, right, flat = ((dot / by).softmax(-1) for by in (0.5, 2.0, 8.0))

    assert sharp.max() > 0.9
    assert right.max() == pytest.approx(0.4863, abs=1e-4)
    assert flat.max() < 0.27
    assert entropy(sharp.numpy()) < entropy(right.numpy()) < entropy(flat.numpy())


def test_the_output_is_torchs_own_scaled_dot_product_attention():
    query, key, value = (part.double()[None] for part in worked_example())
    allowed = torch.tril(torch.ones(1, 6, 6, dtype=torch.bool))

    got = masked_softmax(ScaledDotScore()(query, key), allowed) @ value

    expected = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)


def test_uniform_random_queries_and_keys_of_width_8_agree_with_numpy():
    legacy = np.random.RandomState(0)
    query, key, value = (legacy.rand(4, 8) for _ in range(3))
    score = query @ key.T / np.sqrt(8)
    expected = np.exp(score - score.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)

    q, k, v = (torch.from_numpy(part) for part in (query, key, value))
    weight = masked_softmax(ScaledDotScore()(q, k), torch.ones(4, 4, dtype=torch.bool))

    np.testing.assert_allclose(weight, expected, atol=TOLERANCE)
    np.testing.assert_allclose(weight @ v, expected @ value, atol=TOLERANCE)


def test_one_head_of_32_over_64_columns_has_8192_parameters():
    layer = MultiHeadSelfAttention(64, heads=1, head_width=32, bias=False)

    parts = [p.numel() for p in layer.parameters()]

    assert parts == [2048] * 4
    assert sum(parts) == 8192
    out, weight = layer(torch.randn(2, 6, 64), torch.ones(2, 1, 6, dtype=torch.bool))
    assert out.shape == (2, 6, 64)
    assert weight.shape == (2, 1, 6, 6)
    torch.testing.assert_close(weight.sum(-1), torch.ones(2, 1, 6))


def test_a_batch_of_one_headed_layers_agrees_with_the_texts_own_steps():
    """Two windows of 5 cycles, 8 wide, d_k = d_v = 4, weights * 0.1, drawn as in the text."""
    legacy = np.random.RandomState(42)
    w_q, w_k, w_v, w_o = (0.1 * legacy.randn(*shape) for shape in [(8, 4)] * 3 + [(4, 8)])
    x = legacy.randn(2, 5, 8)
    score = (x @ w_q) @ (x @ w_k).transpose(0, 2, 1) / np.sqrt(4)
    expected = reference_softmax(score, np.ones_like(score, bool))
    layer = MultiHeadSelfAttention(8, heads=1, head_width=4, bias=False).double()
    with torch.no_grad():
        for linear, matrix in zip(
            (layer.query, layer.key, layer.value, layer.out), (w_q, w_k, w_v, w_o), strict=True
        ):
            linear.weight.copy_(torch.from_numpy(matrix.T))

        out, weight = layer(torch.from_numpy(x), torch.ones(2, 1, 5, dtype=torch.bool))

    np.testing.assert_allclose(weight[:, 0], expected, atol=TOLERANCE)
    np.testing.assert_allclose(out, expected @ (x @ w_v) @ w_o, atol=TOLERANCE)
    assert out.shape == (2, 5, 8)
    assert round(float(weight[0, 0, 0].sum()), 4) == 1.0


@pytest.mark.parametrize(("cycles", "megabytes"), [(4096, 33.5), (8192, 134.2)])
def test_the_memory_of_all_pairs_grows_with_the_square_of_the_cycles(cycles, megabytes):
    query = torch.empty(cycles, 64, dtype=torch.float16, device="meta")

    score = ScaledDotScore()(query, query)

    assert score.numel() * score.element_size() / 1e6 == pytest.approx(megabytes, abs=0.1)


# Many heads.


@pytest.mark.parametrize("kind", ["none", "padding", "causal"])
@pytest.mark.parametrize(("inputs", "heads"), [(8, 2), (16, 4), (64, 8)])
def test_many_heads_agree_with_numpy_and_with_torch(inputs, heads, kind):
    layer = self_attention(inputs, heads=heads, head_width=inputs // heads)
    x = torch.from_numpy(drawn(3, 6, inputs))
    lengths = torch.tensor([6, 4, 1]) if kind != "none" else torch.tensor([6, 6, 6])
    valid = valid_cycles(lengths, x)
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


def test_padding_means_to_us_what_key_padding_means_to_torch():
    layer = self_attention(16, heads=4, head_width=4)
    x, lengths = torch.from_numpy(drawn(2, 5, 16)), torch.tensor([5, 2])
    valid = valid_cycles(lengths, x)

    with torch.no_grad():
        out, weight = layer(x, padding_mask(valid))
        expected, mean = torch_twin(layer, 16)(x, x, x, key_padding_mask=~valid)

    torch.testing.assert_close(out, expected, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(weight.mean(1), mean, rtol=0, atol=TOLERANCE)


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


def test_a_window_of_padding_alone_reads_nothing_and_its_gradient_is_finite():
    layer = self_attention(8, heads=2, head_width=4)
    x = torch.from_numpy(drawn(2, 3, 8)).requires_grad_()

    out, weight = layer(x, padding_mask(valid_cycles(torch.tensor([0, 3]), x)))
    out.square().sum().backward()

    assert (weight[0] == 0).all()
    assert x.grad.isfinite().all()


def test_heads_with_matrices_of_their_own_are_slices_of_one_matrix():
    """Per-head matrices drawn as in a text's class: 4 tokens, 8 wide, 2 heads, RandomState(0) * 0.1."""
    x = np.random.RandomState(42).randn(4, 8)
    legacy = np.random.RandomState(0)
    per_head = {name: 0.1 * legacy.randn(2, 8, 4) for name in ("query", "key", "value")}
    joined_out = 0.1 * legacy.randn(8, 8)
    read = []
    for head in range(2):
        q, k, v = (x @ per_head[name][head] for name in ("query", "key", "value"))
        read.append(reference_softmax(q @ k.T / np.sqrt(4), np.ones((4, 4), bool)) @ v)
    expected = np.concatenate(read, axis=-1) @ joined_out
    layer = MultiHeadSelfAttention(8, heads=2, head_width=4, bias=False).double()
    with torch.no_grad():
        for name, matrices in per_head.items():
            getattr(layer, name).weight.copy_(torch.from_numpy(np.concatenate(matrices, axis=1).T))
        layer.out.weight.copy_(torch.from_numpy(joined_out.T))

        out, _ = layer(torch.from_numpy(x)[None], torch.ones(1, 1, 4, dtype=torch.bool))

    np.testing.assert_allclose(out[0], expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("inputs", "heads", "head_width"), [(512, 8, 64), (64, 8, 8), (16, 4, 4), (512, 12, 64)]
)
def test_shapes_and_parameters_of_the_usual_sizes(inputs, heads, head_width):
    layer = MultiHeadSelfAttention(inputs, heads=heads, head_width=head_width)

    out, weight = layer(torch.randn(2, 30, inputs), torch.ones(2, 1, 30, dtype=torch.bool))

    assert out.shape == (2, 30, inputs)
    assert weight.shape == (2, heads, 30, 30)
    assert weight[0, 0].numel() == 900
    joined = heads * head_width
    assert sum(p.numel() for p in layer.parameters()) == 4 * inputs * joined + 3 * joined + inputs


def test_eight_heads_of_64_cost_as_many_parameters_as_one_of_512():
    def count(heads, head_width):
        return sum(
            p.numel()
            for p in MultiHeadSelfAttention(512, heads=heads, head_width=head_width, bias=False).parameters()
        )

    assert count(8, 64) == count(1, 512) == 4 * 512 * 512


def test_a_causal_query_does_not_know_what_comes_later():
    layer = self_attention(8, heads=2, head_width=4)
    x = torch.from_numpy(drawn(1, 6, 8))
    later = x.clone()
    later[:, 4:] += 3.0
    allowed = causal_mask(torch.ones(1, 6, dtype=torch.bool))

    with torch.no_grad():
        (one, weight), (two, _) = layer(x, allowed), layer(later, allowed)

    assert torch.equal(one[:, :4], two[:, :4])
    assert not torch.equal(one[:, 4:], two[:, 4:])
    assert (weight.triu(1) == 0).all()
    torch.testing.assert_close(weight.sum(-1), torch.ones(1, 2, 6, dtype=torch.float64))


def test_without_positions_self_attention_does_not_know_the_order_of_cycles():
    layer = self_attention(8, heads=2, head_width=4)
    x = torch.from_numpy(drawn(1, 6, 8))
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    allowed = torch.ones(1, 1, 6, dtype=torch.bool)
    place = sinusoidal_positions(6, 8).double()

    with torch.no_grad():
        plain, shuffled = layer(x, allowed)[0], layer(x[:, order], allowed)[0]
        placed, moved = layer(x + place, allowed)[0], layer(x[:, order] + place, allowed)[0]

    torch.testing.assert_close(shuffled, plain[:, order], rtol=0, atol=TOLERANCE)
    assert (moved - placed[:, order]).abs().max() > 0.01


@pytest.mark.parametrize(("cycles", "width"), [(50, 64), (30, 128), (60, 512), (1, 2)])
def test_positions_equal_the_formula(cycles, width):
    got = sinusoidal_positions(cycles, width)

    np.testing.assert_allclose(got, reference_positions(cycles, width), atol=TOLERANCE)
    assert got[0].tolist() == [0.0, 1.0] * (width // 2)


def test_positions_are_a_beginning_of_longer_ones():
    assert torch.equal(sinusoidal_positions(60, 16)[:30], sinusoidal_positions(30, 16))


# Temporal attention: one learnt question.


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


def test_temporal_attention_is_the_general_additive_form_with_one_query_for_all():
    """v . tanh(W_q q + W_k k): the learnt W_q q is the bias of the projection."""
    layer, h = temporal(inputs=12, width=6), drawn(1, 9, 12)
    w_q = drawn(6, 5, seed=3)
    q = np.linalg.lstsq(w_q, layer.query.detach().numpy(), rcond=None)[0]
    w_q[:, 0] += (layer.query.detach().numpy() - w_q @ q) / q[0]  # now W_q q is the bias, exactly
    key = h[0] @ layer.key.weight.detach().numpy().T
    vector = layer.score.vector.detach().numpy().reshape(-1)

    with torch.no_grad():
        got = layer(torch.from_numpy(h))[0]

    expected = reference_score("additive", (w_q @ q)[None], key, vector)[0]
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


@pytest.mark.parametrize("score", ["dot", "scaled_dot"])
def test_temporal_attention_by_products_asks_one_learnt_query(score):
    layer, h = temporal(score, inputs=12, width=6), drawn(3, 9, 12)
    query = layer.query.detach().numpy()[None]

    with torch.no_grad():
        got = layer(torch.from_numpy(h))

    for window in range(3):
        key = h[window] @ layer.key.weight.detach().numpy().T
        np.testing.assert_allclose(got[window], reference_score(score, query, key)[0], atol=TOLERANCE)


@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_parameters_of_temporal_attention_grow_with_its_width(width):
    layer = TemporalScore(128, width, score="additive")

    assert sum(p.numel() for p in layer.parameters()) == width * 128 + width + width


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


def test_a_learnable_temperature_learns_to_sharpen_and_to_spread():
    score = torch.from_numpy(drawn(8, 1, 1, 6))
    lengths = torch.full((8, 1, 1), 6)
    for sign in (1.0, -1.0):
        temperature = Temperature(learnable=True).double()

        (sign * entropy_ratio(temperature(score).softmax(-1), lengths).mean()).backward()

        step = -temperature.logarithm.grad.item()  # of gradient descent
        assert step * sign < 0


def test_attention_dropout_in_eval_changes_no_bit():
    layer = self_attention(8, heads=2, head_width=4, dropout=0.9)
    x, allowed = torch.from_numpy(drawn(2, 5, 8)), torch.ones(2, 1, 5, dtype=torch.bool)
    valid = torch.ones(4, 6, dtype=torch.bool)

    with torch.no_grad():
        first, second = layer(x, allowed)[0], layer(x, allowed)[0]

    assert torch.equal(first, second)
    assert CycleDropout(0.9).eval()(valid) is valid


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
    valid = valid_cycles(torch.tensor([12] * 50 + [3] * 50), torch.zeros(100, 12, 1))
    score = torch.from_numpy(drawn(100, 12))

    kept = CycleDropout(0.4)(valid)
    weight = masked_softmax(score, kept)

    assert not (kept & ~valid).any()
    assert (weight[~kept] == 0).all()
    torch.testing.assert_close(weight.sum(-1), torch.ones(100, dtype=torch.float64))
    assert kept[:50].double().mean().item() == pytest.approx(0.6, abs=0.06)


def test_a_window_never_loses_all_of_its_cycles():
    torch.manual_seed(SEED)
    valid = valid_cycles(torch.tensor([1] * 40 + [4] * 40), torch.zeros(80, 4, 1))

    kept = CycleDropout(0.95)(valid)

    assert kept.any(-1).all()
    assert torch.equal(kept[:40], valid[:40])


def test_the_differentiable_entropy_is_the_domains():
    weight = masked_softmax(
        torch.from_numpy(drawn(4, 7, scale=2.0)),
        valid_cycles(torch.tensor([7, 4, 2, 1]), torch.zeros(4, 7, 1)),
    )
    lengths = torch.tensor([7, 4, 2, 1])

    got = entropy_ratio(weight, lengths)

    expected = attention_entropy_ratio(weight.numpy(), lengths.numpy())
    np.testing.assert_allclose(got[:3], expected[:3], atol=TOLERANCE)
    assert got[3] == 1.0
    assert np.isnan(expected[3])


@pytest.mark.parametrize(("weight", "goes"), [(1.0, "up"), (-1.0, "down")])
def test_the_entropy_regulariser_moves_entropy_its_way(weight, goes):
    lengths = torch.tensor([6, 4, 1])
    valid = valid_cycles(lengths, torch.zeros(3, 6, 1))
    score = torch.from_numpy(drawn(3, 6)).requires_grad_()

    before = entropy_ratio(masked_softmax(score, valid), lengths)
    (weight * (1.0 - before).mean()).backward()
    after = entropy_ratio(masked_softmax(score - 0.5 * score.grad, valid), lengths)

    assert score.grad.isfinite().all()
    assert score.grad[2].tolist() == [0.0] * 6
    assert all((after > before)[:2] if goes == "up" else (after < before)[:2])


def test_entropy_of_attention_on_one_cycle_is_zero_with_a_finite_gradient():
    weight = torch.tensor([[1.0, 0.0, 0.0]], requires_grad=True)

    ratio = entropy_ratio(weight, torch.tensor([3]))
    ratio.sum().backward()

    assert ratio.item() == 0.0
    assert weight.grad.isfinite().all()


def test_a_window_of_510_numbers_becomes_a_context_of_128_by_way_of_all_cycles():
    """30 cycles of 17 columns; the weighted sum reads every hidden state, not the last alone."""
    layer = temporal()
    h = torch.from_numpy(drawn(1, 30, 128)).requires_grad_()

    context = (masked_softmax(layer(h), torch.ones(1, 30, dtype=torch.bool)).unsqueeze(-1) * h).sum(1)
    context.sum().backward()

    assert 30 * 17 == 510
    assert context.shape == (1, 128)
    assert (h.grad.abs().sum(-1) > 0).all()


def test_additive_scores_take_queries_and_keys_of_other_widths_through_their_projections():
    score = AdditiveScore(6).double()
    query, key = nn.Linear(5, 6, bias=False).double(), nn.Linear(9, 6, bias=False).double()

    got = score(query(torch.from_numpy(drawn(2, 5))), key(torch.from_numpy(drawn(3, 9))))

    assert got.shape == (2, 3)
