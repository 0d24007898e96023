"""Calibration: what the answers of a trained network are worth.

Fits the buffers of a network that are not learnt by gradient: the quantiles of its normalised
error and the interval on errors of held-out units, the baseline and the novelty on its training
windows. This module must not know files or how the weights came about.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.dataset import join_windows
from model.domain import FloatArray, IntArray, WindowSet, attention_entropy_ratio, capped_rul
from model.evaluation import Answered
from model.network import QUANTILES, Estimate, RulNetwork

AT_ONCE: Final = 512
SCALE_STEPS: Final = 300
SCALE_RATE: Final = 1e-2
SCALE_DECAY: Final = 0.3
SHORT_SHARE: Final = 0.3
"""Of the training windows: short histories, whose wider errors the scale must know."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """What a network made of windows: as in `Estimate`, over all windows, as NumPy arrays.

    `scale` is how wide the error is expected to be, [W], in cycles.
    """

    unclipped: FloatArray
    scale: FloatArray
    context: FloatArray
    attention: FloatArray
    statistics: FloatArray
    head_attention: FloatArray | None = None


def tensors(windows: WindowSet) -> tuple[Tensor, Tensor, Tensor]:
    """Windows as the network takes them: readings, lengths, last cycle."""
    return (
        torch.from_numpy(windows.readings),
        torch.from_numpy(windows.lengths),
        torch.from_numpy(windows.last_cycle),
    )


def read_windows(net: RulNetwork, windows: WindowSet) -> Read:
    """The network's uncalibrated answers, in eval mode and without gradients."""
    net.eval()
    parts: list[Estimate] = []
    with torch.no_grad():
        for start in range(0, len(windows), AT_ONCE):
            part = windows.take(np.arange(start, min(start + AT_ONCE, len(windows))))
            parts.append(net.estimate(*tensors(part)))

    def joined(name: str) -> FloatArray:
        return torch.cat([getattr(part, name) for part in parts]).numpy()

    with torch.no_grad():
        scale = torch.cat([net.error_scale(part.context) for part in parts]).numpy()
    heads = joined("head_attention") if net.config.heads else None
    return Read(
        joined("unclipped"), scale, joined("context"), joined("attention"), joined("statistics"), heads
    )


