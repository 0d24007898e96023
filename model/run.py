"""A run: trajectories in, a trained and calibrated checkpoint out.

Deals units into those that train, those that select and those that calibrate, fits the reference
statistics, trains, calibrates, and gathers what a manifest must say. This module must not know
how files are read or what is shown on a screen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.calibration import (
    answer_windows,
    attention_worth,
    entropy_references,
    fit_baseline,
    fit_distribution,
    fit_novelty,
    fit_scale,
    held_out_coverage,
    read_windows,
)
from model.checkpoint import STATE_FILE, Checkpoint, load_tensors, save_tensors
from model.domain import Trajectory
from model.evaluation import Answered, Figure, figures, join_answers
from model.fleet import Fleet
from model.network import RulNetwork
from model.networks import build_network, fleet_for, network_config
from model.parts import Parts, deal, deal_fold
from model.reference import Reference, fit_reference
from model.training import InvalidState, Learned, TrainConfig, Trainer, Watcher


@dataclass(frozen=True, slots=True)
class Source:
    """Where the trajectories came from, for the record."""

    name: str
    sha256: str


def train_run(
    trajectories: Sequence[Trajectory],
    fleet: Fleet,
    *,
    name: str,
    network: str,
    config: TrainConfig,
    source: Source,
    folder: Path,
    watch: Watcher,
    resume: bool = False,
    options: Mapping[str, Any] | None = None,
) -> tuple[Checkpoint, Learned]:
    """Train, calibrate and save one network in `folder`; `options` are fields of `NetworkConfig`.

    Interrupted, it leaves its state there; `resume` goes on from that to the same result.

    Raises:
        InvalidData: the units cannot be dealt or hold nothing to learn from.
        UnknownNetwork: there is no network of that name.
        InvalidOption: it does not go by one of the options.
        InvalidCheckpoint: there is no state to resume from, or it cannot be read.
        InvalidState: the state is of another run.
    """
    fleet = fleet_for(fleet, network)
    parts = deal(trajectories, fleet, seed=config.seed, truncations=config.truncations)
    trainer, reference = prepare(parts, fleet, network=network, config=config, options=options)
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / STATE_FILE
    origin = {"network": json.dumps(asdict(trainer.net.config)), "data_sha256": source.sha256}
    if resume:
        _resume(trainer, state, origin)
    learned = trainer.learn(watch, keep=lambda: save_tensors(state, {**trainer.state(), **origin}))
    net = trainer.net
    net.load_state_dict(learned.weights)
    metrics = {**calibrate(net, parts), "best_step": float(learned.best_step)}
    known = facts(net, fleet, reference=reference, parts=parts, metrics=metrics, config=config, source=source)
    checkpoint = Checkpoint(name, net.config, net.state_dict(), known)
    checkpoint.save(folder)
    state.unlink(missing_ok=True)
    return checkpoint, learned


def prepare(
    parts: Parts,
    fleet: Fleet,
    *,
    network: str,
    config: TrainConfig,
    options: Mapping[str, Any] | None = None,
) -> tuple[Trainer, Reference]:
    """A trainer whose network scales readings as its training units have them."""
    reference = fit_reference(parts.trained, fleet.schema)
    torch.manual_seed(config.seed)
    regimes = len(reference.regimes)
    net = build_network(network_config(fleet, network=network, regimes=regimes, options=options))
    fit_inputs(net, reference, oldest=float(parts.training.last_cycle.max()))
    return Trainer(net, training=parts.training, validation=parts.validation, config=config), reference


def cross_validate(
    trajectories: Sequence[Trajectory],
    fleet: Fleet,
    *,
    folds: int,
    network: str,
    config: TrainConfig,
    watch: Watcher,
    options: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Figures over all units, each answered by a network that neither trained nor selected on it.

    Each fold's interval is calibrated on the units that select. `watch` counts updates of all folds.

    Raises:
        InvalidData: there are fewer units than folds, or too few to split what is left.
    """
    fleet = fleet_for(fleet, network)
    answers: list[Answered] = []
    for fold in range(folds):
        parts = deal_fold(
            trajectories, fleet, fold=fold, folds=folds, seed=config.seed, truncations=config.truncations
        )
        trainer, _ = prepare(parts, fleet, network=network, config=config, options=options)
        done = fold * config.steps
        learned = trainer.learn(lambda step, loss, check, done=done: watch(done + step, loss, check))
        net = trainer.net
        net.load_state_dict(learned.weights)
        fit_scale(net, read_windows(net, parts.training), parts.training)
        fit_distribution(net, read_windows(net, parts.validation), parts.validation)
        answers.append(answer_windows(net, parts.calibration))
    return _flat("crossvalidation", figures(join_answers(answers), cap=fleet.cap))


