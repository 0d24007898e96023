"""Ablation: the error on held-out units when one head is silenced.

After Michel et al. (2019), "Are sixteen heads really better than one?". This module must not know
training, files or screens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from model.calibration import read_windows
from model.crossfit import Fold
from model.domain import RulError
from model.evaluation import Answered, Figure, figures, join_answers, rmse_difference
from model.flagship import Flagship
from model.network import RulNetwork
from model.networks import NETWORKS
from model.selfattention import SelfAttention


class NoHeads(RulError):
    """The network has no heads that could be silenced."""


@dataclass(frozen=True, slots=True)
class Silenced:
    """RMSE on held-out units without one head, and how much larger it is than with all."""

    head: int
    rmse: Figure
    more: Figure


def ablate_heads(folds: Sequence[Fold]) -> list[Silenced]:
    """Measure the RMSE of the folds' networks with each head silenced, on the same windows."""
    cap = folds[0].net.config.cap
    whole = _answered(folds, [fold.net for fold in folds])
    found: list[Silenced] = []
    for head in range(folds[0].net.config.heads):
        answered = _answered(folds, [without_head(fold.net, head) for fold in folds])
        rmse = figures(answered, cap=cap)["rmse"]
        found.append(Silenced(head, rmse, rmse_difference(answered, whole, cap=cap)))
    return found


def require_heads(network: str) -> None:
    """Refuse a network or baseline without heads, by its name."""
    if not issubclass(NETWORKS.get(network, RulNetwork), Flagship | SelfAttention):
        raise NoHeads(f"{network!r} has no heads to silence")


def without_head(net: RulNetwork, head: int) -> RulNetwork:
    """Return a copy of the network in which no weight reads what this head read.

    In `flagship` the last head still tells which columns are missing.
    """
    require_heads(net.config.network)
    net = copy.deepcopy(net)
    with torch.no_grad():
        if isinstance(net, SelfAttention):
            width = net.between.head_width
            net.between.out.weight[:, head * width : (head + 1) * width] = 0.0
        if isinstance(net, Flagship):
            heads = net.config.heads
            net.mix[:, head] = 0.0  # its means
            if head == heads - 1:
                net.mix[:, heads] = 0.0  # and the trend
            net.read_out.first.weight[:, (heads + 1) * net.config.columns + head] = 0.0  # its mean lag
    return net


def _answered(folds: Sequence[Fold], nets: Sequence[RulNetwork]) -> Answered:
    """Answer the held-out windows of each fold by a network; intervals are empty."""
    parts: list[Answered] = []
    for fold, net in zip(folds, nets, strict=True):
        rul = np.clip(read_windows(net, fold.windows).unclipped, 0.0, net.config.cap)
        parts.append(Answered(fold.windows.rul, rul, rul, rul, fold.windows.unit))
    return join_answers(parts)
