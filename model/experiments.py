"""Experiments: variants compared by cross-validation over units, the rows of docs/experiments.md.

A row is a network with its options and recipe, or a baseline. All rows of a fleet use the same
windows: every unit is held out once and cut at random cycles. A row with heads may be ablated: the error
when one head is silenced, after Michel et al. (2019), "Are sixteen heads really better than one?". This
module must not know files or screens.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from model.baselines import BASELINES
from model.calibration import read_windows
from model.cluster import Cluster, mapped
from model.crossfit import Fold, attention_worth, cross_fitted, held_out_fold, scaled_by_rul
from model.dataset import Split, held_out_windows, split_fold
from model.domain import RulError, Trajectory, WindowSet, concatenated
from model.evaluation import Answered, Figure, figures, rmse_difference
from model.flagship import Flagship
from model.fleet import Fleet
from model.layers import Standardise
from model.network import RulNetwork
from model.networks import NETWORKS, InvalidOption, network_class
from model.options import read_options
from model.reference import fit_reference
from model.run import Plan
from model.selfattention import SelfAttention
from model.training import TrainConfig

BATCH: Final = 16
"""Windows per call, when the cost of a window is measured."""
CALLS: Final = 20


class UnknownRow(RulError):
    """There is no row of this name."""


class NoHeads(RulError):
    """The network has no heads that could be silenced."""


@dataclass(frozen=True, slots=True)
class Silenced:
    """RMSE on held-out units without one head, and how much larger it is than with all."""

    head: int
    rmse: Figure
    more: Figure


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
    attention: dict[str, Figure]  # Faithfulness, if it was measured
    microseconds: float  # Time per window at batch 16, in Python, on the threads of torch
    training_seconds: float  # Training time of all folds
    silenced: Sequence[Silenced] = ()  # RMSE without each head, if it was measured

    @property
    def rmse(self) -> float:
        """RMSE in cycles; infinite if the training diverged."""
        value = self.figures["rmse"].value
        return value if math.isfinite(value) else math.inf


ROWS: Final[dict[str, Row]] = {
    "mean": Row(network=None),
    "ridge": Row(network=None),
    "gradient_boosting": Row(network=None),
    "flagship": Row(),
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


class Wanted(NamedTuple):
    """A row to run, with its options NAME=VALUE, and whether its heads are silenced."""

    name: str
    settings: Sequence[str] = ()
    heads: bool = False

    @property
    def label(self) -> str:
        """Return the row's label in the output."""
        return " ".join([self.name, *self.settings])

    @property
    def row(self) -> Row:
        """Return the row with its options."""
        return row_named(self.name, self.settings)


RowWatcher = Callable[[Wanted, int], None]
"""Called with a row and its finished updates over all folds; a baseline's fold counts as one."""


class HeldOut(NamedTuple):
    """Answers to the held-out units of one fold."""

    answered: Fold | Answered  # Of a network, or of a baseline
    microseconds: float  # Time per window
    seconds: float  # Training time


def require_row(wanted: Wanted) -> None:
    """Refuse an unknown row, option or ablation, before data is read."""
    network = wanted.row.network
    if wanted.heads:
        require_heads(wanted.name if network is None else network)


def updates(row: Row, config: TrainConfig) -> int:
    """Return the number of updates per fold that `run_rows` reports."""
    return 1 if row.network is None else _config(row, config).steps


def run_rows(
    rows: Sequence[Wanted],
    trajectories: Sequence[Trajectory],
    fleet: Fleet,
    *,
    folds: int,
    config: TrainConfig,
    watch: RowWatcher,
    only: int | None = None,
    attention: bool = False,
    cluster: Cluster | None = None,
) -> Iterator[Found]:
    """Cross-validate rows on the same windows, or only their first folds; a cluster runs all at once."""
    parts = [(wanted, fold) for wanted in rows for fold in range(only or folds)]
    told = watch if cluster is None else _unwatched  # the screen is not on the cluster
    run = partial(_run_fold, trajectories, fleet, folds=folds, config=config, watch=told)
    results = mapped(run, parts, cluster)
    for wanted in rows:
        done: list[HeldOut] = []
        for each in islice(results, only or folds):
            done.append(each)
            watch(wanted, len(done) * updates(wanted.row, config))
        yield _found(done, fleet.cap, attention=attention, heads=wanted.heads)


