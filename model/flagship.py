"""The flagship: our own best network. This module must not know data, losses or ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from model.layers import MaskedConvolution, RaggedBiLstm
from model.network import Cycles, Inputs, NetworkConfig, RulNetwork


class Flagship(RulNetwork):
    """CNN and BiLSTM over the readings, a perceptron over the features of change, additive attention.

    The features of change go around the recurrent part: inside it they over-fit within two
    passes over the data, beside it they also make the attention more telling.
    """

    options: ClassVar[Mapping[str, Any]] = {
        "hidden": 32,
        "perceptron": 48,
        "values": 32,
        "attention": 24,
        "attention_dropout": 0.0,
    }

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        age = 2
        width = 2 * config.hidden + config.perceptron
        self.convolution = MaskedConvolution(config.columns + age, config.hidden, width=5)
        self.recurrent = RaggedBiLstm(config.hidden, config.hidden)
        self.perceptron = nn.Sequential(
            nn.Linear(4 * config.columns + age, config.perceptron),
            nn.ReLU(),
            nn.Linear(config.perceptron, config.perceptron),
            nn.ReLU(),
        )
        self.value = nn.Sequential(nn.Linear(width, config.values), nn.Tanh())
        self.score = nn.Sequential(
            nn.Linear(width, config.attention), nn.Tanh(), nn.Linear(config.attention, 1)
        )

    def read_cycles(self, inputs: Inputs) -> Cycles:
        """See `RulNetwork`."""
        h = self.convolution(torch.cat((inputs.z, inputs.age), dim=-1), inputs.valid)  # [B, T, H]
        h = self.recurrent(h, inputs.lengths)  # [B, T, 2H]
        seen = inputs.observed.to(inputs.z.dtype)
        change = self.perceptron(torch.cat((inputs.change, seen, inputs.age), dim=-1))  # [B, T, P]
        joint = torch.cat((h, change), dim=-1)  # [B, T, 2H + P]
        return Cycles(self.score(joint).squeeze(-1), self.value(joint))
