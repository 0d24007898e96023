"""Training loop: windows in, weights out.

A `Trainer` can store its state after any check and resume bit for bit: all random numbers come from
generators in its state. It keeps the averaged weights of the last update and selects nothing, so
held-out units do not affect training. This module must not know files or ONNX.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from model.augmentation import Augmentation, ColumnScales
from model.calibration import Read, read_windows, tensors, unit_weights
from model.dataset import Split, make_windows
from model.domain import IntArray, RulError, attention_entropy_ratio, capped_rul, heads_by_name
from model.evaluation import root_mean_square_error
from model.losses import AdaptiveNormaliser, entropy_loss, heads_alike, task_losses
from model.network import RulNetwork

ENTROPY: Final = "entropy"  # Mean entropy ratio: 0 is one cycle, 1 is even
FIRST: Final = "first"  # Mean weight of a window's first cycle
LAST: Final = "last"  # Mean weight of its last cycle


class InvalidState(RulError):
    """The state is damaged or of another run, so this run cannot resume from it."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Configuration of training."""

    seed: int = 0  # Seed of folds, weights and training
    steps: int = 500  # Updates; the learning rate has one cycle over them
    batch: int = 256  # Windows per update
    learning_rate: float = 3e-3  # Maximum of the cycle
    weight_decay: float = 0.01  # Weight decay of AdamW
    noise: float = 0.12  # Standard deviation of noise on readings, in z-scores; less in a column with less
    offset: float = 1.0  # Offset on a column of a window, relative to the level that units keep for life
    age_jitter: float = 0.1  # Standard deviation of the logarithm of a factor on the cycle number
    age_missing: float = 0.15  # Share of windows with a hidden cycle number
    columns_missing: float = 0.3  # Share of windows that lose each column with probability 0.15
    readings_missing: float = 0.2  # Share of windows that lose single readings, up to 30 %
    cycles_missing: float = 0.0  # Share of windows that lose whole cycles, up to 60 %
    history_missing: float = 0.2  # Share of windows cut to a random number of their last cycles
    average: float = 0.995  # Decay of the exponential moving average of the weights
    clip: float = 1.0  # Maximum gradient norm
    check_every: int = 50  # Updates between two checks on the held-out windows
    truncations: int = 20  # Windows per held-out unit
    low_rul_weight: float = 0.0  # Extra weight of a window at failure over one at the cap
    above_cap: float = 1.0  # Factor of an error above the cap, if the truth is the cap
    # Weight of the entropy loss; above 0 it spreads attention, below 0 it sharpens it.
    entropy_weight: float = 0.0
    heads_apart: float = 0.0  # Weight of a loss that drives the attention of heads apart
    censored: bool = False  # Whether units that did not fail train too, with a censored loss
    units_alike: bool = True  # Whether all units are drawn equally often, whatever their length


@dataclass(frozen=True, slots=True)
class Check:
    """One point of the learning curve: mean loss since the last one, held-out RMSE.

    The RMSE is NaN if no unit is held out. `figures` holds the mean `gradient_norm` since the last
    one, before clipping, and on held-out windows the `attention_figures`.
    """

    step: int
    loss: float
    held_out_rmse: float
    learning_rate: float
    figures: Mapping[str, float] = field(default_factory=dict[str, float])


Watcher = Callable[[int, float, Check | None], None]
"""Called after each update with the step, its loss, and the check, if any."""


def unwatched(_step: int, _loss: float, _check: Check | None) -> None:
    """Ignore the report."""


