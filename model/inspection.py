"""Facts about a fleet's data before training: lives, columns, the failure bound, suggested values.

The functions are pure and take the rows that `rul train` reads. `model.findings` says what the facts mean
for a training. This module must not know torch or screens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from model.dataset import ReadingsByCycle, group_of
from model.domain import BoolArray, FloatArray, IntArray, Role, Trajectory, cycles_left, longest_gap
from model.fleet import SHORTEST_CONTEXT, FailureRule, Fleet
from model.readers import Rows
from model.regimes import cycles_without_settings

QUANTILES: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 1.0)
JUST_MISSED: Final = 0.05
"""Distance to the bound, as a share of the way from a typical first value, that counts as just missed."""
SHARP: Final = 0.2
"""Spread of last values, as a share of their change over life, up to which they may be the failure."""
CLEAR: Final = 4.0
"""Minimum change over life, in cycle-to-cycle standard deviations, to look at last values."""
WIDE: Final = 50.0
"""Distance, in widths of its column, at which a single outlier distorts the scale."""
LIFE_SHARE: Final = 0.6
"""Suggested cap as a share of the median life: about where wear begins to show on C-MAPSS."""
LONGEST_CONTEXT: Final = 60
LONG: Final = 0.2
ROUNDING: Final = 1e-9
"""Relative error of sums."""
NICE: Final = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column over all readings."""

    name: str
    role: Role
    low: float  # 1 % quantile; NaN without any reading
    median: float
    high: float  # 99 % quantile
    largest: float  # Largest magnitude of a reading; 0 without one
    missing: float  # Share of missing and infinite readings, 0..1
    commonest: float  # Share of the most frequent value among the readings, 0..1
    outliers: int  # Readings farther from low..high than its width
    farthest: float  # Distance of the farthest outlier from the median, in widths of low..high; 0 without one
    outlier: str  # Unit and cycle of the first outlier; empty without one
    code: float | None  # Value of most outliers, as a code for "missing" would be; None: they differ
    rounded: float  # Largest rounding of a reading by float32, as a share of the range of all
    repeats: str | None  # "RUL" or "cycle" if the column holds the answer or the unit's age


@dataclass(frozen=True, slots=True)
class BoundFacts:
    """Failure bound and the last values of the units."""

    rule: FailureRule
    missed: int  # Units whose last known value does not reach the bound
    begins_beyond: tuple[str, ...]  # Units whose first value is beyond the bound
    runs_on: tuple[str, ...]  # Units within the bound for over `LONG` of their readings after one beyond it
    nearest: float  # The last value that comes closest, or lies farthest beyond; NaN without values
    nearby: float | None  # A bound near this one that at least a tenth more of the units reach
    reach_nearby: int  # Units that reach `nearby`
    goes_on: float  # Median cycles from the first value beyond the bound to the last value, failed units


@dataclass(frozen=True, slots=True)
class EndFacts:
    """Column in which units end close together beside its change over their lives."""

    rule: FailureRule  # A bound that these units reach
    early: tuple[int, ...]  # Indices of the units that end less than half-way there


@dataclass(frozen=True, slots=True)
class Suggested:
    """Values of the fleet file that suit the lives."""

    cap: float
    context: int
    horizons: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """All facts of a fleet's data."""

    rows: int
    units: int
    failed: int
    lives: tuple[float, ...]  # Quantiles of the failed units' cycles, at `QUANTILES`; empty without one
    censored: tuple[float, ...]  # The same of the units that have not failed
    start: float  # Median over the units of the first cycle
    duplicates: int  # Rows that repeat a unit and cycle
    duplicate: str  # The first of them, in words; empty without one
    gaps: int  # Units with skipped cycle numbers
    skipped: float  # Share of the cycles without a reading; longer gaps, where windows begin anew, apart
    refused: float  # Share of the windows, one a reading, that miss too many readings for an answer
    anew: float  # Share of the readings after a unit's first at which windows begin anew
    window: int  # Cycles of the longest window before a failure that the service would answer
    columns: tuple[ColumnFacts, ...]  # In schema order
    unset: dict[str, int]  # Cycles with sensor readings that lack each setting; empty if there is one regime
    ended: tuple[str, ...]  # Group of each failed unit
    read: tuple[tuple[str, ...], ...]  # Groups whose failed units read each column, in schema order
    bound: BoundFacts | None  # None: every unit ran to failure
    end: EndFacts | None  # Where units end, if every one counts as failed; None: nowhere in particular
    early: tuple[str, ...]  # Units that end less than half-way there
    suggested: Suggested | None  # None without a failed unit


