"""Pools of readings and their read-out: each answers with a value and with its exact shares.

They work in float64: readings that hardly change are small differences of large sums, and an RUL of many
hundred cycles leaves float32 too few digits.
This module must not know where attention comes from, data, losses or ONNX.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

SPREAD: Final = 0.6
"""Standard deviation of pools, in z-scores; means vary less than readings."""
EVEN_DEVIATION: Final = 12.0**-0.5
"""Standard deviation of places that are spread evenly over 0..1; it scales the trend."""
LEAST_VARIANCE: Final = 1e-3
"""Added to the variance of places, so the trend of a few cycles stays small: their places hardly differ."""
SINGLE_VARIANCE: Final = 1e-6
"""Variance of places below which a column has one reading and no trend; two neighbours of 60 have 7e-5.
Without this limit, rounding errors of one reading, times thousands, look like a trend."""
LEAST_WEIGHT: Final = 1e-6
"""Columns with less observed attention have no mean."""


class Pools(NamedTuple):
    """Attention-weighted means of each column, and its trend under the last head.

    They are linear in the readings, with weights that depend on attention and on what is observed:
    the observed readings of a column share its weight.
    """

    rows: Tensor  # [B, H + 1, T] attention of each head; that of the last, times the cycle's place
    scale: Tensor  # [B, H + 1, F] from weighted sums to means, from a covariance to the trend; 0 for none
    middle: Tensor  # [B, 1, F] mean place of the readings under the last head
    seen: Tensor  # [B, H, F] share of each head's weight on cycles with a reading

    @classmethod
    def of(cls, attention: Tensor, place: Tensor, observed: Tensor, is_pooled: Tensor | float = 1.0) -> Pools:
        """Weigh cycles: attention [B, H, T], place [B, 1, T] in -1..0, observed [B, T, F] as 0 or 1.

        Columns where `is_pooled` [F] is 0 count as missing.
        """
        last = attention[:, -1:]  # [B, 1, T]
        # Around its mean, or the covariance of constant readings would be a small difference of large sums.
        place = place - (last * place).sum(-1, keepdim=True)
        of_place = last * place
        weights = torch.cat((attention, of_place, of_place * place), dim=1)  # [B, H + 2, T]
        there = weights @ observed * is_pooled  # [B, H + 2, F]
        seen = there[:, :-2]
        share = (seen > LEAST_WEIGHT) / seen.clamp(min=LEAST_WEIGHT)  # [B, H, F]
        middle = there[:, -2:-1] * share[:, -1:]
        variance = (there[:, -1:] * share[:, -1:] - middle.square()).clamp(min=0.0)
        steep = share[:, -1:] / (variance + LEAST_VARIANCE).sqrt() / (EVEN_DEVIATION * SPREAD)
        steep = torch.where(variance > SINGLE_VARIANCE, steep, 0.0)
        return cls(weights[:, :-1], torch.cat((share / SPREAD, steep), dim=1), middle, seen)

    def of_readings(self, z: Tensor) -> Tensor:
        """Pool readings that are 0 where missing, [B, T, F] -> [B, H + 1, F]."""
        others, last, covariance = _split(self.rows @ z)
        return torch.cat((others, last, covariance - self.middle * last), dim=1) * self.scale

    def shares(self, slope: Tensor, z: Tensor) -> Tensor:
        """Divide sum(slope * pools) among the readings, [B, H + 1, F] and [B, T, F] -> [B, T, F]."""
        others, last, covariance = _split(slope * self.scale)
        gates = torch.cat((others, last - self.middle * covariance, covariance), dim=1)
        return (self.rows.transpose(1, 2) @ gates) * z


def _split(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split [B, H + 1, F] into the other heads, the last head, and its trend."""
    return rows[:, :-2], rows[:, -2:-1], rows[:, -1:]


class Answer(NamedTuple):
    """Answer of a read-out: value = reference + sum(slope * x)."""

    value: Tensor  # [B]
    reference: Tensor  # [] the answer where all inputs are 0
    slope: Tensor  # [B, P]
    hidden: Tensor  # [B, W] the last hidden layer


class ReadOut(nn.Module):
    """Two ReLU layers under a linear head, and the exact share of each input.

    The slope of a ReLU is that of its secant from the reference (all inputs 0): the rescale
    rule of DeepLIFT, Shrikumar et al. (2017).
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor, head: nn.Linear, *, unit: float) -> Answer:
        """Read inputs, float64 [B, P], with a head of one output in this `unit`.

        Slopes are computed in float32, of the precision in which contributions are answered: at a batch of 1
        the products in float64 wait for memory.
        """
        first, second, last = (
            (layer.weight.double(), layer.bias.double()) for layer in (self.first, self.second, head)
        )
        u, u_reference = linear(x, *first), first[1]  # [B, W], [W]
        # A row, as the inputs are: the exporter stores a second, transposed matrix for a vector.
        y, y_reference = u.relu(), u_reference.relu()[None]
        v, v_reference = linear(y, *second), linear(y_reference, *second)  # [B, W], [1, W]
        hidden, hidden_reference = v.relu(), v_reference.relu()
        # Both layers at once: few large operations are fast.
        layers, references = torch.cat((u, v), dim=-1), torch.cat((u_reference[None], v_reference), dim=-1)
        of_u, of_v = secant(layers, references).to(head.weight.dtype).split(v.shape[-1], dim=-1)
        of_y = (of_v * (unit * head.weight)) @ self.second.weight  # [B, W]
        slope = (of_y * of_u) @ self.first.weight  # [B, P]
        value, reference = (unit * linear(each, *last).squeeze(-1) for each in (hidden, hidden_reference))
        return Answer(value, reference.reshape(()), slope.to(x.dtype), hidden)


def secant(u: Tensor, reference: Tensor) -> Tensor:
    """Compute the slope of the ReLU between two inputs, [B, W] and [1, W] -> [B, W], 0..1.

    (relu(u) - relu(r)) / (u - r) is 1 if both are positive, 0 if neither is, else the positive one over
    the distance: (relu(u) + relu(r)) / (|u| + |r|) in each case. Where they are equal it is the slope there.
    """
    # No difference of the two, which would lose the digits of close ones.
    either = u.abs() + reference.abs().clamp(min=torch.finfo(u.dtype).tiny)
    return (u.relu() + reference.relu()) / either
