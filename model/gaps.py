"""Gaps of windows: cycles without a reading, such as those of a logger that was off.

This module must not know networks or training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from model.domain import WindowSet

MOST_LOST: Final = 0.6
"""Largest share of a window's cycles that is lost."""
LATE_SHARE: Final = 0.5
"""Share of the gaps that end within the last `LATE_CYCLES`; these gaps mislead most."""
LATE_CYCLES: Final = 3


def gaps(lengths: Tensor, cycles: int, generator: torch.Generator) -> Tensor:
    """Draw one gap for each window of these lengths [B], bool [B, T]."""
    size, place, late, behind = torch.rand(4, len(lengths), generator=generator)
    lost = (size * MOST_LOST * lengths).floor()
    anywhere = (place * (lengths - lost + 1)).floor()
    near_the_end = lengths - lost - (behind * LATE_CYCLES).floor()
    start = torch.where(late < LATE_SHARE, near_the_end, anywhere)[:, None]
    rows = torch.arange(cycles)[None, :]
    return (start <= rows) & (rows < start + lost[:, None])


def with_gaps(windows: WindowSet, generator: torch.Generator) -> WindowSet:
    """Put a gap into each window."""
    readings = torch.from_numpy(windows.readings)
    lost = gaps(torch.from_numpy(windows.lengths), readings.shape[1], generator)
    return replace(windows, readings=readings.masked_fill(lost.unsqueeze(-1), torch.nan).numpy())
