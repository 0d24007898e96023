"""Base of all networks: raw readings in, every output of the model contract out.

`RulNetwork` holds scaling, the predictive distribution of interval, probabilities and health state,
and novelty; a network adds `estimate`. A `CycleNetwork` adds `read_cycles`, a score and a value for
each cycle. This module must not know data, losses or ONNX.

In a `CycleNetwork`, RUL = cap * sum over cycles of attention_t * (w . value_t + b). The head is linear and
the attention sums to 1, so the contribution of each cycle is exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor, nn

from model.attention import CycleDropout
from model.domain import NEAR_CAP
from model.layers import Scaled, Standardise, cycle_age, masked_softmax
from model.novelty import Novelty

PROBABILITIES: Final = (0.0, *(0.05 * 2.0**n for n in range(-9, 0)), *(n / 40 for n in range(2, 41)))
"""Probabilities of the calibrated distribution: equally spaced, and halved from 0.05 down to 0.0001."""

SMALLEST_SCALE_CYCLES: Final = 0.5
BANDS: Final = (0.0, 1 / 12, 1 / 6, 1 / 3, 1 / 2, 3 / 4, 1.0)
"""Edges of bands of predicted RUL, in caps, narrow near failure. Each band has its factor of the scale."""
HALF: Final = 0.5
LEAST_RUNNING: Final = 1e-3
"""Minimum probability of not having failed yet, for divisions."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Configuration of a network; weights and buffers come from training."""

    network: str  # Registered name
    columns: int  # F
    settings: tuple[int, ...]  # Indices of the settings among the columns
    regimes: int  # Number of operating regimes
    context: int  # Maximum cycles of a window
    cap: float  # RUL in cycles above which an answer is "at least"
    horizons: tuple[int, ...]  # Horizons of the failure probabilities, in cycles
    coverage: float  # Nominal coverage of the interval, 0..1
    critical_below: float  # RUL in cycles
    degrading_below: float  # RUL in cycles
    heads: int = 0  # Number of attention heads in the output `head_attention`; 0 for none
    hidden: int = 32  # Width of each LSTM direction, and of the flagship's convolution
    perceptron: int = 48  # Width of the layers over the pools
    values: int = 32  # Width of a cycle's value
    attention: int = 24  # Width of the projection that is scored
    convolution: int = 64  # Width of the convolution
    head_width: int = 64  # Width of each head's queries, keys and values
    score: str = "additive"  # Score function, one of `attention.SCORES`
    attention_dropout: float = 0.0  # Share of the attention that is dropped in training
    learnable_temperature: bool = False  # Whether the sharpness of the attention is learnt
    causal: bool = False  # Whether self-attention is limited to earlier cycles
    positions: bool = False  # Whether self-attention has position encodings
    relative_positions: bool = False  # Whether heads learn a bias for each distance between cycles
    last_state: bool = False  # Whether the BiLSTM's last states replace temporal attention
    health_task: bool = True  # Whether the health state is trained as a second task
    age: bool = False  # Whether each cycle's number is an input; the flagship always reads that of the last
    recurrent_dropout: float = 0.0  # Dropout behind the recurrent part
    reads_settings: bool = False  # Whether the flagship's pools include the settings


class Inputs(NamedTuple):
    """Inputs of a network: scaled readings and ages."""

    z: Tensor  # [B, T, F] z-scores within the regime; missing ones are filled, padding is finite
    valid: Tensor  # bool [B, T], not padding
    lengths: Tensor  # [B]
    age: Tensor  # [B, T, 2], log of the cycle number, and whether it is known


class Cycles(NamedTuple):
    """Scores and values of the cycles."""

    score: Tensor  # [B, T], attention scores
    value: Tensor  # [B, T, D]
    heads: Tensor | None = None  # [B, H, T, T], self-attention weights; None without heads


class Explanation(NamedTuple):
    """Exact contributions of readings, from networks that give them.

    baseline + contribution summed over cycles + window_contribution = unclipped RUL.
    """

    sensor_contribution: Tensor  # [B, T, F], cycles of RUL of each reading; 0 where missing
    window_contribution: Tensor  # [B], cycles of RUL of age, length and what is missing
    evidence: Tensor  # [B, T], share of each cycle in the sum of |sensor_contribution|; sums to 1


class Estimate(NamedTuple):
    """Intermediate results, for training and calibration."""

    unclipped: Tensor  # [B] RUL in cycles, not cut to 0..cap
    context: Tensor  # [B, D] input of the RUL head, without a gradient
    attention: Tensor  # [B, T]
    contribution: Tensor  # [B, T] cycles of RUL that each cycle adds
    scaled: Scaled  # For novelty, which training does without
    head_attention: Tensor | None = None  # [B, H, T], if the network has heads
    health: Tensor | None = None  # [B, 3], logits of the health state head, if the network has one
    explanation: Explanation | None = None  # Where the network explains readings
    penalty: Tensor | None = None  # [] added to the loss, if the network has one
    self_attention: Tensor | None = None  # [B, H, T, T], where each cycle looks, in self-attention


