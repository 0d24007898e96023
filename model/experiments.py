"""Variants compared by cross-validation over units: the rows of docs/experiments.md.

A row is a network with its options and recipe, or a baseline. All rows of a fleet are judged on
the same windows: every unit is held out once and cut at random cycles, as a test set has them.
This module must not know files or screens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from model.baselines import BASELINES
from model.calibration import read_windows
from model.crossfit import Fold, attention_worth, cross_fitted, held_out_fold
from model.domain import FloatArray, IntArray, InvalidData, RulError, Trajectory, WindowSet, capped_rul
from model.evaluation import Answered, Figure, bootstrapped, figures, join_answers, root_mean_square_error
from model.fleet import Fleet
from model.layers import Standardise
from model.networks import fleet_for, network_class
from model.parts import Parts, deal_fold, held_out_windows
from model.reference import fit_reference
from model.run import prepare
from model.training import TrainConfig, Watcher

BATCH: Final = 16
"""Windows a call, when the cost of a window is measured."""
CALLS: Final = 20


class UnknownRow(RulError):
    """A row by a name that the table does not have."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        says: What is different about it.
        network: The network; None for the baseline that has the row's name.
        options: Fields of `NetworkConfig` that are not the network's own defaults.
        recipe: Fields of `TrainConfig` that are not its defaults.
    """

    says: str
    network: str | None = "flagship"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    recipe: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a row reached.

    Attributes:
        answered: Every held-out window; rows of the same folds have the same, in the same order.
        figures: As `rul evaluate` has them; coverage and width for networks alone.
        attention: What hiding cycles did, where it was measured.
        microseconds: A window costs at batch 16 on one thread, in Python.
        training_seconds: Of all folds.
    """

    answered: Answered
    figures: dict[str, Figure]
    attention: dict[str, Figure]
    microseconds: float
    training_seconds: float


ROWS: Final[dict[str, Row]] = {
    "mean": Row("always the mean", network=None),
    "ridge": Row("a line in the last readings and the age", network=None),
    "gradient_boosting": Row("gradient boosting on window statistics", network=None),
    "flagship": Row("what ships"),
    "even": Row("attention need not fall off with distance", options={"recency": 0.0}),
    "wide": Row("recurrent part twice as wide", options={"hidden": 16}),
    "narrow": Row("perceptron half as wide", options={"perceptron": 48}),
    "sure_recurrence": Row("no dropout behind the recurrent part", options={"recurrent_dropout": 0.0}),
    "unworn": Row(
        "training windows hardly worn",
        recipe={
            "columns_missing": 0.1,
            "readings_missing": 0.1,
            "history_missing": 0.05,
            "age_missing": 0.05,
            "offset": 0.05,
            "age_jitter": 0.03,
        },
    ),
    "windows_alike": Row("long units are drawn more often", recipe={"units_alike": False}),
    "rul_alike": Row("windows near failure weigh no more", recipe={"low_rul_weight": 0.0}),
    "whole_histories": Row("fewer windows cut to their last cycles", recipe={"history_missing": 0.05}),
    "long": Row("1,000 updates", recipe={"steps": 1000}),
    "amnl": Row("additive temporal attention over raw readings", network="amnl"),
    "selfattention": Row("eight heads between cycles", network="selfattention"),
}


def row_named(name: str) -> Row:
    """A row of the table.

    Raises:
        UnknownRow: there is none of that name.
    """
    if name not in ROWS:
        raise UnknownRow(f"no row {name!r}, there are: {', '.join(ROWS)}")
    return ROWS[name]


def updates(name: str, config: TrainConfig) -> int:
    """How often `run_row` tells its watcher in a fold, at most.

    Raises:
        UnknownRow: there is none of that name.
    """
    row = row_named(name)
    return 1 if row.network is None else _config(row, config).steps


