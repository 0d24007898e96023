"""A run: trajectories in, a trained and calibrated checkpoint out.

Trains a network for each fold of the units, on the others, and then the one that is kept, on all
of them; what the folds' networks answer to units that they have not seen calibrates it. Gathers
what a manifest must say. This module must not know how files are read or what is shown on a screen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from model.calibration import (
    Read,
    entropy_references,
    fit_baseline,
    fit_distribution,
    fit_novelty,
    fit_scale,
    read_windows,
    with_short_histories,
)
from model.checkpoint import STATE_FILE, Checkpoint
from model.crossfit import (
    Fold,
    attention_worth,
    cross_fitted,
    fewest_cycles_that_hold,
    held_out_fold,
    joined,
)
from model.domain import IntArray, Trajectory
from model.evaluation import Figure, figures
from model.fleet import Fleet
from model.network import RulNetwork
from model.networks import build_network, fleet_for, network_config
from model.parts import Parts, deal_all, deal_fold
from model.reference import Reference, fit_reference
from model.stages import Stages, mean_curve
from model.training import Check, TrainConfig, Trainer, Watcher


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
    folds: int,
    source: Source,
    folder: Path,
    watch: Watcher,
    resume: bool = False,
    options: Mapping[str, Any] | None = None,
) -> tuple[Checkpoint, list[Check]]:
    """Train, calibrate and save one network in `folder`; with it, the mean learning curve of the folds.

    `options` are fields of `NetworkConfig`; `watch` counts the updates of all folds and of the network
    that is kept. Interrupted, it leaves its state there; `resume` goes on from that to the same result.

    Raises:
        InvalidData: there are fewer units with a known failure than folds, or nothing to learn from.
        UnknownNetwork: there is no network of that name.
        InvalidOption: it does not go by one of the options.
        InvalidCheckpoint: there is no state to resume from, or it cannot be read.
        InvalidState: the state is of another run.
    """
    fleet = fleet_for(fleet, network)
    terms = network_config(fleet, network=network, regimes=1, options=options)
    origin = {"network": json.dumps(asdict(terms)), "data_sha256": source.sha256, "folds": str(folds)}
    folder.mkdir(parents=True, exist_ok=True)
    stages = Stages(folder / STATE_FILE, origin, watch=watch, resume=resume)
    behind: list[Fold] = []
    curves: list[list[Check]] = []
    for fold in range(folds):
        parts = deal_fold(
            trajectories, fleet, fold=fold, folds=folds, seed=config.seed, truncations=config.truncations
        )
        trainer, _ = prepare(parts, fleet, network=network, config=config, options=options)
        curves.append(stages.learn(trainer))
        behind.append(held_out_fold(trainer.net, parts))
    parts = deal_all(trajectories, fleet)
    trainer, reference = prepare(parts, fleet, network=network, config=config, options=options)
    stages.learn(trainer)
    net = trainer.net
    metrics = calibrate(net, parts, behind)
    entropy = entropy_references(*_attention(net, behind))
    training = training_facts(fleet, parts, net, config=config, folds=folds, source=source)
    known = {
        **facts(net, fleet, reference),
        "min_cycles": max(fleet.shortest, fewest_cycles_that_hold(behind)),
        "entropy": entropy,
        "training": training,
        "metrics": metrics,
    }
    checkpoint = Checkpoint(name, net.config, net.state_dict(), json.loads(json.dumps(known)))
    checkpoint.save(folder)
    stages.done()
    return checkpoint, mean_curve(curves)


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
    return Trainer(net, training=parts.training, held_out=parts.held_out, config=config), reference


def fit_inputs(net: RulNetwork, reference: Reference, *, oldest: float) -> None:
    """Set what turns raw readings into scaled ones."""
    net.standardise.fit(reference)
    with torch.no_grad():
        net.get_buffer("oldest").fill_(oldest)


def calibrate(net: RulNetwork, parts: Parts, folds: Sequence[Fold]) -> dict[str, float]:
    """Fit all that is not learnt by gradient; figures of the folds' networks on units new to them."""
    fit_scale(net, with_short_histories(parts.training))
    training = read_windows(net, parts.training)
    fit_baseline(net, training)
    fit_novelty(net, training, parts.training.lengths)
    fit_distribution(net, *joined(folds))
    return {
        **_flat("crossvalidation", figures(cross_fitted(folds), cap=net.config.cap)),
        **_flat("attention", attention_worth(folds)),
    }


def facts(net: RulNetwork, fleet: Fleet, reference: Reference) -> dict[str, Any]:
    """Fields of the manifest that the fleet and its readings settle."""
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
    return {
        "columns": columns,
        "context": fleet.context,
        "max_missing_fraction": fleet.max_missing_fraction,
        "cap": fleet.cap,
        "baseline": float(net.get_buffer("baseline")),
        "horizons": list(fleet.horizons),
        "nominal_coverage": fleet.nominal_coverage,
        "health_bounds": {"critical_below": fleet.critical_below, "degrading_below": fleet.degrading_below},
        "regimes": [asdict(regime) for regime in reference.regimes],
        "degradation": asdict(reference.degradation),
    }


def training_facts(
    fleet: Fleet, parts: Parts, net: RulNetwork, *, config: TrainConfig, folds: int, source: Source
) -> dict[str, Any]:
    """What the manifest says of how the network came about."""
    return {
        "data_sha256": source.sha256,
        "data_name": source.name,
        "seed": config.seed,
        "code_version": code_version(),
        "units": len(parts.trained),
        "folds": folds,
        "config": {"fleet": fleet.name, **asdict(config), "network": asdict(net.config)},
    }


def code_version() -> str:
    """The version of this project, or `unknown` where it is not installed."""
    try:
        return version("rulserve")
    except PackageNotFoundError:
        return "unknown"


def _flat(part: str, found: dict[str, Figure]) -> dict[str, float]:
    """`crossvalidation_rmse`, `crossvalidation_rmse_low`, `crossvalidation_rmse_high` and so on."""
    flat: dict[str, float] = {}
    for name, figure in found.items():
        flat[f"{part}_{name}"] = figure.value
        flat[f"{part}_{name}_low"] = figure.low
        flat[f"{part}_{name}_high"] = figure.high
    return flat


def _attention(net: RulNetwork, folds: Sequence[Fold]) -> tuple[Read, IntArray]:
    """What the network that is kept makes of the folds' windows, and their lengths."""
    _, windows = joined(folds)
    return read_windows(net, windows), windows.lengths
