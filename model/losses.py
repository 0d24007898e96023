"""What training makes smaller: one loss a task, brought to one size, and what is asked of attention.

This module must not know data, optimisers or files.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from model.attention import entropy_ratio
from model.network import Estimate, NetworkConfig

FORGET: Final = 0.01
"""How fast a running average follows: it remembers about a hundred updates."""


def rul_loss(unclipped: Tensor, rul: Tensor, *, cap: float, low_rul_weight: float) -> Tensor:
    """Mean square error over the cap, [B], [B] -> []; windows near failure weigh more.

    Low RULs are seldom: half of a long life has the label cap. A window weighs 1 at the cap and
    1 + `low_rul_weight` at failure, with a straight line between.
    """
    square = ((unclipped - rul) / cap).square()
    if low_rul_weight == 0.0:
        return square.mean()
    return ((1.0 + low_rul_weight * (1.0 - rul / cap)) * square).mean()


def health_labels(rul: Tensor, config: NetworkConfig) -> Tensor:
    """0 healthy, 1 degrading, 2 critical: RUL [B] -> [B], a bound itself belonging to the worse side."""
    return (rul <= config.degrading_below).long() + (rul <= config.critical_below).long()


def task_losses(
    estimate: Estimate, rul: Tensor, config: NetworkConfig, *, low_rul_weight: float
) -> dict[str, Tensor]:
    """The loss of each task that the network has, by its name; the RUL's is always there."""
    losses = {"rul": rul_loss(estimate.unclipped, rul, cap=config.cap, low_rul_weight=low_rul_weight)}
    if estimate.health is not None:
        losses["health"] = nn.functional.cross_entropy(estimate.health, health_labels(rul, config))
    return losses


class AdaptiveNormaliser:
    """Adds up tasks, each loss over its own running average, so that none outweighs another.

    One task alone is left as it is. `averages` is all that a run must remember of it.
    """

    def __init__(self) -> None:
        self.averages: dict[str, float] = {}

    def __call__(self, losses: dict[str, Tensor]) -> Tensor:
        """Losses of this update, each [] -> their sum, about as large as there are tasks."""
        if len(losses) == 1:
            return next(iter(losses.values()))
        return torch.stack([loss / self._average(name, loss) for name, loss in losses.items()]).sum()

    def _average(self, name: str, loss: Tensor) -> float:
        now = float(loss.detach())
        average = self.averages.get(name, now)
        self.averages[name] = average + FORGET * (now - average)
        return max(self.averages[name], 1e-8)


def entropy_loss(estimate: Estimate, lengths: Tensor) -> Tensor:
    """How far attention is from even, 0..1: one minus its entropy ratio, and so for each head.

    Making it smaller spreads attention out, making it larger sharpens it.
    """
    ratio = entropy_ratio(estimate.attention, lengths).mean()
    if estimate.head_attention is not None:
        heads = entropy_ratio(estimate.head_attention, lengths[:, None]).mean()
        ratio = (ratio + heads) / 2.0
    return 1.0 - ratio
