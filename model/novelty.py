"""Novelty: distance of a window from the training windows.

Novelty is the maximum of four distances, each divided by its 99.5 % quantile in training, and that maximum
divided by its own. They find four kinds of anomaly: small shifts of many columns, a constant shift of one
column, too much or too little change from cycle to cycle, repeated readings. They are fitted to training
windows, not learnt. This module must not know networks.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from model.domain import FloatArray, IntArray
from model.layers import Scaled, change_weights, features_of_change, set_buffer

QUANTILE: Final = 0.995
LEAST_REPEATS: Final = 2.0
"""Minimum of that quantile for repeated readings, in standard deviations. Live readings may repeat by chance
or by rounding even if no training reading does; that alone is no anomaly."""
SHRINKAGE: Final = 0.3
"""Share of the diagonal in the covariance; it limits the effect of a missing column."""
SHRINKAGE_ALONE: Final = 0.7
"""Share for the distance of one feature given all others, which a missing feature distorts more."""
WINDOWS_A_FEATURE: Final = 2
"""Minimum number of windows per feature for the estimate of a covariance."""


class Statistics(NamedTuple):
    """Statistics of windows: features of change at the last cycle, and steps from cycle to cycle."""

    change: Tensor  # [B, 3F], see `features_of_change`
    steps: Tensor  # [B, F] sum of |z_t - z_(t-1)|
    repeats: Tensor  # [B, F] number of exactly repeated readings
    pairs: Tensor  # [B, F] number of observed pairs
    seen: Tensor  # [B, F] number of observed readings

    @classmethod
    def of_rows(cls, rows: Tensor) -> Statistics:
        """Split the rows that `rows` returns, [B, 7F]."""
        f = rows.shape[1] // 7
        return cls(*rows.split([3 * f, f, f, f, f], dim=-1))

    def rows(self) -> Tensor:
        """Join all statistics of each window, [B, 7F]."""
        return torch.cat(self, dim=-1)


class Novelty(nn.Module):
    """Distances and their fitted statistics; 1 is the 99.5 % quantile of training windows."""

    def __init__(self, columns: int, *, context: int) -> None:
        super().__init__()
        self.register_buffer("change_weights", change_weights(context), persistent=False)
        features = 3 * columns
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("whiten", torch.eye(features))
        self.register_buffer("alone", torch.eye(features))
        # Short windows vary more: the expected square of n cycles is `spread + noise / n`.
        self.register_buffer("spread", torch.ones(2))
        self.register_buffer("noise", torch.zeros(2))
        self.register_buffer("usual_step", torch.zeros(columns))
        self.register_buffer("step_spread", torch.ones(columns))
        self.register_buffer("usual_repeats", torch.zeros(columns))
        self.register_buffer("quantile", torch.ones(4))

    def statistics(self, scaled: Scaled, readings: Tensor, lengths: Tensor) -> Statistics:
        """Summarise scaled and raw readings [B, T, F] with lengths [B]."""
        z, observed = scaled.z, scaled.observed
        both = observed[:, 1:] & observed[:, :-1]
        repeated = both & (readings[:, 1:] == readings[:, :-1])
        step = (z[:, 1:] - z[:, :-1]).abs() * both
        change = features_of_change(z, scaled.after, self.get_buffer("change_weights")[lengths])
        counts = (each.to(z.dtype).sum(1) for each in (repeated, both, observed))
        return Statistics(change, step.sum(1), *counts)

    def forward(self, statistics: Statistics, lengths: Tensor) -> Tensor:
        """Compute the novelty from statistics and lengths [B], [B]."""
        usual = self.usual_distances() * self.get_buffer("quantile")
        return (self._distances(statistics, lengths) / usual[lengths]).amax(-1)

    def usual_distances(self) -> Tensor:
        """Return the usual distances of windows of 0 to `context` cycles, [context + 1, 4].

        Short windows vary more. A table, because the graph looks distances up by length.
        """
        noise = self.get_buffer("noise")
        n = torch.arange(len(self.get_buffer("change_weights")), device=noise.device).clamp(min=1)[:, None]
        of_change = self.get_buffer("spread") + noise / n
        return torch.cat((of_change.sqrt(), torch.ones_like(of_change)), dim=-1)

    def _distances(self, statistics: Statistics, lengths: Tensor) -> Tensor:
        """Compute the four distances, [B, 4]."""
        change, steps, repeats, pairs, seen = statistics
        length = lengths[:, None].to(change.dtype)
        centred = change - self.get_buffer("mean")
        joint = (centred @ self.get_buffer("whiten")).norm(dim=-1, keepdim=True)
        there = (seen / length).repeat(1, 3)  # a missing column does not count
        off = ((centred @ self.get_buffer("alone")) * there).abs()
        usual = self.get_buffer("usual_step")
        restless = (steps - usual * pairs) / (pairs.clamp(min=1.0).sqrt() * self.get_buffer("step_spread"))
        by_chance = self.get_buffer("usual_repeats") * pairs
        repeating = (repeats - by_chance) / (by_chance + 1.0).sqrt()
        largest = (each.amax(-1, keepdim=True) for each in (off, restless.abs(), repeating))
        return torch.cat((joint, *largest), dim=-1)

    def fit(self, rows: FloatArray, lengths: IntArray) -> None:
        """Fit all buffers to `Statistics.rows` of the training windows, [W, 7F] and [W]."""
        statistics = Statistics.of_rows(torch.from_numpy(rows))
        change, steps, repeats, pairs, _ = (each.double().numpy() for each in statistics)
        self._fit_change(change, lengths)
        total = np.maximum(pairs.sum(0), 1.0)
        usual = steps.sum(0) / total
        square = np.square(steps - usual * pairs) / np.maximum(pairs, 1.0)
        spread = np.sqrt(square.sum(0) / np.maximum((pairs > 0).sum(0), 1))
        set_buffer(self, "usual_step", usual)
        set_buffer(self, "step_spread", np.where(spread > 1e-6, spread, 1.0))
        set_buffer(self, "usual_repeats", repeats.sum(0) / total)
        self._fit_quantiles(statistics, lengths)

    def _fit_change(self, change: FloatArray, lengths: IntArray) -> None:
        centred = change - change.mean(0)
        # Windows of full length; if these are too few, the longest ones.
        fewest = min(WINDOWS_A_FEATURE * change.shape[1], len(lengths))
        whole = centred[lengths >= np.sort(lengths)[-fewest]]
        variance, axes = _axes(whole, SHRINKAGE)
        whiten = axes / np.sqrt(variance)
        variance, axes = _axes(whole, SHRINKAGE_ALONE)
        # Columns of the inverse covariance: the residual of a feature given all others.
        alone = (axes / variance) @ axes.T
        left = np.sqrt(np.square(whole @ alone).mean(0))
        alone /= np.where(left > 1e-6, left, np.sqrt(np.diag(alone)))
        design = np.stack([np.ones(len(lengths)), 1.0 / lengths], axis=1)
        squares = np.stack([np.square(centred @ whiten).sum(1), np.square(centred @ alone).mean(1)], axis=1)
        spread, noise = np.linalg.lstsq(design, squares, rcond=None)[0]
        for name, values in (("mean", change.mean(0)), ("whiten", whiten), ("alone", alone)):
            set_buffer(self, name, values)
        set_buffer(self, "spread", np.maximum(spread, 1e-3))
        set_buffer(self, "noise", np.maximum(noise, 0.0))

    def _fit_quantiles(self, statistics: Statistics, lengths: IntArray) -> None:
        with torch.no_grad():
            n = torch.from_numpy(lengths)
            distances = (self._distances(statistics, n) / self.usual_distances()[n]).numpy()
        each = np.maximum(np.quantile(distances, QUANTILE, axis=0), (1e-3, 1e-3, 1e-3, LEAST_REPEATS))
        set_buffer(self, "quantile", each * np.quantile((distances / each).max(1), QUANTILE))


def _axes(centred: FloatArray, shrinkage: float) -> tuple[FloatArray, FloatArray]:
    """Compute variances [S] and axes [S, S] of the shrunk covariance."""
    covariance = np.cov(centred, rowvar=False)
    covariance = (1 - shrinkage) * covariance + shrinkage * np.diag(np.diag(covariance))
    return np.linalg.eigh(covariance + 1e-4 * np.eye(len(covariance)))
