"""Whether attention points at the cycles that the answer rests on, by hiding cycles and asking again.

Attention alone is a diagnostic and not a proof: the cycles before and after a hidden one may say
the same. So the most attended cycles are hidden (comprehensiveness), or all others are
(sufficiency), and the move of the answer is held against hiding random cycles and against hiding
simply the last ones. After DeYoung et al., "ERASER: a benchmark to evaluate rationalized NLP
models" (ACL 2020), section 4; a RUL has no predicted class, so the move is absolute, in cycles.

A hidden cycle reads what is typical of its regime; the number of cycles and the last cycle stay.
Answers are taken before they are cut to 0..cap, where nothing would seem to matter. This module
asks whatever answers windows, and must not know torch, ONNX or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
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
"""Of a window's cycles that are hidden or kept."""
DRAWS: Final = 5
"""Of random cycles for each window and share."""
FEWEST_CYCLES: Final = 20
"""A shorter window is left out: the smallest share of it would be less than a cycle."""


class Reply(NamedTuple):
    """What is asked of windows: RUL [B] in cycles, not cut to 0..cap, and attention [B, T]."""

    rul: FloatArray
    attention: FloatArray


class Ask(Protocol):
    """Whatever answers windows."""

    def __call__(self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> Reply:
        """float32 [B, T, F], int64 [B], float32 [B] -> reply."""
        ...


Watch = Callable[[int, int], None]
"""Told after each pass over the windows: how many are done, and of how many."""


@dataclass(frozen=True, slots=True, eq=False)
class Faithfulness:
    """How far the RUL moved in each window, in cycles.

    Attributes:
        shares: [K] of the cycles.
        hidden: [K, W] for each choice: those cycles are hidden (comprehensiveness).
        kept: [K, W] for each choice: all others are hidden (sufficiency; small is good).
        agreement: [W], rank correlation of attention with the move that hiding each single cycle
            causes; 0 where either does not tell cycles apart.
        unit: [W].
    """

    shares: tuple[float, ...]
    hidden: dict[Choice, FloatArray]
    kept: dict[Choice, FloatArray]
    agreement: FloatArray
    unit: NDArray[np.str_]


def typical_readings(
    readings: FloatArray, regimes: Regimes, *, settings: tuple[int, ...], mean: FloatArray
) -> FloatArray:
    """What each cycle would read on an average day: its regime's mean of all columns.

    [W, T, F] and [R, F] -> float32 [W, T, F]. Settings take the mean too, so the regime stays.
    """
    where = readings[..., list(settings)]
    regime = regimes.of(where.reshape(math.prod(readings.shape[:2]), len(settings)))
    return mean[regime].reshape(readings.shape).astype(np.float32)


def fewest_cycles(windows: WindowSet) -> int:
    """What a window must have to be long enough: `FEWEST_CYCLES`, or all that these can hold."""
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
    """Hide cycles of each window of `FEWEST_CYCLES` or more, and see how far its RUL moves.

    `typical` [W, T, F] is what a hidden cycle reads (`typical_readings`). A share of n cycles is
    rounded to whole ones, at least one. The same seed draws the same random cycles.

    Raises:
        InvalidData: no window is long enough.
    """
    long = windows.lengths >= fewest_cycles(windows)
    if not long.any():
        raise InvalidData(f"faithfulness needs windows of {FEWEST_CYCLES} cycles or more, there is none")
    asked = _Asked(ask, windows.take(long), typical[long])
    rng = np.random.default_rng(seed)
    longest = int(asked.windows.lengths.max())
    total = len(shares) * 2 * (2 + draws) + longest
    done = 0
    tell = watch or _nobody

    def moved(choose: Callable[[], IntArray], *, keep: bool, times: int = 1) -> FloatArray:
        nonlocal done
        moves: list[FloatArray] = []
        for _ in range(times):
            chosen = choose() < counts[:, None]
            moves.append(asked.move(asked.valid & ~chosen if keep else asked.valid & chosen))
            done += 1
            tell(done, total)
        return np.mean(moves, axis=0)

    orders: dict[Choice, Callable[[], IntArray]] = {
        "attended": lambda: _places(asked.attention, asked.valid, rng),
        "random": lambda: _places(rng.random(asked.valid.shape), asked.valid, rng),
        "last": lambda: _places_from_the_last(asked.windows.lengths, asked.valid.shape[1]),
    }
    hidden: dict[Choice, list[FloatArray]] = {choice: [] for choice in CHOICES}
    kept: dict[Choice, list[FloatArray]] = {choice: [] for choice in CHOICES}
    for share in shares:
        counts = np.maximum(1, np.round(share * asked.windows.lengths)).astype(np.int64)
        for choice, order in orders.items():
            times = draws if choice == "random" else 1
            hidden[choice].append(moved(order, keep=False, times=times))
            kept[choice].append(moved(order, keep=True, times=times))
    single = np.zeros(asked.valid.shape)
    for t, alone in asked.one_by_one():
        single[:, t] = asked.move(alone)
        done += 1
        tell(done, total)
    return Faithfulness(
        shares,
        {choice: np.stack(moves) for choice, moves in hidden.items()},
        {choice: np.stack(moves) for choice, moves in kept.items()},
        np.array([rank_correlation(*pair) for pair in asked.pairs(single)]),
        asked.windows.unit,
    )


def faithfulness_figures(found: Faithfulness, *, resamples: int = RESAMPLES) -> dict[str, Figure]:
    """Means over windows and ratios of them, with intervals by bootstrap over units.

    For each share in per cent, such as 20: `hidden_20_attended`, `hidden_20_random`,
    `hidden_20_last`, `hidden_20_over_random`, `hidden_20_over_last`, and so for `kept`; `agreement`.
    """
    of_rows: dict[str, Callable[[IntArray], float]] = {
        "agreement": lambda rows: float(found.agreement[rows].mean())
    }
    for kind, moves in (("hidden", found.hidden), ("kept", found.kept)):
        for k, share in enumerate(found.shares):
            name = f"{kind}_{share * 100:g}"
            for choice in CHOICES:
                of_rows[f"{name}_{choice}"] = _mean_of(moves[choice][k])
            for other in ("random", "last"):
                of_rows[f"{name}_over_{other}"] = _ratio_of(moves["attended"][k], moves[other][k])
    return bootstrapped(of_rows, found.unit, resamples=resamples)


def join_faithfulness(parts: Sequence[Faithfulness]) -> Faithfulness:
    """The windows of all parts, which were measured at the same shares."""

    def moves(kind: Callable[[Faithfulness], dict[Choice, FloatArray]]) -> dict[Choice, FloatArray]:
        return {choice: np.concatenate([kind(part)[choice] for part in parts], axis=1) for choice in CHOICES}

    return Faithfulness(
        parts[0].shares,
        moves(lambda part: part.hidden),
        moves(lambda part: part.kept),
        np.concatenate([part.agreement for part in parts]),
        np.concatenate([part.unit for part in parts]),
    )


def rank_correlation(a: FloatArray, b: FloatArray) -> float:
    """Spearman's: correlation of ranks, ties sharing theirs; 0 where all of one are equal.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0]))
    0.5
    """
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / size) if size > 0 else 0.0


