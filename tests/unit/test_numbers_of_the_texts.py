"""Digits that the texts print, digits that their own code prints for their draws, and what they claim."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from export.attention import CycleMap
from model.attention import MultiHeadSelfAttention, Score, TemporalScore, causal_mask, padding_mask
from model.layers import MaskedConvolution, RaggedBiLstm, masked_softmax
from tests.attention_reference import (
    TOLERANCE,
    drawn,
    entropy,
    reference_positions,
    self_attention,
    torch_twin,
)
from tests.unit.test_networks_of_the_texts import batch, network

pytestmark = pytest.mark.usefixtures("one_thread")


def softmax(score):
    return masked_softmax(score, torch.ones(score.shape, dtype=torch.bool))


def allowing_all(windows, cycles):
    return padding_mask(torch.ones(windows, cycles, dtype=torch.bool))


def layer_of(query, key, value, out, *, heads=1):
    """A layer of these matrices, [in, out] each, without biases."""
    layer = MultiHeadSelfAttention(len(query), heads=heads, head_width=query.shape[1] // heads, bias=False)
    with torch.no_grad():
        for linear, matrix in zip(
            (layer.query, layer.key, layer.value, layer.out), (query, key, value, out), strict=True
        ):
            linear.weight.copy_(torch.as_tensor(matrix).T)
    return layer.eval()


# The scale.


@pytest.mark.parametrize(
    ("scores", "first", "others"),
    [
        ([10.0] + [0.0] * 3, 0.9999, 0.0),  # printed: near one-hot
        ([8.0] + [0.0] * 63, 0.9793, 0.0003),  # one of 64 at sqrt(64): e^8 / (e^8 + 63)
        ([1.0] + [0.0] * 63, 0.0414, 0.0152),  # the same over the scale: e / (e + 63)
    ],
)
def test_one_large_score_takes_the_weight_unless_it_is_scaled(scores, first, others):
    weight = softmax(torch.tensor([scores])).numpy().round(4)

    assert weight.tolist() == [pytest.approx([first] + [others] * (len(scores) - 1))]


@pytest.mark.parametrize("width", [4, 64, 512])
def test_a_dot_product_of_d_numbers_has_variance_d_and_the_scale_makes_it_one(width):
    query, key = (torch.from_numpy(drawn(4000, 1, width, seed=seed)) for seed in (1, 2))

    plain, scaled = (Score(name, width=width)(query, key) for name in ("dot", "scaled_dot"))

    assert plain.mean().item() == pytest.approx(0.0, abs=0.06 * math.sqrt(width))
    assert plain.var().item() == pytest.approx(width, rel=0.1)
    assert scaled.var().item() == pytest.approx(1.0, rel=0.1)
    torch.testing.assert_close(plain, {4: 2.0, 64: 8.0, 512: math.sqrt(512)}[width] * scaled)


@pytest.mark.parametrize("width", [64, 512])
def test_without_the_scale_attention_saturates_without_a_gradient_and_over_d_it_is_even(width):
    query, key = (torch.from_numpy(drawn(64, width, seed=seed)) for seed in (1, 2))

    def attended(name, divisor=1.0):
        score = (Score(name, width=width)(query, key) / divisor).requires_grad_()
        weight = softmax(score)
        weight.square().sum().backward()
        return entropy(weight.detach().numpy()).mean(), score.grad.abs().median().item()

    (sharp, vanished), (spread, alive), (even, _) = (
        attended("dot"), attended("scaled_dot"), attended("dot", width)
    )  # fmt: skip

    assert sharp < 0.25
    assert 0.85 < spread < 0.95
    assert even > 0.995
    assert vanished < 0.01 * alive


# Worked examples. Literals without a source in a text are printed by the text's own code, run as it stands.


@pytest.mark.parametrize(
    ("mask", "cycles", "of_torch"),
    [
        (padding_mask, 6, {}),
        (padding_mask, 4, {"attn_mask": torch.tensor([[True] * 4 + [False] * 2])}),
        (causal_mask, 6, {"is_causal": True}),
    ],
    ids=["none", "padding", "causal"],
)
def test_one_head_is_torchs_fused_scaled_dot_product_attention(mask, cycles, of_torch):
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 6, 4) for _ in range(3))

    weight = masked_softmax(Score("scaled_dot", width=4)(query, key), mask(torch.arange(6)[None] < cycles))

    expected = nn.functional.scaled_dot_product_attention(query, key, value, **of_torch)
    assert expected.shape == (1, 6, 4)
    torch.testing.assert_close(weight @ value, expected, rtol=0, atol=TOLERANCE)


def test_four_tokens_of_width_eight_have_the_weights_that_the_text_prints():
    """Seed 42: X, then W_Q, W_K and W_V times 0.1."""
    legacy = np.random.RandomState(42)
    x = legacy.randn(4, 8)
    layer = layer_of(*(0.1 * legacy.randn(8, 8) for _ in range(3)), np.eye(8)).double()

    with torch.no_grad():
        out, weight = layer(torch.from_numpy(x)[None], allowing_all(1, 4))

    assert weight[0, 0].numpy().round(3).tolist() == [
        [0.235, 0.264, 0.246, 0.255],
        [0.257, 0.235, 0.244, 0.265],
        [0.268, 0.243, 0.254, 0.235],
        [0.242, 0.259, 0.248, 0.251],
    ]
    first = [-0.0104, -0.2742, -0.1441, -0.2059, 0.0216, 0.0604, 0.0097, -0.1839]
    assert out[0, 0].numpy().round(4).tolist() == first


def test_two_windows_of_five_have_the_weights_that_the_text_prints():
    """Seed 42: W_q, W_k, W_v and W_o times 0.1, then X; d_model 8, d_k = d_v = 4."""
    legacy = np.random.RandomState(42)
    layer = layer_of(*(0.1 * legacy.randn(*shape) for shape in [(8, 4)] * 3 + [(4, 8)])).double()

    with torch.no_grad():
        out, weight = layer(torch.from_numpy(legacy.randn(2, 5, 8)), allowing_all(2, 5))

    assert out.shape == (2, 5, 8)
    assert weight[:, 0].shape == (2, 5, 5)
    assert weight[0, 0, 0].numpy().round(3).tolist() == [0.188, 0.201, 0.205, 0.204, 0.202]
    assert round(float(weight[0, 0, 0].sum()), 4) == 1.0
    first = [-0.004868, 0.024806, -0.033125, 0.011088, 0.011841, -0.017856, 0.047123, 0.022305]
    assert out[0, 0].numpy().round(6).tolist() == first


def test_uniform_draws_have_the_weights_and_the_output_that_the_text_prints():
    """Seed 0: Q, K and V of 4 x 8, uniform in 0..1."""
    legacy = np.random.RandomState(0)
    query, key, value = (torch.from_numpy(legacy.rand(4, 8)) for _ in range(3))

    weight = softmax(Score("scaled_dot", width=8)(query, key))

    assert weight[0].numpy().round(8).tolist() == [0.3196633, 0.24110843, 0.22865058, 0.21057768]
    assert weight[3].numpy().round(8).tolist() == [0.33047355, 0.22430616, 0.24449556, 0.20072473]
    first = [0.49233402, 0.55411178, 0.52243496, 0.33936411, 0.49335482, 0.27122352, 0.56412359, 0.23849241]
    assert (weight @ value)[0].numpy().round(8).tolist() == first


def test_the_map_of_five_words_shows_bank_at_river():
    weights = np.array([
        [0.6, 0.1, 0.1, 0.1, 0.1],
        [0.1, 0.2, 0.1, 0.1, 0.5],
        [0.2, 0.1, 0.4, 0.1, 0.2],
        [0.5, 0.1, 0.1, 0.2, 0.1],
        [0.1, 0.1, 0.1, 0.1, 0.6],
    ])  # fmt: skip

    bank = CycleMap("the bank by the river", np.arange(5), weights[None]).looks(1)

    assert bank["0"].tolist() == bank["mean"].tolist() == [0.1, 0.2, 0.1, 0.1, 0.5]


# Sizes.


def test_one_head_of_32_on_64_numbers_has_8192_weights():
    layer = MultiHeadSelfAttention(64, heads=1, head_width=32, bias=False)

    assert [weight.numel() for weight in layer.parameters()] == [2048] * 4
    assert sum(weight.numel() for weight in layer.parameters()) == 8192


@pytest.mark.parametrize(("inputs", "heads", "width"), [(64, 1, 64), (64, 8, 8), (512, 8, 64), (768, 12, 64)])
def test_the_number_of_weights_is_that_of_one_head(inputs, heads, width):
    layer = MultiHeadSelfAttention(inputs, heads=heads, head_width=width, bias=False)

    assert sum(weight.numel() for weight in layer.parameters()) == 4 * inputs**2


def test_eight_heads_of_eight_keep_the_shape_and_their_mean_is_the_map_that_torch_returns():
    layer, x = self_attention(64, heads=8, head_width=8), torch.from_numpy(drawn(2, 30, 64))

    with torch.no_grad():
        out, weight = layer(x, allowing_all(2, 30))
        _, expected = torch_twin(layer, 64)(x, x, x, need_weights=True)

    assert out.shape == (2, 30, 64)
    assert weight.shape == (2, 8, 30, 30)
    assert expected.shape == (2, 30, 30)
    torch.testing.assert_close(weight.mean(1), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_temporal_attention_has_a_matrix_a_bias_and_a_vector_of_any_width(width):
    layer = TemporalScore(128, width, score="additive")

    sizes = {name: tuple(weight.shape) for name, weight in layer.named_parameters()}
    assert sizes == {"key.weight": (width, 128), "query": (width,), "score.vector": (width,)}


@pytest.mark.parametrize(
    ("heads", "cycles", "dtype", "size"),
    [
        (1, 4096, torch.float16, 33_554_432),  # 33 MB a layer, window and head
        (1, 30, torch.int8, 900),  # T^2 numbers
        (8, 30, torch.float32, 28_800),  # 28 KiB, as ADR 0012 has it
        (8, 60, torch.float32, 115_200),  # 113 KiB
    ],
)
def test_the_map_of_all_pairs_takes_memory_by_the_square_of_the_cycles(heads, cycles, dtype, size):
    query = torch.empty(heads, cycles, 64, dtype=dtype, device="meta")

    score = Score("dot", width=64)(query, query)

    assert score.numel() * score.element_size() == size


# Reach and order.


def influence(run, x):
    """Size of the gradient of the last cycle's output by each cycle, [1, T, D] -> [T]."""
    x = x.clone().requires_grad_()
    run(x)[0, -1].sum().backward()
    return x.grad[0].abs().sum(-1)


