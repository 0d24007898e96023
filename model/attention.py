"""Attention layers: scores, masks, heads, positions, temperature and dropout.

Everything exports to ONNX with dynamic batch and cycles, so attention is written in plain tensor
operations. Masks act before the softmax, so weights sum to 1. This module must not know
columns, RUL or training.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

from model.domain import RulError
from model.layers import masked_softmax

SCORES: Final = ("additive", "dot", "scaled_dot")


class UnknownScore(RulError):
    """There is no score function of this name."""


class Score(nn.Module):
    """Score of each key for each query, both projected to the same width D.

    `additive`: v . tanh(q + k), Bahdanau et al. (2014); each head has its own v, and Q x T x D numbers
    per head are held at once. `dot`: q . k, Luong et al. (2015); its variance grows with D.
    `scaled_dot`: q . k / sqrt(D), Vaswani et al. (2017).
    """

    def __init__(self, name: str, *, width: int, heads: int = 1) -> None:
        super().__init__()
        if name not in SCORES:
            raise UnknownScore(f"no score function {name!r}, there are: {', '.join(SCORES)}")
        self.name = name
        if name == "additive":
            bound = 1.0 / math.sqrt(width)
            shape = (width,) if heads == 1 else (heads, 1, 1, width)
            self.vector = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """[..., Q, D] and [..., T, D] -> [..., Q, T]."""
        if self.name == "additive":
            joint = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh()  # [..., Q, T, D]
            return (joint * self.vector).sum(-1)
        if self.name == "scaled_dot":  # before the product, whose sums would overflow half precision first
            query = query / math.sqrt(query.shape[-1])
        return query @ key.transpose(-2, -1)


class Temperature(nn.Module):
    """Positive divisor of each head's scores, 1 at first and optionally learnt.

    Values above 1 spread attention, values below 1 sharpen it.
    """

    def __init__(self, *, learnable: bool, heads: int = 1) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.zeros(heads)) if learnable else None

    def forward(self, score: Tensor) -> Tensor:
        """[..., H, Q, T] -> the same."""
        return score if self.logarithm is None else score * (-self.logarithm).exp()[:, None, None]


class RelativePositions(nn.Module):
    """Learnt bias of each head for each distance from query to key, in cycles.

    One number per head and distance, as in T5, Raffel et al. (2020), who simplify Shaw et al. (2018);
    windows are short, so each distance up to `furthest` has its own, and larger ones share the last.
    """

    def __init__(self, *, heads: int, furthest: int) -> None:
        super().__init__()
        self.furthest = furthest
        self.bias = nn.Parameter(torch.zeros(heads, 2 * furthest + 1))

    def forward(self, score: Tensor) -> Tensor:
        """[..., H, T, T] (query, key) -> the same."""
        place = torch.arange(score.shape[-1], device=score.device)
        ahead = (place[None, :] - place[:, None]).clamp(-self.furthest, self.furthest)  # [T, T]
        return score + self.bias[:, ahead + self.furthest]


class TemporalScore(nn.Module):
    """Score of each cycle for one learnt query, [B, T, D] -> [B, T].

    With the additive score: u_t = tanh(W h_t + b), e_t = v . u_t, where b is the query.
    """

    def __init__(self, inputs: int, width: int, *, score: str, learnable_temperature: bool = False) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.key = nn.Linear(inputs, width, bias=False)
        self.query = nn.Parameter(torch.empty(width).uniform_(-bound, bound))
        self.score = Score(score, width=width)
        self.temperature = Temperature(learnable=learnable_temperature)

    def forward(self, h: Tensor) -> Tensor:
        """[B, T, D] -> [B, T]."""
        score = self.score(self.query[None, None, :], self.key(h))  # [B, 1, T]
        return self.temperature(score).squeeze(1)


class CycleDropout(nn.Module):
    """Dropout of whole cycles from the attention, while training.

    Cycles are masked before the softmax, so the remaining weights sum to 1. A window that would lose
    all cycles keeps them.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, valid: Tensor) -> Tensor:
        """Bool [B, T] -> bool [B, T]; `valid` itself in `eval()`."""
        if not self.training or self.share == 0.0:
            return valid
        kept = valid & (torch.rand(valid.shape, device=valid.device) >= self.share)
        return torch.where(kept.any(-1, keepdim=True), kept, valid)