class _Asked:
    """Windows with their answers as they are, to compare with."""

    def __init__(self, ask: Ask, windows: WindowSet, typical: FloatArray) -> None:
        self.ask, self.windows, self.typical = ask, windows, typical
        reply = ask(windows.readings, windows.lengths, windows.last_cycle)
        self.rul, self.attention = reply
        self.valid: BoolArray = np.arange(windows.readings.shape[1]) < windows.lengths[:, None]

    def move(self, hide: BoolArray) -> FloatArray:
        """How far the answers move when these cycles [W, T] are hidden, [W] in cycles.

        Windows of which nothing is hidden are not asked again.
        """
        moves = np.zeros(len(self.windows))
        touched = np.flatnonzero(hide.any(axis=1))
        rows = self.windows.take(touched)
        readings = np.where(hide[touched][:, :, None], self.typical[touched], rows.readings)
        moves[touched] = np.abs(self.ask(readings, rows.lengths, rows.last_cycle).rul - self.rul[touched])
        return moves

    def one_by_one(self) -> Iterator[tuple[int, BoolArray]]:
        """Each cycle's place, and the mask that hides it alone."""
        for t in range(int(self.windows.lengths.max())):
            hide = np.zeros_like(self.valid)
            hide[:, t] = self.valid[:, t]
            yield t, hide

    def pairs(self, single: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Attention and single moves of each window's valid cycles."""
        for row, length in enumerate(self.windows.lengths):
            yield self.attention[row, :length], single[row, :length]


def _places(values: FloatArray, valid: BoolArray, rng: np.random.Generator) -> IntArray:
    """Each cycle's place from the highest value down, [W, T]; ties at random, padding last."""
    order = np.lexsort((rng.random(values.shape), np.where(valid, -values, np.inf)), axis=1)
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(values.shape[1])[None, :], axis=1)
    return places


def _places_from_the_last(lengths: IntArray, cycles: int) -> IntArray:
    """Each cycle's place from a window's last one back, [W, T]; below 0 on padding."""
    return lengths[:, None] - np.arange(1, cycles + 1)


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


def _nobody(done: int, total: int) -> None:
    del done, total
