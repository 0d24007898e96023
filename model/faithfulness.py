"""Faithfulness of attention or evidence: hide cycles, predict again and compare.

Attention alone is a diagnostic and no proof: the cycles around a hidden one may carry the same
information. So the most attended cycles are hidden (comprehensiveness), or all others are
(sufficiency). The change of the answer is compared with hiding random cycles and the last cycles.
After DeYoung et al., "ERASER: a benchmark to evaluate rationalized NLP models" (ACL 2020), section
4; a RUL has no predicted class, so the change is absolute, in cycles.

A hidden cycle takes typical readings of its regime; the number of cycles and the last cycle stay.
Answers are not cut to 0..cap, which would hide changes. This module must not know torch, ONNX or
files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from model.domain import BoolArray, FloatArray, IntArray, InvalidData, WindowSet
from model.evaluation import RESAMPLES, Figure, bootstrapped
from model.regimes import Regimes

Choice = Literal["attended", "random", "last"]
CHOICES: Final[tuple[Choice, ...]] = get_args(Choice)

SHARES: Final = (0.05, 0.1, 0.2, 0.5)
"""Shares of a window's cycles that are hidden or kept."""
DRAWS: Final = 5
"""Draws of random cycles for each window and share."""
FEWEST_CYCLES: Final = 20
"""Shorter windows are ignored: their smallest share is less than a cycle."""


class Reply(NamedTuple):
    """RUL [B] in cycles, not cut to 0..cap, and evidence [B, T], or attention without it."""

    rul: FloatArray
    ranking: FloatArray


class Ask(Protocol):
    """Predicts windows."""

    def __call__(self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> Reply:
        """float32 [B, T, F], int64 [B], float32 [B] -> reply."""
        ...


Watch = Callable[[int, int], None]
"""Called after each pass over the windows, with the number of passes done and in all."""


@dataclass(frozen=True, slots=True, eq=False)
class Faithfulness:
    """Change of the RUL in each window, in cycles."""

    shares: tuple[float, ...]  # [K] of the cycles
    hidden: dict[Choice, FloatArray]  # [K, W] for each choice, with those cycles hidden (comprehensiveness)
    # [K, W] for each choice, with all others hidden (sufficiency; small is good).
    kept: dict[Choice, FloatArray]
    # [W], rank correlation of the ranking with the change from hiding each single cycle; 0 where all values
    # of either are equal.
    agreement: FloatArray
    unit: NDArray[np.str_]  # [W]
    single: FloatArray  # [W, T], with each cycle hidden alone; 0 on padding
    rows: IntArray  # [W], which of the given windows these are: the long enough ones


def typical_readings(
    readings: FloatArray, regimes: Regimes, *, settings: tuple[int, ...], mean: FloatArray
) -> FloatArray:
    """Replace each cycle by the mean readings of its regime.

    [W, T, F] and [R, F] -> float32 [W, T, F]. Settings take the mean too, so the regime stays.
    """
    where = readings[..., list(settings)]
    regime = regimes.of(where.reshape(math.prod(readings.shape[:2]), len(settings)))
    return mean[regime].reshape(readings.shape).astype(np.float32)


def fewest_cycles(windows: WindowSet) -> int:
    """Return the minimum length: `FEWEST_CYCLES`, or T where the windows are shorter."""
    return min(FEWEST_CYCLES, windows.readings.shape[1])


def measure_faithfulness(
    ask: Ask,
    windows: WindowSet,
    typical: FloatArray,
    *,
    shares: tuple[float, ...] = SHARES,
    draws: int = DRAWS,
    seed: int = 0,
    watch: Watch | None = None,
) -> Faithfulness:
    """Hide cycles of each long enough window and measure the change of its RUL.

    `typical` [W, T, F] replaces hidden cycles (`typical_readings`). A share of n cycles is rounded to
    whole ones, at least one. The same seed draws the same random cycles.
    """
    long = windows.lengths >= fewest_cycles(windows)
    if not long.any():
        raise InvalidData(f"faithfulness needs windows of {FEWEST_CYCLES} cycles or more, there is none")
    lengths = windows.lengths[long]
    total = len(shares) * 2 * (2 + draws) + int(lengths.max())
    base = _Base(ask, windows.take(long), typical[long], watch=watch, total=total)
    rng = np.random.default_rng(seed)
    hidden: dict[Choice, list[FloatArray]] = {choice: [] for choice in CHOICES}
    kept: dict[Choice, list[FloatArray]] = {choice: [] for choice in CHOICES}
    for share in shares:
        counts = np.maximum(1, np.round(share * lengths)).astype(np.int64)[:, None]
        for choice in CHOICES:
            times = range(draws if choice == "random" else 1)
            alone = [base.change(base.order(choice, rng) < counts) for _ in times]
            others = [base.change(base.order(choice, rng) >= counts) for _ in times]
            hidden[choice].append(np.mean(alone, axis=0))
            kept[choice].append(np.mean(others, axis=0))
    place = np.arange(windows.readings.shape[1])
    single = np.zeros(base.valid.shape)
    for t in range(lengths.max()):
        single[:, t] = base.change((place == t)[None, :])
    return Faithfulness(
        shares,
        {choice: np.stack(changes) for choice, changes in hidden.items()},
        {choice: np.stack(changes) for choice, changes in kept.items()},
        np.array([rank_correlation(base.ranking[w, :n], single[w, :n]) for w, n in enumerate(lengths)]),
        base.windows.unit,
        single,
        np.flatnonzero(long),
    )


def faithfulness_figures(found: Faithfulness, *, resamples: int = RESAMPLES) -> dict[str, Figure]:
    """Compute means over windows and their ratios, with bootstrap intervals over units.

    For each share in per cent, such as 20: `hidden_20_attended`, `hidden_20_random`,
    `hidden_20_last`, `hidden_20_over_random`, `hidden_20_over_last`, and so for `kept`; `agreement`.
    """
    of_rows: dict[str, Callable[[IntArray], float]] = {"agreement": _mean_of(found.agreement)}
    for kind, changes in (("hidden", found.hidden), ("kept", found.kept)):
        for k, share in enumerate(found.shares):
            name = f"{kind}_{share * 100:g}"
            for choice in CHOICES:
                of_rows[f"{name}_{choice}"] = _mean_of(changes[choice][k])
            for other in ("random", "last"):
                of_rows[f"{name}_over_{other}"] = _ratio_of(changes["attended"][k], changes[other][k])
    return bootstrapped(of_rows, found.unit, resamples=resamples)


def join_faithfulness(parts: Sequence[Faithfulness]) -> Faithfulness:
    """Join the windows of all parts, measured at the same shares."""
    return Faithfulness(
        parts[0].shares,
        {choice: np.concatenate([part.hidden[choice] for part in parts], axis=1) for choice in CHOICES},
        {choice: np.concatenate([part.kept[choice] for part in parts], axis=1) for choice in CHOICES},
        np.concatenate([part.agreement for part in parts]),
        np.concatenate([part.unit for part in parts]),
        np.concatenate([part.single for part in parts]),
        np.concatenate([part.rows for part in parts]),
    )


def rank_correlation(a: FloatArray, b: FloatArray) -> float:
    """Compute Spearman's rank correlation, with shared ranks for ties; 0 for constant values.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0]))
    0.5
    """
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / size) if size > 0 else 0.0


