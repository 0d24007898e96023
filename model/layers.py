"""Layers that all networks share: scaling of raw readings, and operations on ragged windows.

Everything exports to ONNX with dynamic batch and cycles, so it uses plain tensor operations. Padding
never affects valid rows: raw readings are masked by `where`, because 0 * NaN is NaN. This module must not
know RUL, attention or training.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from model.domain import BEYOND_OLDEST
from model.reference import Reference
from model.regimes import TIE

Z_LIMIT: Final = 10.0
"""Limit of scaled readings, so a broken sensor stays finite."""

SOFTMAX_BITS: Final = 32
"""Least precision of a softmax; sums of exponentials in 16 bits lose small weights."""

CLOSED: Final = -1e4
"""Input that closes a gate; representable in half precision."""

RECENT_CYCLES: Final = 10

AGE_MIDDLE: Final = 0.8
AGE_SPREAD: Final = 1 / 6
"""Middle and spread of log age over log oldest age: scaled like a z-score, as small inputs learn slowly."""


def set_buffer(module: nn.Module, name: str, values: ArrayLike) -> None:
    """Copy fitted values into a buffer, in its type."""
    buffer = module.get_buffer(name)
    buffer.copy_(torch.as_tensor(values, dtype=buffer.dtype))


def cycles_after(like: Tensor, lengths: Tensor) -> Tensor:
    """Count the cycles after each row of `like` [B, T, ...], in its type, [B, T]; negative on padding."""
    return lengths[:, None].to(like.dtype) - 1.0 - torch.arange(like.shape[1], device=like.device)


def valid_cycles(after: Tensor) -> Tensor:
    """Return the mask of cycles that are not padding, of `cycles_after`, bool [B, T]."""
    return after >= 0.0


class Scaled(NamedTuple):
    """Scaled readings."""

    z: Tensor  # [B, T, F] z-scores within the regime; missing ones are filled, padding is finite
    known: Tensor  # [B, T, F] the same, 0 where missing or padding
    observed: Tensor  # bool [B, T, F], neither missing nor padding
    after: Tensor  # [B, T] number of cycles after each one; negative on padding

    @property
    def valid(self) -> Tensor:
        """Bool [B, T], not padding."""
        return valid_cycles(self.after)


class Standardise(nn.Module):
    """Conversion of engineering units to z-scores within the operating regime.

    The regime of a cycle is the nearest centre, over the known settings. A missing reading becomes
    its column's mean so far in the window, or the regime's training mean (z = 0) before the first.
    """

    def __init__(self, *, columns: int, settings: tuple[int, ...], regimes: int) -> None:
        super().__init__()
        self.settings = settings
        self.regimes = regimes
        self.register_buffer("centre", torch.zeros(regimes, len(settings)))
        self.register_buffer("setting_scale", torch.ones(len(settings)))
        self.register_buffer("mean", torch.zeros(regimes, columns))
        self.register_buffer("standard_deviation", torch.ones(regimes, columns))

    def fit(self, reference: Reference) -> None:
        """Copy the statistics of the training readings."""
        for name in ("centre", "mean", "standard_deviation"):
            set_buffer(self, name, [getattr(regime, name) for regime in reference.regimes])
        set_buffer(self, "setting_scale", reference.setting_scale)

    def forward(self, readings: Tensor, lengths: Tensor) -> Scaled:
        """Scale raw readings [B, T, F] with lengths [B]."""
        after = cycles_after(readings, lengths)  # [B, T]
        # Nothing but NaN differs from itself.
        observed = valid_cycles(after).unsqueeze(-1) & torch.eq(readings, readings)  # [B, T, F]
        mean, deviation = self.statistics(readings, observed)
        z = ((readings - mean) / deviation).clamp(-Z_LIMIT, Z_LIMIT)
        known = torch.where(observed, z, 0.0)
        return Scaled(torch.where(observed, z, running_mean(known, observed)), known, observed, after)

    def statistics(self, readings: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of each cycle's regime, [B, T, F] or [F]."""
        mean, deviation = self.get_buffer("mean"), self.get_buffer("standard_deviation")
        if self.regimes == 1 or not self.settings:
            return mean[0], deviation[0]
        regime = self.regime(readings, observed)  # [B, T]
        return mean[regime], deviation[regime]

    def regime(self, readings: Tensor, observed: Tensor) -> Tensor:
        """Find the nearest centre of each cycle by its known settings, [B, T]; the first of several."""
        scale, centre = self.get_buffer("setting_scale"), self.get_buffer("centre")  # [S], [R, S]
        setting = self.scaled_settings(readings, observed)  # [B, T, S]
        # (s - c)^2 over the known settings, without the term that all centres share: c^2 - 2 s c.
        from_middle = ((centre - centre.mean(0)) / scale).T  # [S, R]
        terms = torch.cat((from_middle.square(), -2.0 * from_middle))  # [2S, R]
        there = observed[:, :, list(self.settings)].to(setting.dtype)
        distance = torch.cat((there, setting), dim=-1) @ terms  # [B, T, R]
        first = TIE * torch.arange(self.regimes, device=distance.device)
        return (distance + first).argmin(-1)

    def scaled_settings(self, readings: Tensor, observed: Tensor) -> Tensor:
        """Scale settings by their spread over all regimes, [B, T, S]; 0 in the middle of the centres.

        Missing ones are 0. They are clipped far outside the centres, so extreme settings still have a
        nearest centre.
        """
        where = list(self.settings)
        scale, centre = self.get_buffer("setting_scale"), self.get_buffer("centre")  # [S], [R, S]
        lowest, highest = centre.amin(0) - 1e3 * scale, centre.amax(0) + 1e3 * scale
        setting = (readings[:, :, where].clamp(lowest, highest) - centre.mean(0)) / scale
        return torch.where(observed[:, :, where], setting, 0.0)


