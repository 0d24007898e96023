"""Replay of decisions: what acting on predictions would have cost on lives that ended in failure.

Each unit is reviewed at the cycles that have a prediction, until a policy stops it or it fails. Units
are held out: their predictions come from networks of other folds, kept by `rul train`, or from a bundle
that they did not train. This module must not know networks or screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from model.decision import Costs, FleetLife, Forecast, best_fixed_age, cost_curve, remaining_life
from model.domain import FloatArray, InvalidData
from model.evaluation import Figure, Total, bootstrapped, ratio_of
from model.fleet import Fleet
from model.outputs import whole_file
from model.prognostics import Life, groups_of

HELD_OUT_FILE: Final = "held_out.npz"
COLUMNS: Final = ("cycle", "truth", "rul", "lower", "upper", "failure_probability")
DECILES: Final = np.linspace(0.0, 1.0, 11)


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Lives with held-out predictions, and the fleet as known when they were predicted."""

    lives: list[Life]
    fleets: list[FleetLife]  # One per life: units that trained, as bundles keep them
    fixed: list[FleetLife]  # One per life: all units that trained, to choose the fixed age from
    horizons: tuple[int, ...]
    coverage: float
    cap: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Cost per cycle of each policy at one pair of costs, bootstrapped over groups."""

    costs: Costs
    units: int
    cost_per_cycle: dict[str, Figure]  # By policy, see `POLICIES`
    saved: Figure  # 1 - ours / fixed age, paired
    failures: dict[str, float]  # Share of lives that end in failure, by policy
    cycles: dict[str, float]  # Mean cycles lived, by policy


POLICIES: Final = ("ours", "fixed age", "run to failure", "foresight")


def cross_fitted_lives(
    lives: Sequence[Life],
    fold: Sequence[int],
    *,
    horizons: Sequence[int],
    coverage: float,
    cap: float,
) -> HeldOut:
    """Give each life the fleet of the other folds' lives.

    Raises:
        InvalidData: all lives are of one fold, so no others say how long a unit lasts.
    """
    if len(set(fold)) < 2:
        raise InvalidData("expected predicted lives in two folds or more, got one: train on more units")
    ends, which = np.array([life.end for life in lives]), np.array(fold)
    others = {k: np.sort(ends[which != k]) for k in set(fold)}
    as_kept = {k: FleetLife(np.quantile(known, DECILES).tolist()) for k, known in others.items()}
    # A life alone is shortest and longest.
    every = {k: FleetLife(np.resize(known, max(len(known), 2)).tolist()) for k, known in others.items()}
    return HeldOut(
        list(lives), [as_kept[k] for k in fold], [every[k] for k in fold], tuple(horizons), coverage, cap
    )


def compare(held: HeldOut, costs: Costs) -> Comparison:
    """Replay every policy on every life at these costs."""
    ends = np.array([life.end for life in held.lives])
    stops = {
        "ours": np.array([_our_stop(held, i, costs) for i in range(len(held.lives))]),
        "fixed age": np.array([best_fixed_age(fleet, costs) or np.inf for fleet in held.fixed]),
        "run to failure": np.full(len(ends), np.inf),
        "foresight": ends - 1.0,
    }
    lived = {name: np.minimum(stop, ends) for name, stop in stops.items()}
    failed = {name: stop >= ends for name, stop in stops.items()}
    spent = {name: np.where(each, costs.failure, costs.planned) for name, each in failed.items()}
    rates = {name: ratio_of(spent[name], lived[name]) for name in POLICIES}

    def saved_share(total: Total) -> FloatArray:
        return 1.0 - rates["ours"](total) / rates["fixed age"](total)

    found = bootstrapped(rates | {"saved": saved_share}, groups_of(held.lives))
    saved = found.pop("saved")
    return Comparison(
        costs,
        len(ends),
        found,
        saved,
        {name: float(each.mean()) for name, each in failed.items()},
        {name: float(each.mean()) for name, each in lived.items()},
    )


def _our_stop(held: HeldOut, i: int, costs: Costs) -> float:
    """Return the cycle at which the advice stops a life; infinite if it never does.

    A stop is made if it is due before the next review: later reviews know more.
    """
    life, fleet = held.lives[i], held.fleets[i]
    reviews = [*life.cycle.tolist(), life.end]
    for row, (age, following) in enumerate(pairwise(reviews)):
        probabilities = dict(zip(held.horizons, life.failure_probability[row].tolist(), strict=True))
        rul, lower, upper = (float(each[row]) for each in (life.rul, life.lower, life.upper))
        forecast = Forecast(rul, lower, upper, probabilities)
        remaining = remaining_life(forecast, fleet, coverage=held.coverage, cap=held.cap, age=age)
        curve = cost_curve(remaining, costs, age=age)
        if curve.best is not None and age + curve.in_cycles[curve.best] < following:
            return age + float(curve.in_cycles[curve.best])
    return float("inf")


def save_held_out(folder: Path, lives: Sequence[Life], fold: Sequence[int], fleet: Fleet) -> None:
    """Write the held-out predictions of a run, completely or not at all."""
    rows = np.repeat(np.arange(len(lives)), [len(life.cycle) for life in lives])
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(life, name) for life in lives]).astype(np.float32) for name in COLUMNS
    }
    units: dict[str, Any] = {
        name: np.array([getattr(life, name) for life in lives]) for name in ("unit", "group")
    }
    units["fold"] = np.array(fold)
    facts: dict[str, Any] = {"horizons": np.array(fleet.horizons), "cap": fleet.cap}
    facts["coverage"] = fleet.nominal_coverage
    with whole_file(folder / HELD_OUT_FILE) as part:
        np.savez_compressed(part, row_unit=rows, **columns, **units, **facts)


def load_held_out(folder: Path) -> HeldOut:
    """Read the held-out predictions of a run.

    Raises:
        InvalidData: the run has none, the file is damaged, or all its lives are of one fold.
    """
    path = folder / HELD_OUT_FILE
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            kept: dict[str, FloatArray] = dict(stored)
        rows = kept["row_unit"] >= 0  # a mask: columns of another length are refused
        starts = np.searchsorted(kept["row_unit"], np.arange(1, len(kept["unit"])))
        columns = [np.split(kept[name][rows].astype(np.float64), starts) for name in COLUMNS]
        groups = kept.get("group", kept["unit"])  # runs of earlier versions
        own = zip(kept["unit"].tolist(), *columns, groups.tolist(), strict=True)
        lives = [Life(*each) for each in own]
        return cross_fitted_lives(
            lives,
            kept["fold"].tolist(),
            horizons=kept["horizons"].tolist(),
            coverage=float(kept["coverage"]),
            cap=float(kept["cap"]),
        )
    except FileNotFoundError:
        raise InvalidData(f"{folder}: {HELD_OUT_FILE} is missing: train again with this version") from None
    except InvalidData as error:
        raise InvalidData(f"{path}: {error}") from error
    except Exception as error:  # zipfile, zlib and numpy share no root
        raise InvalidData(f"{path}: cannot be read, train again: {error}") from error
