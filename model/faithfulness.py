"""Faithfulness of attention or evidence: hide cycles, predict again and compare.

Attention alone is a diagnostic and no proof: the cycles around a hidden one may carry the same
information. So the most attended cycles are hidden (comprehensiveness), or all others are
(sufficiency). The change of the answer is compared with hiding random cycles and the last cycles.
After DeYoung et al., "ERASER: a benchmark to evaluate rationalized NLP models" (ACL 2020), section
4; a RUL has no predicted class, so the change is absolute, in cycles.

A hidden cycle takes typical readings of its regime; the number of cycles and the last cycle stay.
Answers are not cut to 0..cap, which would hide changes.

Rankings of cycles and sensors are compared with these changes. A ranking by place alone agrees well, because
wear grows slowly and most windows have the same profile. Agreement beyond place is specific to a window. This
module must not know torch, ONNX or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from model.domain import BoolArray, FloatArray, IntArray, InvalidData, WindowSet
from model.evaluation import Figure, bootstrapped, mean_of, ratio_of
from model.regimes import Regimes

Choice = Literal["attended", "random", "last"]
CHOICES: Final[tuple[Choice, ...]] = get_args(Choice)

SHARES: Final = (0.05, 0.1, 0.2, 0.5)
"""Shares of a window's cycles that are hidden or kept."""
DRAWS: Final = 5
"""Draws of random cycles for each window and share."""
LEAST_EVIDENT: Final = 0.05
"""Share of the evidence that the least evident cycles hold together."""
FEWEST_CYCLES: Final = 20
"""Shorter windows are ignored: their smallest share is less than a cycle."""


class Reply(NamedTuple):
    """Answers to windows, with values that rank their cycles and sensors."""

    rul: FloatArray  # [B] in cycles, not cut to 0..cap
    ranking: FloatArray  # [B, T] evidence, or attention without it
    attention: FloatArray | None = None  # [B, T]
    head_attention: FloatArray | None = None  # [B, H, T]
    of_sensors: FloatArray | None = None  # [B, F] contribution of each column over all cycles


Ask = Callable[[WindowSet], Reply]
"""Predicts windows, whatever their labels are."""
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
    group: NDArray[np.str_]  # [W]
    single: FloatArray  # [W, T], with each cycle hidden alone; 0 on padding
    rows: IntArray  # [W], indices of these windows, which are long enough, among the given ones


def typical_readings(
    readings: FloatArray, regimes: Regimes, *, settings: tuple[int, ...], mean: FloatArray
) -> FloatArray:
    """Replace each cycle by the mean readings of its regime.

    [W, T, F] and [R, F] -> float32 [W, T, F]. Settings take the mean too, so the regime stays. Missing
    readings stay missing: a hidden cycle must not tell more than it did.
    """
    typical = mean[regimes.of_readings(readings, settings)].astype(np.float32)
    return np.where(np.isnan(readings), np.float32(np.nan), typical)


def fewest_cycles(windows: WindowSet) -> int:
    """Return the minimum length: `FEWEST_CYCLES`, or T if the windows are shorter."""
    return min(FEWEST_CYCLES, windows.readings.shape[1])


def with_readings(windows: WindowSet) -> BoolArray:
    """Tell which cycles of each window have a reading, [W, T]; others are neither hidden nor ranked."""
    within = np.arange(windows.readings.shape[1]) < windows.lengths[:, None]
    return within & ~np.isnan(windows.readings).all(axis=2)


