"""Stages of a training run: its folds, then all units.

An interrupted run resumes from its state file. This module must not know the data of a stage.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from model.checkpoint import load_tensors, save_tensors
from model.domain import RulError
from model.training import Check, InvalidState, Trainer, Watcher

Stage = dict[str, Any]
"""Averaged weights and learning curve of a finished stage."""
MOST_SHOWN: Final = 48
"""Maximum length of a pair of values in an error."""


class Diverged(RulError):
    """The loss is not finite, so further updates cannot train the network."""


class Stages:
    """Trains one stage after the other and stores the progress."""

    def __init__(self, path: Path, origin: dict[str, Any], *, watch: Watcher, resume: bool) -> None:
        """Start a run, or load its state.

        `origin` identifies the run: only the same run can resume. It contains the `TrainConfig`.
        `watch` counts the updates of all stages.
        """
        self._path = path
        self._origin = origin
        self._watch = watch
        self._finished: list[Stage] = []
        self._running: dict[str, Any] | None = None
        self._stage = 0
        if resume:
            self._load()

    @property
    def finished(self) -> int:
        """Return the number of finished stages."""
        return len(self._finished)

    def take(self, trained: Iterable[Stage]) -> None:
        """Take the next stages, trained elsewhere, and store each."""
        for stage in trained:
            last = Check(**stage["curve"][-1])
            self._require_finite(last.loss)
            self._finished.append(stage)
            self._running = None
            self._save(None)
            self._watch(self.finished * last.step, last.loss, last)

    def learn(self, trainer: Trainer) -> list[Check]:
        """Train the next stage, or restore it if finished, and return its learning curve."""
        stage = self._stage
        self._stage += 1
        if stage < len(self._finished):
            trainer.net.load_state_dict(self._finished[stage]["weights"])
            return [Check(**check) for check in self._finished[stage]["curve"]]
        if self._running is not None:
            trainer.restore(self._running)
            self._running = None
        updates = stage * trainer.config.steps

        def watch(step: int, loss: float, check: Check | None) -> None:
            self._require_finite(loss)
            self._watch(updates + step, loss, check)

        trainer.learn(watch, keep=lambda: self._save(trainer.state()))
        self._finished.append(finished_stage(trainer))
        return trainer.curve

    def _require_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            rate = self._origin["learning_rate"]
            raise Diverged(f"training diverged: its loss is {loss}: start over below learning_rate={rate:g}")

    def _save(self, running: dict[str, Any] | None) -> None:
        save_tensors(self._path, {**self._origin, "finished": self._finished, "running": running})

    def _load(self) -> None:
        stored = load_tensors(self._path)
        differing = [
            _difference(name, stored.get(name), value)
            for name, value in self._origin.items()
            if stored.get(name) != value
        ]
        if differing:
            raise InvalidState(
                f"{self._path}: the interrupted run has another {', '.join(differing)}: start over"
            )
        try:
            self._finished, self._running = stored["finished"], stored["running"]
            for stage in self._finished:
                _ = stage["weights"], [Check(**check) for check in stage["curve"]]
        except (KeyError, TypeError) as error:
            raise InvalidState(f"{self._path}: cannot be read, start over: {error}") from error


def _difference(name: str, stored: object, now: object) -> str:
    """Name a difference, with both values unless they are long."""
    values = f"{stored}, now {now}"
    return f"{name} ({values})" if len(values) <= MOST_SHOWN else name


def finished_stage(trainer: Trainer) -> Stage:
    """Return the weights and the learning curve of a finished stage."""
    # Copied, because calibration changes the network afterwards.
    weights = {name: weight.clone() for name, weight in trainer.net.state_dict().items()}
    return {"weights": weights, "curve": [asdict(check) for check in trainer.curve]}


def stored_choice(path: Path) -> tuple[int, dict[str, Any]]:
    """Read updates and configuration of each network from the state of an interrupted run."""
    try:
        stored = load_tensors(path)
        return stored["steps"], json.loads(stored["network"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidState(f"{path}: cannot be read, start over: {error}") from error


def mean_curve(curves: Sequence[Sequence[Check]]) -> list[Check]:
    """Average learning curves with the same updates."""
    names = [field.name for field in fields(Check) if field.name not in ("step", "figures")]

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    return [
        Check(
            checks[0].step,
            **{name: mean(getattr(check, name) for check in checks) for name in names},
            figures={name: mean(check.figures[name] for check in checks) for name in checks[0].figures},
        )
        for checks in zip(*curves, strict=True)
    ]
