"""Figures of the attention at each check of a training, by head: degenerate heads show here first."""

from __future__ import annotations

from typing import Final

import numpy as np

from model.calibration import Read
from model.domain import IntArray, attention_entropy_ratio

ENTROPY: Final = "entropy"  # Mean entropy ratio: 0 is one cycle, 1 is even
FIRST: Final = "first"  # Mean weight of a window's first cycle
LAST: Final = "last"  # Mean weight of its last cycle
MEAN_HEAD: Final = "mean"  # The attention that the network answers with


def attention_figures(read: Read, lengths: IntArray) -> dict[str, float]:
    """Return entropy and sinks of the attention and of each head, as `entropy_mean`, `first_0` and so on.

    Windows of one cycle are ignored; empty without other windows.
    """
    heads = {MEAN_HEAD: read.attention}
    if read.head_attention is not None:
        heads |= {str(h): read.head_attention[:, h] for h in range(read.head_attention.shape[1])}
    choice = lengths > 1
    lengths = lengths[choice]
    found: dict[str, float] = {}
    for head, attention in heads.items() if len(lengths) else ():
        weight = attention[choice]
        last = np.take_along_axis(weight, (lengths - 1)[:, None], axis=1)
        found[f"{ENTROPY}_{head}"] = float(attention_entropy_ratio(weight, lengths).mean())
        found[f"{FIRST}_{head}"] = float(weight[:, 0].mean())
        found[f"{LAST}_{head}"] = float(last.mean())
    return found
