"""`flagship`: the default network, whose answer is made of exact contributions of readings.

    readings   -> z-scores                                                     [B, T, F]
    look       -> CNN and BiLSTM score cycles, the other heads go by lag: attention [B, H, T]
    pool       -> attention-weighted means of the readings, and a trend        [B, H + 1, F]
    read out   -> two ReLU layers and a linear head: RUL                       [B]

CNN and BiLSTM say where to look; they never enter a value. Pools are linear in the readings, and the
read-out divides its answer among the pools by secants. So the contribution of a reading is its
z-score times the gates of its cycle and column, and contains no other cycle's reading: RETAIN's
gates, Choi et al. (2016), fixed by the read-out. This module must not know data, losses or ONNX.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from model.layers import (
    MaskedConvolution,
    RaggedBiLstm,
    Scaled,
    age_of,
    masked_softmax,
    spread_age,
)
from model.network import Estimate, Explanation, NetworkConfig, RulNetwork
from model.readout import Answer, Pools, ReadOut

STEEPEST_SLOPE: Final = 0.4
FLATTER_SLOPE: Final = 0.1
FLATTEST_SLOPE: Final = 0.001
"""Initial slopes of the recency heads, per cycle: means of the last 2.5 to 10 cycles, and of all."""
LEADING_SLOPE: Final = 0.04
"""Replaces `FLATTER_SLOPE` if the column of the failure bound leads: means of 25 cycles, for slow wear."""
DIFFERENCE_SCALE: Final = 1.5
"""Scale of the difference of neighbouring heads' means, which are alike; it then varies as they do."""
SEARCH_PENALTY: Final = 1e-3
"""Penalty on the mean absolute deviation of the scores in a window. A single event costs little, wear in
every cycle much: the recency heads weigh wear, and a searching head that weighs it finds no events."""
LONG_SCALE: Final = 0.1
"""First scale of the mean and trend of all cycles. Small inputs learn slowly, so the answer rests on late
cycles wherever they suffice: on FD002 hiding the most evident fifth moves it 3.6 times as much as a random
one, and 3.1 times with a scale of 1 (docs/adr/0011)."""
LONG_PENALTY: Final = 1e-2
"""Penalty on the absolute weights of that mean and trend, which go to 0 if they are worth less. None if
the column of the failure bound leads: all cycles together show its wear (docs/adr/0011)."""
LAG_CYCLES: Final = 10.0
"""Unit of slopes and of lags, in cycles: small inputs and small parameters learn slowly."""
VALUE_LIMIT: Final = 5.0
"""Limit of pooled readings, in z-scores: contributions of broken sensors stay small enough for float32."""
POOL_LIMIT: Final = 6.0
"""Limit of scaled pools: windows unlike all others keep answers of a plausible size."""
MOST_GAIN: Final = 30.0
"""Limit of the gain of pools, which also raises rounding errors."""
MANY_UNITS: Final = 100
"""Minimum units for the wide read-out; with fewer a wide one learns to tell units apart."""
WIDE: Final = 192
"""Width of the layers over the pools with many units. Seeds differ less: FD001 has an RMSE of 7.98 cycles
instead of 8.39. With few units it is larger: XJTU with 51 cells has 23.6 instead of 22.7."""
FOLLOWING: Final = 0.03
"""Standard deviation of the pools of other columns, if the column of the failure bound leads."""
LEAST_EVIDENCE_CYCLES: Final = 1e-6
"""Evidence of a window without readings, in cycles, divided as its attention is."""


