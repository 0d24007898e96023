"""Training run: trajectories in, a trained and calibrated checkpoint out.

One network per fold trains on the other folds and predicts its own units. The final network trains
on all units and is calibrated on these predictions. This module must not know files or screens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from model.augmentation import measure_columns
from model.baselines import gradient_boosting
from model.calibration import (
    AT_ONCE,
    entropy_references,
    fit_distribution,
    fit_scale,
    read_windows,
    tensors,
    with_lacking,
)
from model.censoring import failed_units
from model.checkpoint import FORMAT, RUN_FILE, STATE_FILE, Checkpoint
from model.cluster import Cluster, mapped
from model.crossfit import (
    Fold,
    attention_worth,
    cross_fitted,
    fewest_cycles_that_hold,
    held_out_fold,
    held_out_lives,
    joined,
    scaled_by_rul,
)
from model.dataset import Split, held_out_windows, split_fold, train_all
from model.domain import FloatArray, Trajectory, capped_rul
from model.evaluation import boosting_figures, figures, named_figures, root_mean_square_error
from model.fleet import Fleet
from model.layers import set_buffer
from model.network import RulNetwork
from model.networks import build_network, fleet_for, network_class, network_config
from model.prognostics import THIRDS, by_answer
from model.reference import Reference, fit_reference
from model.replay import HELD_OUT_FILE, save_held_out
from model.stages import Stage, Stages, finished_stage, mean_curve
from model.training import Check, TrainConfig, Trainer, Watcher, unwatched
from model.version import VERSION

SCALED_WINDOWS: Final = 2000
"""Windows that scale a network's inner inputs."""
LENGTHS: Final = {125: 0.0, 250: 0.0, 500: 0.0, 1000: 0.02, 2000: 0.1}
"""Lengths to try, in updates, and the share by which each must lower the RMSE of the judging units. The first
three are cheap and all tried. The longest is tried only if the one before gains as much as the longest must:
each doubling gains less than the one before. Many updates spread the evidence. The longest keeps a training
of 100,000 windows within fifteen minutes of CPU."""
JUDGES: Final = 45
"""Held-out units that judge lengths and settings, from as many folds as hold them. Few units judge by chance:
the fifteen of HUST's first fold see a gain of 1.8 % in 1,000 updates, those of all folds 6.7 %."""
READS: Final = "reads_settings"
SETTINGS_GAIN: Final = 0.05
"""Share by which reading the settings must lower that RMSE; otherwise settings only tell the regimes.
If settings decide lives, the share is 0.12 and more; on C-MAPSS less than 0.02 (docs/adr/0017)."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Units, network and configuration: one training without each fold, then one on all units."""

    trajectories: Sequence[Trajectory]
    fleet: Fleet
    network: str
    config: TrainConfig
    folds: int
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Fields of `NetworkConfig`
    trained: Sequence[Stage] = ()  # First folds, already trained

    def stage(self, number: int) -> tuple[Split, Trainer, Reference]:
        """Prepare the training of a fold, or of all units after the last fold."""
        fleet, config = fleet_for(self.fleet, self.network), self.config
        if number < self.folds:
            split = split_fold(
                self.trajectories, fleet, fold=number, folds=self.folds, seed=config.seed,
                truncations=config.truncations,
            )  # fmt: skip
        else:
            split = train_all(self.trajectories, fleet)
        return split, *prepare(
            split, fleet, network=self.network, config=config, options=self.options, units=self.units
        )

    @property
    def units(self) -> int:
        """Count the training units of the final network; they determine the width of all networks."""
        return len(failed_units(self.trajectories))

    def origin(self, data_sha256: str) -> dict[str, Any]:
        """Identify the run; only a run with the same identity may resume it."""
        fleet = fleet_for(self.fleet, self.network)
        form = network_config(fleet, network=self.network, regimes=1, units=self.units, options=self.options)
        return {
            "format": FORMAT,
            "fleet": json.dumps(asdict(self.fleet)),
            "network": json.dumps(asdict(form)),
            "data_sha256": data_sha256,
            "folds": str(self.folds),
            **asdict(self.config),
        }

    def finished(self, number: int) -> Stage:
        """Train a stage on a cluster."""
        _, trainer, _ = self.stage(number)
        trainer.learn(unwatched)
        return finished_stage(trainer)

    @property
    def may_read_settings(self) -> bool:
        """Return whether the network can read settings and no option decides it."""
        known = network_class(self.network).options
        return READS in known and READS not in self.options and bool(self.fleet.schema.indices("setting"))

    def with_updates(self, steps: int) -> Plan:
        """Return the plan with this number of updates of each network."""
        return replace(self, config=replace(self.config, steps=steps), trained=())

    def with_options(self, **options: object) -> Plan:
        """Return the plan with further options of the network."""
        return replace(self, options={**self.options, **options}, trained=())

    def judged(self) -> tuple[list[Stage], float]:
        """Train the first folds, until `JUDGES` units are held out; return them and their RMSE."""
        stages: list[Stage] = []
        errors: list[FloatArray] = []
        weights: list[FloatArray] = []
        units, cap = 0, self.fleet.cap
        for fold in range(self.folds):
            split, trainer, _ = self.stage(fold)
            windows = held_out_windows(split)
            read = read_windows(trainer.learn(unwatched), windows)
            stages.append(finished_stage(trainer))
            errors.append(np.clip(read.unclipped, 0.0, cap) - capped_rul(windows.rul, cap=cap))
            weights.append(windows.weight)
            units += len(np.unique(windows.unit))
            if units >= JUDGES:
                break
        return stages, root_mean_square_error(np.concatenate(errors), np.concatenate(weights))