def test_the_first_of_thirty_cycles_reaches_the_last_by_attention_and_not_by_convolution_or_lstm():
    torch.manual_seed(0)
    x, valid = torch.from_numpy(drawn(1, 30, 8)), torch.ones(1, 30, dtype=torch.bool)
    convolution, recurrent = MaskedConvolution(8, 8, width=3).double(), RaggedBiLstm(8, 8).double()
    attention = self_attention(8, heads=2, head_width=4)

    near = influence(lambda x: convolution(convolution(x, valid), valid), x)
    fading = influence(lambda x: recurrent(x, valid)[..., :8], x)  # the forward half
    all_alike = influence(lambda x: attention(x, padding_mask(valid))[0], x)

    assert near.nonzero().flatten().tolist() == [27, 28, 29]  # two kernels of three
    assert 0 < fading[0] < 1e-5 * fading[29]
    assert all_alike[0] > 0.1 * all_alike[1:29].median()


def test_cycle_27_reads_cycle_5_where_its_query_asks_for_that_key():
    cycles = torch.eye(30)
    asks = 100.0 * cycles.clone()
    asks[27] = 100.0 * cycles[5]
    layer = layer_of(asks, cycles, cycles, cycles)

    with torch.no_grad():
        out, weight = layer(cycles[None], allowing_all(1, 30))

    assert weight[0, 0].argmax(-1).tolist() == [*range(27), 5, 28, 29]
    torch.testing.assert_close(out[0, 27], cycles[5], rtol=0, atol=TOLERANCE)