class Flagship(RulNetwork):
    """Heads weigh the readings, two ReLU layers read the weighted means.

    The first head searches: its attention = softmax of the cycles' scores, whatever their place, and is the
    output `attention`. The others are recency: softmax of (-slope_h * lag), with learnt slopes >= 0.
    Settings tell the regimes. With `reads_settings` their means over the window are read too: how hard a
    unit is run may decide how long it lasts.
    """

    explains_readings: ClassVar[bool] = True
    options: ClassVar[Mapping[str, Any]] = {
        "heads": 5,
        "hidden": 8,
        "perceptron": 96,
        "attention": 24,
        "recurrent_dropout": 0.5,
        "reads_settings": False,
    }
    recipe: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 5e-3,
        "offset": 0.3,
        "age_jitter": 0.03,
        "history_missing": 0.15,
        "cycles_missing": 0.2,
        "low_rul_weight": 1.0,
        "above_cap": 0.2,
    }

    @classmethod
    def options_for(cls, units: int) -> Mapping[str, Any]:
        """See `RulNetwork`: width follows the amount of data."""
        return {"perceptron": WIDE} if units >= MANY_UNITS else {}

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config, values=config.perceptron)
        heads, columns = config.heads, config.columns
        self.convolution = MaskedConvolution(columns, config.hidden, width=5)
        self.recurrent = RaggedBiLstm(config.hidden, config.hidden)
        self.forget = nn.Dropout(config.recurrent_dropout)
        of_feature = nn.Linear(3 * config.hidden, config.attention)
        of_cycle = nn.Linear(config.attention, 1, bias=False)
        self.score = nn.Sequential(of_feature, nn.Tanh(), of_cycle)
        start_search(of_feature.weight[:, -config.hidden :], of_cycle.weight)
        self.slope = nn.Parameter(before_softplus(first_slopes(heads)))  # [H - 1]
        self.long_penalty = LONG_PENALTY
        self.mix = nn.Parameter(first_mix(heads, long_scale=LONG_SCALE))  # [H + 1, H + 1]
        self.register_buffer("gain", first_gain(config))
        lags, window = heads, 2 + 1 + columns + heads  # age, length, what is missing
        self.read_out = ReadOut((heads + 1) * columns + lags + window, config.perceptron)
        is_sensor = torch.ones(columns)
        is_sensor[list(config.settings)] = 0.0
        self.register_buffer("is_sensor", is_sensor, persistent=False)
        is_pooled = torch.ones(columns) if config.reads_settings else is_sensor
        self.register_buffer("is_pooled", is_pooled, persistent=False)
        self.register_buffer(
            "settings", torch.eye(columns)[list(config.settings)], persistent=False
        )  # [S, F]

    def estimate(self, readings: Tensor, lengths: Tensor, last_cycle: Tensor) -> Estimate:
        """See `RulNetwork`."""
        scaled = self.standardise(readings, lengths)
        lag, score, attention = self.look(scaled)  # [B, 1, T], [B, 1, T], [B, H, T]
        # From here on float64, until the answer is complete.
        weight, lag = attention.double(), lag.double()
        pools, values = self.pool(self.pooled(scaled, readings), scaled.observed, weight, lag)
        mixed = self.get_buffer("gain") * (self.mix.double() @ pools.of_readings(values))
        kept = POOL_LIMIT / mixed.abs().clamp(min=POOL_LIMIT)  # [B, H + 1, F], 1 within the limit
        of_lag = weight * lag / LAG_CYCLES  # [B, H, T]
        window = self.window(lengths, last_cycle, pools)  # [B, 3 + F + H]
        x = torch.cat(((mixed * kept).flatten(1), of_lag.sum(-1), window), dim=-1)
        answer = self.read_out(x, self.head, unit=self.config.cap)
        parts = (answer.value, answer.hidden, *self.explain(answer, window, pools, (values, of_lag), kept))
        rul, hidden, of_cycle, of_reading, of_window = (each.to(readings.dtype) for each in parts)
        searching = attention[:, 0]
        return Estimate(
            rul,
            hidden.detach(),
            searching,
            of_cycle,
            scaled,
            attention,
            explanation=Explanation(of_reading, of_window, share_of_cycles(of_reading, searching)),
            penalty=self.penalty(score[:, 0], scaled.valid) if self.training else None,
        )

    def pooled(self, scaled: Scaled, readings: Tensor) -> Tensor:
        """Scale settings, if they are read, over all regimes, [B, T, F]: within one they hardly differ."""
        if not self.config.reads_settings:
            return scaled.known
        settings = self.standardise.scaled_settings(readings, scaled.observed) @ self.get_buffer("settings")
        return scaled.known * self.get_buffer("is_sensor") + settings

    def pool(self, known: Tensor, observed: Tensor, weight: Tensor, lag: Tensor) -> tuple[Pools, Tensor]:
        """Return pools under these weights, and the pooled readings [B, T, F], 0 where missing."""
        place, is_pooled = lag / -self.config.context, self.get_buffer("is_pooled")
        values = known.clamp(-VALUE_LIMIT, VALUE_LIMIT).double()
        return Pools.of(weight, place, observed.double(), is_pooled), values

    def look(self, scaled: Scaled) -> tuple[Tensor, Tensor, Tensor]:
        """Return lag and scores [B, 1, T], and the attention of each head [B, H, T]."""
        lag = scaled.after.unsqueeze(1)  # [B, 1, T], negative on padding
        h = self.convolution(scaled.z, scaled.valid, columns=self.get_buffer("is_sensor"))  # [B, T, C]
        r = self.forget(self.recurrent(h, scaled.valid))  # [B, T, 2C]
        score = self.score(torch.cat((r, h), dim=-1).flatten(0, 1)).view_as(lag)  # [B, 1, T]
        slope = nn.functional.softplus(self.slope) / LAG_CYCLES  # [H - 1]
        recency = -slope[:, None] * lag  # [B, H - 1, T]
        return lag, score, masked_softmax(torch.cat((score, recency), dim=1), scaled.valid.unsqueeze(1))

    def penalty(self, score: Tensor, valid: Tensor) -> Tensor:
        """Penalise scores [B, T] that differ within a window, and the weights of what sees all cycles."""
        of_long = self.mix[self.config.heads - 1 :].abs().sum()
        return SEARCH_PENALTY * deviation(score, valid) + self.long_penalty * of_long

    def fit_inputs(self, readings: Tensor, lengths: Tensor, *, leading: int) -> None:
        """See `RulNetwork`: small inputs learn slowly, so the scale of pools says which column leads.

        Means and trends of the leading column get a standard deviation of 1, however slowly it wears; those
        of the others `FOLLOWING`, or with few units they tell units apart rather than wear.
        """
        self.eval()
        self.long_penalty = 0.0
        with torch.no_grad():
            self.slope.copy_(before_softplus(first_slopes(self.config.heads, flatter=LEADING_SLOPE)))
            self.mix.copy_(first_mix(self.config.heads, long_scale=1.0))  # the gain is the scale
            scaled = self.standardise(readings, lengths)
            lag, _, attention = self.look(scaled)
            pooled = self.pooled(scaled, readings)
            pools, values = self.pool(pooled, scaled.observed, attention.double(), lag.double())
            varies = (self.mix.double() @ pools.of_readings(values)).std(0)  # [H + 1, F]
            share = torch.full_like(varies, FOLLOWING)
            share[:, leading] = 1.0
            gain = (share / varies.clamp(min=1.0 / MOST_GAIN)).clamp(max=MOST_GAIN)
            self.get_buffer("gain").copy_(gain * first_gain(self.config))

    def window(self, lengths: Tensor, last_cycle: Tensor, pools: Pools) -> Tensor:
        """Return age of the last cycle, whether it is known, length, and what is missing, [B, 3 + F + H].

        The last head, which sees all cycles, says what is missing of each column. Every head says what is
        missing of all columns, which tells a gap before the last cycle from an earlier one.
        """
        age, known = age_of(last_cycle[:, None], oldest=self.get_buffer("oldest"))  # [B, 1], [B, 1]
        age = torch.cat((spread_age(age, known), known), dim=-1).double()
        length = lengths[:, None].double() / self.config.context - 1.0
        missing = self.get_buffer("is_pooled") - pools.seen  # [B, H, F]
        of_head = missing.sum(-1) / self.get_buffer("is_pooled").sum()
        return torch.cat((age, length, missing[:, -1], of_head), dim=-1)

    def explain(
        self, answer: Answer, window: Tensor, pools: Pools, cycles: tuple[Tensor, Tensor], kept: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Divide the answer among cycles [B, T], readings [B, T, F], and the window [B]."""
        heads, columns = self.config.heads, self.config.columns
        values, of_lag = cycles
        of_pools, of_heads, of_window = answer.slope.split(
            [(heads + 1) * columns, heads, 3 + columns + heads], dim=-1
        )
        of_pools = of_pools.reshape(-1, heads + 1, columns) * kept * self.get_buffer("gain")
        of_reading = pools.shares(self.mix.double().T @ of_pools, values)  # [B, T, F]
        of_place = (of_heads.unsqueeze(-1) * of_lag).sum(1)  # [B, T]
        # 0 once the baseline is this network's own reference.
        from_baseline = answer.reference - self.get_buffer("baseline")
        return of_reading.sum(-1) + of_place, of_reading, (of_window * window).sum(-1) + from_baseline

    def reference_rul(self, unclipped: Tensor) -> Tensor:  # noqa: ARG002
        """Answer for a window whose readings are all typical, []."""
        nothing = torch.zeros(1, self.read_out.first.in_features, dtype=torch.float64)
        return self.read_out(nothing, self.head, unit=self.config.cap).reference.to(self.mix.dtype)


def start_search(of_convolution: Tensor, of_cycle: Tensor) -> None:
    """Set the scores before training, from weights of the convolution [D, C] and of the cycle [1, D].

    They are high where the convolution responds most: from random weights the head learns in some runs to
    avoid single events instead of finding them.
    """
    with torch.no_grad():
        of_convolution.copy_(of_convolution.abs() * of_cycle[0].sign()[:, None])


def before_softplus(slopes: Tensor) -> Tensor:
    """Return the parameters of slopes a cycle, [H - 1]."""
    return (LAG_CYCLES * slopes).expm1().log()


def first_slopes(heads: int, *, flatter: float = FLATTER_SLOPE) -> Tensor:
    """Return the slopes of the recency heads before training, [H - 1]: steep to flat, flattest.

    >>> [round(slope, 3) for slope in first_slopes(5).tolist()]
    [0.4, 0.2, 0.1, 0.001]
    """
    steep, flat = torch.tensor([STEEPEST_SLOPE, flatter]).log()
    between = torch.linspace(steep, flat, max(heads - 2, 0)).exp()
    return torch.cat((between, torch.tensor([FLATTEST_SLOPE])))[: heads - 1]


def first_gain(config: NetworkConfig) -> Tensor:
    """Return the gain of pools before training, [H + 1, F]; settings have only their mean over all cycles.

    The last cycles and the trend of settings say little about wear that adds up, and cost accuracy
    (docs/adr/0017).
    """
    gain = torch.ones(config.heads + 1, config.columns)
    if config.reads_settings:
        gain[:, list(config.settings)] = 0.0
        gain[config.heads - 1, list(config.settings)] = 1.0
    return gain


def first_mix(heads: int, *, long_scale: float) -> Tensor:
    """Return the mix of means and trend before training, [H + 1, H + 1].

    The read-out starts from the means of the first two heads, from differences, and from mean and trend of
    the last head times `long_scale`.
    """
    mix = torch.eye(heads + 1)
    for head in range(2, heads - 1):
        mix[head, head - 1], mix[head, head] = DIFFERENCE_SCALE, -DIFFERENCE_SCALE
    mix[heads - 1 :] *= long_scale
    return mix


def share_of_cycles(of_reading: Tensor, attention: Tensor) -> Tensor:
    """Compute each cycle's share in the sum of absolute contributions, [B, T, F] -> [B, T]."""
    weight = of_reading.abs().sum(-1) + LEAST_EVIDENCE_CYCLES * attention
    return weight / weight.sum(-1, keepdim=True)


def deviation(score: Tensor, valid: Tensor) -> Tensor:
    """Compute the mean absolute deviation of scores within windows, [B, T] and [B, T] -> []."""
    score = torch.where(valid, score, 0.0)
    mean = score.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True)
    return ((score - mean).abs() * valid).sum() / valid.sum()