class MultiHeadSelfAttention(nn.Module):
    """Self-attention between cycles with H heads.

    Dropout on the weights is as in `torch.nn.MultiheadAttention`: zeroed, and the rest scaled up.
    A query without an allowed key has weights of 0, not NaN.
    """

    def __init__(
        self,
        inputs: int,
        *,
        heads: int,
        head_width: int,
        score: str = "scaled_dot",
        dropout: float = 0.0,
        learnable_temperature: bool = False,
        bias: bool = True,
        furthest: int = 0,
    ) -> None:
        """Build the layer; with `furthest` above 0 it has relative positions up to this distance."""
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.query = nn.Linear(inputs, heads * head_width, bias=bias)
        self.key = nn.Linear(inputs, heads * head_width, bias=bias)
        self.value = nn.Linear(inputs, heads * head_width, bias=bias)
        self.out = nn.Linear(heads * head_width, inputs, bias=bias)
        self.score = Score(score, width=head_width, heads=heads)
        self.temperature = Temperature(learnable=learnable_temperature, heads=heads)
        self.relative = RelativePositions(heads=heads, furthest=furthest) if furthest else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, x: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, D] and bool [B, 1 or T, T] (query, key) -> [B, T, D], weights [B, H, T, T]."""
        q, k, v = (self.split(layer(x)) for layer in (self.query, self.key, self.value))  # [B, H, T, D_k]
        score = self.relative(self.temperature(self.score(q, k)))  # [B, H, T, T]
        weight = masked_softmax(score, allowed.unsqueeze(1))
        read = self.dropout(weight) @ v  # [B, H, T, D_k]
        joined = read.transpose(1, 2).reshape(x.shape[0], x.shape[1], self.heads * self.head_width)
        return self.out(joined), weight

    def split(self, x: Tensor) -> Tensor:
        """[B, T, H * D_k] -> [B, H, T, D_k]."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.head_width).transpose(1, 2)


def padding_mask(valid: Tensor) -> Tensor:
    """Allow every query the keys that are not padding, bool [B, T] -> [B, 1, T]."""
    return valid.unsqueeze(1)


def causal_mask(valid: Tensor) -> Tensor:
    """Allow each query itself and earlier keys, without padding, bool [B, T] -> [B, T, T]."""
    place = torch.arange(valid.shape[1], device=valid.device)
    return padding_mask(valid) & (place[None, :] <= place[:, None])


def sinusoidal_positions(cycles: int, width: int) -> Tensor:
    """Return sinusoidal position encodings, [T, width].

    PE[t, 2i] = sin(t / 10000^(2i / width)) and PE[t, 2i+1] = cos of the same.
    """
    place = torch.arange(cycles, dtype=torch.float64)[:, None]
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angle = place / 10000.0 ** (even / width)  # [T, width / 2]
    joined = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)  # sin and cos in turn
    return joined[:, :width].float()


def entropy(attention: Tensor) -> Tensor:
    """Compute Shannon entropy in nats, with a finite gradient at 0: [..., T] -> [...]."""
    return -(attention * attention.clamp(min=torch.finfo(attention.dtype).tiny).log()).sum(-1)


def entropy_ratio(attention: Tensor, lengths: Tensor) -> Tensor:
    """Compute entropy over its maximum, ln n, with gradient: [..., T], [...] -> [...], 0..1.

    1 if n = 1, so windows of one cycle have no gradient.
    """
    most = lengths.clamp(min=2).to(attention.dtype).log()
    return torch.where(lengths > 1, entropy(attention) / most, torch.ones_like(most))
