"""`flagship`: attention by recency over rich values. This module must not know data, losses or ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from model.layers import MaskedConvolution, RaggedBiLstm, of_each_cycle, spread_age
from model.network import CycleNetwork, Cycles, Inputs, NetworkConfig

CHANGE_SPREAD: Final = 0.6
"""Standard deviation of the features of change, in z-scores; means vary less than readings."""
CHANGE_LIMIT: Final = 10.0
"""Limit of scaled features of change, so a broken sensor does not dominate the others."""
CONTENT_CYCLES: Final = 9
"""Content scores are averaged over this many cycles, as neighbours carry similar information."""


class Flagship(CycleNetwork):
    """CNN and BiLSTM over the readings, a perceptron over the features of change, additive attention.

    The features of change bypass the recurrent part: inside it they overfit within two passes over
    the data, beside it they also improve the attention. Settings are used only through the regimes.
    Attention decreases with the distance from the last cycle, because a late cycle includes all
    earlier ones. The slope is learnt between nearly 0 and twice `recency`, but never rises, so an
    outlier cannot take all the attention.
    """

    options: ClassVar[Mapping[str, Any]] = {
        "hidden": 8,
        "perceptron": 96,
        "values": 32,
        "attention": 24,
        "attention_dropout": 0.0,
        "recurrent_dropout": 0.5,
        "recency": 3.0,
    }
    recipe: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 5e-3,
        "offset": 0.05,
        "age_jitter": 0.03,
        "history_missing": 0.15,
        "low_rul_weight": 1.0,
    }

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        chosen = [i for i in range(config.columns) if i not in config.settings]
        self.sensors = runs(chosen)
        self.of_change = runs([k * config.columns + i for k in range(3) for i in chosen])
        sensors, age, place = len(chosen), 2, 2
        width = 2 * config.hidden + config.perceptron
        self.convolution = MaskedConvolution(sensors + age, config.hidden, width=5)
        self.recurrent = RaggedBiLstm(config.hidden, config.hidden)
        self.forget = nn.Dropout(config.recurrent_dropout)
        self.perceptron = nn.Sequential(
            nn.Linear(3 * sensors + config.columns + age + place, config.perceptron),
            nn.ReLU(),
            nn.Linear(config.perceptron, config.perceptron),
            nn.ReLU(),
        )
        self.value = nn.Sequential(nn.Linear(width, config.values), nn.Tanh())
        self.score = nn.Sequential(
            nn.Linear(width, config.attention), nn.Tanh(), nn.Linear(config.attention, 1)
        )

    def read_cycles(self, inputs: Inputs) -> Cycles:
        """See `CycleNetwork`."""
        age = spread_age(inputs.age)  # [B, T, 2]
        before, behind = self.place(inputs)  # [B, T]
        z = [inputs.z[:, :, run] for run in self.sensors]
        h = self.convolution(torch.cat((*z, age), dim=-1), inputs.valid)  # [B, T, H]
        h = self.forget(self.recurrent(h, inputs.lengths))  # [B, T, 2H]
        seen = inputs.observed.to(h.dtype)
        place = torch.stack((3.0 * before - 1.5, 3.0 * behind), dim=-1)  # [B, T, 2]
        change = (inputs.change / CHANGE_SPREAD).clamp(-CHANGE_LIMIT, CHANGE_LIMIT)
        features = (*(change[:, :, run] for run in self.of_change), seen, age, place)
        perceived = of_each_cycle(self.perceptron, torch.cat(features, dim=-1), self.config.perceptron)
        joint = torch.cat((h, perceived), dim=-1)  # [B, T, 2H + P]
        score = of_each_cycle(self.score, joint, 1).squeeze(-1)
        return Cycles(self.late(score, behind), of_each_cycle(self.value, joint, self.config.values))

    def late(self, content: Tensor, behind: Tensor) -> Tensor:
        """Add recency to content, so scores fall from the last cycle back, [B, T].

        The content is between -c and c, so its mean over n cycles changes by less than 2c / n per
        cycle; c is chosen so that recency changes by as much.
        """
        fall = self.config.recency / 10.0  # a cycle
        if fall == 0.0:
            return content
        most = CONTENT_CYCLES * fall / 2.0
        content = most * (content / most).tanh()
        before = nn.functional.pad(content[:, None], (CONTENT_CYCLES - 1, 0), mode="replicate")
        smooth = nn.functional.avg_pool1d(before, CONTENT_CYCLES, stride=1)[:, 0]
        return smooth - fall * self.config.context * behind

    def place(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return the cycles up to each and after it, over the context, both [B, T]."""
        number = torch.arange(inputs.z.shape[1], device=inputs.z.device).to(inputs.z.dtype)[None, :] + 1.0
        after = (inputs.lengths[:, None].to(inputs.z.dtype) - number).clamp(min=0.0)
        context = float(self.config.context)
        return (number / context).expand_as(after), after / context


def runs(indices: Sequence[int]) -> list[slice]:
    """Merge indices to as few slices as possible, in this order.

    A slice is a view; a list of indices is a copy that takes a tenth of the graph's time.

    >>> runs([3, 4, 5, 8])
    [slice(3, 6, None), slice(8, 9, None)]
    """
    found: list[slice] = []
    for i in indices:
        if found and found[-1].stop == i:
            found[-1] = slice(found[-1].start, i + 1)
        else:
            found.append(slice(i, i + 1))
    return found
