"""Networks: raw readings in, everything that the model contract promises out.

`RulNetwork` holds what all networks share: scaling, attention as the only road from the cycles
to the RUL, one predictive distribution for interval, probabilities and health state, novelty.
A network adds `read_cycles`: a score and a value for each cycle. This module must not know
data, losses or ONNX.

The road, in full: RUL = sum over cycles of attention_t * (w . value_t + b). The head is linear
and the attention sums to 1, so each cycle's share of the answer is exact, not a heuristic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor, nn

from model.attention import CycleDropout
from model.layers import (
    Standardise,
    cycle_age,
    features_of_change,
    masked_softmax,
)
from model.novelty import Novelty, habits

QUANTILES: Final = 41
"""Points of the calibrated distribution, evenly spaced probabilities from 0 to 1."""

SMALLEST_SCALE_CYCLES: Final = 0.5


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """What a network must know to be built; weights and buffers come from training.

    Attributes:
        network: The name it is registered under.
        columns: F.
        settings: Where the settings stand among the columns.
        regimes: How many operating regimes.
        context: Most cycles of a window.
        cap: RUL in cycles above which an answer is "at least".
        horizons: In cycles, of the failure probabilities.
        coverage: Nominal, of the interval, 0..1.
        critical_below: RUL in cycles.
        degrading_below: RUL in cycles.
        heads: Attention heads whose weights are an output of their own; 0 for none.
        hidden: Width of each LSTM direction; the flagship's convolution is as wide.
        perceptron: Width of the perceptron that reads the features of change.
        values: Width of a cycle's value.
        attention: Width in which cycles are scored.
        convolution: Width of the convolution.
        head_width: Width of each head's queries, keys and values.
        score: The score function, one of `attention.SCORES`.
        attention_dropout: Share of the attention that is dropped while training.
        learnable_temperature: Whether the sharpness of the attention is learnt.
        causal: Whether self-attention reads earlier cycles alone.
        positions: Whether self-attention is told where each cycle stands.
        age: Whether the cycle number is read beside the columns.
        recurrent_dropout: Share of what the recurrent part says that is dropped while training.
        recency: By how much a cycle's score falls for each ten cycles before the last; content at most
            doubles that or makes up for it.
    """

    network: str
    columns: int
    settings: tuple[int, ...]
    regimes: int
    context: int
    cap: float
    horizons: tuple[int, ...]
    coverage: float
    critical_below: float
    degrading_below: float
    heads: int = 0
    hidden: int = 32
    perceptron: int = 48
    values: int = 32
    attention: int = 24
    convolution: int = 64
    head_width: int = 64
    score: str = "additive"
    attention_dropout: float = 0.0
    learnable_temperature: bool = False
    causal: bool = False
    positions: bool = False
    age: bool = False
    recurrent_dropout: float = 0.0
    recency: float = 0.0


class Inputs(NamedTuple):
    """What a network reads: scaled readings, their features of change and the age of each cycle.

    Attributes:
        z: [B, T, F] filled z-scores, 0 on padding.
        observed: bool [B, T, F], neither missing nor padding.
        valid: bool [B, T], not padding.
        lengths: [B].
        age: [B, T, 2], log of the cycle number, and whether it is known.
        change: [B, T, 3F].
    """

    z: Tensor
    observed: Tensor
    valid: Tensor
    lengths: Tensor
    age: Tensor
    change: Tensor


class Cycles(NamedTuple):
    """What a network makes of each cycle.

    Attributes:
        score: [B, T], how much each cycle is to be attended to.
        value: [B, T, D].
        heads: [B, H, T, T], how much of each cycle every head gave each value; None without heads.
    """

    score: Tensor
    value: Tensor
    heads: Tensor | None = None


class Estimate(NamedTuple):
    """What training looks at.

    Attributes:
        unclipped: [B] RUL in cycles, neither below 0 nor above the cap held back.
        context: [B, D] the attention-weighted sum of values, without a gradient.
        attention: [B, T].
        cycle_rul: [B, T] cycles, what each cycle alone would answer.
        statistics: [B, 7F], of the window, for novelty: features of change at its end, and habits.
        head_attention: [B, H, T], where the network has heads.
        health: [B, 3], logits of a health state head, where the network has one.
    """

    unclipped: Tensor
    context: Tensor
    attention: Tensor
    cycle_rul: Tensor
    statistics: Tensor
    head_attention: Tensor | None = None
    health: Tensor | None = None


class Answers(NamedTuple):
    """The outputs of the graph, by their names; no `head_attention` without heads."""

    rul: Tensor
    rul_interval: Tensor
    failure_probability: Tensor
    health_state: Tensor
    attention: Tensor
    contribution: Tensor
    novelty: Tensor
    head_attention: Tensor | None = None


class Distribution(nn.Module):
    """RUL as a distribution: rul + scale * Q(p), Q a table of calibrated quantiles.

    Everything that is said about uncertainty comes from here, so nothing can contradict.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        probability = torch.linspace(0.0, 1.0, QUANTILES)
        self.register_buffer("probability", probability)
        self.register_buffer("quantile", 6.0 * probability - 3.0)
        self.register_buffer("interval", torch.tensor([-2.0, 2.0]))
        bounds = (*config.horizons, config.critical_below, config.degrading_below)
        self.register_buffer("bounds", torch.tensor(bounds, dtype=torch.float32), persistent=False)

    def forward(self, rul: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B], [B] -> interval [B, 2], failure probability [B, K], health state [B, 3]."""
        interval = rul[:, None] + scale[:, None] * self.get_buffer("interval")  # [B, 2]
        below = self.probability_below((self.get_buffer("bounds") - rul[:, None]) / scale[:, None])
        horizons = len(self.config.horizons)
        critical, degrading_or_worse = below[:, horizons], below[:, horizons + 1]
        health = torch.stack((1.0 - degrading_or_worse, degrading_or_worse - critical, critical), dim=-1)
        return interval.clamp(0.0, self.config.cap), below[:, :horizons], health

    def probability_below(self, deviation: Tensor) -> Tensor:
        """P(normalised error <= deviation), [B, K] -> [B, K]: straight lines between the quantiles."""
        quantile, probability = self.get_buffer("quantile"), self.get_buffer("probability")
        part = (deviation.unsqueeze(-1) - quantile[:-1]) / (quantile[1:] - quantile[:-1])  # [B, K, Q-1]
        return (part.clamp(0.0, 1.0) * (probability[1:] - probability[:-1])).sum(-1)


class RulNetwork(nn.Module, ABC):
    """What every network shares. Weights are learnt; buffers are fitted or calibrated.

    Attributes:
        longest: Most cycles that it reads, where a fleet's context would be longer; None for any.
        options: The fields of `NetworkConfig` that it goes by beside the fleet's, with its own defaults.
        recipe: Fields of `TrainConfig` for which it has defaults of its own.
    """

    longest: ClassVar[int | None] = None
    options: ClassVar[Mapping[str, Any]] = {}
    recipe: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, config: NetworkConfig, *, values: int | None = None) -> None:
        """`values` is the width of a cycle's value, where it is not the config's."""
        super().__init__()
        self.config = config
        values = values or config.values
        self.drop = CycleDropout(config.attention_dropout)
        self.standardise = Standardise(
            columns=config.columns, settings=config.settings, regimes=config.regimes
        )
        self.head = nn.Linear(values, 1)
        # Reads the attention-weighted sum; fitted once the rest is learnt, so the RUL is not traded for it.
        self.scale = nn.Sequential(nn.Linear(values, 16), nn.ReLU(), nn.Linear(16, 1))
        self.distribution = Distribution(config)
        self.novelty = Novelty(config.columns)
        self.register_buffer("baseline", torch.tensor(config.cap / 2))
        self.register_buffer("oldest", torch.tensor(1.0))

    @abstractmethod
    def read_cycles(self, inputs: Inputs) -> Cycles:
        """Score and value of each cycle; what stands on padding does not matter, if it is finite."""

    def read_health(self, context: Tensor) -> Tensor | None:  # noqa: ARG002 - for those that have a head for it
        """Logits of the health states from the attention-weighted sum, [B, D] -> [B, 3], or None."""
        return None

    def estimate(self, readings: Tensor, lengths: Tensor, last_cycle: Tensor) -> Estimate:
        """[B, T, F], [B], [B] -> what the answer is made from."""
        z, observed, valid = self.standardise(readings, lengths)
        age = cycle_age(lengths, last_cycle, oldest=self.get_buffer("oldest"), valid=valid)
        change = features_of_change(z).joined()  # [B, T, 3F]
        score, value, heads = self.read_cycles(Inputs(z, observed, valid, lengths, age, change))
        attention = masked_softmax(score, self.drop(valid))  # [B, T]
        cycle_rul = self.config.cap * self.head(value).squeeze(-1)  # [B, T]
        context = (attention.unsqueeze(-1) * value).sum(1)  # [B, D]
        # Of what differs from the baseline: so a last digit by which the attention misses 1 weighs little.
        baseline = self.get_buffer("baseline")
        return Estimate(
            baseline + (attention * (cycle_rul - baseline)).sum(-1),
            context.detach(),
            attention,
            cycle_rul,
            torch.cat((at_last_cycle(change, lengths), habits(z, readings, observed)), dim=-1),
            None if heads is None else (attention[:, None, None, :] @ heads).squeeze(2),  # [B, H, T]
            self.read_health(context),
        )

    def error_scale(self, context: Tensor) -> Tensor:
        """How wide the error is expected to be, in cycles, [B, D] -> [B]."""
        scale = nn.functional.softplus(self.scale(context).squeeze(-1))
        return self.config.cap / 10 * scale + SMALLEST_SCALE_CYCLES

    def forward(self, readings: Tensor, lengths: Tensor, last_cycle: Tensor) -> Answers:
        """The model contract: raw readings [B, T, F], lengths [B], last cycle [B] -> answers."""
        estimate = self.estimate(readings, lengths, last_cycle)
        rul = estimate.unclipped.clamp(0.0, self.config.cap)
        interval, failure, health = self.distribution(rul, self.error_scale(estimate.context))
        if estimate.health is not None:
            health = estimate.health.softmax(-1)
        return Answers(
            rul,
            interval,
            failure,
            health,
            estimate.attention,
            estimate.attention * (estimate.cycle_rul - self.get_buffer("baseline")),
            self.novelty(estimate.statistics, lengths),
            estimate.head_attention,
        )


def at_last_cycle(x: Tensor, lengths: Tensor) -> Tensor:
    """What each window has at its last valid cycle, [B, T, D] -> [B, D]."""
    last = (lengths - 1)[:, None, None].expand(-1, 1, x.shape[-1])
    return x.gather(1, last)[:, 0]