def last_cycles(readings: Tensor, lengths: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Each window's last so many cycles, [B, T, F], [B], [B] -> the same shapes, NaN past the end."""
    shorter = torch.minimum(most, lengths)
    rows = (lengths - shorter)[:, None] + torch.arange(readings.shape[1])  # [B, T]
    rows = rows.clamp(max=readings.shape[1] - 1)
    cut = readings.gather(1, rows.unsqueeze(-1).expand_as(readings))
    beyond = torch.arange(readings.shape[1]) >= shorter[:, None]
    return cut.masked_fill(beyond.unsqueeze(-1), torch.nan), shorter


def cut_windows(windows: WindowSet, most: IntArray) -> WindowSet:
    """The same windows of units whose earlier cycles nobody kept: the last so many, int [W]."""
    readings, lengths, _ = tensors(windows)
    cut, shorter = last_cycles(readings, lengths, torch.from_numpy(most))
    return replace(windows, readings=cut.numpy(), lengths=shorter.numpy())


def with_short_histories(windows: WindowSet, *, seed: int = 0) -> WindowSet:
    """The windows, and `SHORT_SHARE` of them once more, cut to any number of their last cycles."""
    rng = np.random.default_rng(seed)
    again = windows.take(rng.permutation(len(windows))[: int(SHORT_SHARE * len(windows))])
    return join_windows([windows, cut_windows(again, rng.integers(1, again.lengths + 1))])


def normalised_error(read: Read, windows: WindowSet, *, cap: float) -> FloatArray:
    """(truth - answer) / scale with both capped, [W]."""
    rul = np.clip(read.unclipped, 0.0, cap)
    return (capped_rul(windows.rul, cap=cap) - rul) / read.scale


def weighted_quantiles(values: FloatArray, weights: FloatArray, probabilities: FloatArray) -> FloatArray:
    """Quantiles of weighted values, straight lines between the middles of the weights.

    >>> weighted_quantiles(np.array([3.0, 1.0]), np.ones(2), np.array([0.0, 0.5, 1.0])).tolist()
    [1.0, 2.0, 3.0]
    """
    order = np.argsort(values, kind="stable")
    weight = weights[order] / weights.sum()
    return np.interp(probabilities, np.cumsum(weight) - weight / 2, values[order])


def unit_weights(unit: NDArray[np.str_]) -> FloatArray:
    """A weight for each window, such that every unit weighs the same in all."""
    _, inverse, counts = np.unique(unit, return_inverse=True, return_counts=True)
    return 1.0 / counts[inverse]


def interval_bounds(error: FloatArray, unit: NDArray[np.str_], *, coverage: float) -> FloatArray:
    """Normalised error below and above which (1 - coverage) / 2 of the windows lie, float [2].

    Taken over all windows at once with units weighing the same. The lower is never above 0 and
    the upper never below, so that an interval always holds the answer that it surrounds.
    """
    tail = (1.0 - coverage) / 2.0
    low, high = weighted_quantiles(error, unit_weights(unit), np.array([tail, 1.0 - tail]))
    return np.array([min(low, 0.0), max(high, 0.0)])


def fit_scale(net: RulNetwork, windows: WindowSet) -> None:
    """Fit the layers that say how wide the error is, by Laplace likelihood; nothing else moves.

    On the windows that trained: their errors are smaller than those of new units, but differ as
    theirs do, and the quantiles make up for the rest.
    """
    read = read_windows(net, windows)
    cap = net.config.cap
    context = torch.from_numpy(read.context)
    error = torch.from_numpy(np.abs(capped_rul(windows.rul, cap=cap) - np.clip(read.unclipped, 0.0, cap)))
    optimizer = torch.optim.AdamW(net.scale.parameters(), lr=SCALE_RATE, weight_decay=SCALE_DECAY)
    for _ in range(SCALE_STEPS):
        scale = net.error_scale(context)
        optimizer.zero_grad()
        (error / scale + scale.log()).mean().backward()
        optimizer.step()
    net.zero_grad()


def fit_distribution(net: RulNetwork, read: Read, windows: WindowSet) -> None:
    """Set the quantile table and the interval from what was answered to units that had not trained it.

    `read` may be of other networks, trained alike on other units: their errors stand for this one's.
    """
    config = net.config
    error = normalised_error(read, windows, cap=config.cap)
    quantile = weighted_quantiles(error, unit_weights(windows.unit), np.linspace(0.0, 1.0, QUANTILES))
    # The ends are the worst errors seen: a bit further is possible. Strictly rising, to be inverted.
    step = 1e-3 * np.arange(QUANTILES)
    reach = 0.1 * (quantile[-1] - quantile[0])
    quantile[0] -= reach
    quantile[-1] += reach
    _fill(net.distribution.get_buffer("quantile"), quantile + step - step.mean())
    _fill(
        net.distribution.get_buffer("interval"),
        interval_bounds(error, windows.unit, coverage=config.coverage),
    )


def fit_baseline(net: RulNetwork, read: Read) -> None:
    """Set the baseline: the mean unclipped answer on the training windows."""
    _fill(net.get_buffer("baseline"), np.asarray(read.unclipped.mean(dtype=np.float64)))


def fit_novelty(net: RulNetwork, read: Read, lengths: IntArray) -> None:
    """Fit what novelty is measured against to the training windows."""
    net.novelty.fit(read.statistics, lengths)


def held_out_coverage(read: Read, windows: WindowSet, *, cap: float, coverage: float) -> Answered:
    """Intervals of held-out windows, each unit's made from the errors of all the other units.

    On the very windows that set an interval its coverage is nominal by construction; leaving one
    unit out says what to expect of a new one.
    """
    error = normalised_error(read, windows, cap=cap)
    rul = np.clip(read.unclipped, 0.0, cap)
    lower, upper = rul.copy(), rul.copy()
    for unit in np.unique(windows.unit):
        own = windows.unit == unit
        if own.all():
            continue
        low, high = interval_bounds(error[~own], windows.unit[~own], coverage=coverage)
        lower[own] = rul[own] + low * read.scale[own]
        upper[own] = rul[own] + high * read.scale[own]
    return Answered(windows.rul, rul, np.clip(lower, 0, cap), np.clip(upper, 0, cap), windows.unit)


def entropy_references(read: Read, lengths: IntArray) -> list[dict[str, str | float]]:
    """Where the entropy ratio of windows of two cycles or more lies: of the attention and of each head.

    0.5 %, 50 % and 99.5 % quantiles; the attention itself is the head `mean`.
    """
    heads = {"mean": read.attention}
    if read.head_attention is not None:
        heads |= {str(h): read.head_attention[:, h] for h in range(read.head_attention.shape[1])}
    found: list[dict[str, str | float]] = []
    for head, attention in heads.items():
        ratio = attention_entropy_ratio(attention, lengths)[lengths > 1]
        low, median, high = (float(q) for q in np.quantile(ratio, (0.005, 0.5, 0.995)))
        found.append({"head": head, "low": low, "median": median, "high": high})
    return found


def _fill(buffer: Tensor, values: FloatArray) -> None:
    with torch.no_grad():
        buffer.copy_(torch.as_tensor(values, dtype=buffer.dtype))