def running_mean(x: Tensor, there: Tensor) -> Tensor:
    """Compute the mean so far of the known values, [B, T, F] -> [B, T, F]; 0 before the first.

    `x` must be 0 where it is missing.
    """
    return x.cumsum(1) / there.to(x.dtype).cumsum(1).clamp(min=1.0)


def change_weights(context: int) -> Tensor:
    """Return the weights of `features_of_change` for windows of 0 to `context` cycles, [context + 1, 9, 1].

    A weight is (a + b * cycles after this one) / c; the rows are three a, three b, three c. The trend is the
    slope of the fitted line, sum (t - (n-1)/2) z_t * 12 / (n (n^2 - 1)), times its n cycles; 0 if n = 1.
    """
    n = torch.arange(context + 1.0).clamp(min=1.0)
    one, none = torch.ones_like(n), torch.zeros_like(n)
    level, slope = (one, one, 6.0 * (n - 1.0)), (none, none, -12.0 * one)
    divisor = (n, n.clamp(max=RECENT_CYCLES), (n.square() - 1.0).clamp(min=1.0))
    return torch.stack((*level, *slope, *divisor), dim=-1).unsqueeze(-1)


def features_of_change(z: Tensor, after: Tensor, weights: Tensor) -> Tensor:
    """Compute mean, mean of the last ten cycles, and trend, [B, T, F] -> [B, 3F].

    `after` [B, T] is of `cycles_after`, `weights` [B, 9, 1] are those of each window's length.
    """
    there = valid_cycles(after).unsqueeze(1)  # [B, 1, T]
    after = after.unsqueeze(1)
    level, slope, divisor = weights.to(z.dtype).split([3, 3, 3], dim=1)  # [B, 3, 1]
    spans = torch.tensor([[torch.inf], [RECENT_CYCLES], [torch.inf]], dtype=z.dtype, device=z.device)
    weight = torch.where(there & (after < spans), (level + slope * after) / divisor, 0.0)  # [B, 3, T]
    # Relative to the first cycle: sums of readings far from zero cost float32 half of its digits.
    first = z[:, :1]  # [B, 1, F]
    change = weight @ (z - first)  # [B, 3, F]
    return (change + first * torch.tensor([[1.0], [1.0], [0.0]], dtype=z.dtype, device=z.device)).flatten(1)


