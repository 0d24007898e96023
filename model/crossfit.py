"""Cross-fitting: every unit with a known failure is answered by a network that it did not train.

Nobody sits out for it: the errors of the folds' networks calibrate the one that trains on all
units, and are its honest figures. After Barber et al. (2021), "Predictive inference with the
jackknife+". This module must not know files or how the weights came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Final

import numpy as np

from model.calibration import Read, fit_scale, held_out_coverage, read_windows
from model.dataset import join_windows
from model.domain import FloatArray, IntArray, WindowSet
from model.evaluation import Answered, Figure
from model.faithfulness import (
    Faithfulness,
    Reply,
    faithfulness_figures,
    fewest_cycles,
    join_faithfulness,
    measure_faithfulness,
    typical_readings,
)
from model.network import RulNetwork
from model.parts import Parts, held_out_windows
from model.regimes import Regimes

HIDDEN_SHARE: Final = 0.2
"""Of a window's cycles: what the card tells of hiding them."""
HIDDEN_WINDOWS: Final = 1000
"""About how many are hidden cycles of: each is answered many times over."""


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """A network, and what it answers to the units that it has not seen.

    Attributes:
        net: Its scale is fitted.
        windows: Truncated windows of the held-out units.
        read: What it makes of them.
    """

    net: RulNetwork
    windows: WindowSet
    read: Read


def held_out_fold(net: RulNetwork, parts: Parts) -> Fold:
    """Fit the scale of a trained network, and ask it about the units that it has not seen.

    Raises:
        InvalidData: no unit is held out.
    """
    windows = held_out_windows(parts)
    fit_scale(net, read_windows(net, parts.training), parts.training)
    return Fold(net, windows, read_windows(net, windows))


def joined(folds: Sequence[Fold]) -> tuple[Read, WindowSet]:
    """Every held-out window with its answer, in the order of the folds."""

    def of_all(name: str) -> FloatArray | None:
        values = [getattr(fold.read, name) for fold in folds]
        return None if values[0] is None else np.concatenate(values)

    read = Read(**{column.name: of_all(column.name) for column in fields(Read)})  # pyright: ignore[reportArgumentType]
    return read, join_windows([fold.windows for fold in folds])


def cross_fitted(folds: Sequence[Fold]) -> Answered:
    """What new units may expect: no answer's network has seen its unit, and no interval its error."""
    config = folds[0].net.config
    read, windows = joined(folds)
    return held_out_coverage(read, windows, cap=config.cap, coverage=config.coverage)


def attention_worth(folds: Sequence[Fold]) -> dict[str, Figure]:
    """How far the RUL moves when the most attended fifth of the cycles is hidden, against others.

    On held-out windows. Figures of `model.faithfulness`, by their names there; none where no window
    is long enough, and no ratio over a move of nothing.
    """
    every = max(1, sum(len(fold.windows) for fold in folds) // HIDDEN_WINDOWS)
    measured = [
        _hidden(fold.net, fold.windows.take(np.arange(0, len(fold.windows), every))) for fold in folds
    ]
    parts = [part for part in measured if part is not None]
    if not parts:
        return {}
    found = faithfulness_figures(join_faithfulness(parts))
    return {name: figure for name, figure in found.items() if np.isfinite(astuple(figure)).all()}


def _hidden(net: RulNetwork, windows: WindowSet) -> Faithfulness | None:
    if (windows.lengths < fewest_cycles(windows)).all():
        return None

    def ask(readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> Reply:
        nobody = np.full(len(lengths), "")
        read = read_windows(net, WindowSet(readings, lengths, last_cycle, last_cycle, nobody))
        return Reply(read.unclipped, read.attention)

    centre, scale, mean = (
        net.standardise.get_buffer(name).numpy().astype(np.float64)
        for name in ("centre", "setting_scale", "mean")
    )
    regimes, settings = Regimes(centre, scale), net.config.settings
    typical = typical_readings(windows.readings, regimes, settings=settings, mean=mean)
    return measure_faithfulness(ask, windows, typical, shares=(HIDDEN_SHARE,))