def long_enough(windows: WindowSet) -> BoolArray:
    """Tell which windows have readings in `fewest_cycles` or more, [W]."""
    return with_readings(windows).sum(axis=1) >= fewest_cycles(windows)


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

    `typical` [W, T, F] replaces hidden cycles (`typical_readings`). Cycles without a reading are ignored. A
    share of n cycles is rounded to whole ones, at least one. The same seed draws the same random cycles.
    """
    there, long = with_readings(windows), long_enough(windows)
    if not long.any():
        raise InvalidData(f"faithfulness needs windows of {FEWEST_CYCLES} cycles or more, there is none")
    lengths, there = windows.lengths[long], there[long]
    total = len(shares) * 2 * (2 + draws) + int(lengths.max())
    base = _Base(ask, windows.take(long), typical[long], watch=watch, total=total)
    rng = np.random.default_rng(seed)
    hidden: dict[Choice, list[FloatArray]] = {choice: [] for choice in CHOICES}
    kept: dict[Choice, list[FloatArray]] = {choice: [] for choice in CHOICES}
    for share in shares:
        counts = np.maximum(1, np.round(share * there.sum(axis=1))).astype(np.int64)[:, None]
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
    ranking, group = base.ranking, base.windows.group
    pairs = zip(ranking, single, there, strict=True)
    return Faithfulness(
        shares,
        {choice: np.stack(changes) for choice, changes in hidden.items()},
        {choice: np.stack(changes) for choice, changes in kept.items()},
        np.array([rank_correlation(a[own], b[own]) for a, b, own in pairs]),
        agreement_beyond_place(ranking, single, there, lengths, group),
        leak(ranking, single, there),
        sensor_agreement(base.of_sensors, base.effects()),
        group,
        single,
        np.flatnonzero(long),
    )


def faithfulness_figures(found: Faithfulness) -> dict[str, Figure]:
    """Compute means over windows and their ratios, with bootstrap intervals over groups.

    For each share in per cent, such as 20: `hidden_20_attended`, `hidden_20_random`,
    `hidden_20_last`, `hidden_20_over_random`, `hidden_20_over_last`, and so for `kept`; and the mean of
    `agreement`, `beyond_place`, `leak` and `sensors`.
    """
    of_windows = ("agreement", "beyond_place", "leak", "sensors")
    statistics = {name: mean_of(getattr(found, name)) for name in of_windows}
    for kind, changes in (("hidden", found.hidden), ("kept", found.kept)):
        for k, share in enumerate(found.shares):
            name = f"{kind}_{share * 100:g}"
            for choice in CHOICES:
                statistics[f"{name}_{choice}"] = mean_of(changes[choice][k])
            for other in ("random", "last"):
                statistics[f"{name}_over_{other}"] = ratio_of(changes["attended"][k], changes[other][k])
    return bootstrapped(statistics, found.group)


def join_faithfulness(parts: Sequence[Faithfulness]) -> Faithfulness:
    """Join the windows of all parts, measured at the same shares."""
    return Faithfulness(
        parts[0].shares,
        {choice: np.concatenate([part.hidden[choice] for part in parts], axis=1) for choice in CHOICES},
        {choice: np.concatenate([part.kept[choice] for part in parts], axis=1) for choice in CHOICES},
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("agreement", "beyond_place", "leak", "sensors", "group", "single", "rows")
        ),
    )


class _Base:
    """Windows with their unchanged answers, to compare with."""

    def __init__(
        self, ask: Ask, windows: WindowSet, typical: FloatArray, *, watch: Watch | None, total: int
    ) -> None:
        self.ask, self.windows, self.typical = ask, windows, typical
        answers = ask(windows)
        self.rul, self.ranking, self.of_sensors = answers.rul, answers.ranking, answers.of_sensors
        self.valid: Final = with_readings(windows)
        self.columns = 0 if self.of_sensors is None else windows.readings.shape[2]
        self.watch, self.done, self.total = watch, 0, total + self.columns

    def order(self, choice: Choice, rng: np.random.Generator) -> IntArray:
        """Rank the cycles of each window by a choice, [W, T]."""
        if choice == "last":
            return self.valid[:, ::-1].cumsum(axis=1)[:, ::-1] - 1
        values = self.ranking if choice == "attended" else rng.random(self.valid.shape)
        return _ranks_down(values, self.valid, rng)

    def change(self, hide: BoolArray) -> FloatArray:
        """Hide these valid cycles [W, T] and return the change of each RUL, [W] in cycles.

        Windows without a hidden cycle are not predicted again.
        """
        hide = self.valid & hide
        changes = np.zeros(len(self.windows))
        touched = np.flatnonzero(hide.any(axis=1))
        if len(touched):
            rows = self.windows.take(touched)
            readings = np.where(hide[touched][:, :, None], self.typical[touched], rows.readings)
            changes[touched] = np.abs(self.ask(replace(rows, readings=readings)).rul - self.rul[touched])
        self.count()
        return changes

    def effects(self) -> FloatArray:
        """Hide each column in all cycles and return the RUL less that answer, [W, F].

        [W, 0] if nothing is known of columns.
        """
        effects = np.zeros((len(self.windows), self.columns))
        for f in range(self.columns):
            readings = self.windows.readings.copy()
            readings[..., f] = np.where(self.valid, self.typical[..., f], readings[..., f])
            effects[:, f] = self.rul - self.ask(replace(self.windows, readings=readings)).rul
            self.count()
        return effects

    def count(self) -> None:
        """Count a step, and tell the watcher."""
        self.done += 1
        if self.watch is not None:
            self.watch(self.done, self.total)


def _ranks_down(values: FloatArray, valid: BoolArray, rng: np.random.Generator) -> IntArray:
    """Rank cycles from the highest value down, [W, T]; ties at random, padding last."""
    order = np.lexsort((rng.random(values.shape), np.where(valid, -values, np.inf)), axis=1)
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(values.shape[1])[None, :], axis=1)
    return places


def agreement_beyond_place(
    ranking: FloatArray, single: FloatArray, there: BoolArray, lengths: IntArray, group: NDArray[np.str_]
) -> FloatArray:
    """Compute the rank agreement that a cycle's place does not explain, [W, T] -> [W].

    `single` [W, T] is the change of the RUL from hiding each cycle alone, of those that are `there`. The
    control is its mean profile over the windows of other groups, by lag. The result is the partial rank
    correlation given the control; NaN if there is no other group.
    """
    rows, cycles = np.nonzero(there)
    lag = lengths[rows] - 1 - cycles
    total = single.sum(axis=1, where=there)
    part = single[rows, cycles] / np.where(total > 0, total, 1.0)[rows]
    names, owner = np.unique(group, return_inverse=True)
    sums, counts = np.zeros((2, len(names), single.shape[1]))
    np.add.at(sums, (owner[rows], lag), part)
    np.add.at(counts, (owner[rows], lag), 1.0)
    others = counts.sum(axis=0) - counts
    profile = np.full(sums.shape, np.nan)
    np.divide(sums.sum(axis=0) - sums, others, out=profile, where=others > 0)
    found = np.full(len(lengths), np.nan)
    for w, n in enumerate(lengths):
        control = profile[owner[w], n - 1 :: -1]
        seen = ~np.isnan(control) & there[w, :n]
        if seen.any():
            found[w] = partial_rank_correlation(ranking[w, :n][seen], single[w, :n][seen], control[seen])
    return found


def leak(ranking: FloatArray, single: FloatArray, there: BoolArray) -> FloatArray:
    """Compute the share of influence on cycles that the ranking neglects, [W, T] -> [W].

    Influence is `single`, as in `agreement_beyond_place`. The neglected cycles are the least evident ones,
    which together hold `LEAST_EVIDENT` of the ranking at most. NaN if no cycle has any influence.
    """
    order = np.argsort(np.where(there, ranking, np.inf), axis=1, kind="stable")
    weight, influence = (np.take_along_axis(np.where(there, a, 0.0), order, 1) for a in (ranking, single))
    neglected = np.cumsum(weight, axis=1) <= LEAST_EVIDENT * weight.sum(axis=1, keepdims=True)
    total = influence.sum(axis=1)
    lost = (influence * neglected).sum(axis=1)
    return np.divide(lost, total, out=np.full(len(there), np.nan), where=total > 0)


def sensor_agreement(of_sensors: FloatArray | None, effects: FloatArray) -> FloatArray:
    """Compute the rank correlation of columns' contributions with hiding each column, [W, F] -> [W].

    `effects` are signed: the RUL less that with the column hidden in all cycles. Columns without either,
    such as settings, are ignored. NaN without contributions.
    """
    if of_sensors is None:
        return np.full(len(effects), np.nan)
    used = (effects != 0).any(axis=0) | (of_sensors != 0).any(axis=0)
    pairs = zip(of_sensors[:, used], effects[:, used], strict=True)
    return np.array([rank_correlation(contribution, effect) for contribution, effect in pairs])


def partial_rank_correlation(a: FloatArray, b: FloatArray, control: FloatArray) -> float:
    """Compute Spearman's rank correlation with the control's part removed from both; 0 if it is all.

    >>> a, b = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 4.0, 3.0])
    >>> partial_rank_correlation(a, b, control=a)
    0.0
    """
    both, of_a, of_b = rank_correlation(a, b), rank_correlation(a, control), rank_correlation(b, control)
    left = (1.0 - of_a**2) * (1.0 - of_b**2)
    return (both - of_a * of_b) / math.sqrt(left) if left > 1e-9 else 0.0


def rank_correlation(a: FloatArray, b: FloatArray) -> float:
    """Compute Spearman's rank correlation, with shared ranks for ties; 0 for constant values.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0]))
    0.5
    """
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / size) if size > 0 else 0.0


def _ranks(values: FloatArray) -> FloatArray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