def test_the_order_of_cycles_changes_only_the_order_of_what_they_read():
    layer, x = self_attention(16, heads=2, head_width=8), torch.from_numpy(drawn(1, 6, 16))
    order = [3, 0, 5, 1, 4, 2]

    with torch.no_grad():
        read, _ = layer(x, allowing_all(1, 6))
        reordered, _ = layer(x[:, order], allowing_all(1, 6))

    torch.testing.assert_close(reordered, read[:, order])


def test_positions_are_added_to_what_the_heads_read_and_to_what_passes_them():
    net, seen = network("selfattention", positions=True), {}
    net.before.register_forward_hook(lambda layer, inputs, output: seen.update(before=output))
    net.between.register_forward_hook(lambda layer, inputs, output: seen.update(x=inputs[0], read=output[0]))
    net.after.register_forward_hook(lambda layer, inputs, output: seen.update(joined=inputs[0]))

    with torch.no_grad():
        net.estimate(*batch())

    placed = seen["before"].numpy() + reference_positions(12, 16)
    np.testing.assert_allclose(seen["x"], placed, atol=1e-5)
    np.testing.assert_allclose(seen["joined"], placed + seen["read"].numpy(), atol=1e-5)


def test_a_weight_of_four_fifths_takes_four_fifths_of_its_cycle():
    net, (readings, _, last_cycle) = network("amnl"), batch()
    read_cycles, seen = net.read_cycles, []
    score = torch.tensor([0.0, math.log(4.0)] + [-1e4] * 10).expand(6, 12)

    def scored(inputs):
        seen.append(read_cycles(inputs)._replace(score=score))
        return seen[-1]

    net.read_cycles = scored
    with torch.no_grad():
        estimate = net.estimate(readings.nan_to_num(), torch.full((6,), 12), last_cycle)

    first, second = seen[0].value[:, 0], seen[0].value[:, 1]
    torch.testing.assert_close(estimate.attention[:, :2], torch.tensor([[0.2, 0.8]]).expand(6, 2))
    torch.testing.assert_close(estimate.context, 0.2 * first + 0.8 * second)