def inspect_rows(rows: Rows, fleet: Fleet) -> Inspection:
    """Compute the facts of these rows; the first of duplicated cycles counts."""
    pairs = rows.duplicates()
    kept = rows.without_duplicates()
    trajectories = kept.trajectories(fleet, run_to_failure=None)
    failed = [each for each in trajectories if each.failed]
    windows = [(each, ReadingsByCycle([each], context=fleet.context).lengths) for each in trajectories]
    lives = life_quantiles(failed)
    repeated = repeated_truths(failed, columns=len(fleet.schema))
    each_column = zip(fleet.schema.columns, kept.readings.T, rows.rounding(fleet), repeated, strict=True)
    sensors = fleet.schema.indices("sensor") if fleet.failure is None else ()
    end = common_end({fleet.sources[i]: [unit.readings[:, i] for unit in trajectories] for i in sensors})
    of_units = {kept.units[kept.unit[unit[0]]]: unit for unit in kept.of_units()}
    values = {name: kept.failure[unit] for name, unit in of_units.items()}
    cycles = {name: kept.cycle[unit] for name, unit in of_units.items()}
    return Inspection(
        rows=len(rows.unit),
        units=len(trajectories),
        failed=len(failed),
        lives=lives,
        censored=life_quantiles([each for each in trajectories if not each.failed]),
        start=float(np.median([each.cycles[0] for each in trajectories])),
        duplicates=len(pairs),
        duplicate=rows.first_duplicate() if len(pairs) else "",
        gaps=sum(bool((np.diff(each.cycles) > 1).any()) for each in trajectories),
        skipped=1.0 - sum(map(len, trajectories)) / sum(_counted(each, fleet) for each in trajectories),
        refused=float(np.concatenate([_too_empty(*each, fleet) for each in windows]).mean()),
        anew=sum(int((n[1:] == 1).sum()) for _, n in windows) / max(1, sum(len(n) - 1 for _, n in windows)),
        window=max((_longest(*each, fleet) for each in windows if each[0].failed), default=0),
        columns=tuple(
            column_facts(c.name, c.role, readings, locate=kept.cycle_of, rounded=rounded, repeats=repeats)
            for c, readings, rounded, repeats in each_column
        ),
        unset=cycles_without_settings(trajectories, fleet.schema),
        ended=tuple(group_of(each) for each in failed),
        read=tuple(
            tuple(dict.fromkeys(group_of(each) for each in failed if np.isfinite(each.readings[:, f]).any()))
            for f in range(len(fleet.schema))
        ),
        bound=None if fleet.failure is None else bound_facts(values, cycles, fleet.failure),
        end=end,
        early=() if end is None else tuple(trajectories[i].unit for i in end.early),
        suggested=suggest(lives),
    )


def life_quantiles(units: Sequence[Trajectory]) -> tuple[float, ...]:
    """Compute quantiles of the cycles from the first reading to the last, both included."""
    if not units:
        return ()
    return tuple(np.quantile([unit.cycles[-1] - unit.cycles[0] + 1 for unit in units], QUANTILES).tolist())


def _too_empty(unit: Trajectory, lengths: IntArray, fleet: Fleet) -> BoolArray:
    """Return whether too many readings are missing in the window of this length at each cycle [N]."""
    known = _known(unit, lengths, (~np.isnan(unit.readings)).mean(axis=1))
    return known < (1.0 - fleet.max_missing_fraction) * (1.0 - ROUNDING) * lengths


def _longest(unit: Trajectory, lengths: IntArray, fleet: Fleet) -> int:
    """Return the cycles of the longest window before the last cycle whose readings suffice for an answer."""
    return int(lengths[:-1][~_too_empty(unit, lengths, fleet)[:-1]].max(initial=0))


def _known(unit: Trajectory, lengths: IntArray, share: FloatArray) -> FloatArray:
    """Add the known share [N] of each cycle's readings over windows of these lengths, one a cycle, [N]."""
    sums = np.concatenate(([0.0], np.cumsum(share)))
    return sums[1:] - sums[np.searchsorted(unit.cycles, unit.cycles - lengths + 1)]