class Answers(NamedTuple):
    """Outputs of the graph by their names; None for those that the network lacks."""

    rul: Tensor
    rul_interval: Tensor
    failure_probability: Tensor
    health_state: Tensor
    attention: Tensor
    contribution: Tensor
    novelty: Tensor
    head_attention: Tensor | None = None
    sensor_contribution: Tensor | None = None
    window_contribution: Tensor | None = None
    evidence: Tensor | None = None
    self_attention: Tensor | None = None


class Distribution(nn.Module):
    """Distribution of the RUL: rul + scale * Q(p), with a table Q of calibrated quantiles.

    Answers at the cap have a table and an interval of their own: they are too high or right, never too low.
    An upper bound near the cap is the cap: such a unit may have any number of cycles beyond.
    All uncertainty outputs come from it, so they are consistent. Probabilities are those of a unit that has
    not failed before its last cycle. An RUL is a whole number and the distribution is continuous: "within 10
    cycles" is below 10.5, "below 30" is below 29.5.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        probability = torch.tensor(PROBABILITIES)
        self.register_buffer("probability", probability)
        # Answers below the cap, and at it: [2, Q] and [2, 2].
        self.register_buffer("quantile", (6.0 * probability - 3.0).repeat(2, 1))
        self.register_buffer("interval", torch.tensor([-2.0, 2.0]).repeat(2, 1))
        limits = torch.tensor([float("inf"), NEAR_CAP * config.cap])  # From here on a bound is the cap
        self.register_buffer("limits", limits, persistent=False)
        within = [horizon + HALF for horizon in config.horizons]
        bounds = [-HALF, *within, config.critical_below - HALF, config.degrading_below - HALF]
        self.register_buffer("bounds", torch.tensor(bounds, dtype=torch.float32), persistent=False)

    def forward(self, rul: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, 1], [B, 1] -> interval [B, 2], failure probability [B, K], health state [B, 3]."""
        bounds, low, steep = self.tables(rul)
        interval = (rul + scale * bounds).clamp(min=0.0)  # [B, 2]
        interval = torch.where(interval >= self.get_buffer("limits"), self.config.cap, interval)
        below = self.probability_below((self.get_buffer("bounds") - rul) / scale, low, steep)
        failed = below[:, :1]
        below = (below[:, 1:] - failed) / (1.0 - failed).clamp(min=LEAST_RUNNING)
        within, worse = below.split([len(self.config.horizons), 2], dim=-1)
        # Critical, degrading or worse -> healthy, degrading, critical.
        to_states = torch.tensor([[0.0, -1.0, 1.0], [-1.0, 1.0, 0.0]], device=rul.device)
        health = torch.addmm(torch.tensor([1.0, 0.0, 0.0], device=rul.device), worse, to_states)
        return interval, within, health

    def tables(self, rul: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Choose bounds [B, 2], quantiles [B, Q - 1] and one over their distances, for answers [B, 1]."""
        quantile = self.get_buffer("quantile")
        low, high = quantile[:, :-1], quantile[:, 1:]
        # Constants are joined before they are chosen, so the graph chooses once.
        table = torch.cat((self.get_buffer("interval"), low, 1.0 / (high - low)), dim=1)
        at_cap = rul >= NEAR_CAP * self.config.cap
        table = torch.where(at_cap, table[1], table[0])
        bounds, low, steep = table.split([2, low.shape[1], low.shape[1]], dim=1)
        return bounds, low, steep

    def probability_below(self, deviation: Tensor, low: Tensor, steep: Tensor) -> Tensor:
        """Compute P(normalised error <= deviation), [B, K], linear between the quantiles of `tables`."""
        probability = self.get_buffer("probability")
        part = (deviation.unsqueeze(-1) - low.unsqueeze(1)) * steep.unsqueeze(1)  # [B, K, Q - 1]
        return (part.clamp(0.0, 1.0) * (probability[1:] - probability[:-1])).sum(-1)


def band_factor(rul: Tensor, factors: Tensor, *, cap: float) -> Tensor:
    """Choose the factor of answers [B, 1] from those of the bands; linear between the middles of bands."""
    edges = torch.tensor(BANDS, device=rul.device) * cap
    middle = (edges[:-1] + edges[1:]) / 2
    steep = 1.0 / (middle[1:] - middle[:-1])
    part = torch.addmm(-middle[:-1] * steep, rul, steep[None]).clamp(0.0, 1.0)  # [B, bands - 1]
    return torch.addmm(factors[0], part, (factors[1:] - factors[:-1])[:, None])


class RulNetwork(nn.Module, ABC):
    """Base of every network. Weights are learnt; buffers are fitted or calibrated."""

    longest: ClassVar[int | None] = None  # Maximum context, or None
    explains_readings: ClassVar[bool] = False  # Whether estimates have an `Explanation`
    has_self_attention: ClassVar[bool] = False  # Whether estimates have `self_attention`
    options: ClassVar[Mapping[str, Any]] = {}  # Fields of `NetworkConfig` that users set, with defaults
    recipe: ClassVar[Mapping[str, Any]] = {}  # Defaults of fields of `TrainConfig` for this network

    @classmethod
    def options_for(cls, units: int) -> Mapping[str, Any]:  # noqa: ARG003
        """Choose options by the number of training units; other options keep the defaults of `options`."""
        return {}

    def __init__(self, config: NetworkConfig, *, values: int | None = None) -> None:
        """Build the shared layers; `values` overrides the width in the config."""
        super().__init__()
        self.config = config
        values = values or config.values
        self.drop = CycleDropout(config.attention_dropout)
        self.standardise = Standardise(
            columns=config.columns, settings=config.settings, regimes=config.regimes
        )
        self.head = nn.Linear(values, 1)
        # Fitted after training on the input of the RUL head, so it cannot degrade the RUL.
        self.scale = nn.Sequential(nn.Linear(values, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("scale_factors", torch.ones(len(BANDS) - 1))  # By predicted RUL
        self.distribution = Distribution(config)
        self.novelty = Novelty(config.columns, context=config.context)
        self.register_buffer("baseline", torch.tensor(config.cap / 2))
        self.register_buffer("oldest", torch.tensor(1.0))

    @abstractmethod
    def estimate(self, readings: Tensor, lengths: Tensor, last_cycle: Tensor) -> Estimate:
        """Compute the intermediate results from [B, T, F], [B], [B]."""

    def fit_inputs(self, readings: Tensor, lengths: Tensor, *, leading: int) -> None:
        """Scale inner inputs before training; the column `leading` decides the failure."""

    def fit_novelty(self, parts: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Fit the novelty to training windows, in parts of inputs [B, T, F], [B], [B]."""
        rows: list[Tensor] = []
        every: list[Tensor] = []
        with torch.no_grad():
            for readings, lengths, _ in parts:
                scaled = self.standardise(readings, lengths)
                rows.append(self.novelty.statistics(scaled, readings, lengths).rows())
                every.append(lengths)
        self.novelty.fit(torch.cat(rows).numpy(), torch.cat(every).numpy())

    def reference_rul(self, unclipped: Tensor) -> Tensor:
        """Choose the baseline of the contributions, []: by default the mean answer, of [W]."""
        return unclipped.mean()

    def raw_scale(self, context: Tensor) -> Tensor:
        """Predict the width of an answer's error in cycles, before the factors of bands, [B, D] -> [B, 1]."""
        return self.config.cap / 10 * nn.functional.softplus(self.scale(context)) + SMALLEST_SCALE_CYCLES

    def error_scale(self, context: Tensor, rul: Tensor) -> Tensor:
        """Predict the width of the error of answers `rul` [B, 1] in cycles, [B, D] -> [B, 1]."""
        factor = band_factor(rul, self.get_buffer("scale_factors"), cap=self.config.cap)
        return self.raw_scale(context) * factor

    def forward(self, readings: Tensor, lengths: Tensor, last_cycle: Tensor) -> Answers:
        """Answer raw readings [B, T, F], lengths [B] of at most the context, and last cycle [B]."""
        estimate = self.estimate(readings, lengths, last_cycle)
        rul = estimate.unclipped.clamp(0.0, self.config.cap)
        column = rul.unsqueeze(-1)
        interval, failure, health = self.distribution(column, self.error_scale(estimate.context, column))
        return Answers(
            rul,
            interval,
            failure,
            health,
            estimate.attention,
            estimate.contribution,
            self.novelty(self.novelty.statistics(estimate.scaled, readings, lengths), lengths),
            estimate.head_attention,
            *(estimate.explanation or (None, None, None)),
            self_attention=estimate.self_attention,
        )


class CycleNetwork(RulNetwork):
    """Base of networks that answer with an attention-weighted sum of one value per cycle."""

    @abstractmethod
    def read_cycles(self, inputs: Inputs) -> Cycles:
        """Compute score and value of each cycle; any finite values on padding."""

    def read_health(self, context: Tensor) -> Tensor | None:  # noqa: ARG002
        """Compute logits of the health states, [B, D] -> [B, 3], or None without a head."""
        return None

    def estimate(self, readings: Tensor, lengths: Tensor, last_cycle: Tensor) -> Estimate:
        """See `RulNetwork`."""
        scaled = self.standardise(readings, lengths)
        valid = scaled.valid
        age = cycle_age(scaled.after, last_cycle, oldest=self.get_buffer("oldest"))
        score, value, heads = self.read_cycles(Inputs(scaled.z, valid, lengths, age))
        attention = masked_softmax(score, self.drop(valid))  # [B, T]
        cycle_rul = self.config.cap * self.head(value).squeeze(-1)  # [B, T]
        context = (attention.unsqueeze(-1) * value).sum(1)  # [B, D]
        # Relative to the baseline, so a rounding error in the sum of the attention has little effect.
        baseline = self.get_buffer("baseline")
        return Estimate(
            baseline + (attention * (cycle_rul - baseline)).sum(-1),
            context.detach(),
            attention,
            attention * (cycle_rul - baseline),
            scaled,
            None if heads is None else (attention[:, None, None, :] @ heads).squeeze(2),  # [B, H, T]
            self.read_health(context),
            self_attention=heads,
        )
