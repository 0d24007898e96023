"""`amnl`: CNN, BiLSTM and additive temporal attention, with a RUL and a health state head.

Reference sizes: 30 cycles, 64 convolution channels, 64 hidden units per direction, attention width
64. This module must not know data, losses or ONNX.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from model.attention import TemporalScore
from model.domain import HEALTH_STATES
from model.layers import MaskedConvolution, RaggedBiLstm
from model.network import CycleNetwork, Cycles, Inputs, NetworkConfig

AGE: Final = 2
"""Numbers that encode the age of a cycle."""


class Amnl(CycleNetwork):
    """CNN -> BiLSTM -> weighted sum -> linear RUL head and linear health state head.

    The health state head is trained as a second task. Unlike the other answers `health_state` does not
    come from the calibrated distribution, so it may contradict the RUL near a bound.
    """

    longest: ClassVar[int | None] = 30
    options: ClassVar[Mapping[str, Any]] = {
        "convolution": 64,
        "hidden": 64,
        "attention": 64,
        "score": "additive",
        "attention_dropout": 0.0,
        "learnable_temperature": False,
        "age": False,
    }
    recipe: ClassVar[Mapping[str, Any]] = {"low_rul_weight": 1.0}

    def __init__(self, config: NetworkConfig) -> None:
        values = 2 * config.hidden
        super().__init__(config, values=values)
        self.frontend = Frontend(config)
        self.score = TemporalScore(
            values, config.attention, score=config.score, learnable_temperature=config.learnable_temperature
        )
        self.health = nn.Linear(values, len(HEALTH_STATES))

    def read_cycles(self, inputs: Inputs) -> Cycles:
        """See `CycleNetwork`."""
        h = self.frontend(inputs)  # [B, T, 2H]
        return Cycles(self.score(h), h)

    def read_health(self, context: Tensor) -> Tensor:
        """See `CycleNetwork`."""
        return self.health(context)  # [B, 3]


class Frontend(nn.Module):
    """Two convolutions and a BiLSTM, to [B, T, 2H]."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.age = config.age
        columns = config.columns + (AGE if config.age else 0)
        self.first = MaskedConvolution(columns, config.convolution, width=3)
        self.second = MaskedConvolution(config.convolution, config.convolution, width=3)
        self.recurrent = RaggedBiLstm(config.convolution, config.hidden)

    def forward(self, inputs: Inputs) -> Tensor:
        """Encode scaled readings, with the age of each cycle where `age` is set."""
        x = torch.cat((inputs.z, inputs.age), dim=-1) if self.age else inputs.z
        h = self.second(self.first(x, inputs.valid), inputs.valid)  # [B, T, C]
        return self.recurrent(h, inputs.lengths)
