"""Experiments: variants compared by cross-validation over units, the rows of docs/experiments.md.

A row is a network with its options and recipe, or a baseline. All rows of a fleet use the same
windows: every unit is held out once and cut at random cycles. This module must not know files or
screens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from model.ablation import Silenced, ablate_heads, require_heads
from model.baselines import BASELINES
from model.calibration import read_windows
from model.crossfit import Fold, attention_worth, cross_fitted, held_out_fold, scaled_by_rul
from model.domain import RulError, Trajectory, WindowSet
from model.evaluation import Answered, Figure, figures, join_answers
from model.fleet import Fleet
from model.folds import Split, held_out_windows, split_fold
from model.layers import Standardise
from model.networks import InvalidOption, fleet_for, network_class
from model.options import read_options
from model.reference import fit_reference
from model.run import prepare
from model.training import TrainConfig, Watcher

BATCH: Final = 16
"""Windows per call, when the cost of a window is measured."""
CALLS: Final = 20


class UnknownRow(RulError):
    """There is no row of this name."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    network: str | None = "flagship"  # The network; None for the baseline of the row's name
    # Fields of `NetworkConfig` that differ from the network's defaults.
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # Fields of `TrainConfig` that differ from the defaults.
    recipe: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Results of a row."""

    answered: Answered  # Every held-out window; the same ones in the same order for all rows
    figures: dict[str, Figure]  # Metrics as in `rul evaluate`; coverage and width only for networks
    attention: dict[str, Figure]  # Faithfulness, where it was measured
    microseconds: float  # Time per window at batch 16 on one thread, in Python
    training_seconds: float  # Training time of all folds
    silenced: Sequence[Silenced] = ()  # RMSE without each head, where it was measured


ROWS: Final[dict[str, Row]] = {
    "mean": Row(network=None),
    "ridge": Row(network=None),
    "gradient_boosting": Row(network=None),
    "flagship": Row(),
    "wide": Row(options={"hidden": 16}),
    "narrow": Row(options={"perceptron": 48}),
    "sure_recurrence": Row(options={"recurrent_dropout": 0.0}),
    "unworn": Row(
        recipe={
            "columns_missing": 0.1,
            "readings_missing": 0.1,
            "history_missing": 0.05,
            "age_missing": 0.05,
            "offset": 0.05,
            "age_jitter": 0.03,
        }
    ),
    "windows_alike": Row(recipe={"units_alike": False}),
    "rul_alike": Row(recipe={"low_rul_weight": 0.0}),
    "whole_histories": Row(recipe={"history_missing": 0.05}),
    "long": Row(recipe={"steps": 1000}),
    "amnl": Row(network="amnl"),
    "last_state": Row(network="amnl", options={"last_state": True}),
    "single_task": Row(network="amnl", options={"health_task": False}),
    "selfattention": Row(network="selfattention"),
}


def row_named(name: str, settings: Sequence[str] = ()) -> Row:
    """Look up a row of the table, with options NAME=VALUE of its network and training changed."""
    if name not in ROWS:
        raise UnknownRow(f"no row {name!r}, there are: {', '.join(ROWS)}")
    row = ROWS[name]
    if not settings:
        return row
    if row.network is None:
        raise InvalidOption(f"row {name!r} is a baseline: it has no options to set")
    options, recipe = read_options(settings, network=row.network)
    given = {text.partition("=")[0] for text in settings}
    changed = {option: value for option, value in recipe.items() if option in given}
    return replace(row, options={**row.options, **options}, recipe={**row.recipe, **changed})


def require_row(name: str, settings: Sequence[str], *, heads: bool) -> None:
    """Refuse an unknown row, option or ablation, before data is read."""
    row = row_named(name, settings)
    if heads:
        require_heads(name if row.network is None else row.network)


def updates(row: Row, config: TrainConfig) -> int:
    """Return the number of updates per fold that `run_row` reports."""
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
    heads: bool = False,
    settings: Sequence[str] = (),
) -> Found:
    """Cross-validate one row, or only its first folds.

    `watch` counts the updates of all folds, or the folds of a baseline; `settings` as in `row_named`.
    """
    row = row_named(name, settings)
    config = _config(row, config)
    fleet = fleet if row.network is None else fleet_for(fleet, row.network)
    splits = (
        split_fold(
            trajectories, fleet, fold=fold, folds=folds, seed=config.seed, truncations=config.truncations
        )
        for fold in range(only or folds)
    )
    if row.network is None:
        return _run_baseline(name, splits, fleet, watch)
    behind: list[Fold] = []
    started = time.monotonic()
    for fold, split in enumerate(splits):
        trainer, reference = prepare(split, fleet, network=row.network, config=config, options=row.options)
        done = fold * config.steps
        net = trainer.learn(lambda step, loss, check, done=done: watch(done + step, loss, check))
        behind.append(held_out_fold(net, split, reference))
    seconds = time.monotonic() - started
    behind, _ = scaled_by_rul(behind) if len(behind) > 1 else (behind, None)
    answered, first = cross_fitted(behind), behind[0]
    return Found(
        answered,
        figures(answered, cap=fleet.cap),
        attention_worth(behind) if attention else {},
        cost(lambda windows: read_windows(first.net, windows), first.windows),
        seconds,
        ablate_heads(behind) if heads else (),
    )


def cost(answer: Callable[[WindowSet], object], windows: WindowSet) -> float:
    """Measure microseconds per window, as the best of `CALLS` calls of `BATCH` windows."""
    few = windows.take(np.arange(min(BATCH, len(windows))))
    seconds: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        answer(few)
        seconds.append(time.perf_counter() - started)
    return min(seconds) / len(few) * 1e6


def _run_baseline(name: str, splits: Iterable[Split], fleet: Fleet, watch: Watcher) -> Found:
    answers: list[Answered] = []
    microseconds = 0.0
    started = time.monotonic()
    for fold, split in enumerate(splits):
        answer = BASELINES[name](split.training, _standardise(split, fleet), fleet.cap)
        held_out = held_out_windows(split)
        rul = answer(held_out)
        answers.append(Answered(held_out.rul, rul, rul, rul, held_out.unit))
        microseconds = cost(answer, held_out)
        watch(fold + 1, float("nan"), None)
    seconds = time.monotonic() - started
    answered = join_answers(answers)
    found = figures(answered, cap=fleet.cap)
    points = {name: figure for name, figure in found.items() if name not in ("coverage", "width")}
    return Found(answered, points, {}, microseconds, seconds)


def _config(row: Row, config: TrainConfig) -> TrainConfig:
    own = {} if row.network is None else network_class(row.network).recipe
    return replace(config, **{**own, **row.recipe})


def _standardise(split: Split, fleet: Fleet) -> Standardise:
    reference = fit_reference(split.trained, fleet.schema)
    layer = Standardise(
        columns=len(fleet.schema), settings=fleet.schema.indices("setting"), regimes=len(reference.regimes)
    )
    layer.fit(reference)
    return layer
