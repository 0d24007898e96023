"""`selfattention`: CNN, BiLSTM, self-attention between cycles, and temporal attention.

Reference sizes: 512 values per cycle, 8 heads of 64, residual and layer norm. This module must not
know data, losses or ONNX.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from model.amnl import Frontend
from model.attention import (
    MultiHeadSelfAttention,
    TemporalScore,
    causal_mask,
    padding_mask,
    sinusoidal_positions,
)
from model.network import CycleNetwork, Cycles, Inputs, NetworkConfig


class SelfAttention(CycleNetwork):
    """CNN -> BiLSTM -> self-attention -> weighted sum -> linear RUL head.

    `score`, dropout and temperature apply to the heads, dropout also to the temporal attention, whose
    score is additive. `causal` limits heads to earlier cycles; the backward half of the BiLSTM still
    includes later ones. `positions` adds sinusoids to the cycles, `relative_positions` a learnt bias for
    each distance to the scores of each head.
    """

    longest: ClassVar[int | None] = 30
    has_self_attention: ClassVar[bool] = True
    options: ClassVar[Mapping[str, Any]] = {
        "convolution": 64,
        "hidden": 256,
        "heads": 8,
        "head_width": 64,
        "attention": 64,
        "score": "scaled_dot",
        "attention_dropout": 0.0,
        "learnable_temperature": False,
        "causal": False,
        "positions": False,
        "relative_positions": False,
        "age": False,
    }
    recipe: ClassVar[Mapping[str, Any]] = {"batch": 64, "learning_rate": 1e-3}

    def __init__(self, config: NetworkConfig) -> None:
        values = 2 * config.hidden
        super().__init__(config, values=values)
        self.frontend = Frontend(config)
        self.between = MultiHeadSelfAttention(
            values,
            heads=config.heads,
            head_width=config.head_width,
            score=config.score,
            dropout=config.attention_dropout,
            learnable_temperature=config.learnable_temperature,
            furthest=config.context - 1 if config.relative_positions else 0,
        )
        self.before, self.after = nn.LayerNorm(values), nn.LayerNorm(values)
        self.score = TemporalScore(values, config.attention, score="additive")
        place = sinusoidal_positions(config.context, values)
        self.register_buffer("place", place, persistent=False)

    def read_cycles(self, inputs: Inputs) -> Cycles:
        """See `CycleNetwork`."""
        # Small LSTM outputs would give small, uniform scores and be dominated by the heads' output.
        h = self.before(self.frontend(inputs))  # [B, T, 2H]
        if self.config.positions:
            h = h + self.get_buffer("place")[: h.shape[1]]
        allowed = causal_mask(inputs.valid) if self.config.causal else padding_mask(inputs.valid)
        read, heads = self.between(h, allowed)  # [B, T, 2H], [B, H, T, T]
        h = self.after(h + read)
        return Cycles(self.score(h), h, heads)
