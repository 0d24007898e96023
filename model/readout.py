"""Pools of readings and their read-out: each answers with a value and with its exact shares.

This module must not know where attention comes from, data, losses or ONNX.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

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
LEAST_STEP: Final = 1e-6
"""Smaller changes of a ReLU's input have its slope in place of a secant."""


class Pools(NamedTuple):
    """Attention-weighted means of each column, and its trend under the last head.

    They are linear in the readings, with weights that depend on attention and on what is observed:
    the observed readings of a column share its weight.
    """

    rows: Tensor  # [B, H + 1, T] attention of each head; that of the last, times the cycle's place
    scale: Tensor  # [B, H, F] from weighted sums to means; 0 for a column without readings
    middle: Tensor  # [B, F] mean place of the readings under the last head
    steep: Tensor  # [B, F] from the covariance with the place to the trend

    @classmethod
    def of(cls, attention: Tensor, place: Tensor, observed: Tensor) -> Pools:
        """Weigh cycles: attention [B, H, T], place [B, T] in -1..0, observed [B, T, F] as 0 or 1.

        In float64: readings that hardly change within a window are small differences of large sums.
        """
        attention, place, observed = attention.double(), place.double(), observed.double()
        heads, last = attention.shape[1], attention[:, -1]
        # Around its mean, or the covariance of constant readings would be a small difference of large sums.
        place = place - (last * place).sum(-1, keepdim=True)
        moments = torch.stack((last * place, last * place.square()), dim=1)  # [B, 2, T]
        there = torch.cat((attention, moments), dim=1) @ observed  # [B, H + 2, F]
        seen = there[:, :heads]
        share = torch.where(seen > LEAST_WEIGHT, 1.0 / seen.clamp(min=LEAST_WEIGHT), torch.zeros_like(seen))
        middle = there[:, heads] * share[:, -1]
        variance = (there[:, heads + 1] * share[:, -1] - middle.square()).clamp(min=0.0)
        steep = share[:, -1] / (variance + LEAST_VARIANCE).sqrt() / (EVEN_DEVIATION * SPREAD)
        steep = torch.where(variance > SINGLE_VARIANCE, steep, torch.zeros_like(steep))
        return cls(torch.cat((attention, moments[:, :1]), dim=1), share / SPREAD, middle, steep)

    def of_readings(self, z: Tensor) -> Tensor:
        """Pool readings that are 0 where missing, [B, T, F] -> float64 [B, H + 1, F]."""
        total = self.rows @ z.double()  # [B, H + 1, F]
        trend = (total[:, -1] - self.middle * total[:, -2]) * self.steep
        return torch.cat((total[:, :-1] * self.scale, trend[:, None]), dim=1)

    def shares(self, slope: Tensor, z: Tensor) -> Tensor:
        """Divide sum(slope * pools) among the readings, [B, H + 1, F] and [B, T, F] -> [B, T, F]."""
        slope = slope.double()
        of_trend = slope[:, -1] * self.steep  # [B, F]
        of_last = slope[:, -2] * self.scale[:, -1] - self.middle * of_trend
        means = slope[:, :-2] * self.scale[:, :-1]
        gates = torch.cat((means, of_last[:, None], of_trend[:, None]), dim=1)  # [B, H + 1, F]
        return ((self.rows.transpose(1, 2) @ gates) * z).to(z.dtype)


class Answer(NamedTuple):
    """Answer of a read-out: value = reference + sum(slope * x)."""

    value: Tensor  # [B]
    reference: Tensor  # [] the answer where all inputs are 0
    slope: Tensor  # [B, P]
    hidden: Tensor  # [B, W] the last hidden layer


class ReadOut(nn.Module):
    """Two ReLU layers under a linear head, and the exact share of each input.

    The slope of a ReLU is that of its secant from the reference, where all inputs are 0: the rescale
    rule of DeepLIFT, Shrikumar et al. (2017).
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor, head: nn.Linear) -> Answer:
        """Read inputs [B, P] with a head of one output."""
        u, u_reference = self.first(x), self.first.bias  # [B, W], [W]
        y, y_reference = u.relu(), u_reference.relu()
        v, v_reference = self.second(y), self.second(y_reference)
        hidden, hidden_reference = v.relu(), v_reference.relu()
        slope = (secant(v, v_reference) * head.weight[0]) @ self.second.weight  # [B, W]
        slope = (slope * secant(u, u_reference)) @ self.first.weight  # [B, P]
        return Answer(head(hidden).squeeze(-1), head(hidden_reference).squeeze(-1), slope, hidden)


def secant(u: Tensor, reference: Tensor) -> Tensor:
    """Compute the slope of the ReLU between two inputs, [B, W] and [W] -> [B, W], 0..1.

    Where they are equal it is the slope at the reference.
    """
    step = u - reference
    is_small = step.abs() < LEAST_STEP
    at_reference = (reference > 0).to(u.dtype).expand_as(u)
    rise = (u.relu() - reference.relu()) / torch.where(is_small, torch.ones_like(step), step)
    return torch.where(is_small, at_reference, rise)
