"""The stages of a run, which can be interrupted and taken up again: its folds, then all units.

What is behind and where the present stage stands are one file. This module must not know what
a stage trains on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from model.checkpoint import load_tensors, save_tensors
from model.training import Check, InvalidState, Trainer, Watcher


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """What is kept of a stage: its averaged weights and its learning curve."""

    weights: dict[str, Tensor]
    curve: list[Check]


class Stages:
    """Trains one stage after the other and writes down how far it came."""

    def __init__(self, path: Path, origin: dict[str, str], *, watch: Watcher, resume: bool) -> None:
        """`origin` names what a run can only go on with; `watch` counts the updates of all stages.

        Raises:
            InvalidCheckpoint: there is no state to resume from, or it cannot be read.
            InvalidState: the state is of another run, or damaged.
        """
        self._path = path
        self._origin = origin
        self._watch = watch
        self._finished: list[Finished] = []
        self._running: dict[str, Any] | None = None
        self._stage = 0
        if resume:
            self._load()

    def learn(self, trainer: Trainer) -> list[Check]:
        """Train the next stage, or take over what is behind; its learning curve.

        Raises:
            InvalidState: the state is of another run, or damaged.
        """
        stage = self._stage
        self._stage += 1
        if stage < len(self._finished):
            trainer.net.load_state_dict(self._finished[stage].weights)
            return self._finished[stage].curve
        if self._running is not None:
            trainer.restore(self._running)
            self._running = None
        behind = stage * trainer.config.steps
        net = trainer.learn(
            lambda step, loss, check: self._watch(behind + step, loss, check),
            keep=lambda: self._save(trainer),
        )
        # Copied: what is fitted to the network from here on is no part of its training.
        weights = {name: weight.clone() for name, weight in net.state_dict().items()}
        self._finished.append(Finished(weights, trainer.curve))
        return trainer.curve

    def done(self) -> None:
        """Forget the state: the run is complete."""
        self._path.unlink(missing_ok=True)

    def _save(self, trainer: Trainer) -> None:
        behind = [
            {"weights": stage.weights, "curve": [asdict(check) for check in stage.curve]}
            for stage in self._finished
        ]
        save_tensors(self._path, {**self._origin, "finished": behind, "running": trainer.state()})

    def _load(self) -> None:
        stored = load_tensors(self._path)
        differing = [name for name, value in self._origin.items() if stored.get(name) != value]
        if differing:
            raise InvalidState(
                f"{self._path}: the interrupted run had another {', '.join(differing)}: start over"
            )
        try:
            self._finished = [
                Finished(stage["weights"], [Check(**check) for check in stage["curve"]])
                for stage in stored["finished"]
            ]
            self._running = stored["running"]
        except (KeyError, TypeError) as error:
            raise InvalidState(f"{self._path}: cannot be read, start over: {error}") from error


def mean_curve(curves: Sequence[Sequence[Check]]) -> list[Check]:
    """One learning curve of several that were checked at the same updates."""
    return [
        Check(
            checks[0].step, *(float(np.mean([getattr(c, f.name) for c in checks])) for f in fields(Check)[1:])
        )
        for checks in zip(*curves, strict=True)
    ]
