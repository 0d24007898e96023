"""Planted truth through `rul train` and the exported graph: whether a network points at the deciding cycles.

    python -m tests.benchmarks.planted [--network flagship] [--kind event] [--seed 0]

`tests/planted.py` defines the planted events. Half of the units train; each of the others gives one window.
The table has the RMSE in cycles and, for each output, the share of windows with its largest value in the
event (in both events, if there are two), or with the drifting column weighing most.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import torch
import typer

from export.handover import export_bundle
from export.session import Session
from model.evaluation import root_mean_square_error
from model.networks import network_class
from model.run import Plan, Source, train_run
from model.training import TrainConfig, unwatched
from tests.planted import (
    KINDS,
    Kind,
    drift_leads,
    planted_fleet,
    planted_units,
    planted_windows,
    points_at,
)

CONTEXT: Final = 60
FOLDS: Final = 2


def exported(network: str, kind: Kind, folder: Path, *, units: int, seed: int) -> Session:
    """Train a network as `rul train` does, and export it."""
    config = TrainConfig(seed=seed, **network_class(network).recipe)
    trained = planted_units(kind, units=units, context=CONTEXT, seed=2 * seed).units
    checkpoint, _ = train_run(
        Plan(trained, planted_fleet(kind, context=CONTEXT), network, config, FOLDS),
        name="planted",
        source=Source("planted units", "0" * 64),
        folder=folder / "run",
        watch=unwatched,
    )
    export_bundle(checkpoint, folder / "bundle")
    return Session(folder / "bundle" / "model.onnx")


def measure(session: Session, kind: Kind, *, units: int, seed: int) -> dict[str, float]:
    """Compute RMSE in cycles, and the share of windows with each output's largest value in the event."""
    others = planted_units(kind, units=units, context=CONTEXT, seed=2 * seed + 1)
    windows, where = planted_windows(others, context=CONTEXT, seed=seed)
    answers = session.answer_all(windows)
    found = {"RMSE": root_mean_square_error(answers["rul"] - windows.rul)}
    if kind == "drift":
        if "sensor_contribution" in answers:
            found["drifting column leads"] = drift_leads(answers["sensor_contribution"])
        return found
    weights = {"attention": answers["attention"], "|contribution|": np.abs(answers["contribution"])}
    weights |= {"evidence": answers["evidence"]} if "evidence" in answers else {}
    return found | {name: points_at(weight, where) for name, weight in weights.items()}


def main(
    *,
    network: str = "flagship",
    kind: Annotated[Kind | None, typer.Option(help="Only this one.")] = None,
    units: Annotated[int, typer.Option(help="For training, and again for windows.")] = 200,
    seed: int = 0,
) -> None:
    """Print one line per kind."""
    torch.set_num_threads(1)
    for each in [kind] if kind else KINDS:
        with tempfile.TemporaryDirectory() as folder:
            session = exported(network, each, Path(folder), units=units, seed=seed)
            found = measure(session, each, units=units, seed=seed)
        line = "; ".join(f"{name} {value:.3f}" for name, value in found.items())
        print(f"{network}, {each}, seed {seed}: {line}", flush=True)


if __name__ == "__main__":
    typer.run(main)