def _run_fold(
    trajectories: Sequence[Trajectory],
    fleet: Fleet,
    part: tuple[Wanted, int],
    *,
    folds: int,
    config: TrainConfig,
    watch: RowWatcher,
) -> HeldOut:
    """Answer the units of one fold by a network or baseline that learnt from the others."""
    wanted, fold = part
    row, started = wanted.row, time.monotonic()
    config = _config(row, config)
    if row.network is None:
        split = split_fold(
            trajectories, fleet, fold=fold, folds=folds, seed=config.seed, truncations=config.truncations
        )
        held_out = held_out_windows(split)
        answer = BASELINES[wanted.name](split.training, _standardise(split, fleet), fleet.cap)
        rul = answer(held_out)
        answered = Answered(held_out.rul, rul, rul, rul, held_out.unit, held_out.group, held_out.weight)
    else:
        plan = Plan(trajectories, fleet, row.network, config, folds, row.options)
        split, trainer, reference = plan.stage(fold)
        net = trainer.learn(lambda step, _loss, _check: watch(wanted, fold * config.steps + step))
        answered, answer = held_out_fold(net, split, reference), partial(read_windows, net)
    seconds = time.monotonic() - started
    return HeldOut(answered, cost(answer, held_out_windows(split)), seconds)


def _found(done: Sequence[HeldOut], cap: float, *, attention: bool, heads: bool) -> Found:
    """Join the folds of a row."""
    microseconds, seconds = done[0].microseconds, sum(each.seconds for each in done)
    behind = [each.answered for each in done if isinstance(each.answered, Fold)]
    if not behind:
        answered = concatenated([each.answered for each in done if isinstance(each.answered, Answered)])
        known = figures(answered, cap=cap)
        points = {name: each for name, each in known.items() if not name.startswith(("coverage", "width"))}
        return Found(answered, points, {}, microseconds, seconds)
    behind = scaled_by_rul(behind)[0] if len(behind) > 1 else behind
    answered = cross_fitted(behind)
    return Found(
        answered,
        figures(answered, cap=cap),
        attention_worth(behind) if attention else {},
        microseconds,
        seconds,
        ablate_heads(behind) if heads else (),
    )


def _unwatched(_wanted: Wanted, _done: int) -> None:
    """Ignore the report."""


def cost(answer: Callable[[WindowSet], object], windows: WindowSet) -> float:
    """Measure microseconds per window, as the best of `CALLS` calls of `BATCH` windows."""
    few = windows.take(np.arange(min(BATCH, len(windows))))
    seconds: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        answer(few)
        seconds.append(time.perf_counter() - started)
    return min(seconds) / len(few) * 1e6


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


def ablate_heads(folds: Sequence[Fold]) -> list[Silenced]:
    """Measure the RMSE of the folds' networks with each head silenced, on the same windows."""
    cap = folds[0].net.config.cap
    whole = _answered(folds, [fold.net for fold in folds])
    found: list[Silenced] = []
    for head in range(folds[0].net.config.heads):
        answered = _answered(folds, [without_head(fold.net, head) for fold in folds])
        rmse = figures(answered, cap=cap)["rmse"]
        found.append(Silenced(head, rmse, rmse_difference(answered, whole, cap=cap)))
    return found


def require_heads(network: str) -> None:
    """Refuse a network or baseline without heads, by its name."""
    if not issubclass(NETWORKS.get(network, RulNetwork), Flagship | SelfAttention):
        raise NoHeads(f"{network!r} has no heads to silence")


def without_head(net: RulNetwork, head: int) -> RulNetwork:
    """Return a copy of the network with the weights that read this head set to 0.

    In `flagship` a silenced head still tells what is missing.
    """
    require_heads(net.config.network)
    net = copy.deepcopy(net)
    with torch.no_grad():
        if isinstance(net, SelfAttention):
            width = net.between.head_width
            net.between.out.weight[:, head * width : (head + 1) * width] = 0.0
        if isinstance(net, Flagship):
            heads = net.config.heads
            net.mix[:, head] = 0.0  # its means
            if head == heads - 1:
                net.mix[:, heads] = 0.0  # and the trend
            net.read_out.first.weight[:, (heads + 1) * net.config.columns + head] = 0.0  # its mean lag
    return net


def _answered(folds: Sequence[Fold], nets: Sequence[RulNetwork]) -> Answered:
    """Answer the held-out windows of each fold by a network; intervals have no width."""
    parts: list[Answered] = []
    for fold, net in zip(folds, nets, strict=True):
        windows = fold.windows
        rul = np.clip(read_windows(net, windows).unclipped, 0.0, net.config.cap)
        parts.append(Answered(windows.rul, rul, rul, rul, windows.unit, windows.group, windows.weight))
    return concatenated(parts)
