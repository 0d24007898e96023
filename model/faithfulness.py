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

from model.agreement import agreement_beyond_place, leak, rank_correlation, sensor_agreement
from model.domain import BoolArray, FloatArray, IntArray, InvalidData, WindowSet
from model.evaluation import RESAMPLES, Figure, bootstrapped, mean_of, ratio_of
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
    """Answers to windows, with what ranks their cycles and sensors."""

    rul: FloatArray  # [B] in cycles, not cut to 0..cap
    ranking: FloatArray  # [B, T] evidence, or attention without it
    attention: FloatArray | None = None  # [B, T]
    head_attention: FloatArray | None = None  # [B, H, T]
    of_sensors: FloatArray | None = None  # [B, F] contribution of each column over all cycles


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
    beyond_place: FloatArray  # [W], see `agreement_beyond_place`
    leak: FloatArray  # [W], see `leak`
    sensors: FloatArray  # [W], see `sensor_agreement`; NaN without contributions of columns
    unit: NDArray[np.str_]  # [W]
    single: FloatArray  # [W, T], with each cycle hidden alone; 0 on padding
    rows: IntArray  # [W], which of the given windows these are: the long enough ones


def typical_readings(
    readings: FloatArray, regimes: Regimes, *, settings: tuple[int, ...], mean: FloatArray
) -> FloatArray:
    """Replace each cycle by the mean readings of its regime.

    [W, T, F] and [R, F] -> float32 [W, T, F]. Settings take the mean too, so the regime stays. Missing
    readings stay missing: a hidden cycle must not tell more than it did.
    """
    where = readings[..., list(settings)]
    regime = regimes.of(where.reshape(math.prod(readings.shape[:2]), len(settings)))
    typical = mean[regime].reshape(readings.shape).astype(np.float32)
    return np.where(np.isnan(readings), np.float32(np.nan), typical)


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
    ranking, unit = base.ranking, base.windows.unit
    return Faithfulness(
        shares,
        {choice: np.stack(changes) for choice, changes in hidden.items()},
        {choice: np.stack(changes) for choice, changes in kept.items()},
        np.array([rank_correlation(ranking[w, :n], single[w, :n]) for w, n in enumerate(lengths)]),
        agreement_beyond_place(ranking, single, lengths, unit),
        leak(ranking, single, lengths),
        sensor_agreement(base.of_sensors, base.effects()),
        unit,
        single,
        np.flatnonzero(long),
    )


def faithfulness_figures(found: Faithfulness, *, resamples: int = RESAMPLES) -> dict[str, Figure]:
    """Compute means over windows and their ratios, with bootstrap intervals over units.

    For each share in per cent, such as 20: `hidden_20_attended`, `hidden_20_random`,
    `hidden_20_last`, `hidden_20_over_random`, `hidden_20_over_last`, and so for `kept`; and the mean of
    `agreement`, `beyond_place`, `leak` and `sensors`.
    """
    of_windows = ("agreement", "beyond_place", "leak", "sensors")
    of_rows = {name: mean_of(getattr(found, name)) for name in of_windows}
    for kind, changes in (("hidden", found.hidden), ("kept", found.kept)):
        for k, share in enumerate(found.shares):
            name = f"{kind}_{share * 100:g}"
            for choice in CHOICES:
                of_rows[f"{name}_{choice}"] = mean_of(changes[choice][k])
            for other in ("random", "last"):
                of_rows[f"{name}_over_{other}"] = ratio_of(changes["attended"][k], changes[other][k])
    return bootstrapped(of_rows, found.unit, resamples=resamples)


def join_faithfulness(parts: Sequence[Faithfulness]) -> Faithfulness:
    """Join the windows of all parts, measured at the same shares."""
    return Faithfulness(
        parts[0].shares,
        {choice: np.concatenate([part.hidden[choice] for part in parts], axis=1) for choice in CHOICES},
        {choice: np.concatenate([part.kept[choice] for part in parts], axis=1) for choice in CHOICES},
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("agreement", "beyond_place", "leak", "sensors", "unit", "single", "rows")
        ),
    )


class _Base:
    """Windows with their unchanged answers, to compare with."""

    def __init__(
        self, ask: Ask, windows: WindowSet, typical: FloatArray, *, watch: Watch | None, total: int
    ) -> None:
        self.ask, self.windows, self.typical = ask, windows, typical
        answers = ask(windows.readings, windows.lengths, windows.last_cycle)
        self.rul, self.ranking, self.of_sensors = answers.rul, answers.ranking, answers.of_sensors
        self.valid: BoolArray = np.arange(windows.readings.shape[1]) < windows.lengths[:, None]
        self.columns = 0 if self.of_sensors is None else windows.readings.shape[2]
        self.watch, self.done, self.total = watch, 0, total + self.columns

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
        changes[touched] = np.abs(self.answer(readings, rows).rul - self.rul[touched])
        return changes

    def effects(self) -> FloatArray:
        """Hide each column in all cycles and return the RUL less that answer, [W, F].

        [W, 0] where nothing is known of columns.
        """
        effects = np.zeros((len(self.windows), self.columns))
        for f in range(self.columns):
            readings = self.windows.readings.copy()
            readings[..., f] = np.where(self.valid, self.typical[..., f], readings[..., f])
            effects[:, f] = self.rul - self.answer(readings, self.windows).rul
        return effects

    def answer(self, readings: FloatArray, rows: WindowSet) -> Reply:
        """Predict these windows with other readings."""
        self.done += 1
        if self.watch is not None:
            self.watch(self.done, self.total)
        return self.ask(readings, rows.lengths, rows.last_cycle)


def _ranks_down(values: FloatArray, valid: BoolArray, rng: np.random.Generator) -> IntArray:
    """Rank cycles from the highest value down, [W, T]; ties at random, padding last."""
    order = np.lexsort((rng.random(values.shape), np.where(valid, -values, np.inf)), axis=1)
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(values.shape[1])[None, :], axis=1)
    return places
