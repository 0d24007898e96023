"""A tiny bundle for tests of the service, really trained for a moment and exported."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from export.handover import export_bundle
from model.checkpoint import Checkpoint
from model.domain import Column, Schema, Trajectory
from model.fleet import Fleet
from model.run import Plan, Source, train_run
from model.training import TrainConfig

COLUMNS = (
    Column("load", "setting", "kW", "electrical load"),
    Column("inlet_temperature", "setting", "degC", "of the cooling water"),
    Column("vibration", "sensor", "mm/s", "at the drive end"),
    Column("oil_pressure", "sensor", "bar"),
    Column("bearing_temperature", "sensor", "degC"),
    Column("current", "sensor", "A"),
)
FLEET = Fleet(
    name="pumps",
    schema=Schema(COLUMNS),
    sources=tuple(column.name for column in COLUMNS),
    cap=40.0,
    context=12,
    horizons=(5, 15),
    critical_below=10.0,
    degrading_below=30.0,
)
SMALL: dict[str, dict[str, Any]] = {
    "amnl": {"convolution": 8, "hidden": 8, "attention": 8},
    "selfattention": {"convolution": 8, "hidden": 8, "attention": 8, "heads": 2, "head_width": 4},
    "flagship": {"hidden": 4, "perceptron": 32, "attention": 8},
}
"""Small sizes of each network, which train in a moment."""
CONFIG = TrainConfig(seed=3, steps=60, batch=64, check_every=30, truncations=6)
FOLDS = 2


def pumps(*, units: int, seed: int) -> list[Trajectory]:
    """Make pumps that wear out over 30 to 70 cycles, under two loads."""
    rng = np.random.default_rng(seed)
    made = []
    for unit in range(1, units + 1):
        life = int(rng.integers(30, 71))
        rul = np.arange(life - 1, -1, -1)
        load = rng.choice([40.0, 75.0], size=life)
        wear = np.exp(-rul / 12.0)
        readings = np.stack(
            [
                load + rng.normal(0, 0.1, life),
                rng.normal(18.0, 1.0, life),
                2.0 + load / 50 + 3.0 * wear + rng.normal(0, 0.1, life),
                4.5 - 1.5 * wear + rng.normal(0, 0.1, life),
                40.0 + load / 4 + 20.0 * wear + rng.normal(0, 1.0, life),
                load / 5 + wear + rng.normal(0, 0.2, life),
            ],
            axis=1,
        )
        made.append(
            Trajectory(f"pump-{unit}", np.arange(1, life + 1), readings.astype(np.float32), failed=True)
        )
    return made


def make_tiny_run(
    folder: Path, *, network: str = "flagship", config: TrainConfig = CONFIG, **options: Any
) -> Path:
    """Train for a moment in `folder`; takes a few seconds, with the same result each time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train_run(
            Plan(pumps(units=16, seed=11), FLEET, network, config, FOLDS, {**SMALL[network], **options}),
            name="tiny",
            source=Source("simulated pumps", "0" * 64),
            folder=folder,
            watch=lambda step, loss, check: None,
        )
    finally:
        torch.set_num_threads(threads)
    return folder


def make_tiny_bundle(folder: Path, *, network: str = "flagship", **options: Any) -> Path:
    """Train for a moment, export into `folder`/tiny and return its path; the same result each time."""
    run = make_tiny_run(folder / "tiny-run", network=network, **options)
    export_bundle(Checkpoint.load(run), folder / "tiny", version="1.0.0")
    return folder / "tiny"