def _counted(unit: Trajectory, fleet: Fleet) -> int:
    steps = np.diff(unit.cycles)
    return 1 + int(np.where(steps > longest_gap(fleet.context) + 1, 1, steps).sum())


def column_facts(
    name: str,
    role: Role,
    readings: FloatArray,
    *,
    locate: Callable[[int], str] = str,
    rounded: float = 0.0,
    repeats: str | None = None,
) -> ColumnFacts:
    """Compute the facts of one column, float [n] with NaN where missing; `locate` names a row.

    >>> column_facts("flow", "sensor", np.array([1.0, 1.0, np.nan, 1.0])).commonest
    1.0
    """
    readings = readings.astype(np.float64)
    known = readings[np.isfinite(readings)]
    missing = 1.0 - len(known) / max(len(readings), 1)
    if not len(known):
        return ColumnFacts(name, role, np.nan, np.nan, np.nan, 0.0, missing, 0.0, 0, 0.0, "", None, 0.0, None)
    low, median, high = (float(value) for value in np.quantile(known, (0.01, 0.5, 0.99)))
    width = high - low
    beyond = np.flatnonzero((readings < low - width) | (readings > high + width)) if width > 0 else []
    far = [int(row) for row in beyond if np.isfinite(readings[row])]
    return ColumnFacts(
        name=name,
        role=role,
        low=low,
        median=median,
        high=high,
        largest=float(np.abs(known).max()),
        missing=missing,
        commonest=float(np.unique(known, return_counts=True)[1].max() / len(known)),
        outliers=len(far),
        farthest=max((abs(float(readings[row]) - median) / width for row in far), default=0.0),
        outlier=locate(far[0]) if far else "",
        code=_code(readings[far]),
        rounded=rounded,
        repeats=repeats,
    )


def bound_facts(
    values: Mapping[str, FloatArray], cycles: Mapping[str, IntArray], rule: FailureRule
) -> BoundFacts:
    """Compare the failure column's values [N] of each unit, in order of cycles, with the bound."""
    # As `FailureRule.failure_row`: only known values count.
    known = {n: (unit[at], cycles[n][at]) for n, unit in values.items() if (at := ~np.isnan(unit)).any()}
    starts, lasts = (np.array([unit[end] for unit, _ in known.values()]) for end in (0, -1))
    bound, sign = (rule.at_most, 1.0) if rule.at_most is not None else (rule.at_least, -1.0)
    assert bound is not None  # noqa: S101 a rule has exactly one bound
    short = sign * (lasts - bound)  # how far each unit stays short of the bound; 0 or less: failed
    nearby = _nearby(short, step=(step := _step(starts, bound)))
    beyond = {name: sign * (unit - bound) <= 0 for name, (unit, _) in known.items()}
    goes_on = [int(known[n][1][-1] - known[n][1][np.argmax(at)]) for n, at in beyond.items() if at[-1]]
    back = {n: np.diff(np.flatnonzero([*at, True])).max(initial=1) - 1 for n, at in beyond.items()}
    return BoundFacts(
        rule=rule,
        missed=len(values) - int((short <= 0).sum()),
        begins_beyond=tuple(name for name, at in beyond.items() if at[0]),
        runs_on=tuple(n for n, at in beyond.items() if back[n] > LONG * len(at) and not at[0]),
        nearest=float(lasts[np.argmin(short)]) if len(lasts) else float("nan"),
        nearby=None if nearby is None else _tidy(bound + sign * nearby, step),
        reach_nearby=0 if nearby is None else int((short <= nearby * (1 + 1e-9)).sum()),
        goes_on=float(np.median(goes_on)) if goes_on else 0.0,
    )