@dataclass(frozen=True, slots=True)
class Source:
    """Name and digest of the data files, and the arguments of `rul train`."""

    name: str
    sha256: str
    # Arguments as given, for the commands of the model card: `fleet`, `data`, `set` and `threads`.
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])


def choose(plan: Plan, *, tell: Callable[[Plan, float], None], cluster: Cluster | None = None) -> Plan:
    """Choose the number of updates, and whether the network reads the settings.

    The updates increase until the RMSE of the first folds' held-out units (`JUDGES`) falls too little;
    settings are read if they lower this RMSE enough. The learning rate has one cycle over all updates, so
    each length is a separate training. The cross-validation uses the same units, so its figures are
    optimistic. `tell` gets each plan and its RMSE. A cluster tries all lengths at once. The chosen plan has
    the trained folds, so `train_run` does not train them again.
    """
    chosen, least = plan, math.inf
    lengths = [plan.with_updates(steps) for steps in LENGTHS]
    for tried, (trained, found) in zip(lengths, mapped(Plan.judged, lengths, cluster), strict=True):
        tell(tried, found)
        before, needed = least, LENGTHS[tried.config.steps]
        if found < (1.0 - needed) * before:
            chosen, least = replace(tried, trained=trained), found
        if needed and not found < (1.0 - max(LENGTHS.values())) * before:  # the next would gain too little
            break
    if chosen.may_read_settings:
        reading = chosen.with_options(**{READS: True})
        ((trained, found),) = mapped(Plan.judged, [reading], cluster)
        tell(reading, found)
        if found < (1.0 - SETTINGS_GAIN) * least:
            chosen = replace(reading, trained=trained)
    return chosen


def train_run(
    plan: Plan,
    *,
    name: str,
    source: Source,
    folder: Path,
    watch: Watcher,
    keep: Callable[[Sequence[Check]], None] = lambda _: None,
    resume: bool = False,
    cluster: Cluster | None = None,
) -> tuple[Checkpoint, list[Check]]:
    """Train, calibrate and save a network in `folder`; return it with the mean learning curve.

    `watch` counts the updates of all networks; `keep` stores the curve. Until then an interrupted run leaves
    its state in `folder`; `resume` continues it with the same result. A cluster trains all networks at once;
    this process does the rest.
    """
    folds, fleet = plan.folds, fleet_for(plan.fleet, plan.network)
    stages = Stages(folder / STATE_FILE, plan.origin(source.sha256), watch=watch, resume=resume)
    folder.mkdir(parents=True, exist_ok=True)
    for file in (RUN_FILE, HELD_OUT_FILE):  # of an earlier run in this folder
        (folder / file).unlink(missing_ok=True)
    stages.take(plan.trained[stages.finished :])
    if cluster is not None:
        stages.take(mapped(plan.finished, range(stages.finished, folds + 1), cluster))
    done = [_held_out(plan, fold, stages) for fold in range(folds)]
    behind, boosted, curves = (list(each) for each in zip(*done, strict=True))
    split, trainer, reference = plan.stage(folds)
    stages.learn(trainer)
    net = trainer.net
    behind, factors = scaled_by_rul(behind)
    known = {  # Metrics first: `calibrate` fits the buffers that the others read.
        "metrics": calibrate(net, split, behind, factors=factors, boosted=np.concatenate(boosted)),
        **facts(net, fleet, reference),
        "min_cycles": max(fleet.shortest, fewest_cycles_that_hold(behind)),
        "entropy": entropy_references(net, joined(behind)[1]),
        "training": _record(net, plan, source, units=len(split.trained)),
    }
    lives = held_out_lives(behind, plan.trajectories, most_missing=fleet.max_missing_fraction)
    save_held_out(folder, *lives, fleet)
    checkpoint = Checkpoint(name, net.config, net.state_dict(), json.loads(json.dumps(known)))
    checkpoint.save(folder)
    curve = mean_curve(curves)
    keep(curve)
    (folder / STATE_FILE).unlink(missing_ok=True)
    return checkpoint, curve