def cycle_age(after: Tensor, last_cycle: Tensor, *, oldest: Tensor) -> Tensor:
    """Compute `age_of` each cycle, `cycles_after` [B, T] and [B] -> [B, T, 2]; both 0 on padding."""
    age = torch.stack(age_of(last_cycle[:, None] - after, oldest=oldest), dim=-1)
    return age * valid_cycles(after).unsqueeze(-1)


def age_of(cycle: Tensor, *, oldest: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log1p of cycle numbers over that of the oldest unit, and whether they are known.

    [...] -> [...] and [...]. Both are 0 if the number is unknown: NaN, or beyond `BEYOND_OLDEST` times
    the oldest in training, which is no age of such a unit. Numbers a little beyond it count as the oldest.
    """
    known = cycle <= BEYOND_OLDEST * oldest  # not of NaN
    number = torch.where(known, cycle, 0.0).clamp(torch.zeros_like(oldest), oldest)
    return torch.log1p(number) / torch.log1p(oldest), known.to(cycle.dtype)


def spread_age(age: Tensor, known: Tensor) -> Tensor:
    """Scale the ages of `age_of` like z-scores, [...]; 0 if unknown."""
    return (age - AGE_MIDDLE) / AGE_SPREAD * known


class MaskedConvolution(nn.Module):
    """Convolution over cycles and ReLU, [B, T, in] -> [B, T, out]; padding counts as 0 and becomes finite."""

    def __init__(self, inputs: int, outputs: int, *, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(inputs, outputs, width, padding=width // 2)

    def forward(self, x: Tensor, valid: Tensor, *, columns: Tensor | None = None) -> Tensor:
        """Read those `columns` [in] that are 1, or all.

        Masks are applied along the last axis and to the weights: ONNX Runtime is slow at repeating them
        over columns.
        """
        x = x.transpose(1, 2) * valid.unsqueeze(1)  # [B, in, T]
        layer = self.convolution
        weight = layer.weight if columns is None else layer.weight * columns[:, None]
        h = nn.functional.conv1d(x, weight, layer.bias, padding=layer.padding)
        return h.relu().transpose(1, 2)


class RaggedBiLstm(nn.Module):
    """Bidirectional LSTM whose backward direction starts at each window's last cycle.

    [B, T, in] -> [B, T, 2 * hidden], 0 on padding, as PyTorch's packed sequences give. One more input, 1 on
    padding, closes the gates: the state stays 0 until the first valid cycle of either direction. ONNX's
    LSTM would take the lengths, but reads them on the host, and CUDA captures no graph that copies there.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True, bidirectional=True)
        closed = torch.tensor([CLOSED, CLOSED, 0.0, CLOSED])  # input, forget, cell, output
        self.register_buffer("closed", closed.repeat_interleave(hidden)[:, None], persistent=False)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """Read both directions; `valid` is bool [B, T]."""
        x = torch.cat((x, (~valid).unsqueeze(-1).to(x.dtype)), dim=-1)
        weights = [
            torch.cat((weight, self.get_buffer("closed")), dim=1) if name.startswith("weight_ih") else weight
            for name, weight in self.lstm.named_parameters()
        ]
        start = x.new_zeros(2, x.shape[0], self.lstm.hidden_size)
        # Flags: biases, layers, dropout, training, both directions, batch first.
        return torch.lstm(x, (start, start), weights, True, 1, 0.0, self.training, True, True)[0]  # noqa: FBT003


def masked_softmax(score: Tensor, valid: Tensor) -> Tensor:
    """Compute softmax over valid cycles, [..., T] -> [..., T], exactly 0 elsewhere.

    Half precision is computed in float32, and overflowed scores count as the largest finite ones.
    """
    if torch.finfo(score.dtype).bits < SOFTMAX_BITS:
        most = torch.finfo(torch.float32).max
        return masked_softmax(score.float().clamp(-most, most), valid).to(score.dtype)
    lowest = torch.finfo(score.dtype).min
    return torch.where(valid, torch.where(valid, score, lowest).softmax(-1), 0.0)