def fit_inputs(net: RulNetwork, reference: Reference, *, oldest: float) -> None:
    """Set what turns raw readings into scaled ones."""
    net.standardise.fit(reference)
    with torch.no_grad():
        net.get_buffer("oldest").fill_(oldest)


def calibrate(net: RulNetwork, parts: Parts) -> dict[str, float]:
    """Fit all that is not learnt by gradient; figures of the parts that did not train."""
    training = read_windows(net, parts.training)
    fit_scale(net, training, parts.training)
    fit_baseline(net, training)
    fit_novelty(net, training, parts.training.lengths)
    held_out = read_windows(net, parts.calibration)
    fit_distribution(net, held_out, parts.calibration)
    config = net.config
    left_out = held_out_coverage(held_out, parts.calibration, cap=config.cap, coverage=config.coverage)
    return {
        **_flat("validation", figures(answer_windows(net, parts.validation), cap=config.cap)),
        **_flat("calibration", figures(left_out, cap=config.cap)),
        **_flat("attention", attention_worth(net, parts.calibration)),
    }


def facts(
    net: RulNetwork,
    fleet: Fleet,
    *,
    reference: Reference,
    parts: Parts,
    metrics: dict[str, float],
    config: TrainConfig,
    source: Source,
) -> dict[str, Any]:
    """Fields of the manifest that training settles, as JSON values."""
    columns = [
        {
            "name": column.name,
            "role": column.role,
            "unit": column.unit,
            "description": column.description,
            **asdict(seen),
        }
        for column, seen in zip(fleet.schema.columns, reference.columns, strict=True)
    ]
    entropy = entropy_references(read_windows(net, parts.calibration), parts.calibration.lengths)
    found = {
        "columns": columns,
        "context": fleet.context,
        "min_cycles": fleet.shortest,
        "max_missing_fraction": fleet.max_missing_fraction,
        "cap": fleet.cap,
        "baseline": float(net.get_buffer("baseline")),
        "horizons": list(fleet.horizons),
        "nominal_coverage": fleet.nominal_coverage,
        "health_bounds": {"critical_below": fleet.critical_below, "degrading_below": fleet.degrading_below},
        "regimes": [asdict(regime) for regime in reference.regimes],
        "degradation": asdict(reference.degradation),
        "entropy": entropy,
        "training": {
            "data_sha256": source.sha256,
            "data_name": source.name,
            "seed": config.seed,
            "code_version": code_version(),
            "units_trained": len(parts.trained),
            "units_validated": len(np.unique(parts.validation.unit)),
            "units_calibrated": len(np.unique(parts.calibration.unit)),
            "config": {"fleet": fleet.name, **asdict(config), "network": asdict(net.config)},
        },
        "metrics": metrics,
    }
    return json.loads(json.dumps(found))  # as it will be read back: lists, not tuples


def code_version() -> str:
    """The version of this project, or `unknown` where it is not installed."""
    try:
        return version("rulserve")
    except PackageNotFoundError:
        return "unknown"


def _flat(part: str, found: dict[str, Figure]) -> dict[str, float]:
    """`validation_rmse`, `validation_rmse_low`, `validation_rmse_high` and so on."""
    flat: dict[str, float] = {}
    for name, figure in found.items():
        flat[f"{part}_{name}"] = figure.value
        flat[f"{part}_{name}_low"] = figure.low
        flat[f"{part}_{name}_high"] = figure.high
    return flat


def _resume(trainer: Trainer, state: Path, origin: dict[str, str]) -> None:
    stored = load_tensors(state)
    differing = [name for name, value in origin.items() if stored.get(name) != value]
    if differing:
        raise InvalidState(f"{state}: the interrupted run had another {', '.join(differing)}: start over")
    trainer.restore(stored)