def common_end(columns: Mapping[str, Sequence[FloatArray]]) -> EndFacts | None:
    """Find the column in which units end closest together; values [N] of each unit by column."""
    best, found = SHARP, None
    for name, values in columns.items():
        known = [unit[np.isfinite(unit)].astype(np.float64) for unit in values]
        at = [i for i, unit in enumerate(known) if len(unit)]
        first, last = (np.array([known[i][end] for i in at]) for end in (0, -1))
        if len(at) < 3 or np.median(last) == np.median(first):
            continue
        change = float(np.median(last) - np.median(first))
        low, middle, high = (float(value) for value in np.quantile(last, (0.25, 0.5, 0.75)))
        if (spread := (high - low) / abs(change)) >= best:
            continue
        jumps = [float(np.diff(unit).std()) for unit in known if len(unit) > 1]
        if not jumps or abs(change) < CLEAR * float(np.median(jumps)):
            continue
        near = last[np.abs(last - middle) <= (1.5 * spread + ROUNDING) * abs(change)]
        step = _step(first, middle)
        bound = np.floor(near.min() / step) if change > 0 else np.ceil(near.max() / step)
        rule = FailureRule(name, **{"at_least" if change > 0 else "at_most": _tidy(bound * step, step)})
        early = np.flatnonzero((middle - last) / change > 0.5)
        best, found = spread, EndFacts(rule, tuple(at[int(i)] for i in early))
    return found


def repeated_truths(failed: Sequence[Trajectory], *, columns: int) -> list[str | None]:
    """Say which columns hold the RUL or the cycle number of every failed unit."""
    if sum(len(unit) for unit in failed) < 2:
        return [None] * columns
    readings = np.concatenate([unit.readings for unit in failed])
    rul = np.concatenate([cycles_left(unit) for unit in failed]).astype(np.float64)
    cycle = np.concatenate([unit.cycles for unit in failed]).astype(np.float64)
    return ["RUL" if _follows(c, rul) else "cycle" if _follows(c, cycle) else None for c in readings.T]


def suggest(lives: Sequence[float]) -> Suggested | None:
    """Derive cap, context and horizons from the quantiles of lives.

    >>> suggest((128, 147, 177, 199, 229, 362))
    Suggested(cap=125.0, context=60, horizons=(10, 30, 60))
    """
    if not lives:
        return None
    short, median = lives[QUANTILES.index(0.05)], lives[QUANTILES.index(0.5)]
    cap = max(nice(LIFE_SHARE * median), 4.0)
    horizons = sorted({max(1, round(nice(share * cap))) for share in (0.08, 0.25, 0.5)})
    context = min(LONGEST_CONTEXT, max(SHORTEST_CONTEXT, round(nice(min(short, cap) / 2))))
    return Suggested(cap, context, tuple(horizons))


def nice(value: float) -> float:
    """Round to a plain number.

    >>> [nice(value) for value in (119.4, 235.2, 0.0123)]
    [125.0, 250.0, 0.0125]
    """
    power = float(10.0 ** np.floor(np.log10(value)))
    return min((n * power for n in NICE), key=lambda n: abs(n - value))


def _code(far: FloatArray) -> float | None:
    if len(far) < 2:
        return None
    values, counts = np.unique(far, return_counts=True)
    most = int(np.argmax(counts))
    return float(values[most]) if counts[most] >= 2 and counts[most] * 2 > len(far) else None


def _step(starts: FloatArray, bound: float) -> float:
    """Return the power of ten below the distance that counts as just missed; 0 without one."""
    just = JUST_MISSED * abs(float(np.median(starts)) - bound) if len(starts) else 0.0
    return float(10.0 ** np.floor(np.log10(just))) if just > 0 else 0.0


def _tidy(value: float, step: float) -> float:
    """Round off the error of a sum of multiples of `step`, a power of ten."""
    return round(float(value), 9 - round(np.log10(step)))


def _nearby(short: FloatArray, *, step: float) -> float | None:
    """Find by how much a bound must move for a tenth more units to reach it; None: too far."""
    gained = [int(((short > 0) & (short <= k * step * (1 + 1e-9))).sum()) for k in range(1, 10)]
    worth = max(2, 0.1 * len(short))
    return next((k * step for k, gain in enumerate(gained, 1) if gain >= max(worth, 0.9 * gained[-1])), None)


def _follows(readings: FloatArray, truth: FloatArray) -> bool:
    """Return whether readings are the truth, plus a constant."""
    apart: FloatArray = readings - truth
    there: BoolArray = np.isfinite(apart)
    return bool(there.sum() > 1 and np.ptp(truth[there]) > 0 and np.ptp(apart[there]) < 1e-3)