def run_row(
    name: str,
    trajectories: Sequence[Trajectory],
    fleet: Fleet,
    *,
    folds: int,
    config: TrainConfig,
    watch: Watcher,
    only: int | None = None,
    attention: bool = False,
) -> Found:
    """Cross-validate one row, or `only` the first of its folds.

    `watch` counts the updates of all folds, or the folds of a baseline.

    Raises:
        UnknownRow: there is none of that name.
        InvalidData: there are fewer units than folds.
        MissingLibrary: the baseline needs one.
    """
    row = row_named(name)
    if row.network is None:
        return _run_baseline(name, trajectories, fleet, folds=folds, config=config, watch=watch, only=only)
    config, fleet = _config(row, config), fleet_for(fleet, row.network)
    behind: list[Fold] = []
    started = time.monotonic()
    for fold in range(only or folds):
        parts = _fold(trajectories, fleet, fold=fold, folds=folds, config=config)
        trainer, _ = prepare(parts, fleet, network=row.network, config=config, options=row.options)
        done = fold * config.steps
        net = trainer.learn(lambda step, loss, check, done=done: watch(done + step, loss, check))
        behind.append(held_out_fold(net, parts))
    seconds = time.monotonic() - started
    answered, first = cross_fitted(behind), behind[0]
    return Found(
        answered,
        figures(answered, cap=fleet.cap),
        attention_worth(behind) if attention else {},
        cost(lambda windows: read_windows(first.net, windows), first.windows),
        seconds,
    )


def difference(found: Found, other: Found, *, cap: float) -> Figure:
    """RMSE of one row less that of another, over the same windows, in cycles; units are resampled in pairs.

    Raises:
        InvalidData: the rows were judged on other windows.
    """
    ours, theirs = found.answered, other.answered
    if not (np.array_equal(ours.unit, theirs.unit) and np.array_equal(ours.truth, theirs.truth)):
        raise InvalidData("the rows were judged on other windows: there is nothing to compare")
    truth = capped_rul(ours.truth, cap=cap)

    def rmse(rul: FloatArray, rows: IntArray) -> float:
        return root_mean_square_error(rul[rows] - truth[rows])

    def apart(rows: IntArray) -> float:
        return rmse(ours.rul, rows) - rmse(theirs.rul, rows)

    return bootstrapped({"rmse": apart}, ours.unit)["rmse"]


def cost(answer: Callable[[WindowSet], object], windows: WindowSet) -> float:
    """Microseconds a window, the best of some calls of `BATCH` windows."""
    few = windows.take(np.arange(min(BATCH, len(windows))))
    seconds: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        answer(few)
        seconds.append(time.perf_counter() - started)
    return min(seconds) / len(few) * 1e6


def _run_baseline(
    name: str,
    trajectories: Sequence[Trajectory],
    fleet: Fleet,
    *,
    folds: int,
    config: TrainConfig,
    watch: Watcher,
    only: int | None,
) -> Found:
    answers: list[Answered] = []
    microseconds = 0.0
    started = time.monotonic()
    for fold in range(only or folds):
        parts = _fold(trajectories, fleet, fold=fold, folds=folds, config=config)
        baseline = BASELINES[name](_standardise(parts, fleet), fleet.cap)
        baseline.fit(parts.training)
        held_out = held_out_windows(parts)
        rul = baseline.answer(held_out)
        answers.append(Answered(held_out.rul, rul, rul, rul, held_out.unit))
        microseconds = cost(baseline.answer, held_out)
        watch(fold + 1, float("nan"), None)
    seconds = time.monotonic() - started
    answered = join_answers(answers)
    found = figures(answered, cap=fleet.cap)
    points = {name: figure for name, figure in found.items() if name not in ("coverage", "width")}
    return Found(answered, points, {}, microseconds, seconds)


def _config(row: Row, config: TrainConfig) -> TrainConfig:
    own = {} if row.network is None else network_class(row.network).recipe
    return replace(config, **{**own, **row.recipe})


def _fold(
    trajectories: Sequence[Trajectory], fleet: Fleet, *, fold: int, folds: int, config: TrainConfig
) -> Parts:
    return deal_fold(
        trajectories, fleet, fold=fold, folds=folds, seed=config.seed, truncations=config.truncations
    )


def _standardise(parts: Parts, fleet: Fleet) -> Standardise:
    reference = fit_reference(parts.trained, fleet.schema)
    layer = Standardise(
        columns=len(fleet.schema),
        settings=fleet.schema.indices("setting"),
        regimes=len(reference.regimes),
    )
    layer.fit(reference)
    return layer
