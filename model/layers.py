"""Parts that every network is made of: from raw readings to scaled ones, and what ragged windows need.

All of it must export to ONNX with dynamic batch and cycles, so it is plain tensor operations.
Nothing here may let a padding row touch a valid one: masks are applied by `where`, because
0 * NaN is NaN. This module must not know RUL, attention or training.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from model.reference import Reference

Z_LIMIT: Final = 10.0
"""Scaled readings are clipped here: a broken sensor is extreme, not infinite."""

RECENT_CYCLES: Final = 10


def valid_cycles(lengths: Tensor, like: Tensor) -> Tensor:
    """Which rows of `like` [B, T, ...] are readings and not padding: bool [B, T]."""
    return torch.arange(like.shape[1], device=like.device)[None, :] < lengths[:, None]


class Scaled(NamedTuple):
    """Readings as a network reads them.

    Attributes:
        z: [B, T, F] z-scores within the regime; missing ones are filled, padding is 0.
        observed: bool [B, T, F], neither missing nor padding.
        valid: bool [B, T], not padding.
    """

    z: Tensor
    observed: Tensor
    valid: Tensor


class Standardise(nn.Module):
    """Engineering units to z-scores within the operating regime, with missing readings filled.

    The regime of a cycle is the nearest centre, over the settings that are there. A missing
    reading becomes its column's mean so far in the window; before the first reading, and in a
    column without any, the regime's training mean (z = 0).
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
        """Take over what the training readings are like."""
        columns = {
            "centre": [regime.centre for regime in reference.regimes],
            "mean": [regime.mean for regime in reference.regimes],
            "standard_deviation": [regime.standard_deviation for regime in reference.regimes],
            "setting_scale": reference.setting_scale,
        }
        with torch.no_grad():
            for buffer, values in columns.items():
                target = self.get_buffer(buffer)
                target.copy_(torch.tensor(values, dtype=torch.float32).reshape(target.shape))

    def forward(self, readings: Tensor, lengths: Tensor) -> Scaled:
        """[B, T, F] raw readings, [B] lengths -> scaled readings."""
        valid = valid_cycles(lengths, readings)  # [B, T]
        observed = valid.unsqueeze(-1) & ~torch.isnan(readings)  # [B, T, F]
        mean, deviation = self.statistics(readings, observed)
        z = ((readings - mean) / deviation).clamp(-Z_LIMIT, Z_LIMIT)
        z = torch.where(observed, z, torch.zeros_like(z))
        filled = torch.where(observed, z, running_mean(z, observed))
        return Scaled(torch.where(valid.unsqueeze(-1), filled, torch.zeros_like(z)), observed, valid)

    def statistics(self, readings: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each cycle's regime, both [B, T, F] or [F]."""
        mean, deviation = self.get_buffer("mean"), self.get_buffer("standard_deviation")
        if self.regimes == 1 or not self.settings:
            return mean[0], deviation[0]
        regime = self.regime(readings, observed)  # [B, T]
        return mean[regime], deviation[regime]

    def regime(self, readings: Tensor, observed: Tensor) -> Tensor:
        """The nearest centre of each cycle, [B, T]; the first where no setting is there."""
        where = list(self.settings)
        scale, centre = self.get_buffer("setting_scale"), self.get_buffer("centre")  # [S], [R, S]
        # Measured from the middle of the centres, for digits; clipped well outside them, so that an absurd
        # setting still has one nearest centre.
        middle = centre.mean(0)
        lowest, highest = centre.amin(0) - 1e3 * scale, centre.amax(0) + 1e3 * scale
        there = observed[:, :, where]  # [B, T, S]
        setting = (readings[:, :, where].clamp(lowest, highest) - middle) / scale
        setting = torch.where(there, setting, torch.zeros_like(setting))
        # (s - c)^2 over the settings that are there, less what all centres share: c^2 - 2 s c, one product.
        from_middle = ((centre - middle) / scale).T  # [S, R]
        terms = torch.cat((from_middle.square(), -2.0 * from_middle))  # [2S, R]
        return (torch.cat((there.to(setting.dtype), setting), dim=-1) @ terms).argmin(-1)


def running_mean(x: Tensor, there: Tensor) -> Tensor:
    """Mean so far of the values that are there, [B, T, F] -> [B, T, F]; 0 before the first.

    `x` must be 0 where it is not there.
    """
    return x.cumsum(1) / there.to(x.dtype).cumsum(1).clamp(min=1.0)


class Change(NamedTuple):
    """Features of change, each [B, T, F]: what the readings up to a cycle say about its trend."""

    mean: Tensor
    recent: Tensor
    trend: Tensor

    def joined(self) -> Tensor:
        """[B, T, 3F]."""
        return torch.cat(self, dim=-1)


def features_of_change(z: Tensor) -> Change:
    """Running mean, mean of the last ten cycles, and change along the straight line fitted so far.

    [B, T, F] -> three times [B, T, F]. Causal: a cycle knows itself and those before it, so that
    padding at the end changes nothing. Trend is the fitted slope times the cycles it spans.
    """
    place = torch.arange(z.shape[1], device=z.device).to(z.dtype)[None, :, None]  # [1, T, 1]
    count = place + 1.0
    # Sums run over what is left of the first cycle and of the mean so far: over the readings themselves
    # they are large and nearly cancel, which costs float32 half of its digits in a hundred cycles.
    first = z[:, :1]
    left = z - first
    total = left.cumsum(1)
    earlier = nn.functional.pad(total, (0, 0, RECENT_CYCLES, 0))[:, :-RECENT_CYCLES]
    recent = (total - earlier) / count.clamp(max=float(RECENT_CYCLES))
    # Least squares on 0..n-1: slope = sum (t - (n-1)/2) z_t * 12 / (n (n^2 - 1)); 0 where n = 1. One
    # cycle more adds t/2 (z_t - mean before it) to the sum.
    surprise = left - (total - left) / place.clamp(min=1.0)
    slope = (place / 2.0 * surprise).cumsum(1) * 12.0 / (count * (count.square() - 1.0)).clamp(min=1.0)
    return Change(first + total / count, first + recent, slope * count)


def cycle_age(lengths: Tensor, last_cycle: Tensor, *, oldest: Tensor, valid: Tensor) -> Tensor:
    """log1p of the cycle number of each reading over that of the oldest unit, and whether it is known.

    [B], [B] -> [B, T, 2]; both 0 where the last cycle is not known (NaN), and on padding. Cycle
    numbers past the oldest in training count as the oldest: the network knows nothing beyond.
    """
    known = ~torch.isnan(last_cycle)
    place = torch.arange(valid.shape[1], device=valid.device)[None, :]
    before_last = (lengths[:, None] - 1 - place).to(last_cycle.dtype)
    last = torch.where(known, last_cycle, torch.zeros_like(last_cycle))
    number = torch.minimum((last[:, None] - before_last).clamp(min=0.0), oldest)  # [B, T]
    there = known[:, None] & valid
    age = torch.where(there, torch.log1p(number) / torch.log1p(oldest), torch.zeros_like(number))
    return torch.stack((age, there.to(age.dtype)), dim=-1)


class MaskedConvolution(nn.Module):
    """Convolution over cycles, then ReLU, with padding set back to 0: [B, T, in] -> [B, T, out]."""

    def __init__(self, inputs: int, outputs: int, *, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(inputs, outputs, width, padding=width // 2)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """Masked after the convolution: its bias would turn padding into a reading."""
        h = self.convolution(x.transpose(1, 2)).transpose(1, 2).relu()
        return torch.where(valid.unsqueeze(-1), h, torch.zeros_like(h))


class RaggedBiLstm(nn.Module):
    """Bidirectional LSTM whose backward direction starts at each window's own last cycle.

    [B, T, in] -> [B, T, 2 * hidden], 0 on padding. While exporting it is the plain layer, because
    ONNX's own LSTM takes the lengths: `export.to_onnx` hands them to it.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Two runs ahead, the second over each window turned round: twice as fast as packing them."""
        if torch.onnx.is_in_onnx_export():
            return self.lstm(x)[0]
        place = torch.arange(x.shape[1], device=x.device)[None, :]
        mirrored = lengths[:, None] - 1 - place  # [B, T]
        valid = mirrored >= 0
        mirrored = torch.where(valid, mirrored, place)
        ahead = self._run(x, "l0")
        back = self._run(_reordered(x, mirrored), "l0_reverse")
        h = torch.cat((ahead, _reordered(back, mirrored)), dim=-1)  # [B, T, 2H]
        return torch.where(valid.unsqueeze(-1), h, torch.zeros_like(h))

    def _run(self, x: Tensor, direction: str) -> Tensor:
        """One direction of the layer, as if it were the only one: [B, T, in] -> [B, T, H]."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        weights: list[Tensor] = [self.lstm.get_parameter(f"{name}_{direction}") for name in names]
        start = x.new_zeros(1, x.shape[0], self.lstm.hidden_size)
        # Flags: biases, layers, dropout, training, both directions, batch first.
        return torch.lstm(x, (start, start), weights, True, 1, 0.0, self.training, False, True)[0]  # noqa: FBT003


def _reordered(x: Tensor, rows: Tensor) -> Tensor:
    """[B, T, D] with its cycles in the order of `rows`, [B, T]."""
    return x.gather(1, rows.unsqueeze(-1).expand(-1, -1, x.shape[2]))


def masked_softmax(score: Tensor, valid: Tensor) -> Tensor:
    """Softmax over the valid cycles, [B, T] -> [B, T]: exactly 0 on padding, and 0 where all is padding."""
    lowest = torch.finfo(score.dtype).min
    score = torch.where(valid, score, torch.full_like(score, lowest))
    weight = (score - score.amax(dim=-1, keepdim=True)).exp()
    weight = torch.where(valid, weight, torch.zeros_like(weight))
    return weight / weight.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(score.dtype).tiny)
