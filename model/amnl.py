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
NEVER: Final = -1e4
"""Score of a cycle that has no weight."""


class Amnl(CycleNetwork):
    """CNN -> BiLSTM -> weighted sum -> linear RUL head and linear health state head.

    The health state head is trained as a second task; the answer `health_state` comes from the calibrated
    distribution, as the other probabilities do, and never contradicts the RUL. Two options
    remove essential parts, for comparison: `last_state` reads the last state of each direction of the
    BiLSTM instead of the weighted sum, `health_task` false trains the RUL alone.
    """

    longest: ClassVar[int | None] = 30
    options: ClassVar[Mapping[str, Any]] = {
        "convolution": 64,
        "hidden": 64,
        "attention": 64,
        "score": "additive",
        "attention_dropout": 0.0,
        "learnable_temperature": False,
        "last_state": False,
        "health_task": True,
        "age": False,
    }
    recipe: ClassVar[Mapping[str, Any]] = {"low_rul_weight": 1.0}

    def __init__(self, config: NetworkConfig) -> None:
        values = 2 * config.hidden
        super().__init__(config, values=values)
        self.frontend = Frontend(config)
        if not config.last_state:
            self.score = TemporalScore(
                values,
                config.attention,
                score=config.score,
                learnable_temperature=config.learnable_temperature,
            )
        if config.health_task:
            self.health = nn.Linear(values, len(HEALTH_STATES))

    def read_cycles(self, inputs: Inputs) -> Cycles:
        """See `CycleNetwork`."""
        h = self.frontend(inputs)  # [B, T, 2H]
        return last_states(h, inputs.lengths) if self.config.last_state else Cycles(self.score(h), h)

    def read_health(self, context: Tensor) -> Tensor | None:
        """See `CycleNetwork`."""
        return self.health(context) if self.config.health_task else None  # [B, 3]


def last_states(h: Tensor, lengths: Tensor) -> Cycles:
    """Read the forward state of the last cycle and the backward state of the first, [B, T, 2H].

    All weight is on the last cycle, so this too is a weighted sum.
    """
    forward, backward = h.chunk(2, dim=-1)  # [B, T, H]
    place = torch.arange(h.shape[1], device=h.device)[None, :]
    score = torch.where(place == lengths[:, None] - 1, h.new_zeros(()), h.new_full((), NEVER))
    return Cycles(score, torch.cat((forward, backward[:, :1].expand_as(backward)), dim=-1))


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
        """Encode scaled readings, with the age of each cycle if `age` is set."""
        x = torch.cat((inputs.z, inputs.age), dim=-1) if self.age else inputs.z
        h = self.second(self.first(x, inputs.valid), inputs.valid)  # [B, T, C]
        return self.recurrent(h, inputs.valid)