def _held_out(plan: Plan, fold: int, stages: Stages) -> tuple[Fold, FloatArray, list[Check]]:
    """Train on the other folds; return this fold, the answers of gradient boosting to it, and the curve.

    The training windows must not outlive this call, because the next fold needs their memory.
    """
    split, trainer, reference = plan.stage(fold)
    trees = gradient_boosting(split.training, trainer.net.standardise, plan.fleet.cap)
    boosted = trees(held_out_windows(split))
    curve = stages.learn(trainer)
    return held_out_fold(trainer.net, split, reference), boosted, curve


def prepare(
    split: Split,
    fleet: Fleet,
    *,
    network: str,
    config: TrainConfig,
    options: Mapping[str, Any] | None = None,
    units: int = 0,
) -> tuple[Trainer, Reference]:
    """Build a trainer whose network is scaled to the training units; `units` are those of all folds."""
    reference = fit_reference(split.trained, fleet.schema)
    torch.manual_seed(config.seed)
    regimes = len(reference.regimes)
    net = build_network(network_config(fleet, network=network, regimes=regimes, units=units, options=options))
    net.standardise.fit(reference)
    scales = measure_columns(split.trained, net.standardise)
    set_buffer(net, "oldest", float(split.training.last_cycle.max()))
    if (leading := fleet.failure_column) is not None:
        drawn = np.random.default_rng(config.seed).permutation(len(split.training))[:SCALED_WINDOWS]
        readings, lengths, _ = tensors(split.training.take(drawn))
        net.fit_inputs(readings, lengths, leading=leading)
    return Trainer(net, split=split, config=config, scales=scales), reference


def calibrate(
    net: RulNetwork, split: Split, folds: Sequence[Fold], *, factors: FloatArray, boosted: FloatArray
) -> dict[str, float]:
    """Fit everything that training does not learn; return the metrics on held-out units.

    `factors` correct the scale in each of `BANDS`. `boosted` [W] are the answers of gradient
    boosting to the held-out windows of all folds.
    """
    sample = split.sample
    fit_scale(net, with_lacking(sample))
    set_buffer(net, "scale_factors", factors)
    training = read_windows(net, sample)
    with torch.no_grad():
        set_buffer(net, "baseline", net.reference_rul(torch.from_numpy(training.unclipped).double()))
    net.fit_novelty(map(tensors, sample.batches(AT_ONCE)))
    fit_distribution(net, *joined(folds))
    answered, cap = cross_fitted(folds), net.config.cap
    metrics = {
        **named_figures("crossvalidation", figures(answered, cap=cap)),
        **named_figures("boosting", boosting_figures(answered, boosted, cap=cap)),
        **named_figures("attention", attention_worth(folds)),
    }
    for band in by_answer(answered, cap=cap):
        third = round(band.high / cap * THIRDS)
        own = {name: band.figures[name] for name in ("coverage", "width")}
        metrics |= {f"third_{third}_windows": float(band.windows), **named_figures(f"third_{third}", own)}
    return metrics


def facts(net: RulNetwork, fleet: Fleet, reference: Reference) -> dict[str, Any]:
    """Return the manifest fields that the fleet and its readings determine."""
    return {
        "columns": [column.model_dump() for column in reference.columns],
        "context": fleet.context,
        "max_missing_fraction": fleet.max_missing_fraction,
        "cap": fleet.cap,
        "baseline": float(net.get_buffer("baseline")),
        "horizons": list(fleet.horizons),
        "nominal_coverage": fleet.nominal_coverage,
        "health_bounds": {"critical_below": fleet.critical_below, "degrading_below": fleet.degrading_below},
        "regimes": [regime.model_dump() for regime in reference.regimes],
        "degradation": reference.degradation.model_dump(),
    }


def _record(net: RulNetwork, plan: Plan, source: Source, *, units: int) -> dict[str, Any]:
    """Return the origin of the weights, for the manifest."""
    return {
        "data_sha256": source.sha256,
        "data_name": source.name,
        "seed": plan.config.seed,
        "code_version": VERSION,
        "units": units,
        "censored": len(plan.trajectories) - units,
        "folds": plan.folds,
        "config": {
            "fleet": plan.fleet.name,
            **({} if plan.fleet.group_column is None else {"group": plan.fleet.group_column}),
            **asdict(plan.config),
            "network": asdict(net.config),
            "given": dict(source.given),
        },
    }