class Trainer:
    """Training of one network, which `state` and `restore` carry over an interruption."""

    def __init__(self, net: RulNetwork, *, split: Split, config: TrainConfig, scales: ColumnScales) -> None:
        """Prepare training; held-out windows are used only for the learning curve."""
        training = split.training
        if config.censored and split.censored:
            training = make_windows([*split.trained, *split.censored], length=net.config.context)
        self.net = net
        self.config = config
        self.held_out = split.held_out
        self.curve: list[Check] = []
        self.step = 0
        self._averaged = copy.deepcopy(net)
        self._gradient_norms: list[float] = []  # Since the last check
        self._normalise = AdaptiveNormaliser()
        self._training = training
        self._rul = torch.from_numpy(capped_rul(training.rul, cap=net.config.cap))
        share = unit_weights(training.unit, training.weight) if config.units_alike else training.weight
        self._censored = torch.arange(len(training)) >= len(split.training)
        self._share = torch.from_numpy(np.cumsum(share) / np.sum(share))
        self._generator = torch.Generator().manual_seed(config.seed)
        self._augment = Augmentation(config, scales, self._generator)
        self._optimizer = torch.optim.AdamW(_weight_groups(net, config), lr=config.learning_rate)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer,
            max_lr=config.learning_rate,
            total_steps=max(config.steps, 6),  # at 5 the schedule divides by 0
            pct_start=0.2,
        )

    @property
    def done(self) -> bool:
        """Return whether all updates are done."""
        return self.step >= self.config.steps

    def learn(self, watch: Watcher, *, keep: Callable[[], None] = lambda: None) -> RulNetwork:
        """Run all updates and return the network with its averaged weights.

        `keep` is called after each check, to store `state`.
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
        """Run one update on a random batch and return its RUL loss."""
        self.net.train()
        rows = self._draw()
        readings, lengths, last_cycle = tensors(self._training.take(rows.numpy()))
        readings, lengths, last_cycle = self._augment(readings, lengths, last_cycle, self.net.standardise)
        estimate = self.net.estimate(readings, lengths, last_cycle)
        losses = task_losses(
            estimate,
            self._rul[rows],
            self.net.config,
            censored=self._censored[rows],
            low_rul_weight=self.config.low_rul_weight,
            above_cap=self.config.above_cap,
        )
        loss = self._normalise(losses)
        if self.config.entropy_weight != 0.0:
            loss = loss + self.config.entropy_weight * entropy_loss(estimate, lengths)
        if self.config.heads_apart != 0.0:
            loss = loss + self.config.heads_apart * heads_alike(estimate.head_attention, lengths)
        if estimate.penalty is not None:
            loss = loss + estimate.penalty
        self._optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)
        self._gradient_norms.append(float(norm))
        self._optimizer.step()
        if self.step + 1 < self.config.steps:
            self._schedule.step()
        self.step += 1
        self._average()
        return float(losses["rul"].detach())

    def check(self, loss: float) -> Check:
        """Evaluate the averaged weights on the held-out windows, for the learning curve."""
        rmse, figures = float("nan"), {"gradient_norm": float(np.mean(self._gradient_norms))}
        self._gradient_norms.clear()
        if self.held_out is not None:
            cap, read = self.net.config.cap, read_windows(self._averaged, self.held_out)
            rul = np.clip(read.unclipped, 0.0, cap)
            rmse = root_mean_square_error(rul - capped_rul(self.held_out.rul, cap=cap), self.held_out.weight)
            figures |= attention_figures(read, self.held_out.lengths)
        check = Check(self.step, loss, rmse, float(self._optimizer.param_groups[0]["lr"]), figures)
        self.curve.append(check)
        return check

    def state(self) -> dict[str, Any]:
        """Return the complete state of the run, as tensors and plain values."""
        return {
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
        """Resume from the state of a run with the same config."""
        try:
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
        """Draw the rows of a batch."""
        drawn = torch.rand(self.config.batch, generator=self._generator, dtype=torch.float64)
        return torch.searchsorted(self._share, drawn).clamp(max=len(self._rul) - 1)

    def _average(self) -> None:
        # Early averages must forget the random start faster than the constant would.
        keep = min(self.config.average, (1.0 + self.step) / (10.0 + self.step))
        with torch.no_grad():
            for mean, weight in zip(self._averaged.parameters(), self.net.parameters(), strict=True):
                mean.lerp_(weight, 1.0 - keep)


def _weight_groups(net: RulNetwork, config: TrainConfig) -> list[dict[str, Any]]:
    """Group parameters, so that only matrices have weight decay."""
    parameters = list(net.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def attention_figures(read: Read, lengths: IntArray) -> dict[str, float]:
    """Return entropy and sinks of the attention and of each head, as `entropy_mean`, `first_0` and so on.

    Windows of one cycle are ignored; empty without other windows.
    """
    heads = heads_by_name(read.attention, read.head_attention)
    choice = lengths > 1
    lengths = lengths[choice]
    found: dict[str, float] = {}
    for head, attention in heads.items() if len(lengths) else ():
        weight = attention[choice]
        last = np.take_along_axis(weight, (lengths - 1)[:, None], axis=1)
        found[f"{ENTROPY}_{head}"] = float(attention_entropy_ratio(weight, lengths).mean())
        found[f"{FIRST}_{head}"] = float(weight[:, 0].mean())
        found[f"{LAST}_{head}"] = float(last.mean())
    return found
