"""Training: windows in, a checkpoint's weights out.

The loop is a `Trainer` that can be written down after any check and taken up again, bit for bit:
every random number comes from one generator that is part of its state. Nothing selects: the
averaged weights of the last update are kept, so that held-out units stay unseen. This module must
not know files or ONNX.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.calibration import last_cycles, read_windows, unit_weights
from model.domain import RulError, WindowSet, capped_rul
from model.evaluation import root_mean_square_error
from model.losses import AdaptiveNormaliser, entropy_loss, task_losses
from model.network import RulNetwork


class InvalidState(RulError):
    """The state of an interrupted run that this run cannot go on from."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How to train.

    Attributes:
        seed: Of the split, the weights and every draw.
        steps: Updates; the learning rate runs through one cycle in them.
        batch: Windows an update.
        learning_rate: The highest of the cycle.
        weight_decay: Of AdamW.
        noise: Standard deviation of what is added to each reading, in units of its column's.
        offset: Standard deviation of what is added to a whole column of a window, likewise.
        age_jitter: Standard deviation of the logarithm of a factor on the cycle number.
        age_missing: Share of windows whose cycle number is hidden.
        columns_missing: Share of windows that lose each column with chance 0.15.
        readings_missing: Share of windows that lose single readings, up to 30 %.
        history_missing: Share of windows cut to their last few cycles.
        average: Of the exponential moving average that is kept.
        clip: Largest gradient norm.
        check_every: Updates between two looks at the held-out windows.
        truncations: Windows that each held-out unit gives.
        low_rul_weight: How much more a window at failure weighs than one at the cap; 1 is twice as much.
        entropy_weight: Of the loss that spreads attention out; below 0 it sharpens it.
        units_alike: Whether units are drawn equally often, as a test set has them, and not by length.
    """

    seed: int = 0
    steps: int = 500
    batch: int = 256
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    noise: float = 0.12
    offset: float = 0.15
    age_jitter: float = 0.1
    age_missing: float = 0.15
    columns_missing: float = 0.3
    readings_missing: float = 0.2
    history_missing: float = 0.2
    average: float = 0.995
    clip: float = 1.0
    check_every: int = 50
    truncations: int = 20
    low_rul_weight: float = 0.0
    entropy_weight: float = 0.0
    units_alike: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """One point of the learning curve: losses since the last one, RMSE on held-out windows.

    The RMSE is NaN where no unit is held out.
    """

    step: int
    loss: float
    held_out_rmse: float
    learning_rate: float


Watcher = Callable[[int, float, Check | None], None]
"""Told after each update: the step, its loss, and the check where there was one."""


class Trainer:
    """One run. `learn` goes on until it is done; `state` and `restore` carry it over an interruption."""

    def __init__(
        self, net: RulNetwork, *, training: WindowSet, held_out: WindowSet | None, config: TrainConfig
    ) -> None:
        """`held_out` windows draw the learning curve and touch nothing else."""
        self.net = net
        self.config = config
        self.held_out = held_out
        self.curve: list[Check] = []
        self.step = 0
        self._averaged = copy.deepcopy(net)
        self._normalise = AdaptiveNormaliser()
        self._readings = torch.from_numpy(training.readings)
        self._lengths = torch.from_numpy(training.lengths)
        self._last_cycle = torch.from_numpy(training.last_cycle)
        self._rul = torch.from_numpy(capped_rul(training.rul, cap=net.config.cap))
        share = unit_weights(training.unit) if config.units_alike else np.ones(len(training))
        self._share = torch.from_numpy(np.cumsum(share) / np.sum(share))
        self._generator = torch.Generator().manual_seed(config.seed)
        self._optimizer = torch.optim.AdamW(_weight_groups(net, config), lr=config.learning_rate)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, max_lr=config.learning_rate, total_steps=config.steps, pct_start=0.2
        )

    @property
    def done(self) -> bool:
        """Whether all updates are made."""
        return self.step >= self.config.steps

    def learn(self, watch: Watcher, *, keep: Callable[[], None] = lambda: None) -> RulNetwork:
        """Update until done, then the network with its averaged weights.

        `keep` is called after each check, when `state` is worth writing down.
        """
        losses: list[float] = []
        while not self.done:
            loss = self.update()
            losses.append(loss)
            check = None
            if self.step % self.config.check_every == 0 or self.done:
                check = self.check(float(np.mean(losses)))
                losses.clear()
                keep()
            watch(self.step, loss, check)
        self.net.load_state_dict(self._averaged.state_dict())
        return self.net

    def update(self) -> float:
        """One update on a random batch; its loss, of the RUL alone."""
        self.net.train()
        rows = self._draw()
        readings, lengths, last_cycle = self._worn(
            self._readings[rows], self._lengths[rows], self._last_cycle[rows]
        )
        estimate = self.net.estimate(readings, lengths, last_cycle)
        losses = task_losses(
            estimate, self._rul[rows], self.net.config, low_rul_weight=self.config.low_rul_weight
        )
        loss = self._normalise(losses)
        if self.config.entropy_weight != 0.0:
            loss = loss + self.config.entropy_weight * entropy_loss(estimate, lengths)
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)
        self._optimizer.step()
        if self.step + 1 < self.config.steps:
            self._schedule.step()
        self.step += 1
        self._average()
        return float(losses["rul"].detach())

    def check(self, loss: float) -> Check:
        """Judge the averaged weights on the held-out windows, for the learning curve."""
        rmse = float("nan")
        if self.held_out is not None:
            cap = self.net.config.cap
            rul = np.clip(read_windows(self._averaged, self.held_out).unclipped, 0.0, cap)
            rmse = root_mean_square_error(rul - capped_rul(self.held_out.rul, cap=cap))
        check = Check(self.step, loss, rmse, float(self._optimizer.param_groups[0]["lr"]))
        self.curve.append(check)
        return check

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as tensors and plain values."""
        return {
            "config": asdict(self.config),
            "step": self.step,
            "weights": self.net.state_dict(),
            "averaged": self._averaged.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "generator": self._generator.get_state(),
            "torch_generator": torch.get_rng_state(),
            "loss_averages": dict(self._normalise.averages),
            "curve": [asdict(check) for check in self.curve],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from where another run of the same config stopped.

        Raises:
            InvalidState: it was another config, or the state is damaged.
        """
        try:
            differing = [k for k, v in asdict(self.config).items() if state["config"].get(k) != v]
            if differing:
                raise InvalidState(
                    f"the interrupted run had another {', '.join(differing)}: use the same, or start over"
                )
            self.net.load_state_dict(state["weights"])
            self._averaged.load_state_dict(state["averaged"])
            self._optimizer.load_state_dict(state["optimizer"])
            self._schedule.load_state_dict(state["schedule"])
            self._generator.set_state(state["generator"])
            torch.set_rng_state(state["torch_generator"])
            self._normalise.averages = dict(state["loss_averages"])
            self.step = state["step"]
            self.curve = [Check(**check) for check in state["curve"]]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidState(f"the interrupted run cannot be read, start over: {error}") from error

    def _draw(self) -> Tensor:
        """Rows of the windows of a batch."""
        drawn = torch.rand(self.config.batch, generator=self._generator, dtype=torch.float64)
        return torch.searchsorted(self._share, drawn).clamp(max=len(self._rul) - 1)

    def _average(self) -> None:
        # Early on the average must forget the random start faster than its constant would.
        keep = min(self.config.average, (1.0 + self.step) / (10.0 + self.step))
        with torch.no_grad():
            for mean, weight in zip(self._averaged.parameters(), self.net.parameters(), strict=True):
                mean.lerp_(weight, 1.0 - keep)

    def _worn(self, readings: Tensor, lengths: Tensor, last_cycle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the real world does to windows: noise, missing columns and readings, short histories."""
        config = self.config
        windows, _, columns = readings.shape

        def chance(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=self._generator)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=self._generator)

        wanted = (chance(windows) * lengths).long() + 1
        hit = chance(windows) < config.history_missing
        readings, lengths = last_cycles(readings, lengths, torch.where(hit, wanted, lengths))
        observed = ~torch.isnan(readings)
        _, deviation = self.net.standardise.statistics(readings, observed)
        noise = config.noise * normal(*readings.shape) + config.offset * normal(windows, 1, columns)
        readings = readings + noise * deviation
        last_cycle = (last_cycle * (config.age_jitter * normal(windows)).exp()).maximum(lengths)
        lost = (chance(windows, 1) < config.columns_missing) & (chance(windows, columns) < 0.15)
        share = 0.3 * chance(windows, 1, 1) * (chance(windows, 1, 1) < config.readings_missing)
        lost = lost.unsqueeze(1) | (chance(*readings.shape) < share)
        hidden = chance(windows) < config.age_missing
        return readings.masked_fill(lost, torch.nan), lengths, last_cycle.masked_fill(hidden, torch.nan)


def _weight_groups(net: RulNetwork, config: TrainConfig) -> list[dict[str, Any]]:
    """Matrices decay, biases do not."""
    parameters = list(net.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
