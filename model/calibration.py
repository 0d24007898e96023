"""Calibration of a trained network: the width of its errors, their quantiles and the interval.

The layers of the width are fitted on training windows; factors of the width, quantiles and interval on errors
of held-out units.
This module must not know files or training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.dataset import AnyWindows, join_windows
from model.domain import (
    NEAR_CAP,
    BoolArray,
    FloatArray,
    IntArray,
    WindowSet,
    attention_entropy_ratio,
    capped_rul,
    concatenated,
    heads_by_name,
    tail_scale,
)
from model.evaluation import Answered
from model.gaps import with_gaps
from model.layers import set_buffer
from model.network import BANDS, PROBABILITIES, RulNetwork, band_factor

AT_ONCE: Final = 512
SCALE_STEPS: Final = 300
SCALE_RATE: Final = 1e-2
SCALE_DECAY: Final = 0.3
FEWEST_UNITS: Final = 10
"""Minimum units in a band or group; with fewer a band keeps its scale, and a group has the errors of all."""
MOST_CHANGE: Final = 3.0
"""Maximum factor by which a band's scale is multiplied or divided."""
ROUNDS: Final = 2
"""Number of rounds: a band's scale depends on its neighbours and the bounds. More rounds fit noise."""
MOST_LEFT_OUT: Final = 300
SMALLEST_BOUND: Final = 1e-3
"""Minimum distance of an interval's bound from the answer, in scales, when errors are divided by it."""
SHORT_SHARE: Final = 0.3
"""Share of the training windows that are repeated as shorter histories, whose errors are larger."""
GAP_SHARE: Final = 0.2
"""Share of the training windows that are repeated with a gap, so that intervals widen with gaps."""
AGELESS_SHARE: Final = 0.2
"""Share of the training windows that are repeated without a cycle number: their errors are larger too."""
LENGTHS: Final = (1 / 5, 1 / 3, 1 / 2, 3 / 4, 1)
"""Shares of the context at which entropy bands begin, after windows of two cycles. Most windows are full."""
ENTROPY_QUANTILES: Final = np.array([0.005, 0.5, 0.995])


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Uncalibrated answers to all windows as NumPy arrays; see `Estimate`."""

    unclipped: FloatArray
    scale: FloatArray  # [W] expected width of the error, in cycles
    context: FloatArray
    attention: FloatArray
    head_attention: FloatArray | None = None
    evidence: FloatArray | None = None
    of_sensors: FloatArray | None = None  # [W, F] contribution of each column over all cycles

    @property
    def ranking(self) -> FloatArray:
        """Return the ranking values of cycles, [W, T]: evidence or, without it, attention."""
        return self.attention if self.evidence is None else self.evidence


def tensors(windows: WindowSet) -> tuple[Tensor, Tensor, Tensor]:
    """Convert windows to the network's inputs: readings, lengths, last cycle."""
    return (
        torch.from_numpy(windows.readings),
        torch.from_numpy(windows.lengths),
        torch.from_numpy(windows.last_cycle),
    )


def read_windows(net: RulNetwork, windows: AnyWindows) -> Read:
    """Compute the uncalibrated answers, in eval mode and without gradients."""
    net.eval()
    with torch.no_grad():
        return concatenated([_read(net, part) for part in windows.batches(AT_ONCE)])


def _read(net: RulNetwork, windows: WindowSet) -> Read:
    estimate = net.estimate(*tensors(windows))
    rul = estimate.unclipped.clamp(0.0, net.config.cap).unsqueeze(-1)
    explained: tuple[Tensor, ...] = ()
    if (explanation := estimate.explanation) is not None:
        explained = explanation.evidence, explanation.sensor_contribution.sum(1)
    heads = estimate.head_attention
    return Read(
        estimate.unclipped.numpy(),
        net.error_scale(estimate.context, rul)[:, 0].numpy(),
        estimate.context.numpy(),
        estimate.attention.numpy(),
        None if heads is None else heads.numpy(),
        *(each.numpy() for each in explained),
    )