class _Base:
    """Windows with their unchanged answers, to compare with."""

    def __init__(
        self, ask: Ask, windows: WindowSet, typical: FloatArray, *, watch: Watch | None, total: int
    ) -> None:
        self.ask, self.windows, self.typical = ask, windows, typical
        self.rul, self.ranking = ask(windows.readings, windows.lengths, windows.last_cycle)
        self.valid: BoolArray = np.arange(windows.readings.shape[1]) < windows.lengths[:, None]
        self.watch, self.done, self.total = watch, 0, total

    def order(self, choice: Choice, rng: np.random.Generator) -> IntArray:
        """Rank the cycles of each window by a choice, [W, T]."""
        if choice == "last":
            return self.windows.lengths[:, None] - np.arange(1, self.valid.shape[1] + 1)
        values = self.ranking if choice == "attended" else rng.random(self.valid.shape)
        return _ranks_down(values, self.valid, rng)

    def change(self, hide: BoolArray) -> FloatArray:
        """Hide these valid cycles [W, T] and return the change of each RUL, [W] in cycles.

        Windows without a hidden cycle are not predicted again.
        """
        hide = self.valid & hide
        changes = np.zeros(len(self.windows))
        touched = np.flatnonzero(hide.any(axis=1))
        rows = self.windows.take(touched)
        readings = np.where(hide[touched][:, :, None], self.typical[touched], rows.readings)
        changes[touched] = np.abs(self.ask(readings, rows.lengths, rows.last_cycle).rul - self.rul[touched])
        self.done += 1
        if self.watch is not None:
            self.watch(self.done, self.total)
        return changes


def _ranks_down(values: FloatArray, valid: BoolArray, rng: np.random.Generator) -> IntArray:
    """Rank cycles from the highest value down, [W, T]; ties at random, padding last."""
    order = np.lexsort((rng.random(values.shape), np.where(valid, -values, np.inf)), axis=1)
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(values.shape[1])[None, :], axis=1)
    return places


def _ranks(values: FloatArray) -> FloatArray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]


def _mean_of(values: FloatArray) -> Callable[[IntArray], float]:
    return lambda rows: float(values[rows].mean())


def _ratio_of(above: FloatArray, below: FloatArray) -> Callable[[IntArray], float]:
    def ratio(rows: IntArray) -> float:
        base = float(below[rows].mean())
        return float(above[rows].mean()) / base if base > 0 else float("nan")

    return ratio
