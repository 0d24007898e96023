"""Planted truth through `rul train` and the exported graph: does a network point at what decides?

    python -m tests.benchmarks.planted [--network evidence ...] [--units 200] [--seed 0]

Units are noise until an event of three cycles, after which they fail in 60 cycles. Half of the units
train; each of the others gives one window that holds its event.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import torch

from export.handover import export_bundle
from export.session import Session
from model.domain import FloatArray
from model.evaluation import root_mean_square_error
from model.networks import network_class
from model.run import Source, train_run
from model.training import TrainConfig
from tests.planted import planted_fleet, planted_units, points_at, windows_with_event

CONTEXT: Final = 60
FOLDS: Final = 2


def exported(network: str, folder: Path, *, units: int, seed: int) -> Session:
    """Train a network as `rul train` does, and export it."""
    trained = planted_units(units=units, context=CONTEXT, seed=2 * seed).units
    checkpoint, _ = train_run(
        trained,
        planted_fleet(context=CONTEXT),
        name="planted",
        network=network,
        config=TrainConfig(seed=seed, **network_class(network).recipe),
        folds=FOLDS,
        source=Source("planted units", "0" * 64),
        folder=folder / "run",
        watch=lambda step, loss, check: None,
    )
    export_bundle(checkpoint, folder / "bundle")
    return Session(folder / "bundle" / "model.onnx")


def measure(session: Session, *, units: int, seed: int) -> dict[str, float]:
    """Compute RMSE in cycles, and how often each output is largest in the event."""
    others = planted_units(units=units, context=CONTEXT, seed=2 * seed + 1)
    windows, where = windows_with_event(others, context=CONTEXT, seed=seed)
    answers = session.answer_all(windows.readings, windows.lengths, windows.last_cycle)
    weights: dict[str, FloatArray] = {
        "attention": answers["attention"],
        "|contribution|": np.abs(answers["contribution"]),
    }
    if "evidence" in answers:
        weights["evidence"] = answers["evidence"]
    found = {"RMSE": root_mean_square_error(answers["rul"] - windows.rul)}
    return found | {name: points_at(weight, where) for name, weight in weights.items()}


def main() -> None:
    """Print one line a network."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", nargs="+", default=["flagship", "evidence"])
    parser.add_argument("--units", type=int, default=200, help="for training, and again for windows")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for network in chosen.network:
        with tempfile.TemporaryDirectory() as folder:
            session = exported(network, Path(folder), units=chosen.units, seed=chosen.seed)
            found = measure(session, units=chosen.units, seed=chosen.seed)
        print(network, "; ".join(f"{name} {value:.3f}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
