"""Losses: one per task, normalised to one size, and an entropy loss of the attention.

This module must not know data, optimisers or files.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from model.attention import entropy, entropy_ratio
from model.network import Estimate, NetworkConfig

FORGET: Final = 0.01
"""Weight of the newest update in a running average, of about a hundred updates."""


def rul_loss(
    unclipped: Tensor,
    rul: Tensor,
    *,
    cap: float,
    low_rul_weight: float,
    above_cap: float = 1.0,
    censored: Tensor | None = None,
) -> Tensor:
    """Compute the mean square error over the cap, [B], [B] -> [], weighted by RUL.

    Answers above the cap are clipped later, so if the truth is the cap, their error has the factor
    `above_cap`. If `censored` [B], `rul` is a lower bound, and an answer above it is no error.

    Low RULs are rare: half of a long life has the label cap. The weight is 1 at the cap and
    1 + `low_rul_weight` at failure, linear in between.
    """
    error = unclipped - rul
    if above_cap != 1.0:
        error = torch.where((rul >= cap) & (error > 0.0), above_cap * error, error)
    if censored is not None:
        error = torch.where(censored, error.clamp(max=0.0), error)
    square = (error / cap).square()
    if low_rul_weight == 0.0:
        return square.mean()
    return ((1.0 + low_rul_weight * (1.0 - rul / cap)) * square).mean()


def health_labels(rul: Tensor, config: NetworkConfig) -> Tensor:
    """Label RUL [B] as 0 healthy, 1 degrading or 2 critical; bounds belong to the worse state."""
    return (rul <= config.degrading_below).long() + (rul <= config.critical_below).long()


def task_losses(
    estimate: Estimate,
    rul: Tensor,
    config: NetworkConfig,
    *,
    low_rul_weight: float,
    above_cap: float = 1.0,
    censored: Tensor | None = None,
) -> dict[str, Tensor]:
    """Compute the loss of each task of the network by its name; `rul` always exists."""
    error = rul_loss(
        estimate.unclipped,
        rul,
        cap=config.cap,
        low_rul_weight=low_rul_weight,
        above_cap=above_cap,
        censored=censored,
    )
    losses = {"rul": error}
    if estimate.health is not None:
        health = nn.functional.cross_entropy(estimate.health, health_labels(rul, config), reduction="none")
        losses["health"] = (health if censored is None else health.masked_fill(censored, 0.0)).mean()
    return losses


class AdaptiveNormaliser:
    """Sum of task losses, each divided by its running average.

    A single task is not normalised. `averages` is the state to store.
    """

    def __init__(self) -> None:
        self.averages: dict[str, float] = {}

    def __call__(self, losses: dict[str, Tensor]) -> Tensor:
        """Sum the losses of an update, each []; each task adds about 1."""
        if len(losses) == 1:
            return next(iter(losses.values()))
        return torch.stack([loss / self._average(name, loss) for name, loss in losses.items()]).sum()

    def _average(self, name: str, loss: Tensor) -> float:
        now = float(loss.detach())
        average = self.averages.get(name, now)
        self.averages[name] = average + FORGET * (now - average)
        return max(self.averages[name], 1e-8)


def entropy_loss(estimate: Estimate, lengths: Tensor) -> Tensor:
    """Compute one minus the entropy ratio of the attention and of each head, 0..1.

    A positive weight spreads attention, a negative one sharpens it.
    """
    ratio = entropy_ratio(estimate.attention, lengths).mean()
    if estimate.head_attention is not None:
        heads = entropy_ratio(estimate.head_attention, lengths[:, None]).mean()
        ratio = (ratio + heads) / 2.0
    return 1.0 - ratio


def heads_alike(heads: Tensor | None, lengths: Tensor) -> Tensor | float:
    """Compute the mean likeness of the heads of each window, [B, H, T], [B] -> [], 0..1.

    One minus the Jensen-Shannon divergence of all heads over its maximum (Lin, 1991): 1 if all heads
    attend alike, 0 if no two share a cycle. 0 for fewer than two heads.
    """
    if heads is None or heads.shape[1] < 2:
        return 0.0
    most = lengths.clamp(min=2, max=heads.shape[1]).to(heads.dtype).log()  # [B]
    apart = entropy(heads.mean(1)) - entropy(heads).mean(1)
    return 1.0 - (apart / most).mean()
