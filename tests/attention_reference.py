"""Reference attention in plain NumPy, float64, written as literally as the formulas."""

import numpy as np
import torch
from torch import nn

from model.attention import MultiHeadSelfAttention
from model.domain import attention_entropy_ratio

TOLERANCE = 1e-6
SEED = 20


def reference_softmax(score, allowed):
    """Compute softmax row by row over the allowed keys; a row without one is all zeros."""
    weight = np.zeros_like(score)
    for row in np.ndindex(score.shape[:-1]):
        keys = np.flatnonzero(allowed[row])
        if len(keys):
            shifted = np.exp(score[row][keys] - score[row][keys].max())
            weight[row][keys] = shifted / shifted.sum()
    return weight


def reference_score(kind, query, key, vector=None):
    """Score one query and one key at a time: [Q, D], [T, D] -> [Q, T]."""
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
    """Compute Concat(head_1 .. head_H) W_O of one window: x [T, D], allowed [T, T] -> [T, D], [H, T, T]."""
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
    """Return the weights as the reference takes them: [in, out] matrices."""
    named = {"q": layer.query, "k": layer.key, "v": layer.value, "o": layer.out}
    matrices = {name: linear.weight.detach().numpy().T for name, linear in named.items()}
    return matrices | {f"{name}_bias": linear.bias.detach().numpy() for name, linear in named.items()}


def torch_twin(layer, inputs):
    """Make `torch.nn.MultiheadAttention` with the weights of our layer."""
    twin = nn.MultiheadAttention(inputs, layer.heads, batch_first=True).double().eval()
    with torch.no_grad():
        projections = (layer.query, layer.key, layer.value)
        twin.in_proj_weight.copy_(torch.cat([linear.weight for linear in projections]))
        twin.in_proj_bias.copy_(torch.cat([linear.bias for linear in projections]))
        twin.out_proj.load_state_dict(layer.out.state_dict())
    return twin


def entropy(weight):
    return attention_entropy_ratio(weight, np.full(weight.shape[:-1], weight.shape[-1]))