def last_cycles(readings: Tensor, lengths: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Keep at most `most` last cycles of each window: [B, T, F], [B], [B] -> [B, T, F], [B]."""
    shorter = torch.minimum(most, lengths)
    rows = (lengths - shorter)[:, None] + torch.arange(readings.shape[1])  # [B, T]
    rows = rows.clamp(max=readings.shape[1] - 1)
    cut = readings.gather(1, rows.unsqueeze(-1).expand_as(readings))
    beyond = torch.arange(readings.shape[1]) >= shorter[:, None]
    return cut.masked_fill(beyond.unsqueeze(-1), torch.nan), shorter


def cut_windows(windows: WindowSet, most: IntArray) -> WindowSet:
    """Keep at most `most` [W] last cycles of each window."""
    readings, lengths, _ = tensors(windows)
    cut, shorter = last_cycles(readings, lengths, torch.from_numpy(most))
    return replace(windows, readings=cut.numpy(), lengths=shorter.numpy())


def with_lacking(windows: AnyWindows) -> Iterator[AnyWindows]:
    """Yield the windows, then some cut to fewer cycles, some with a gap, some without a cycle number."""
    rng = np.random.default_rng(0)
    short, gapped = (rng.permutation(len(windows))[: int(s * len(windows))] for s in (SHORT_SHARE, GAP_SHARE))
    most = rng.integers(1, windows.lengths[short] + 1)
    ageless = rng.permutation(len(windows))[: int(AGELESS_SHARE * len(windows))]
    yield windows
    yield cut_windows(windows.take(short), most)
    yield with_gaps(windows.take(gapped), torch.Generator().manual_seed(0))
    known = windows.take(ageless)
    yield replace(known, last_cycle=np.full_like(known.last_cycle, np.nan))


def normalised_error(read: Read, windows: WindowSet, *, cap: float) -> FloatArray:
    """Compute (truth - answer) / scale, both capped, [W]; an answer near the cap counts as the cap."""
    rul = np.where(at_cap(read.unclipped, cap=cap) == 1, cap, np.clip(read.unclipped, 0.0, cap))
    return (capped_rul(windows.rul, cap=cap) - rul) / read.scale


def weighted_quantiles(values: FloatArray, weights: FloatArray, probabilities: FloatArray) -> FloatArray:
    """Compute quantiles of weighted values, linear between the middles of the weights.

    >>> weighted_quantiles(np.array([3.0, 1.0]), np.ones(2), np.array([0.0, 0.5, 1.0])).tolist()
    [1.0, 2.0, 3.0]
    """
    order = np.argsort(values, kind="stable")
    weight = weights[order] / weights.sum()
    return np.interp(probabilities, np.cumsum(weight) - weight / 2, values[order])


def unit_weights(unit: NDArray[Any], weight: FloatArray) -> FloatArray:
    """Return a weight for each window, so that each unit has its own `weight` [W] over all its windows."""
    _, inverse, counts = np.unique(unit, return_inverse=True, return_counts=True)
    return weight / counts[inverse]


def at_cap(unclipped: FloatArray, *, cap: float) -> IntArray:
    """Tell answers at the cap (1) from those below it (0), [W], as `Distribution` does."""
    return (np.clip(unclipped, 0.0, cap) >= NEAR_CAP * cap).astype(np.int64)


def rows_like(group: IntArray, unit: NDArray[Any], *, wanted: int) -> BoolArray:
    """Choose the rows of a group, [W]; all rows if the group at the cap has fewer than `FEWEST_UNITS` units.

    Answers below the cap do without those at it if there are any: most errors at the cap are 0.
    """
    own, fewest = group == wanted, FEWEST_UNITS if wanted else 1
    return own if len(np.unique(unit[own])) >= fewest else np.ones(len(unit), dtype=np.bool_)


def interval_bounds(
    error: FloatArray, group: IntArray, unit: NDArray[Any], weight: FloatArray, *, coverage: float
) -> FloatArray:
    """Return the (1 - coverage) / 2 quantiles of the normalised error on both sides, [2, 2].

    The rows are for answers below the cap and at the cap (`at_cap`), because answers at the cap can only be
    too high, and their errors would set the lower bound of all. Units have their `weight` [W]. The lower
    bound is at most 0 and the upper at least 0, so an interval always contains its answer.
    """
    tail = (1.0 - coverage) / 2.0
    bounds: list[tuple[float, float]] = []
    for wanted in (0, 1):
        rows = rows_like(group, unit, wanted=wanted)
        weights = unit_weights(unit[rows], weight[rows])
        low, high = weighted_quantiles(error[rows], weights, np.array([tail, 1.0 - tail]))
        bounds.append((min(low, 0.0), max(high, 0.0)))
    return np.array(bounds)


def scale_factors(read: Read, windows: WindowSet, *, cap: float, coverage: float) -> FloatArray:
    """Compute the factor of the scale in each of `BANDS` that makes the coverage equal there, [bands].

    The scale has the proportions of training errors. If held-out errors are larger in one band than in
    another, or lean to one side, the interval covers too little there and too much elsewhere. Each round
    multiplies a band's scale by the `coverage` quantile of its errors over the interval's bound on their
    side. Answers at the cap have a separate interval and change no factor.
    """
    group, units, weights = at_cap(read.unclipped, cap=cap), windows.unit, windows.weight
    band = np.searchsorted(BANDS, np.clip(read.unclipped / cap, 0.0, 1.0), side="right") - 1
    factors = np.ones(len(BANDS) - 1)
    for _ in range(ROUNDS):
        error = normalised_error(rescaled(read, factors, cap=cap), windows, cap=cap)
        low, high = interval_bounds(error, group, units, weights, coverage=coverage)[group].T
        used = np.maximum(error / np.minimum(low, -SMALLEST_BOUND), error / np.maximum(high, SMALLEST_BOUND))
        for n in range(len(factors)):
            rows = (band == n) & (group == 0)
            if used[rows].any() and len(np.unique(units[rows])) >= FEWEST_UNITS:
                weight = unit_weights(units[rows], weights[rows])
                [within] = weighted_quantiles(used[rows], weight, np.array([coverage]))
                factors[n] = np.clip(factors[n] * within, 1 / MOST_CHANGE, MOST_CHANGE)
    return factors


def rescaled(read: Read, factors: FloatArray, *, cap: float) -> Read:
    """Multiply the scale by the factors of bands, as `RulNetwork.error_scale` does."""
    factor = band_factor(
        torch.from_numpy(read.unclipped)[:, None], torch.from_numpy(factors).float(), cap=cap
    )
    return replace(read, scale=read.scale * factor[:, 0].numpy())


def fit_scale(net: RulNetwork, sets: Iterable[AnyWindows]) -> None:
    """Fit only the layers that predict the error's width, by Laplace likelihood.

    Training windows have smaller errors than new units, in nearly the same proportions: factors of
    bands correct these, and quantiles the size. Only one of the sets is in memory at a time.
    """
    parts = zip(*(_errors(net, each) for each in sets if len(each)), strict=True)
    context, error = (torch.cat(each) for each in parts)
    optimizer = torch.optim.AdamW(net.scale.parameters(), lr=SCALE_RATE, weight_decay=SCALE_DECAY)
    for _ in range(SCALE_STEPS):
        scale = net.raw_scale(context)
        optimizer.zero_grad()
        (error / scale + scale.log()).mean().backward()
        optimizer.step()
    net.zero_grad()


def _errors(net: RulNetwork, windows: AnyWindows) -> tuple[Tensor, Tensor]:
    """Return the input of the RUL head [W, D] and the absolute errors of the answers [W, 1]."""
    read, cap = read_windows(net, windows), net.config.cap
    rul = read.unclipped[:, None].clip(0.0, cap)
    error = np.abs(capped_rul(windows.rul, cap=cap)[:, None] - rul)
    return torch.from_numpy(read.context), torch.from_numpy(error)


def fit_distribution(net: RulNetwork, read: Read, windows: WindowSet) -> None:
    """Set the quantile tables and the intervals from answers to held-out units, below the cap and at it.

    `read` may come from the networks of the folds: their errors stand for this network's.
    """
    config, unit, weight = net.config, windows.unit, windows.weight
    error, group = normalised_error(read, windows, cap=config.cap), at_cap(read.unclipped, cap=config.cap)
    bounds = interval_bounds(error, group, unit, weight, coverage=config.coverage)
    tables: list[FloatArray] = []
    for wanted, (lower, _) in enumerate(bounds.tolist()):
        rows = rows_like(group, unit, wanted=wanted)
        weights = unit_weights(unit[rows], weight[rows])
        quantile = weighted_quantiles(error[rows], weights, np.array(PROBABILITIES))
        quantile[-1] += 0.1 * (quantile[-1] - quantile[0])  # larger errors are possible
        quantile = with_tail(quantile, lower, coverage=config.coverage)
        # Keep the table strictly rising, so it has an inverse.
        step = 1e-3 * np.arange(len(quantile))
        tables.append(quantile + step - step.mean())
    set_buffer(net.distribution, "quantile", np.stack(tables))
    set_buffer(net.distribution, "interval", bounds)


def with_tail(quantile: FloatArray, lower: float, *, coverage: float) -> FloatArray:
    """Replace the quantiles below the interval's lower bound by those of its tail, [Q]."""
    tail = (1.0 - coverage) / 2.0
    rare = np.array([max(p, PROBABILITIES[1] / 2) for p in PROBABILITIES if p < tail])
    return np.append(tail_scale(-lower, tail=tail) * np.log(rare / (1.0 - rare)), quantile[len(rare) :])


def held_out_coverage(read: Read, windows: WindowSet, *, cap: float, coverage: float) -> Answered:
    """Build the intervals of each held-out group of units from the errors of all others.

    On the windows that set an interval, its coverage is nominal by construction; leaving one group out, or
    one of `MOST_LEFT_OUT` sets of groups, estimates the coverage for a new one.
    """
    error, kind = normalised_error(read, windows, cap=cap), at_cap(read.unclipped, cap=cap)
    bounds, weight = np.zeros((len(windows), 2)), windows.weight
    unit, group = (np.unique(each, return_inverse=True)[1] for each in (windows.unit, windows.group))
    for left_out in range(min(group.max() + 1, MOST_LEFT_OUT) if group.any() else 0):
        own = group % MOST_LEFT_OUT == left_out
        others = interval_bounds(error[~own], kind[~own], unit[~own], weight[~own], coverage=coverage)
        bounds[own] = others[kind[own]]
    rul = np.clip(read.unclipped, 0.0, cap)
    ends = interval_ends(read, bounds, cap=cap)
    return Answered(windows.rul, rul, *ends, windows.unit, windows.group, weight)


def interval_ends(read: Read, bounds: FloatArray, *, cap: float) -> tuple[FloatArray, FloatArray]:
    """Compute lower and upper ends [W] from the bounds of each answer [W, 2], as `Distribution` does."""
    lower, upper = np.clip(read.unclipped, 0.0, cap) + bounds.T * read.scale
    return lower.clip(min=0.0), np.where(upper >= NEAR_CAP * cap, cap, upper)


def entropy_references(net: RulNetwork, windows: WindowSet) -> list[dict[str, Any]]:
    """Return entropy ratio quantiles (0.5, 50, 99.5 %) of the attention and each head, by length.

    Windows of one cycle are ignored; the attention itself is the head `mean`. Longer windows cut to a
    band's lengths count as much as its own windows: a short window is a young unit or a short history.
    """
    windows = windows.take(windows.lengths > 1)
    rng = np.random.default_rng(0)
    found: list[dict[str, Any]] = []
    for head, ratio in _entropy_ratios(net, windows).items():
        low, median, high = np.quantile(ratio, ENTROPY_QUANTILES).tolist()
        found.append({"head": head, "low": low, "median": median, "high": high, "bands": []})
    for shortest, longest in length_bands(net.config.context):
        own = windows.take((windows.lengths >= shortest) & (windows.lengths <= longest))
        longer = windows.take(windows.lengths > longest)
        cut = cut_windows(longer, rng.integers(shortest, longest + 1, len(longer)))
        both = [each for each in (own, cut) if len(each)]
        if not both:
            continue
        weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in both])
        ratios = _entropy_ratios(net, join_windows(both)).values()
        for reference, ratio in zip(found, ratios, strict=True):
            low, _, high = weighted_quantiles(ratio, weights, ENTROPY_QUANTILES).tolist()
            reference["bands"].append({"shortest": shortest, "low": low, "high": high})
    return found


def length_bands(context: int) -> list[tuple[int, int]]:
    """Return the shortest and longest windows of each entropy band, in cycles; full windows have their own.

    >>> length_bands(60)
    [(2, 11), (12, 19), (20, 29), (30, 44), (45, 59), (60, 60)]
    """
    starts = sorted({2, *(max(2, int(context * share)) for share in LENGTHS)})
    return [(start, after - 1) for start, after in pairwise([*starts, context + 1]) if start < after]


def _entropy_ratios(net: RulNetwork, windows: WindowSet) -> dict[str, FloatArray]:
    """Compute the entropy ratio of the attention (`mean`) and of each head, [W] each."""
    read = read_windows(net, windows)
    heads = heads_by_name(read.attention, read.head_attention)
    return {head: attention_entropy_ratio(weights, windows.lengths) for head, weights in heads.items()}
